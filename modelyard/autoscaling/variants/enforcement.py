"""Idle models go to zero where that is enabled, and no model goes to zero where it is not.

A count of completed requests says little: proof is wanted that nothing is in flight, and a model that has just been
woken is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decisions import Count, Explanation, Reason
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.proposal import Changes, Origin, ReplicaChange, Sized, Variants
from modelyard.metrics.vocabulary import Signals

STAGE = "enforcement"


def _scale_to_zero(demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float) -> Changes:
    if not variants:
        return ()
    if not demand.zero.enabled:
        if any(variant.replicas or variant.seen.bounds.lower for variant in variants):
            return ()
        cheapest = min(variants, key=lambda variant: (variant.seen.variant.cost, variant.seen.name))
        return _moved([cheapest], 1, Explanation(Reason.MINIMUM_ONE))
    count = signals.request_counts.get((*demand.place, demand.zero.window))
    if not any(variant.replicas for variant in variants) or (count is not None and count > 0):
        return ()  # it is at zero, or simply serves
    refusal: Explanation | None = Explanation(Reason.REQUESTS_UNKNOWN, window=demand.zero.window)
    if count is not None:
        refusal, idle = demand.entry.idle(demand, variants, signals, now)
        if refusal is None:
            return _moved(variants, 0, Explanation(Reason.SCALED_TO_ZERO, idle=idle))
    why = Explanation(Reason.NOT_SCALED_TO_ZERO, why=refusal)
    return [(variant.seen.key, ReplicaChange(STAGE, None, None, why)) for variant in variants]


def _moved(variants: Sequence[Sized], replicas: int, why: Explanation) -> Changes:
    moved = [variant for variant in variants if variant.replicas != replicas]
    return [(variant.seen.key, ReplicaChange.to(STAGE, variant.replicas, replicas, why)) for variant in moved]


def proven_idle(
    demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float
) -> tuple[Explanation | None, Explanation]:
    """Nothing may be in flight, and the model must have had time to be asked for."""
    refusal = _in_flight(demand, variants, signals) or _grace(variants, demand.zero.retention, now)
    return refusal, Explanation(Reason.NOTHING_IN_FLIGHT, window=demand.zero.window)


def _in_flight(demand: ModelDemand, variants: Sequence[Sized], signals: Signals) -> Explanation | None:
    queued = signals.queued(*demand.place)
    if queued:
        return Explanation(Reason.GATEWAY_HOLDS, requests=Count(queued, "request is", "requests are"))
    if queued is None and signals.gateway_unknown:
        return Explanation(Reason.GATEWAY_UNKNOWN)
    for seen in (variant.seen for variant in variants):
        if seen.reporting < (seen.ready or 0):
            return Explanation(Reason.SOME_SILENT, reporting=seen.reporting, ready=seen.ready, name=seen.name)
        for signal, _ in seen.units:
            if signal.running is None or signal.waiting is None:
                return Explanation(Reason.POD_SILENT, pod=signal.pod)
            if signal.running or signal.waiting:
                return Explanation(Reason.POD_BUSY, pod=signal.pod, running=signal.running, waiting=signal.waiting)
    return None


def _grace(variants: Sequence[Sized], retention: float, now: float) -> Explanation | None:
    for variant in variants:
        seen = variant.seen
        assert seen.workload is not None
        if seen.pending:
            return Explanation(Reason.STILL_STARTING, name=seen.name, ready=seen.ready, current=seen.current)
        starts = [seen.variant.created, seen.workload.created]
        # A start-up may take longer than the retention: idleness begins when there is something to ask.
        starts += [pod.ready_since for pod in seen.pods if pod.ready_since is not None]
        woken = variant.proposed.learnt.get("woken_at", seen.memory.woken_at)
        if isinstance(woken, int | float):
            starts.append(woken)
        left = max(starts) + retention - now
        if left > 0:
            return Explanation(Reason.NOT_YET_IDLE, name=seen.name, retention=retention, left=left)
    return None


def enforce(demand: ModelDemand, variants: Variants, signals: Signals, now: float) -> Changes:
    """Return what idleness changes about the variants that a strategy decided on and that are not simply at zero."""
    judged: list[Sized] = []
    for seen in demand.variants:
        variant = variants[seen.key]
        proposed = variant.proposed
        if proposed.decided and proposed.origin is not Origin.ASLEEP and (seen.spec > 0 or variant.replicas):
            if variant.replicas and not demand.zero.enabled:
                return ()
            judged.append(variant)
    return _scale_to_zero(demand, judged, signals, now)
