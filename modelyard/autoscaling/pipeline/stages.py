"""The stages between a proposal and its record, each with an entry in ``MODEL_STAGES`` or ``FLEET_STAGES``."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decisions import Explanation, Reason, TickContext
from modelyard.autoscaling.pipeline.strategies import COUNTINGS
from modelyard.autoscaling.variants import (
    PipelineStage,
    ProposedModel,
    ReplicaChange,
    Sized,
    StageResult,
    Variants,
    cannot_scale,
    enforce,
    limit,
)
from modelyard.autoscaling.variants.slo import share_capacity
from modelyard.objects import Key


def judge_idleness(models: Sequence[ProposedModel], variants: Variants, tick: TickContext) -> StageResult:
    """Send idle models to zero where that is enabled, and no model where it is not."""
    changes: list[tuple[Key, ReplicaChange]] = []
    for demand, proposal in models:
        if not proposal.settled:
            changes += enforce(demand, variants, tick.signals, tick.now)
    return StageResult(changes)


def keep_bounds(models: Sequence[ProposedModel], variants: Variants, tick: TickContext) -> StageResult:
    """Keep targets within their bounds: once, before GPUs are shared out, so that no minimum overrules those."""
    changes: list[tuple[Key, ReplicaChange]] = []
    for key, variant in variants.items():
        before, seen = variant.replicas, variant.seen
        if variant.proposed.decided and before is not None and (seen.spec > 0 or before):
            after = seen.bounds.clamp(before)
            if after != before:
                changes.append((key, _clamped(variant, before, after)))
    return StageResult(changes)


def _clamped(variant: Sized, before: int, after: int) -> ReplicaChange:
    seen, bounds = variant.seen, variant.seen.bounds
    lowered, stays = after < before, after == seen.current
    outcome = Reason.RAISED if not stays else Reason.HELD_UP
    if lowered:
        outcome = Reason.LOWERED if not stays else Reason.HELD_DOWN
    source = bounds.upper_from if lowered else bounds.lower_from
    change = ReplicaChange.to("bounds", before, after, Explanation(outcome, before=before, after=after, source=source))
    current = seen.current or 0
    if lowered and before > current and variant.shortage is None:
        change = change._replace(shortage=cannot_scale(seen, current, before))
    return change


def share_accelerators(models: Sequence[ProposedModel], variants: Variants, tick: TickContext) -> StageResult:
    """Share scarce accelerators and quotas between the models that have latency targets."""
    return StageResult(share_capacity(models, variants, tick))


def limit_growth(models: Sequence[ProposedModel], variants: Variants, tick: TickContext) -> StageResult:
    """Grant no more replicas than there are GPUs and quotas for."""
    if not (tick.counts_gpus or tick.quotas):
        return StageResult()
    thresholds = {seen.key: demand.config.thresholds for demand, _ in models for seen in demand.variants}
    return StageResult(*limit(variants, thresholds, tick, COUNTINGS[tick.settings.compatibility]))


MODEL_STAGES = [PipelineStage(judge_idleness), PipelineStage(keep_bounds)]
"""Run for each model by itself, in this order: what fails, fails for that model alone."""
FLEET_STAGES = [
    PipelineStage(share_accelerators, "allocation of scarce accelerators failed"),
    PipelineStage(limit_growth, "GPU limiter failed, targets are not limited"),
]
"""Run for all models together, in this order."""
