"""The percentage analysis as documented, blind spots included.

Only replicas that are not saturated are looked at; one step for one variant, none while the model is in transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from modelyard.autoscaling.decision import Action
from modelyard.autoscaling.variants.analysis import DIGITS, Analysis
from modelyard.autoscaling.variants.saturation_config import Thresholds
from modelyard.autoscaling.variants.state import Group, State, Unit
from modelyard.autoscaling.variants.strategy import Moment, Verdict
from modelyard.objects.documents import counted


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
        """Whether a desired count is set that the workload has not reached."""
        return self.desired != 0 and self.desired != self.current


class OneStep(NamedTuple):
    """Replicas by variant name, and why as (reason code, text)."""

    replicas: dict[str, int]
    reason: str
    why: str


def documented_targets(variants: Sequence[VariantNumbers], scale_up: bool, scale_down_safe: bool) -> OneStep:
    """One step for one variant, and none while any reporting variant of the model is in transition."""
    present = [v for v in variants if v.reporting > 0]
    if not present:
        return OneStep({v.name: v.current for v in variants}, "SteadyState", "no replica reports")
    blockers = [v for v in present if v.preserved or v.reporting != v.current]
    if blockers:
        first = min(blockers, key=lambda v: v.name)
        if first.preserved:
            text = f"in transition: {first.name} desired {first.desired} ≠ current {first.current}"
        else:
            text = f"in transition: {first.name} reporting {first.reporting} ≠ current {first.current}"
        return OneStep({v.name: v.desired if v.preserved else v.current for v in present}, "InTransition", text)
    replicas = {v.name: v.reporting for v in present}
    return _one_step(replicas, present, scale_up, scale_down_safe)


def _one_step(
    replicas: dict[str, int], eligible: Sequence[VariantNumbers], scale_up: bool, scale_down_safe: bool
) -> OneStep:
    if scale_up:
        able = [v for v in eligible if v.pending == 0]
        if not able:
            return OneStep(replicas, "InTransition", "capacity is short, but every variant has pending replicas")
        chosen = min(able, key=lambda v: (v.cost, v.name))
        replicas[chosen.name] += 1
        return OneStep(replicas, "ScaleUp", f"{chosen.name} is the cheapest (cost {chosen.cost:g})")
    if scale_down_safe:
        able = [v for v in eligible if replicas[v.name] > 1]
        if able:
            chosen = max(able, key=lambda v: (v.cost, v.name))
            replicas[chosen.name] -= 1
            return OneStep(replicas, "ScaleDown", f"{chosen.name} is the most expensive (cost {chosen.cost:g})")
        return OneStep(replicas, "AtMinimum", "scale-down is safe, but every variant has one replica")
    return OneStep(replicas, "SteadyState", "neither short of capacity nor safe to shrink")


class PublishedPercentages:
    """The percentage analysis as documented."""

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """OneStep by the documented rule; a variant without a reporting pod gets no decision there."""
        analysis = analyse_published([state.units for state in running], group.config.thresholds)
        decided = _set_targets(running, analysis)
        return Verdict(decided, scale_down_safe=analysis.scale_down_safe, evidence=analysis.evidence())


def _set_targets(running: Sequence[State], analysis: Analysis) -> list[State]:
    """OneStep by the documented rule; a variant without a reporting pod gets no decision there."""
    numbers = [
        VariantNumbers(s.name, s.variant.cost, s.current or 0, s.desired or 0, len(s.units), s.pending) for s in running
    ]
    targets = documented_targets(numbers, analysis.scale_up, analysis.scale_down_safe)
    reason = {"ScaleUp": analysis.what_is_short, "ScaleDown": "CapacitySpare"}.get(targets.reason, targets.reason)
    decided: list[State] = []
    for state in running:
        target = targets.replicas.get(state.name)
        if target is None:
            text = "no replica of the variant reports metrics; replicas are kept"
            state.keep("MetricsUnavailable", text)
            state.metrics = ("False", "MetricsUnavailable", text)
            continue
        act = Action.of(target, state.current or 0)
        text = (
            f"saturation-only mode: {act} (target: {counted(target, 'replica')}): {targets.why}; "
            f"spare KV {analysis.spare_kv:.3f}, spare queue {analysis.spare_queue:.1f} "
            f"over {analysis.counted} of {analysis.reporting} replicas"
        )
        state.propose(target, reason, text)
        decided.append(state)
    return decided
