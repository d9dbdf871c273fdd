"""A decision in words: a table row, or the lines that answer "why is it 3?". For ``plan`` and the tick's artifact."""

from __future__ import annotations

from typing import Any

from modelyard.autoscaling.decisions.decision import (
    BindingDecision,
    Bounds,
    DecisionFacts,
    Evidence,
    Prediction,
    Record,
    VariantDecision,
)
from modelyard.objects import counted

UNKNOWN = "–"
"""Not a hyphen: Prefect's tables read Markdown, where that is a bullet."""


def row(record: Record) -> dict[str, Any]:
    """One row of the tick's table, what matters first; plain JSON values, ``UNKNOWN`` for what is not known."""
    return {
        "variant": str(record.identity.key),
        "now → target": f"{_known(record.now.current)} → {_known(record.target.replicas)}",
        "why": record.why.message,
        "reason": record.why.reason,
        "action": str(record.target.action),
        "limited by": record.why.limited_by or UNKNOWN,
        "ready": _known(record.now.ready),
        "reporting": record.now.reporting,
        "required": _known(record.why.facts.required),
        "desired before": _known(record.now.desired),
        "model": record.identity.model_id,
        "accelerator": record.now.accelerator or UNKNOWN,
    }


def lines(record: Record) -> list[str]:
    """The whole story of a decision, most important first, but for the alternatives, which are the model's."""
    now, target, why, writes = record.now, record.target, record.why, record.writes
    verb = "decided" if target.decided else "kept, not decided"
    told = [
        f"target {_known(target.replicas)} ({target.action}, {verb}): {why.message}",
        f"replicas: current {_known(now.current)}, ready {_known(now.ready)}, reporting {now.reporting}, "
        f"last desired {_known(now.desired)}",
        f"accelerator {now.accelerator or UNKNOWN}, {counted(now.gpus, 'GPU')} and cost {now.cost:g} per replica, "
        f"actuation {writes.mode}",
    ]
    evidence = "" if why.evidence is None else _evidence(why.evidence)
    prediction = "" if why.prediction is None else _prediction(why.prediction)
    told += filter(None, (_bounds(record.bounds), _facts(why.facts), evidence, prediction))
    for step in why.steps:
        change = f" {_known(step.before)} → {step.after}" if step.before != step.after else f" = {step.after}"
        told.append(f"{step.stage}{'' if step.after is None else change}: {step.detail}")
    if why.limited_by is not None:
        told.append(f"limited by {why.limited_by}")
    if not writes.publish:
        told.append("no gauge is published for it")
    if writes.scale is not None:
        told.append(f"writes {counted(writes.scale, 'replica')} to {now.workload}")
    if writes.applied is False:
        told.append(f"not applied yet: {writes.applied_message}")
    return told


def remarks(decision: VariantDecision | BindingDecision) -> list[str]:
    """Conditions that do not hold, and what else is to be told of the object that decides."""
    lacking = [c for c in decision.conditions if c.status != "True"]
    return [
        *(f"condition {c.type}={c.status} ({c.reason}): {c.message}" for c in lacking),
        *(f"{notice.kind} {notice.reason}: {notice.message}" for notice in decision.notices),
    ]


def _bounds(bounds: Bounds) -> str:
    parts = []
    if bounds.lower:
        parts.append(f"at least {bounds.lower} ({bounds.lower_from})")
    if bounds.upper is not None:
        parts.append(f"at most {bounds.upper} ({bounds.upper_from})")
    return f"bounds: {', '.join(parts)}" if parts else ""


def _facts(facts: DecisionFacts) -> str:
    return "; ".join(
        f"{label} {value:.4g} {unit}"
        for label, value, unit in (
            ("load", facts.load, facts.unit),
            ("planned for", facts.forecast, facts.unit),
            ("capacity per replica", facts.per_replica, facts.unit),
            ("required", facts.required, "replicas"),
        )
        if value is not None
    )


def _evidence(evidence: Evidence) -> str:
    verdict = (
        "short of capacity" if evidence.scale_up else "safe to shrink" if evidence.scale_down_safe else "in between"
    )
    return (
        f"model: {counted(evidence.reporting, 'replica reports', 'replicas report')}, {evidence.saturated} saturated, "
        f"mean spare KV {_number(evidence.spare_kv, 3)}, mean spare queue {_number(evidence.spare_queue, 1)}, "
        f"highest KV {_number(evidence.max_kv, 3)}, waiting {_number(evidence.total_waiting, 1)}: {verdict}"
    )


def _prediction(expected: Prediction) -> str:
    utilisation = UNKNOWN if expected.utilisation is None else f"{expected.utilisation:.0%}"
    attained = "" if expected.attainment is None else f", {expected.attainment:.1%} of the requests within both targets"
    return (
        f"expected: {expected.load:.4g} requests/s, at most {expected.rate_per_replica:.4g} per replica, "
        f"TTFT {_number(expected.ttft, 1)} ms, ITL {_number(expected.itl, 2)} ms, utilisation {utilisation}{attained}"
    )


def _known(value: int | None) -> int | str:
    return UNKNOWN if value is None else value


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
