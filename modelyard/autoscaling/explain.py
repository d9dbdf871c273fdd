"""A decision in words: a table row, or the lines that answer "why is it 3?". For ``plan`` and the tick's artifact."""

from __future__ import annotations

from typing import Any

from modelyard.autoscaling.decision import Alternative, DecisionRecord, Evidence, Prediction


def row(record: DecisionRecord) -> dict[str, Any]:
    """One row of the tick's table; plain JSON values, ``-`` for what is not known."""
    return {
        "variant": str(record.variant),
        "model": record.model_id,
        "accelerator": record.accelerator or "-",
        "current": _known(record.current),
        "ready": _known(record.ready),
        "reporting": record.reporting,
        "desired before": _known(record.desired_before),
        "target": _known(record.target),
        "action": str(record.action),
        "reason": record.reason,
        "why": record.message,
        "limited by": record.limited_by or "-",
    }


def lines(record: DecisionRecord, alternatives: bool = True) -> list[str]:
    """The whole story of a decision, most important first; ``alternatives`` may be shown elsewhere, once per model."""
    verb = "decided" if record.decided else "kept, not decided"
    told = [
        f"target {_known(record.target)} ({record.action}, {verb}): {record.message}",
        f"replicas: current {_known(record.current)}, ready {_known(record.ready)}, reporting {record.reporting}, "
        f"last desired {_known(record.desired_before)}",
        f"accelerator {record.accelerator or '-'}, {record.gpus} GPUs and cost {record.cost:g} per replica, "
        f"actuation {record.mode}",
    ]
    if record.evidence is not None:
        told.append(_evidence(record.evidence))
    if record.prediction is not None:
        told.append(_prediction(record.prediction))
    if alternatives:
        told += [_alternative(option) for option in record.alternatives]
    told += [
        f"{step.stage}: {step.detail}"
        if step.after is None
        else f"{step.stage} {_change(step.before, step.after)}: {step.detail}"
        for step in record.steps
    ]
    if record.limited_by is not None:
        told.append(f"limited by {record.limited_by}")
    if not record.publish:
        told.append("no gauge is published for it")
    if record.write is not None:
        told.append(f"writes {record.write} replicas to {record.workload}")
    if record.applied is False:
        told.append(f"not applied yet: {record.applied_message}")
    told += [
        f"condition {c.type}={c.status} ({c.reason}): {c.message}" for c in record.conditions if c.status != "True"
    ]
    told += [f"{notice.kind} {notice.reason}: {notice.message}" for notice in record.notices]
    return told


def _evidence(evidence: Evidence) -> str:
    verdict = (
        "short of capacity" if evidence.scale_up else "safe to shrink" if evidence.scale_down_safe else "in between"
    )
    return (
        f"model: {evidence.reporting} replicas report, {evidence.saturated} saturated, "
        f"mean spare KV {_number(evidence.spare_kv, 3)}, mean spare queue {_number(evidence.spare_queue, 1)}, "
        f"highest KV {_number(evidence.max_kv, 3)}, waiting {_number(evidence.total_waiting, 1)}: {verdict}"
    )


def _prediction(expected: Prediction) -> str:
    utilisation = "-" if expected.utilisation is None else f"{expected.utilisation:.0%}"
    return (
        f"expected: {expected.load:.4g} requests/s, at most {expected.rate_per_replica:.4g} per replica, "
        f"TTFT {_number(expected.ttft, 1)} ms, ITL {_number(expected.itl, 2)} ms, utilisation {utilisation}"
    )


def _alternative(option: Alternative) -> str:
    replicas = ", ".join(f"{name} {count}" for name, count in option.replicas.items())
    utilisation = "-" if option.utilisation is None else f"{option.utilisation:.0%}"
    verdict = "chosen" if option.chosen else f"not chosen: {option.note}" if option.note else "not chosen"
    return (
        f"option {replicas}: cost {option.cost:g}, TTFT {_number(option.ttft, 1)} ms, ITL {_number(option.itl, 2)} ms, "
        f"utilisation {utilisation}; {verdict}"
    )


def _change(before: int | None, after: int) -> str:
    return f"{_known(before)} → {after}" if before != after else f"= {after}"


def _known(value: int | None) -> int | str:
    return "-" if value is None else value


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
