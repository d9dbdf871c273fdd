"""From decisions about AutoscalingPolicyBindings, and from AutoscalingPolicies, to plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.autoscaling.bindings import describe, manifest, story
from modelyard.autoscaling.decisions import BindingDecision, ConditionValue, conditions
from modelyard.autoscaling.fleet import POLICIES, BindingView
from modelyard.autoscaling.memory import POLICY_STATE
from modelyard.autoscaling.reading.bindings import PolicySpec
from modelyard.objects import conditions as stored_conditions, timestamp
from modelyard.reconcile.plans import Plan, Ref, Scale, Status, Subject, is_status_due, render_memory, with_spec_warning

TOTALS = ("targets", "minReplicas", "maxReplicas", "currentReplicas", "desiredReplicas", "mode")


def binding_plans(
    views: Iterable[BindingView],
    decisions: Iterable[BindingDecision],
    now: float,
    refresh: float,
    written: Mapping[Ref, float],
) -> list[Plan]:
    """A plan per binding; ``written`` says when its status last was, by this process."""
    by_key = {view.key: view for view in views}
    return [binding_plan(one, by_key[one.key], now, refresh, written.get(one.subject.ref)) for one in decisions]


def binding_plan(
    decision: BindingDecision, view: BindingView, now: float, refresh: float, written: float | None
) -> Plan:
    """What to write and tell about one binding decided on at ``now``; changed words may be late by ``refresh``."""
    status = status_of(decision)
    plan = Plan(
        decision.subject,
        message=decision.message,
        annotations={POLICY_STATE: render_memory(decision.memory)} if decision.memory != view.memory else {},
        status=status if is_status_due(status, view.status, now, refresh, written=written) else None,
        scales=tuple(_scales(decision, view)),
        notices=decision.notices,
    )
    return with_spec_warning(plan, view.status)


def status_of(decision: BindingDecision) -> Status:
    """The status the decision asks for; a total that is not known any more is taken out."""
    fields = {
        "observedGeneration": decision.subject.generation,
        "units": [_unit(unit) for unit in story.units(decision)],
        **dict.fromkeys(TOTALS),
        **story.totals(decision),
    }
    return Status(fields, decision.conditions)


def _unit(unit: Mapping[str, object]) -> dict[str, Any]:
    return {
        name: timestamp(value) if name == "lastScaleTime" and isinstance(value, int | float) else value
        for name, value in unit.items()
        if value is not None
    }


def _scales(decision: BindingDecision, view: BindingView) -> Iterable[Scale]:
    current = {target.workload: target.current for target in view.targets}
    for record in decision.records:
        workload, replicas = record.now.workload, record.writes.scale
        if workload is not None and replicas is not None and (seen := current[workload]) is not None:
            yield Scale(workload, seen, replicas, record.why.reason, record.why.message)


def policy_plans(policies: Iterable[PolicySpec], now: float) -> list[Plan]:
    """For each policy whose status does not say so yet: what it means with every default filled in."""
    return [plan for policy in policies if (plan := policy_plan(policy, now)).writes]


def policy_plan(policy: PolicySpec, now: float) -> Plan:
    """What a policy means, or why it cannot be followed, in its status. Nothing depends on it but people."""
    if policy.view is None:
        ready, effective, metrics = ConditionValue("False", "InvalidConfiguration", policy.problem or ""), None, None
    else:
        behaviour = policy.view.behaviour
        ready, effective = ConditionValue("True", "Accepted", describe(behaviour)), manifest(behaviour)
        metrics = ", ".join(f"{name}={value:g}" for name, value in policy.view.targets.items())
    before = stored_conditions(policy.status.get("conditions"))
    fields = {"observedGeneration": policy.generation, "metrics": metrics, "effectiveBehavior": effective}
    status = Status(fields, conditions.build(before, (("Ready", ready),), policy.generation, now))
    plan = Plan(
        Subject(POLICIES, policy.key, policy.uid, policy.generation, ignored=policy.ignored),
        reason=ready.reason,
        message=str(ready.message),
        status=status if is_status_due(status, policy.status, now, 0.0) else None,
    )
    return with_spec_warning(plan, policy.status)
