"""From a decision to the status a VariantAutoscaling should have, and whether that is worth a write.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from modelyard.autoscaling.decision import CurrentAllocation, Record, VariantDecision
from modelyard.autoscaling.fleet import Variant
from modelyard.objects import Condition

TRANSIENT = frozenset({"AcceleratorResolved", "SLOFeasible", "ProfileValid", "CapacityLimited", "ScaleFromZero"})
"""Conditions of ours that go when there is nothing to say. Types we do not write are somebody else's and are kept."""

QUIET_SHARE = 5
"""A status of which only message texts changed is written at most every ``status_refresh / QUIET_SHARE`` seconds."""


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time prints."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def condition_body(condition: Condition, now: float) -> dict[str, Any]:
    """A condition as Kubernetes stores it."""
    body: dict[str, Any] = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": timestamp(condition.last_transition if condition.last_transition is not None else now),
    }
    if condition.observed_generation is not None:
        body["observedGeneration"] = condition.observed_generation
    return body


def allocation_body(record: Record, now: float) -> dict[str, Any]:
    """The parts of the status that only this loop writes, each complete or absent, as a merge patch.

    ``None`` takes away what an object still has from its time in SLO form.
    """
    body: dict[str, Any] = {}
    if record.target.replicas is not None:
        body["desiredOptimizedAlloc"] = {
            "lastRunTime": timestamp(now),
            "variantID": record.identity.variant_id,
            "accelerator": record.now.accelerator or "unresolved",
            "numReplicas": record.target.replicas,
        }
    if record.now.allocation is not None or record.identity.form != "slo":
        body["currentAlloc"] = current_body(record.now.allocation)
    if record.writes.applied is not None:
        body["actuation"] = {"applied": record.writes.applied}
    return body


def current_body(current: CurrentAllocation | None) -> dict[str, Any] | None:
    """``currentAlloc`` of the SLO form; ``None`` when there is none, or when its numbers cannot be written."""
    if current is None or not math.isfinite(current.cost):
        return None
    return {
        "variantID": current.variant_id,
        "accelerator": current.accelerator,
        "numReplicas": max(0, current.replicas),
        "maxBatch": max(0, current.max_batch),
        "variantCost": f"{max(0.0, current.cost):.2f}",
    }


def status_patch(decision: VariantDecision, existing: Sequence[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """A merge patch for the status: our allocation, our conditions merged with those of others in ``existing``."""
    fresh = {condition.type: condition_body(condition, now) for condition in decision.conditions}
    merged = [
        fresh.pop(item["type"], dict(item))
        for item in existing
        if item.get("type") and (item["type"] in fresh or item["type"] not in TRANSIENT)
    ]
    return {**allocation_body(decision.record, now), "conditions": [*merged, *fresh.values()]}


def needs_write(decision: VariantDecision, variant: Variant, now: float, refresh: float) -> bool:
    """Whether the stored status differs from the decision enough to be written.

    A changed number, state or reason is written at once; a changed message text, or nothing at all, only after a
    while (``refresh`` seconds), so that a quiet fleet costs the API server nothing.
    """
    record, target = decision.record, decision.record.target.replicas
    if target is not None and (
        variant.status_replicas != target or variant.status_accelerator != (record.now.accelerator or "unresolved")
    ):
        return True
    if record.writes.applied is not None and variant.applied != record.writes.applied:
        return True
    if _current_differs(record, variant):
        return True
    stored = {condition.type: condition for condition in variant.conditions}
    texts_differ = False
    if TRANSIENT & stored.keys() - {condition.type for condition in decision.conditions}:
        return True
    for condition in decision.conditions:
        known = stored.get(condition.type)
        if (
            known is None
            or known.status != condition.status
            or known.reason != condition.reason
            or known.observed_generation != condition.observed_generation
        ):
            return True
        texts_differ = texts_differ or known.message != condition.message
    if target is None:
        return texts_differ
    age = now - (variant.last_run or 0.0)
    return age >= refresh or (texts_differ and age >= refresh / QUIET_SHARE)


def _current_differs(record: Record, variant: Variant) -> bool:
    """Whether ``currentAlloc`` says something else than it should; one that is not known now stays as it is."""
    if record.now.allocation is None and record.identity.form == "slo":
        return False
    stored = None if variant.status_current is None else dict(variant.status_current)
    return stored != current_body(record.now.allocation)
