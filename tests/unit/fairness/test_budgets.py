"""Bounds on work, and each owner's share of it."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import given, strategies as st

from modelyard.fairness import WorkBudget, WorkRequest, grant_work

SHARE = 1000


def test_a_budget_that_does_not_suffice_is_used_up() -> None:
    budget = WorkBudget(10)
    assert budget.spend(4)
    assert budget.spend(6)
    assert budget.spend(0)
    assert not budget.spend(1)
    budget = WorkBudget(10)
    assert not budget.spend(11)
    assert budget.left == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2 * SHARE)), max_size=20))
def test_no_owner_has_more_than_its_share_and_everything_has_its_turn(work: list[tuple[str, int]]) -> None:
    since = dict.fromkeys(range(len(work)), inf)
    had: Counter[int] = Counter()
    for moment in range(len(work) + 1):
        requests = [WorkRequest(owner, units, since[index]) for index, (owner, units) in enumerate(work)]
        granted = grant_work(requests, SHARE)
        for owner in "ab":
            own = [(request, yes) for request, yes in zip(requests, granted, strict=True) if request.owner == owner]
            assert sum(request.units for request, yes in own if yes) <= SHARE
            if sum(request.units for request, _ in own) <= SHARE:
                assert all(yes for _, yes in own)
        for index, yes in enumerate(granted):
            had[index] += yes
            since[index] = inf if yes else min(since[index], moment)
    assert all(had[index] for index, (_, units) in enumerate(work) if units <= SHARE)
