"""Idle models go to zero where that is enabled, and no model goes to zero where it is not.

A count of completed requests says little: proof is wanted that nothing is in flight, and a model that has just been
woken is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from modelyard.autoscaling.outcomes import Count, Finding, Outcome
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.proposal import Change, Changes, Origin, Sized, Variants
from modelyard.metrics.values import Signals

STAGE = "enforcement"


class Idle(Protocol):
    """Whether a model that has completed no request for its window may go to zero."""

    def __call__(
        self, demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float
    ) -> tuple[Finding | None, Finding]:
        """Return why not (``None``: it may), and what is then known of it."""


def scale_to_zero(demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float) -> Changes:
    """Return what idleness changes about a model's variants; ``variants`` are those with a decision."""
    if not variants:
        return ()
    if not demand.zero.enabled:
        if any(variant.replicas or variant.seen.bounds.lower for variant in variants):
            return ()
        cheapest = min(variants, key=lambda variant: (variant.seen.variant.cost, variant.seen.name))
        return _moved([cheapest], 1, Finding(Outcome.MINIMUM_ONE))
    if not any(variant.replicas for variant in variants):
        return ()
    count = signals.request_counts.get((*demand.place, demand.zero.window))
    if count is not None and count > 0:
        return ()  # it simply serves
    refusal: Finding | None = Finding(Outcome.REQUESTS_UNKNOWN, window=demand.zero.window)
    if count is not None:
        refusal, idle = demand.entry.idle(demand, variants, signals, now)
        if refusal is None:
            return _moved(variants, 0, Finding(Outcome.SCALED_TO_ZERO, idle=idle))
    why = Finding(Outcome.NOT_SCALED_TO_ZERO, why=refusal)
    return [(variant.seen.key, Change(STAGE, None, None, why)) for variant in variants]


def _moved(variants: Sequence[Sized], replicas: int, why: Finding) -> Changes:
    return [
        (variant.seen.key, Change.to(STAGE, variant.replicas, replicas, why))
        for variant in variants
        if variant.replicas != replicas
    ]


def proven_idle(
    demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float
) -> tuple[Finding | None, Finding]:
    """Nothing may be in flight, and the model must have had time to be asked for."""
    refusal = _in_flight(demand, variants, signals) or _grace(variants, demand.zero.retention, now)
    return refusal, Finding(Outcome.NOTHING_IN_FLIGHT, window=demand.zero.window)


def _in_flight(demand: ModelDemand, variants: Sequence[Sized], signals: Signals) -> Finding | None:
    queued = signals.queued(*demand.place)
    if queued:
        return Finding(Outcome.GATEWAY_HOLDS, requests=Count(queued, "request is", "requests are"))
    if queued is None and signals.gateway_unknown:
        return Finding(Outcome.GATEWAY_UNKNOWN)
    for seen in (variant.seen for variant in variants):
        if seen.reporting < (seen.ready or 0):
            return Finding(Outcome.SOME_SILENT, reporting=seen.reporting, ready=seen.ready, name=seen.name)
        for signal, _ in seen.units:
            if signal.running is None or signal.waiting is None:
                return Finding(Outcome.POD_SILENT, pod=signal.pod)
            if signal.running or signal.waiting:
                return Finding(Outcome.POD_BUSY, pod=signal.pod, running=signal.running, waiting=signal.waiting)
    return None


def _grace(variants: Sequence[Sized], retention: float, now: float) -> Finding | None:
    for variant in variants:
        seen = variant.seen
        assert seen.workload is not None
        if seen.pending:
            return Finding(Outcome.STILL_STARTING, name=seen.name, ready=seen.ready, current=seen.current)
        starts = [seen.variant.created, seen.workload.created]
        # A start-up may take longer than the retention: idleness begins when there is something to ask.
        starts += [pod.ready_since for pod in seen.pods if pod.ready_since is not None]
        woken = variant.proposed.learnt.get("woken_at", seen.memory.woken_at)
        if isinstance(woken, int | float):
            starts.append(woken)
        left = max(starts) + retention - now
        if left > 0:
            return Finding(Outcome.NOT_YET_IDLE, name=seen.name, retention=retention, left=left)
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
    return scale_to_zero(demand, judged, signals, now)
