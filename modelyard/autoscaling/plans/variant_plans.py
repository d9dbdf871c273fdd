"""From decisions about VariantAutoscalings to plans: what to write on each, and what to tell. Pure."""

from __future__ import annotations

import math
from typing import Any

from modelyard.autoscaling.decisions import (
    ACCELERATOR_RESOLVED,
    CAPACITY_LIMITED,
    PROFILE_VALID,
    SCALE_FROM_ZERO,
    SLO_FEASIBLE,
    TARGET_RESOLVED,
    Action,
    CurrentAllocation,
    Record,
    TickDecision,
    VariantDecision,
)
from modelyard.autoscaling.fleet import Fleet, Variant, Workloads
from modelyard.autoscaling.memory import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.reading import ANNOTATION as PREDICTION, prediction_text
from modelyard.objects import CONFIG_MAPS, Key, Notice, timestamp
from modelyard.reconcile.plans import Plan, Scale, Status, Subject, is_status_due, render_memory, with_spec_warning

SLO_ONLY = ("variantID", "accelerator", "maxBatch", "variantCost")
"""Fields of ``currentAlloc`` that an object in saturation form does not have."""
TRANSIENT = frozenset((ACCELERATOR_RESOLVED, SLO_FEASIBLE, PROFILE_VALID, CAPACITY_LIMITED, SCALE_FROM_ZERO))
"""Conditions of ours that go when there is nothing to say. Types we do not write are somebody else's and are kept."""


def variant_plans(fleet: Fleet, decision: TickDecision, refresh: float) -> list[Plan]:
    """A plan per variant, and one that only tells for each configuration object that deserves an Event."""
    variants = {variant.key: variant for variant in fleet.variants}
    plans = [variant_plan(one, variants[one.key], fleet.workloads, fleet.now, refresh) for one in decision.variants]
    for about, notice in decision.notices:
        namespace, _, name = about.partition("/")
        plans.append(Plan(Subject(CONFIG_MAPS, Key(namespace, name), "", 0), notices=(notice,)))
    return plans


def variant_plan(decision: VariantDecision, variant: Variant, workloads: Workloads, now: float, refresh: float) -> Plan:
    """What to write and tell about one variant decided on at ``now``; a status may be ``refresh`` seconds old."""
    memory, status, record = decision.memory, status_of(decision, now), decision.record
    hidden = not record.writes.publish  # tells the exporter whether this variant may have a gauge
    if memory.hidden is not hidden:
        memory = memory.model_copy(update={"hidden": hidden})
    stored = variant.status
    if record.identity.form != "slo":
        # A definition of the saturation form alone drops it: that it is not there alone is no reason to write it again.
        stored = {"currentAlloc": status.fields.get("currentAlloc"), **stored}
    told = [Notice("StateUnreadable", variant.memory_problem, "Warning")] if variant.memory_problem else []
    plan = Plan(
        decision.subject,
        reason=record.why.reason,
        message=record.why.message,
        annotations=_annotations(record, variant, memory),
        status=status if is_status_due(status, stored, now, refresh, decision.subject.uid) else None,
        # The memory says whose desired count the status holds. A new workload's must not be remembered before the old
        # one's count is gone from the status: a kill in between would have a successor carry out the old count on it.
        status_first=variant.memory.workload_uid not in ("", memory.workload_uid),
        scales=_scales(record, workloads),
        news=_news(record),
        notices=(*decision.notices, *told),
    )
    return with_spec_warning(plan, variant.status)


def status_of(decision: VariantDecision, now: float) -> Status:
    """The status the decision asks for. Each part of the allocation, which only we write, is complete or absent."""
    record = decision.record
    allocation: dict[str, Any] = {}
    if record.target.replicas is not None:
        allocation["desiredOptimizedAlloc"] = {
            "lastRunTime": timestamp(now),
            "variantID": record.identity.variant_id,
            "accelerator": record.now.accelerator or "unresolved",
            "numReplicas": record.target.replicas,
        }
    # One that is not known now stays as it is, one of a workload that is gone is removed; an object that has left the
    # SLO form keeps the replicas of it alone.
    target = next((c.status for c in decision.conditions if c.type == TARGET_RESOLVED), "True")
    if record.identity.form != "slo":
        current = record.now.current
        if current is not None or target != "Unknown":
            kept = None if current is None else {**dict.fromkeys(SLO_ONLY), "numReplicas": current}
            allocation["currentAlloc"] = kept
    elif record.now.allocation is not None or target == "False":
        allocation["currentAlloc"] = _current(record.now.allocation)
    if record.writes.applied is not None:
        allocation["actuation"] = {"applied": record.writes.applied}
    return Status(allocation, decision.conditions, TRANSIENT, allocation, ("desiredOptimizedAlloc", "lastRunTime"))


def _current(current: CurrentAllocation | None) -> dict[str, Any] | None:
    """``None`` without one, or when its numbers cannot be written."""
    if current is None or not math.isfinite(current.cost):
        return None
    return {
        "variantID": current.variant_id,
        "accelerator": current.accelerator,
        "numReplicas": max(0, current.replicas),
        "maxBatch": max(0, current.max_batch),
        "variantCost": f"{max(0.0, current.cost):.2f}",
    }


def _annotations(record: Record, variant: Variant, memory: VariantMemory) -> dict[str, str | None]:
    """``None`` removes an annotation."""
    changed: dict[str, str | None] = {}
    if memory != variant.memory:
        changed[AUTOSCALING_STATE] = render_memory(memory)
    prediction = prediction_text(record, variant.annotations)
    if prediction != variant.annotations.get(PREDICTION):
        changed[PREDICTION] = prediction
    return changed


def _scales(record: Record, workloads: Workloads) -> tuple[Scale, ...]:
    workload, replicas = record.now.workload, record.writes.scale
    if replicas is None or workload is None:
        return ()
    seen = workloads[workload].spec_replicas
    return (Scale(workload, 1 if seen is None else seen, replicas, record.why.reason, record.why.message),)


def _news(record: Record) -> tuple[Notice, ...]:
    target = record.target
    if not target.decided or target.replicas == record.now.desired or target.action is Action.NONE:
        return ()
    reason = "ScaleUpWanted" if target.action is Action.UP else "ScaleDownWanted"
    return (Notice(reason, f"{record.now.current} → {target.replicas}: {record.why.message}"),)
