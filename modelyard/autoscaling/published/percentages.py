"""The percentage analysis as documented: saturated replicas are not looked at, one variant moves by one step."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from modelyard.autoscaling.decisions import Action, ConditionValue, Count, Explanation, Parts, Reason, TickContext
from modelyard.autoscaling.variants import (
    DIGITS,
    Analysis,
    ModelDemand,
    Observation,
    Proposal,
    Proposed,
    Thresholds,
    Unit,
    keep,
)


class VariantMeans(NamedTuple):
    """The documented per-variant numbers: means over replicas that are not saturated."""

    reporting: int
    counted: int
    saturated: tuple[str, ...]
    spare_kv: float
    spare_queue: float
    max_kv: float


def variant_means(units: Sequence[Unit], limits: Thresholds) -> VariantMeans:
    """Step 2 and 3 of the documented analysis for one variant; a missing signal counts as 0 there."""
    kvs = [signal.kv or 0.0 for signal, _ in units]
    queues = [float(int((signal.waiting or 0.0) / (signal.engines or 1.0))) for signal, _ in units]
    spare_kv, spare_queue, saturated = [], [], []
    for kv, queue, (signal, _) in zip(kvs, queues, units, strict=True):
        if kv >= limits.kv or queue >= limits.queue:
            saturated.append(signal.pod)
        else:
            spare_kv.append(limits.kv - kv)
            spare_queue.append(limits.queue - queue)
    n = len(spare_kv)
    return VariantMeans(
        len(units),
        n,
        tuple(sorted(saturated)),
        fsum(spare_kv) / n if n else 0.0,
        fsum(spare_queue) / n if n else 0.0,
        max(kvs, default=0.0),
    )


def remaining_spare(threshold: float, spare: float, count: int) -> float:
    """Mean spare after one of ``count`` replicas went and its load spread over the others."""
    return threshold - (threshold - spare) * count / (count - 1)


def analyse_published(units_by_variant: Sequence[Sequence[Unit]], limits: Thresholds) -> Analysis:
    """The documented analysis of one model: only replicas that are not saturated are looked at."""
    variants = [variant_means(units, limits) for units in units_by_variant if units]
    counted = sum(v.counted for v in variants)
    spare_kv = sum(v.spare_kv * v.counted for v in variants) / counted if counted else 0.0
    spare_queue = sum(v.spare_queue * v.counted for v in variants) / counted if counted else 0.0
    reporting = sum(v.reporting for v in variants)
    result = Analysis(
        reporting=reporting,
        counted=counted,
        saturated=sum(len(v.saturated) for v in variants),
        spare_kv=spare_kv,
        spare_queue=spare_queue,
        max_kv=max((v.max_kv for v in variants), default=0.0),
        waiting=fsum(signal.waiting or 0.0 for units in units_by_variant for signal, _ in units),
    )
    if reporting:
        result.kv_short = round(spare_kv, DIGITS) < limits.kv_trigger
        result.queue_short = round(spare_queue, DIGITS) < limits.queue_trigger
    if counted >= 2 and not result.scale_up:
        after_kv = remaining_spare(limits.kv, spare_kv, counted)
        after_queue = remaining_spare(limits.queue, spare_queue, counted)
        result.scale_down_safe = (
            round(after_kv, DIGITS) >= limits.kv_trigger and round(after_queue, DIGITS) >= limits.queue_trigger
        )
    return result


class VariantNumbers(NamedTuple):
    """What the documented rules look at. ``desired`` 0 means unset, as it does there."""

    name: str
    cost: float
    current: int
    desired: int
    reporting: int
    pending: int = 0

    @property
    def preserved(self) -> bool:
        """True if a desired count is set that the workload has not reached."""
        return self.desired != 0 and self.desired != self.current


class DocumentedTargets(NamedTuple):
    """Replicas by variant name, and why."""

    replicas: dict[str, int]
    why: Explanation


def documented_targets(
    variants: Sequence[VariantNumbers],
    scale_up: bool,
    scale_down_safe: bool,
    short_of: Reason = Reason.SHORT_OF_KV_CACHE,
) -> DocumentedTargets:
    """Return one step for one variant, none in transition. ``short_of`` is the outcome a scale-up follows from."""
    present = [v for v in variants if v.reporting > 0]
    if not present:
        return DocumentedTargets({v.name: v.current for v in variants}, Explanation(Reason.STEP_NOTHING_REPORTS))
    blockers = [v for v in present if v.preserved or v.reporting != v.current]
    if blockers:
        first = min(blockers, key=lambda v: v.name)
        why = Explanation(Reason.STEP_REPORTING, name=first.name, reporting=first.reporting, current=first.current)
        if first.preserved:
            why = Explanation(Reason.STEP_HEADING, name=first.name, desired=first.desired, current=first.current)
        return DocumentedTargets({v.name: v.desired if v.preserved else v.current for v in present}, why)
    replicas = {v.name: v.reporting for v in present}
    if scale_up:
        able = [v for v in present if v.pending == 0]
        if not able:
            return DocumentedTargets(replicas, Explanation(Reason.STEP_ALL_PENDING))
        cheapest = min(able, key=lambda v: (v.cost, v.name))
        replicas[cheapest.name] += 1
        return DocumentedTargets(replicas, Explanation(_UP[short_of], name=cheapest.name, cost=cheapest.cost))
    if scale_down_safe:
        able = [v for v in present if replicas[v.name] > 1]
        if not able:
            return DocumentedTargets(replicas, Explanation(Reason.STEP_ALL_AT_ONE))
        dearest = max(able, key=lambda v: (v.cost, v.name))
        replicas[dearest.name] -= 1
        return DocumentedTargets(replicas, Explanation(Reason.STEP_DOWN, name=dearest.name, cost=dearest.cost))
    return DocumentedTargets(replicas, Explanation(Reason.STEP_NONE))


_UP = {
    Reason.SHORT_OF_KV_CACHE: Reason.STEP_UP_KV_CACHE,
    Reason.SHORT_OF_QUEUE: Reason.STEP_UP_QUEUE,
    Reason.SHORT_OF_BOTH: Reason.STEP_UP_BOTH,
}


def keep_silent(seen: Observation, why: Explanation) -> Proposed:
    """Keep a variant of which no pod reports, and say so in its condition about metrics."""
    return keep(seen, why)._replace(metrics=ConditionValue.of("False", why))


class PublishedPercentages:
    """The percentage analysis as documented."""

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        """Return one step by the documented rule; a variant without a reporting pod gets no decision there."""
        running = demand.running
        analysis = analyse_published([seen.units for seen in running], demand.config.thresholds)
        numbers = [
            VariantNumbers(s.name, s.variant.cost, s.current or 0, s.desired or 0, len(s.units), s.pending)
            for s in running
        ]
        step = documented_targets(numbers, analysis.scale_up, analysis.scale_down_safe, analysis.what_is_short)
        proposed: dict[str, Proposed] = {}
        for seen in running:
            target = step.replicas.get(seen.name)
            if target is None:
                proposed[seen.name] = keep_silent(seen, Explanation(Reason.VARIANT_SILENT))
                continue
            why = Explanation(
                Reason.STEP,
                action=Action.of(target, seen.current or 0),
                replicas=Count(target, "replica"),
                why=step.why,
                spare_kv=analysis.spare_kv,
                spare_queue=analysis.spare_queue,
                counted=analysis.counted,
                reporting=analysis.reporting,
            )
            proposed[seen.name] = Proposed(target, step.why.code, Parts((why,)))
        safe = analysis.scale_down_safe
        return Proposal(proposed, scale_down_safe=safe, evidence=analysis.evidence(safe))
