"""Whose turn it is."""

from __future__ import annotations

from hypothesis import given, strategies as st

from modelyard.routing.rounds import Rounds, by_namespace


def test_who_has_ten_thousand_is_looked_at_seldom_and_nobody_else_for_it() -> None:
    rounds: Rounds[str] = Rounds(100)
    there = {"hostile": [f"h{number}" for number in range(10_000)], "shop": ["a", "b"], "none": []}
    seen = [rounds.turn(there) for _ in range(103)]
    assert all({"a", "b"} < {*turn} and len(turn) == 100 for turn in seen)
    assert {one for turn in seen for one in turn} == {*there["hostile"], "a", "b"}


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30)), st.integers(1, 40))
def test_all_come_by_turns(sizes: dict[str, int], most: int) -> None:
    there = by_namespace((space, (space, number)) for space, size in sizes.items() for number in range(size))
    rounds: Rounds[tuple[str, int]] = Rounds(most)
    seen = set()
    for _ in range(40):
        turn = rounds.turn(there)
        assert len(turn) == len(set(turn)) <= max(most, len(there))
        seen.update(turn)
    assert seen == {one for mine in there.values() for one in mine}
