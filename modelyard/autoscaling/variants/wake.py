"""Scale from zero: a model of which nothing runs, with requests waiting, gets its cheapest variant back.

Works whether or not scale-to-zero is enabled for the model: it may have been scaled to zero by hand. Only demand that
was really seen wakes; what is missing or could not be read never does. Source: WVA saturation reference, 'Scale from
zero'.
"""

from __future__ import annotations

from math import isfinite

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import (
    SCALE_FROM_ZERO,
    ConditionValue,
    Count,
    Explanation,
    Parts,
    Reason,
    required_minimum,
)
from modelyard.autoscaling.variants import health
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Origin, Proposed, ReplicaChange
from modelyard.autoscaling.variants.tokens import arguments_of
from modelyard.autoscaling.variants.transition import transition_limit
from modelyard.metrics.vocabulary import Signals

REASON = Reason.WOKEN.code


def at_zero(seen: Observation) -> Proposed:
    """Return what is proposed unless the variant is woken: publish that it is at zero, or at its minimum."""
    limits = None if seen.workload is None else seen.workload.limits
    lower, source = required_minimum(seen.handling, limits)
    if seen.bounds.upper is not None:
        lower = min(lower, seen.bounds.upper)
    why = Explanation(Reason.AT_ZERO, workload=seen.workload_id)
    if lower > 0:
        why = Explanation(Reason.BELOW_MINIMUM_AT_ZERO, minimum=lower, source=source)
    return Proposed.of(max(lower, 0), why)._replace(metrics=health.AT_ZERO, origin=Origin.ASLEEP)


def wake(demand: ModelDemand, signals: Signals, settings: FleetSettings, now: float) -> dict[str, Proposed]:
    """Return what is proposed for the variants at zero; those that have to start now are woken."""
    if len(demand.running) == len(demand.variants):
        return {}
    proposed = {seen.name: at_zero(seen) for seen in demand.variants if seen.spec == 0}
    asleep = [seen for seen in demand.variants if seen.spec == 0 and seen.workload is not None]
    if not asleep or any(seen.ready or seen.units for seen in demand.variants):
        return proposed
    queue = waiting(demand, signals)
    for seen in asleep:
        if _is_on_its_way(seen, demand, now):
            why = Explanation(Reason.WAKING, replicas=seen.desired)
            proposed[seen.name] = _woken(proposed[seen.name], seen.desired or 0, why, why)
    if queue <= 0:
        return proposed
    queue_limit = demand.config.thresholds.queue
    takes = sum(_takes(seen, seen.spec, queue_limit) for seen in demand.running if not _failed(seen, settings, now))
    takes += sum(_takes(s, n, queue_limit) for s in asleep if (n := proposed[s.name].replicas))
    able = [s for s in asleep if not proposed[s.name].replicas and s.bounds.upper != 0 and not _unschedulable(s)]
    for seen in sorted(able, key=lambda seen: (seen.variant.cost, seen.name)):
        if takes and takes >= queue:
            return proposed
        replicas = max(1, seen.bounds.lower)
        proposed[seen.name] = start(proposed[seen.name], replicas, queue, now, takes)
        takes += _takes(seen, replicas, queue_limit)
    if not takes:
        unable = Explanation(Reason.NOT_WOKEN, waiting=Count(queue, "request waits", "requests wait"))
        for seen in asleep:
            before = proposed[seen.name]
            proposed[seen.name] = before._replace(why=Parts((unable, *before.why)))
    return proposed


def waiting(demand: ModelDemand, signals: Signals) -> float:
    """Return the requests waiting: the gateway's queue, or what the variants' expressions say of the same queue."""
    counts = [demand.backlog, *(signals.wake.get(seen.key, 0.0) for seen in demand.variants)]
    return max((value for value in counts if isfinite(value)), default=0.0)


def start(asleep: Proposed, replicas: int, queue: float, now: float, takes: float = 0.0) -> Proposed:
    """Return a variant woken for a queue; ``takes`` is the requests that what was started before can take."""
    started = Explanation(Reason.STARTED_BEFORE, requests=takes) if takes else ""
    facts = {"waiting": Count(queue, "request waits", "requests wait"), "started": started}
    why = Explanation(Reason.WOKEN_TO, replicas=Count(replicas, "replica"), **facts)
    return _woken(asleep, replicas, Explanation(Reason.WOKEN, **facts), why)._replace(learnt={"woken_at": now})


def _woken(asleep: Proposed, replicas: int, detail: Explanation, why: Explanation) -> Proposed:
    step = ReplicaChange("wake", asleep.replicas, replicas, detail, REASON)
    return asleep._replace(replicas=replicas, reason=REASON, why=Parts((why,)), steps=(step,))


def wake_time(seen: Observation, now: float) -> dict[str, object]:
    """Return what to remember of a variant that had been sent to zero and came back; on its way down does not count."""
    # Noted once per waking: a status that is not rewritten would otherwise renew the grace period for ever.
    if seen.desired != 0 or not seen.current or seen.memory.transition_target == 0:
        return {}
    woken = seen.memory.woken_at
    return {} if woken is not None and woken > (seen.variant.last_run or 0.0) else {"woken_at": now}


def scale_from_zero(seen: Observation, reason: str, message: str) -> ConditionValue | None:
    """Return the condition ``ScaleFromZero`` for a decision's ``reason`` and ``message``; ``None`` if never woken."""
    if reason == REASON:
        return ConditionValue("True", REASON, message)
    known = next((c for c in seen.variant.conditions if c.type == SCALE_FROM_ZERO), None)
    if known is None:
        return None
    if seen.ready:
        return ConditionValue("False", "Serving", f"{Count(seen.ready, 'replica is', 'replicas are')} ready")
    if seen.spec == 0:
        return ConditionValue("False", "AtZero", "the workload is at zero replicas and nothing waits for it")
    return ConditionValue(known.status, known.reason, known.message)


def _failed(seen: Observation, settings: FleetSettings, now: float) -> bool:
    """It cannot be placed, or should have been ready long ago."""
    since = seen.memory.transition_since
    return _unschedulable(seen) or (since is not None and now - since >= transition_limit(seen, settings))


def _unschedulable(seen: Observation) -> bool:
    return any(pod.unschedulable for pod in seen.pods)


def _takes(seen: Observation, replicas: int, queue: float) -> float:
    """A full batch and as many waiting as do not count as saturated."""
    return replicas * (arguments_of(seen).max_sequences + queue)


def _is_on_its_way(seen: Observation, demand: ModelDemand, now: float) -> bool:
    """The queue may be gone before the scaler acts."""
    memory, woken = seen.memory, seen.memory.woken_at
    was_sent = seen.mode is Mode.SIGNAL and bool(seen.desired) and memory.transition_target == seen.desired
    return was_sent and woken is not None and now - woken < demand.zero.retention
