"""Replica bounds of a workload's owner hold for the bindings that scale it, and each target has its grace period."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binding_decisions import decide_bindings
from policy_builders import METRIC, SETTINGS, binding, each, target

from modelyard.autoscaling.bindings.explain import blocks
from modelyard.autoscaling.bindings.story import totals
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.reading.bindings import objects
from modelyard.objects import ReplicaLimits
from modelyard.resources.annotations import SCALE_TO_ZERO_GRACE

NAME = "InferenceService chat/llama"
LOWER, UPPER = f"spec.engine.minReplicas of {NAME}", f"spec.engine.maxReplicas of {NAME}"


def limits(lower: int = 0, upper: int | None = None) -> ReplicaLimits:
    return ReplicaLimits(lower, upper, LOWER, UPPER)


def decided(*views: BindingView, now: float = 1000.0) -> BindingDecision:
    decisions, errors = decide_bindings(views, SETTINGS, now)
    assert errors == ()
    return decisions[0]


@pytest.mark.parametrize(
    ("own", "owner", "current", "load", "expected", "reason"),
    [
        ((1, 20), (0, 4), 2, 30, 4, "MetricsAboveTarget"),
        ((1, 20), (0, 2), 2, 30, 2, "AtMaximum"),
        ((1, 20), (0, 3), 5, 10, 3, "AboveMaximum"),
        ((1, 20), (3, None), 2, 10, 3, "BelowMinimum"),
        ((1, 3), (0, 8), 2, 30, 3, "MetricsAboveTarget"),
        ((4, 20), (0, 3), 2, 30, 3, "BelowMinimum"),
        ((1, 2), (5, 8), 1, 10, 2, "BelowMinimum"),
    ],
)
def test_the_tightest_bound_of_binding_and_owner_wins(
    own: tuple[int, int], owner: tuple[int, int | None], current: int, load: float, expected: int, reason: str
) -> None:
    measured = target(current=current, instances=each(current, load), low=own[0], high=own[1])
    view = binding(replace(measured, limits=limits(*owner)))
    decision = decided(view)
    (record,) = decision.records
    assert (record.target.replicas, record.why.reason) == (expected, reason)
    lower, upper = max(own[0], owner[0]), min(own[1], owner[1] or 99)
    assert totals(decision)["maxReplicas"] == record.bounds.upper == upper
    assert totals(decision)["minReplicas"] == record.bounds.lower == min(lower, upper)
    assert record.bounds.upper_from == (UPPER if upper != own[1] else "maxReplicas")
    contradicting = [notice.message for notice in decision.notices if notice.reason == "InvalidConfiguration"]
    assert len(contradicting) == (lower > upper)
    assert all("the smaller number is used" in message for message in contradicting)


def test_the_bound_of_the_owner_is_named() -> None:
    measured = replace(target(current=2, instances=each(2, 30)), limits=limits(0, 2))
    view = binding(measured)
    decision = decided(view)
    assert f"bounded to 2 by the maximum of replicas ({UPPER})" in decision.message
    ready = next(condition for condition in decision.conditions if condition.type == "Ready")
    assert UPPER in ready.message
    assert [block.text for block in blocks(decision, view, SETTINGS, 1000.0)] == [UPPER]


def test_a_binding_whose_own_bounds_contradict_each_other_stays_undecided() -> None:
    measured = target(current=2, instances=each(2, 30), low=5, high=3)
    decision = decided(binding(replace(measured, limits=limits(0, 4))))
    assert not decision.records[0].target.decided
    assert "minReplicas: 5 is above maxReplicas 3" in decision.message


def test_an_optimizer_bounds_each_target_by_its_own_owner() -> None:
    a = replace(target("a", current=1, instances=each(1, 90), cost=10.0), limits=limits(0, 2))
    b = target("b", current=1, instances=each(1, 90), cost=20.0)
    decision = decided(replace(binding(a, b), optimizer=True))
    wanted = {record.identity.variant_id: record.target.replicas for record in decision.records}
    assert wanted["a"] == 2
    assert (wanted["b"] or 0) > 2


def test_only_an_owner_that_allows_zero_lets_a_target_go_to_zero() -> None:
    idle = target(current=1, instances=each(1, 0), low=0, demand=0.0)
    memory = BindingMemory(idle_since={str(idle.workload): 0.0})
    for owner, expected in ((limits(0), 0), (limits(1), 1)):
        view = replace(binding(replace(idle, limits=owner)), memory=memory)
        settled = decided(view)
        for tick in range(1, 60):
            settled = decided(replace(view, memory=settled.memory), now=1000.0 + 15 * tick)
        assert settled.records[0].target.replicas == expected


# Grace periods


def stored(grace: str) -> objects.BindingSpec:
    params = [
        {"target": {"targetRef": {"name": name}}, "cost": 1, "minReplicas": 0, "maxReplicas": 4} for name in ("a", "b")
    ]
    return objects.binding(
        {
            "apiVersion": "registry.volcano.sh/v1alpha1",
            "kind": "AutoscalingPolicyBinding",
            "metadata": {"name": "llama", "namespace": "chat", "annotations": {SCALE_TO_ZERO_GRACE: grace}},
            "spec": {"policyRef": {"name": "p"}, "optimizerConfiguration": {"params": params}},
        }
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2m", [120.0, 120.0]),
        ("a=5m,b=30s", [300.0, 30.0]),
        ("b = 0s", [30.0, 0.0]),
    ],
)
def test_a_grace_period_is_of_all_targets_or_of_each(text: str, expected: list[float]) -> None:
    spec = stored(text)
    assert spec.view.problem is None
    assert [spec.view.grace if one.grace is None else one.grace for one in spec.targets] == expected


@pytest.mark.parametrize(("text", "named"), [("c=5m", "'c' is no target"), ("a=long", "'long'"), ("a=5m,", "''")])
def test_a_grace_period_of_nothing_is_a_problem(text: str, named: str) -> None:
    problem = stored(text).view.problem
    assert problem is not None
    assert SCALE_TO_ZERO_GRACE in problem
    assert named in problem


def test_each_target_waits_for_its_own_grace_period() -> None:
    quick, slow = (
        target(name, current=1, instances=({METRIC: 0.0},), low=0, demand=0.0, cost=cost)
        for name, cost in (("quick", 10.0), ("slow", 20.0))
    )
    view = replace(binding(replace(quick, grace=60.0), replace(slow, grace=600.0)), optimizer=True)
    memory = BindingMemory(idle_since={str(one.workload): 500.0 for one in (quick, slow)})
    decision = decided(replace(view, memory=memory), now=700.0)
    assert {record.identity.variant_id: record.why.reason for record in decision.records}["slow"] == "WaitingForIdle"
    held = {block.until for block in blocks(decision, view, SETTINGS, 700.0) if block.code == "WaitingForIdle"}
    assert held == {1100.0}
