"""The percentage analysis: from the saturation signals of a model's replicas to "short of capacity" and "could shrink".

It counts saturated load, leaves out what it does not know, and does not take a pod that has not yet received traffic
for spare capacity. KV values are fractions of the cache, queue values are requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Reason
from modelyard.autoscaling.variants.assessment import Assessment
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.replicas import stuck_pods, unseen
from modelyard.autoscaling.variants.saturation_config import Thresholds

DIGITS = 9
"""Comparisons are made on values rounded to 1e-9, so that 0.80 - 0.70 is not below a trigger of 0.10."""
BACKLOG = 2.0
"""A replica's queue counts up to this multiple of the threshold: what waits in an engine is served by that engine, and
new replicas only take their share of what is still to come."""
_UNPROVEN_FACTOR = 5
"""A pod that never completed a request while its model serves traffic is not idle, for at most this many warm-ups."""


@dataclass(slots=True, kw_only=True)
class Analysis(Assessment):
    """What the signals of one model say, in replicas.

    ``counted`` replicas carry the means ``spare_kv`` and ``spare_queue``. In the repaired reading ``capacity`` is the
    number of replicas that may be counted on when shrinking, ``load_*`` what all of them carry together.
    """

    counted: int
    spare_kv: float
    spare_queue: float
    kv_short: bool = False
    queue_short: bool = False
    capacity: int = 0
    load_kv: float = 0.0
    load_queue: float = 0.0
    limits: Thresholds = field(default_factory=Thresholds)
    margin: float = 0.0
    """Extra spare, as a share of the trigger, that a size has to leave free."""
    per_report: float = 1.0
    """Replicas that serve per replica that reports: those that do not report count with the mean load."""

    @property
    def scale_up(self) -> bool:
        return self.kv_short or self.queue_short

    @property
    def what_is_short(self) -> Reason:
        if self.kv_short and self.queue_short:
            return Reason.SHORT_OF_BOTH
        return Reason.SHORT_OF_KV_CACHE if self.kv_short else Reason.SHORT_OF_QUEUE

    @property
    def lost(self) -> float:
        return self.stuck

    def worth(self, seen: Observation) -> float:
        return 1.0

    def wanted(self, factor: float = 1.0) -> float:
        """Replicas for ``factor`` times the load, each with the trigger and the margin free in KV cache and queue."""
        margin, loads = 1 + self.margin, self._loads(factor * self.per_report)
        rooms = [(load, round(limit - trigger * margin, DIGITS)) for load, limit, trigger in loads]
        return max((ceil(round(load / room, DIGITS)) for load, room in rooms if room > 0), default=0)

    def short_of(self, provided: float, factor: float) -> bool:
        if provided < 1:
            return False
        loads = self._loads(factor * self.per_report)
        return any(round(limit - load / provided - trigger, DIGITS) < 0 for load, limit, trigger in loads)

    def fits(self, removed: Mapping[str, int], factor: float = 1.0) -> bool:
        """Return whether the load fits without ``removed`` replicas, with margin; no where a signal is missing."""
        left = self.capacity - sum(removed.values())
        if left < 1 or self.incomplete:
            return False
        margin, loads = 1 + self.margin, self._loads(factor)
        return all(round(limit - load / left - trigger * margin, DIGITS) >= 0 for load, limit, trigger in loads)

    def _loads(self, factor: float) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """(load, threshold, trigger) of the KV cache and of the queue."""
        limits = self.limits
        return (
            (self.load_kv * factor, limits.kv, limits.kv_trigger),
            (self.load_queue * factor, limits.queue, limits.queue_trigger),
        )

    def __str__(self) -> str:
        text = f"spare KV {self.spare_kv:.3f}, spare queue {self.spare_queue:.1f} over {self.reporting} reporting"
        return self.with_counts(f"{text}, {self.saturated} saturated")


def analyse_repaired(
    variants: Sequence[Observation], limits: Thresholds, settings: FleetSettings, now: float, backlog: float = 0.0
) -> Analysis:
    """The repaired analysis of one model. ``backlog`` is requests queued in front of all replicas (at the gateway)."""
    kv_limit, queue_limit = limits.kv, limits.queue
    longest = BACKLOG * queue_limit
    waiting = 0.0
    warm_before = now - settings.warm_up
    unproven_after = now - _UNPROVEN_FACTOR * settings.warm_up
    kvs: list[float] = []
    queues: list[float] = []
    spare_kv: list[float] = []
    spare_queue: list[float] = []
    warming_kv: list[float] = []
    warming_queue: list[float] = []
    reporting = unready = counted = saturated = hanging = incomplete = capacity = 0
    serving: bool | None = None
    stuck, suspicious = stuck_pods(variants, settings, now)
    young: dict[str, int] = {}
    for seen in variants:
        warming = 0
        for signal, pod in seen.units:
            reporting += 1
            ready_since = pod.ready_since
            unready += ready_since is None
            if stuck and (signal.namespace, signal.pod) in stuck:
                hanging += ready_since is not None
                continue
            kv, queue = signal.kv, signal.waiting
            if queue is not None:
                waiting += queue
                if signal.engines is not None:
                    queue /= signal.engines  # the threshold is of one engine
            full = (kv is not None and kv >= kv_limit) or (queue is not None and queue >= queue_limit)
            warm = False
            if ready_since is not None and ready_since <= warm_before:
                warm = True
                if ready_since > unproven_after and signal.completed_rate == 0:
                    if serving is None:
                        serving = any(s.completed_rate for other in variants for s, _ in other.units)
                    warm = not serving
            if kv is None or queue is None:
                incomplete += 1
            elif warm:
                capacity += 1
            if full:
                saturated += 1
            if warm:
                counted += 1
            elif ready_since is not None:
                warming += 1
            if kv is not None:
                kvs.append(kv)
                spare = kv_limit - kv
                (spare_kv if warm else warming_kv).append(min(spare, 0.0) if full else spare)
            if queue is not None:
                queue = min(queue, longest)
                queues.append(queue)
                spare = queue_limit - queue
                (spare_queue if warm else warming_queue).append(min(spare, 0.0) if full else spare)
        young[seen.name] = warming
    result = Analysis(
        reporting=reporting,
        unready=unready,
        counted=counted,
        saturated=saturated,
        spare_kv=_cautious_mean(spare_kv, warming_kv),
        spare_queue=_cautious_mean(spare_queue, warming_queue) - (backlog / max(1, len(queues))),
        capacity=capacity,
        warming=sum(young.values()),
        young=young,
        stuck=hanging,
        incomplete=incomplete,
        load_kv=fsum(kvs),
        load_queue=fsum(queues) + backlog,
        max_kv=max(kvs, default=0.0),
        waiting=waiting + backlog,
        stuck_pods=suspicious,
        limits=limits,
        margin=settings.scale_down_margin,
        per_report=_per_report(variants, reporting - unready, hanging, warm_before),
    )
    if kvs:
        result.kv_short = round(result.spare_kv, DIGITS) < limits.kv_trigger
    if queues or backlog:
        result.queue_short = round(result.spare_queue, DIGITS) < limits.queue_trigger
    result.scale_down_safe = not result.scale_up and result.fits({"": 1})
    return result


def _per_report(variants: Sequence[Observation], reporting: int, stuck: int, warm_before: float) -> float:
    ready = sum(seen.ready or 0 for seen in variants)
    if ready <= reporting:
        return 1.0
    ready -= sum(unseen(seen, warm_before) for seen in variants)
    return max(1.0, (ready - stuck) / max(1, reporting - stuck))


def _cautious_mean(warm: list[float], warming: list[float]) -> float:
    """Replicas that are warming up count only if that makes the mean smaller."""
    n = len(warm)
    if not warming:
        return fsum(warm) / n if n else 0.0
    everything = fsum((*warm, *warming)) / (n + len(warming))
    return min(fsum(warm) / n, everything) if n else everything
