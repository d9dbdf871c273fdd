"""Corners of limits, panic and recommendation that the worked examples do not reach."""

from __future__ import annotations

import pytest
from binding_decisions import decide_binding
from policy_builders import FREE, METRIC, SETTINGS, WRITTEN, binding, each, policy, target

from modelyard.autoscaling.bindings import windows
from modelyard.autoscaling.bindings.behaviour import correct, remembered
from modelyard.autoscaling.bindings.recommend import CEILING, ceiling, recommend
from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits, Panic
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.published.policies import DocumentedCorrector


def test_panic_leaves_zero() -> None:
    hectic = Behaviour(FREE.up, FREE.down, Panic(100, 30, 200, 60))
    assert correct(hectic, 5, 0, 0, 9, BindingMemory(), 0, 15).replicas == 5
    assert correct(hectic, 5, 0, 0, 9, BindingMemory(), 0, 15, corrector=DocumentedCorrector).replicas == 0


@pytest.mark.parametrize("up", [DirectionLimits(2, 50, 60, "And", 0), DirectionLimits(0, 100, 60, "Or", 0)])
def test_limits_leave_zero(up: DirectionLimits) -> None:
    behaviour = Behaviour(up, FREE.down, FREE.panic)
    assert correct(behaviour, 5, 0, 0, 9, BindingMemory(), 0, 15).replicas == 1
    assert correct(behaviour, 5, 0, 0, 9, BindingMemory(), 0, 15, corrector=DocumentedCorrector).replicas == 0


def test_scale_down_is_limited_from_the_highest() -> None:
    line = windows.record(windows.seeded(4, 0), 10, 30, 15, line=True)
    memory = BindingMemory(recommended=windows.seeded(2, 0), corrected=line)
    behaviour = Behaviour(FREE.up, DirectionLimits(1, 100, 60, "And", 0), FREE.panic)
    assert correct(behaviour, 2, 10, 1, 20, memory, 45, 15).replicas == 9
    assert correct(behaviour, 2, 10, 1, 20, memory, 45, 15, corrector=DocumentedCorrector).replicas == 3


def test_percentages_are_truncated() -> None:
    behaviour = Behaviour(DirectionLimits(0, 50, 60, "Or", 0), DirectionLimits(0, 50, 60, "Or", 0), FREE.panic)
    assert correct(behaviour, 20, 5, 1, 20, BindingMemory(), 0, 15).replicas == 7
    assert correct(behaviour, 1, 5, 1, 20, BindingMemory(), 0, 15).replicas == 3


def test_a_way_to_join_that_is_not_known_limits_nothing() -> None:
    behaviour = Behaviour(DirectionLimits(1, 1, 60, "Neither", 0), FREE.down, FREE.panic)
    assert correct(behaviour, 20, 5, 1, 20, BindingMemory(), 0, 15).replicas == 20


def test_bounds_win_over_every_limit() -> None:
    slow = Behaviour(DirectionLimits(1, 0, 600, "And", 600), DirectionLimits(1, 0, 600, "And", 600), FREE.panic)
    assert correct(slow, 8, 2, 8, 9, BindingMemory(), 0, 15).replicas == 8
    assert correct(slow, 3, 9, 1, 3, BindingMemory(), 0, 15).replicas == 3


def test_up_waits_for_its_window() -> None:
    behaviour = Behaviour(DirectionLimits(4, 100, 60, "Or", 30), FREE.down, FREE.panic)
    memory = BindingMemory()
    found = []
    for now in (0, 15, 30, 45):
        step = correct(behaviour, 4, 2, 1, 9, memory, now, 15)
        found.append(step.replicas)
        memory = remembered(step, step.replicas, now, 15)
    assert found == [2, 2, 2, 4]
    held = correct(behaviour, 4, 2, 1, 9, BindingMemory(), 0, 15).blocked
    assert held is not None
    assert held.code == "Stabilizing"


@pytest.mark.parametrize(
    ("current", "instances", "unready", "expected"),
    [
        (5, each(5, 11), 0, 5),
        (5, each(5, 11.01), 0, 6),
        (5, each(5, 9), 0, 5),
        (4, each(1, 42), 3, 4),
        (4, each(1, 60), 3, 6),
        (5, (*each(2, 30), {}), 2, 6),
        (5, each(1, 20), 0, 5),
        (2, each(4, 8.5), 0, 2),
        (3, each(3, float("inf")), 0, 50),
        (3, each(3, float("nan")), 0, None),
        (3, each(3, -5), 0, 0),
    ],
    ids=[
        "exactly at the tolerance",
        "beyond it",
        "exactly at the lower tolerance",
        "unready count as idle",
        "enough for the unready too",
        "unready and missing",
        "instances that do not exist yet",
        "more instances than replicas",
        "without end",
        "not a number",
        "below zero",
    ],
)
def test_recommendation_corners(current: int, instances: object, unready: int, expected: int | None) -> None:
    found = recommend(current, 0, 50, 0.1, {METRIC: 10.0}, instances, unready=unready)  # type: ignore[arg-type]
    assert found.replicas == expected


@pytest.mark.parametrize(
    ("current", "total", "expected"), [(4, 43.0, 4), (4, 45.0, 5), (0, 1.0, 1), (0, 0.0, 0), (4, float("inf"), 50)]
)
def test_external_totals(current: int, total: float, expected: int) -> None:
    assert recommend(current, 0, 50, 0.1, {METRIC: 10.0}, (), external={METRIC: total}).replicas == expected


def test_the_metric_that_asks_for_most_decides() -> None:
    instances = [{"a": 5.0, "b": 30.0}] * 2
    found = recommend(2, 0, 50, 0.1, {"a": 10.0, "b": 10.0, "c": 1.0}, instances)
    assert found.replicas == 6
    assert [(one.metric, one.replicas) for one in found.proposals] == [("a", 1), ("b", 6)]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (float("nan"), 0),
        (-1, 0),
        (0, 0),
        (1e-12, 1),
        (2.0000000001, 2),
        (2.1, 3),
        (1e12, CEILING),
        (float("inf"), CEILING),
    ],
)
def test_ceiling(number: float, expected: int) -> None:
    assert ceiling(number) == expected


def test_capacities_need_not_add_up_to_whole_replicas() -> None:
    fast = target("H100", 1, 0, 9, cost=100.0, instances=each(1, 25), demand=1.0)
    slow = target("A100", 0, 0, 9, cost=60.0, demand=1.0)
    view = binding(
        slow,
        fast,
        policy_view=policy(FREE),
        optimizer=True,
        annotations={"modelyard.dev/optimizer": "exact", "modelyard.dev/capacity": "H100=2.5"},
    )
    assert [record.writes.scale for record in decide_binding(view, SETTINGS, 0).records] == [None, None]


def test_shares_of_capacity_are_weighted_means() -> None:
    half = {"kv_usage": 0.5}
    found = recommend(5, 0, 50, 0.1, {"kv_usage": 0.25}, [half, half], weights=[1.0, 4.0])
    assert found.replicas == 10
    assert found.proposals[0].ratio == pytest.approx(2)


def test_a_blocked_panic_says_so() -> None:
    hectic = Behaviour(WRITTEN.up, WRITTEN.down, Panic(50, 60, 200, 60))
    step = correct(hectic, 9, 4, 1, 20, BindingMemory(), 0, 15)
    assert step.blocked is not None
    assert (step.replicas, step.panic, step.blocked.code) == (6, True, "RateLimited")
    assert "at most 50 % above 4 within 60 s" in str(step.blocked)
