"""Places and bytes that owners share."""

from __future__ import annotations

from hypothesis import given, strategies as st

from modelyard.fairness import SharedCapacity


def test_units_are_counted_in_total_and_by_owner() -> None:
    capacity = SharedCapacity(10)
    capacity.take(3, "server", "namespace")
    capacity.take(4, "namespace")
    assert (capacity.used, capacity.used_by("server"), capacity.used_by("namespace")) == (7, 3, 7)
    assert [capacity.limit(share) for share in (1.0, 0.75, 0.01)] == [10, 7, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5))))
def test_owners_without_units_are_forgotten(taken: list[tuple[str, int]]) -> None:
    capacity = SharedCapacity(1)
    for owner, units in taken:
        capacity.take(units, owner)
    for owner, units in taken:
        capacity.take(-units, owner)
    assert (capacity.used, capacity._by_owner) == (0, {})
