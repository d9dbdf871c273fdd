"""The status that a binding should have after a decision, and a policy of its own accord; whether to write it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.autoscaling import conditions
from modelyard.autoscaling.bindings import story
from modelyard.autoscaling.bindings.defaults import describe, manifest
from modelyard.autoscaling.bindings.view import BindingView
from modelyard.autoscaling.decision import BindingDecision
from modelyard.autoscaling.live.bindings.objects import PolicySpec
from modelyard.autoscaling.live.status import QUIET_SHARE, condition_body, timestamp
from modelyard.objects.parse import conditions as stored_conditions

TIMES = ("lastScaleTime",)
"""Fields of a unit that are epoch seconds in a decision and text in a status."""


def unit_body(unit: Mapping[str, object]) -> dict[str, Any]:
    """A unit as the status stores it: times as text, nothing that is not known."""
    return {
        name: timestamp(value) if name in TIMES and isinstance(value, int | float) else value
        for name, value in unit.items()
        if value is not None
    }


def status_patch(decision: BindingDecision, stored: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A merge patch for the status: our fields, and our conditions merged with those of others."""
    fresh = {condition.type: condition_body(condition, now) for condition in decision.conditions}
    merged = [fresh.pop(item["type"], dict(item)) for item in stored.get("conditions") or () if item.get("type")]
    return {
        "observedGeneration": decision.subject.generation,
        "conditions": [*merged, *fresh.values()],
        "units": [unit_body(unit) for unit in story.units(decision)],
        **_totals(decision, stored),
    }


def _totals(decision: BindingDecision, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The totals; one that is not known any more is taken out."""
    gone = {name: None for name in ("targets", "currentReplicas", "desiredReplicas", "mode") if name in stored}
    return {**gone, **story.totals(decision)}


def needs_write(decision: BindingDecision, view: BindingView, now: float, refresh: float, told: float | None) -> bool:
    """Whether the stored status differs from the decision enough to be written.

    A changed number, state or reason is written at once; changed message texts, which carry measurements, only every
    ``refresh / QUIET_SHARE`` seconds after ``told``, when it was last written (``None``: this process never did).
    """
    stored = view.status
    if stored.get("observedGeneration") != decision.subject.generation:
        return True
    if stored.get("units", []) != [unit_body(unit) for unit in story.units(decision)]:
        return True
    if any(stored.get(name) != value for name, value in _totals(decision, stored).items()):
        return True
    known = {condition.type: condition for condition in view.conditions}
    texts_differ = False
    for condition in decision.conditions:
        before = known.get(condition.type)
        if (
            before is None
            or (before.status, before.reason) != (condition.status, condition.reason)
            or before.observed_generation != condition.observed_generation
        ):
            return True
        texts_differ = texts_differ or before.message != condition.message
    return texts_differ and (told is None or now - told >= refresh / QUIET_SHARE)


def policy_status(policy: PolicySpec, now: float) -> dict[str, Any] | None:
    """The merge patch that tells what a policy means with every default filled in; ``None``: it says so already."""
    before = stored_conditions(policy.status.get("conditions"))
    if policy.view is None:
        story, effective = ("False", "InvalidConfiguration", policy.problem or ""), None
    else:
        behaviour = policy.view.behaviour
        story, effective = ("True", "Accepted", describe(behaviour)), manifest(behaviour)
    after = conditions.build(before, (("Ready", story),), policy.generation, now)
    same = (
        policy.status.get("observedGeneration") == policy.generation
        and policy.status.get("effectiveBehavior") == effective
        and set(after) <= set(before)
    )
    if same:
        return None
    others = [item for item in policy.status.get("conditions") or () if item.get("type") != "Ready"]
    return {
        "observedGeneration": policy.generation,
        "conditions": [*others, *(condition_body(one, now) for one in after)],
        "effectiveBehavior": effective,
    }
