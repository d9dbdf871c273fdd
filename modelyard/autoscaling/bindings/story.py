"""A binding's decision in words. Source of reasons and types: Kthena autoscaler reference, "Status"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelyard.autoscaling.bindings.recommend import Recommendation
from modelyard.autoscaling.bindings.total import TotalDecision
from modelyard.autoscaling.decisions import (
    BEYOND,
    METRICS_AVAILABLE,
    READY,
    TARGET_FOUND,
    BindingDecision,
    ConditionValue,
    Explanation,
    JoinedTexts,
    OwnReason,
    Parts,
    Reason,
    Record,
    Step,
    conditions,
)
from modelyard.autoscaling.fleet import BindingView, TargetView
from modelyard.objects import Condition
from modelyard.reconcile.plans import NOT_PERMITTED

NOTHING_KNOWN = Recommendation(None, (), Explanation(Reason.NO_TARGET_READABLE))
_SHOWN = 3


def missing(target: TargetView) -> Explanation:
    """Return why a target is left alone."""
    why = target.problem or "it does not exist - create it, or correct targetRef"
    return Explanation(Reason.TARGET_LOST, workload=target.workload, why=why)


def metrics_story(view: BindingView, wanted: Mapping[str, float]) -> ConditionValue | None:
    """Whether the policy's metrics could be measured; ``None`` when there was no target to measure."""
    known = [target for target in view.targets if target.current is not None]
    if not known:
        return None
    external = {name for target in known for name in target.external if name in wanted}
    instances = [instance for target in known for instance in target.instances]
    have = {name: sum(1 for instance in instances if name in instance) for name in wanted if name not in external}
    errors = [error for target in known for error in target.scrape_errors]
    because: object = ""
    if errors:
        more = Explanation(Reason.MORE_ERRORS, number=len(errors) - _SHOWN) if len(errors) > _SHOWN else ""
        because = Explanation(Reason.BECAUSE, errors=Parts(errors[:_SHOWN]), more=more)
    if not external and not any(have.values()):
        if instances:
            why = Explanation(
                Reason.NO_INSTANCE_GIVES, number=len(instances), names=JoinedTexts(wanted), because=because
            )
        elif not any(target.current for target in known):
            unwakeable = all(target.demand is None for target in known)
            why = Explanation(Reason.NOTHING_AT_ZERO, hint=Explanation(Reason.NO_WAKE_QUERY) if unwakeable else "")
        else:
            unready = sum(target.unready for target in known)
            why = Explanation(Reason.INSTANCES_COMING, unready=unready, because=because)
        return ConditionValue.of("False", why)
    partial = [f"{name} of {count} of {len(instances)}" for name, count in have.items() if count < len(instances)]
    if partial:
        return ConditionValue.of(
            "True", Explanation(Reason.METRICS_PARTIAL, measured=JoinedTexts(partial), because=because)
        )
    return ConditionValue.of("True", Explanation(Reason.METRICS_MEASURED, number=len(instances), because=because))


def of_skip(target: TargetView, metrics: ConditionValue | None, advice: Recommendation) -> tuple[str, str]:
    """Reason and message of a skipped target."""
    if advice.held:
        return advice.why.code, f"{advice.why}; replicas are kept"
    if metrics is None:
        return NOTHING_KNOWN.why.code, str(NOTHING_KNOWN.why)
    if metrics.reason == "AtZero":
        return "AtZero", f"{target.workload}: {metrics.message}"
    return metrics.reason, f"{metrics.message}; replicas are kept"


def of_target(view: BindingView, target: TargetView, total: TotalDecision, replicas: int) -> tuple[str, str]:
    """Reason and message of a decided target."""
    held = total.held.get(str(target.workload))
    share = Explanation(Reason.OF_WHICH, replicas=replicas)
    parts = [*_parts(view, total, share), *([held] if held is not None else [])]
    reason = total.ratio.reason if total.ratio is not None else _reason(view, target, total, replicas)
    return reason.code, str(Parts(parts))


def _parts(view: BindingView, total: TotalDecision, share: object = "") -> list[Explanation]:
    """``share`` is said of the total where several targets share it."""
    advice, correction = total.recommendation, total.correction
    parts: list[Explanation] = []
    if correction is not None:
        parts = [advice.why]
        if advice.bounded and (sources := _sources(view, advice.bounded)):
            parts = [Explanation(Reason.WITH_SOURCES, why=advice.why, sources=JoinedTexts(sources))]
        if view.optimizer:
            parts.append(Explanation(Reason.TOTAL_MOVE, before=total.current, after=correction.replicas, share=share))
        if total.woken:
            parts = [Explanation(Reason.DEMAND_WAKES), *(parts if advice.replicas else ())]
        if correction.blocked is not None:
            parts.append(correction.blocked)
    if total.ratio is not None:
        parts.append(total.ratio)
    return parts


def _sources(view: BindingView, bound: str) -> list[str]:
    own = ("minReplicas", "maxReplicas")
    stated = (target.minimum_from if bound == "minimum" else target.maximum_from for target in view.targets)
    return [source for source in dict.fromkeys(stated) if source not in own]


def _reason(view: BindingView, target: TargetView, total: TotalDecision, replicas: int) -> Reason | OwnReason:
    advice, correction, current = total.recommendation, total.correction, target.current or 0
    assert correction is not None
    if total.woken and replicas > current:
        return Reason.DEMAND_WAKES
    if (held := total.held.get(str(target.workload))) is not None:
        return held.reason
    if replicas == current:
        if correction.blocked is not None:
            return correction.blocked.reason
        if advice.bounded:
            return Reason.AT_BOUND_MINIMUM if advice.bounded == "minimum" else Reason.AT_BOUND_MAXIMUM
        return Reason.ON_TARGET
    if not advice.proposals and advice.bounded:
        return advice.why.reason
    if view.optimizer and (replicas > current) != (correction.replicas > total.current):
        return Reason.SHARED
    return Reason.METRICS_ABOVE if replicas > current else Reason.METRICS_BELOW


def steps(view: BindingView, target: TargetView, total: TotalDecision, replicas: int) -> tuple[Step, ...]:
    """The stages of one target's decision; those before "share" are about the total."""
    told = list(total.steps)
    if view.optimizer and total.correction is not None:
        why = Explanation(Reason.SHARE, total=told[-1].after, target=target.name)
        told.append(Step("share", target.current, replicas, str(why)))
    held = total.held.get(str(target.workload))
    if held is not None:
        told.append(Step("zero", 0, replicas, str(held)))
    return tuple(told)


def overall(view: BindingView, total: TotalDecision, records: Sequence[Record]) -> str:
    """The decision about the whole binding in one sentence."""

    def moves(record: Record) -> str:
        current, target = record.now.current, record.target.replicas
        arrow = "" if target in (None, current) else f" → {target}"
        return f"{record.identity.variant_id} {'?' if current is None else current}{arrow}"

    numbers = ", ".join(moves(record) for record in records)
    if total.correction is not None:
        why = "; ".join(dict.fromkeys(map(str, [*_parts(view, total), *total.held.values()])))
    else:
        why = records[0].why.message if records else str(total.recommendation.why)
    return f"{numbers}: {why}"


def of_outcome(
    view: BindingView, decided: bool, message: str, metrics: ConditionValue | None, now: float
) -> tuple[Condition, ...]:
    """The conditions of a binding: whether it could be decided on, and what of it was found."""
    failed = BEYOND if view.problem_reason == BEYOND else "ReconcileFailed"
    ready = ConditionValue("True" if decided else "False", "Reconciled" if decided else failed, message)
    found: ConditionValue | None = None
    lost = [str(missing(target)) for target in view.targets if target.current is None]
    if view.problem is not None and view.problem_reason == NOT_PERMITTED:
        found = ConditionValue("False", NOT_PERMITTED, view.problem)
    elif lost:
        found = ConditionValue("False", "TargetInvalid", "; ".join(lost))
    elif view.targets:
        found = ConditionValue(
            "True", "TargetFound", f"found {', '.join(str(target.workload) for target in view.targets)}"
        )
    stories = ((READY, ready), (TARGET_FOUND, found), (METRICS_AVAILABLE, metrics))
    return conditions.build(view.conditions, stories, view.generation, now)


def desired_before(view: BindingView, target: TargetView) -> int | None:
    """What the status says was wanted of a target."""
    units = view.status.get("units")
    for unit_ in units if isinstance(units, list | tuple) else ():
        if isinstance(unit_, Mapping) and unit_.get("name") == target.name:
            wanted = unit_.get("desiredReplicas")
            return wanted if isinstance(wanted, int) else None
    return None


def units(decision: BindingDecision) -> list[dict[str, object]]:
    """Status of each target, without unknown values. ``lastScaleTime``: last change of the workload, epoch seconds."""
    return [
        {
            name: value
            for name, value in (
                ("name", record.identity.variant_id),
                ("currentReplicas", record.now.current),
                ("desiredReplicas", record.target.replicas),
                ("mode", _mode(decision)),
                ("lastScaleTime", decision.memory.scaled_at.get(str(record.now.workload))),
            )
            if value is not None
        }
        for record in decision.records
    ]


def totals(decision: BindingDecision) -> dict[str, object]:
    """What the status shows of all targets together."""
    names = ", ".join(str(record.identity.variant_id) for record in decision.records)
    found: dict[str, object] = {"mode": _mode(decision)}
    if names:  # old API servers take an empty text for none
        found["targets"] = names
    current = [record.now.current for record in decision.records if record.now.current is not None]
    wanted = [record.target.replicas for record in decision.records if record.target.replicas is not None]
    most = [record.bounds.upper for record in decision.records if record.bounds.upper is not None]
    if decision.records and len(most) == len(decision.records):
        found["minReplicas"] = sum(record.bounds.lower for record in decision.records)
        found["maxReplicas"] = sum(most)
    if current:
        found["currentReplicas"] = sum(current)
    if wanted:
        found["desiredReplicas"] = sum(wanted)
    return found


def _mode(decision: BindingDecision) -> str:
    return "Panic" if decision.panic else "Stable"
