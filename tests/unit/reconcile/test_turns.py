"""Whose turn it is: by namespace, whatever any one of them brings."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from modelyard.reconcile.turns import in_turn


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())), st.integers(0, 4))
def test_nobody_waits_for_more_than_one_of_each_other(things: list[tuple[str, int]], most: int) -> None:
    taken, beyond = in_turn(things, lambda thing: thing[0], most)
    assert Counter([*taken, *beyond]) == Counter(things)
    for name in "abc":
        mine = [thing for thing in things if thing[0] == name]
        assert [thing for thing in taken if thing[0] == name] == mine[:most]
        assert [thing for thing in beyond if thing[0] == name] == mine[most:]
        for number, at in enumerate(at for at, thing in enumerate(taken) if thing[0] == name):
            before = Counter(thing[0] for thing in taken[:at])
            assert all(count <= number + 1 for count in before.values())


def test_without_a_limit_everything_is_taken() -> None:
    assert in_turn(["b1", "b2", "b3", "a1"], lambda thing: thing[0]) == (["a1", "b1", "b2", "b3"], [])
