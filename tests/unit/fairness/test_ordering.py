"""Fair order of work between owners, whatever any one of them brings."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from modelyard.fairness import RoundRobin, by_owner, divide, interleave


def owner_of(item: tuple[str, int]) -> str:
    return item[0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())), st.integers(0, 4))
def test_nobody_waits_for_more_than_one_of_each_other(items: list[tuple[str, int]], limit: int) -> None:
    within, over = interleave(items, owner_of, limit)
    assert Counter([*within, *over]) == Counter(items)
    for name in "abc":
        own = [item for item in items if item[0] == name]
        assert [item for item in within if item[0] == name] == own[:limit]
        assert [item for item in over if item[0] == name] == own[limit:]
        for number, index in enumerate(index for index, item in enumerate(within) if item[0] == name):
            before = Counter(item[0] for item in within[:index])
            assert all(count <= number + 1 for count in before.values())


def test_without_a_limit_everything_is_taken() -> None:
    assert interleave(["b1", "b2", "b3", "a1"], lambda item: item[0]) == (["a1", "b1", "b2", "b3"], [])


def test_turns_that_were_taken_count_and_the_rank_decides_within_a_turn() -> None:
    items = ["a1", "a2", "b1", "b2", "c1"]
    ordered, over = interleave(items, lambda item: item[0], 3, rank=lambda item: "cba".index(item[0]), taken={"a": 2})
    assert (ordered, over) == (["c1", "b1", "b2", "a1"], ["a2"])


def test_groups_keep_the_order_of_owners_and_items() -> None:
    assert list(by_owner(["b2", "a1", "b1"], lambda item: item[0]).items()) == [("b", ["b2", "b1"]), ("a", ["a1"])]


@given(st.integers(0, 40), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 30)))
def test_places_are_divided_by_max_min_fairness(total: int, wanted: dict[str, int]) -> None:
    shares = divide(total, wanted)
    assert shares.keys() == wanted.keys()
    assert all(1 <= shares[owner] <= wanted[owner] for owner in wanted)
    assert sum(shares.values()) <= max(total, len(wanted))
    assert sum(shares.values()) >= min(total, sum(wanted.values()))
    short = [shares[owner] for owner in wanted if shares[owner] < wanted[owner]]
    assert all(max(shares.values()) - share <= 1 for share in short), "no owner has more than one that wants more"


def test_who_has_ten_thousand_is_looked_at_seldom_and_nobody_else_for_it() -> None:
    rounds = RoundRobin[tuple[str, int]](lambda item: item)
    small, large = [("shop", 0), ("shop", 1)], [("hostile", number) for number in range(10_000)]
    seen = [rounds.choose([*large, *small], owner_of, 100) for _ in range(103)]
    assert all({*small} < {*chosen} and len(chosen) == 100 for chosen in seen)
    assert {item for chosen in seen for item in chosen} == {*large, *small}


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30)), st.integers(1, 40))
def test_every_item_has_its_round(sizes: dict[str, int], limit: int) -> None:
    items = [(owner, number) for owner, size in sizes.items() for number in range(size)]
    rounds = RoundRobin[tuple[str, int]](lambda item: item)
    seen = set()
    for _ in range(40):
        chosen = rounds.choose(items, owner_of, limit)
        assert len(chosen) == len(set(chosen)) <= max(limit, len(sizes))
        seen.update(chosen)
    assert seen == {*items}


def test_a_round_continues_where_the_last_one_stopped_though_items_come_and_go() -> None:
    rounds = RoundRobin[int](lambda item: item)
    assert rounds.resume("a", [3, 1, 2]) == [1, 2, 3]
    rounds.stop("a", 2)
    assert rounds.resume("b", [1, 2]) == [1, 2], "each owner has its own"
    assert rounds.resume("a", [1, 3, 4]) == [3, 4, 1]
    assert rounds.resume("a", [1, 3, 4]) == [1, 3, 4]
