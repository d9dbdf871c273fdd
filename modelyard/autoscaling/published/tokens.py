"""The documented token analysis and optimizer, defects included. WVA saturation reference, 'Token analyzer'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, fsum
from typing import NamedTuple

from modelyard.autoscaling.decisions import (
    Action,
    ConditionValue,
    Count,
    Evidence,
    Explanation,
    Parts,
    Reason,
    TickContext,
)
from modelyard.autoscaling.published.percentages import DocumentedTargets, keep_silent
from modelyard.autoscaling.variants import (
    ModelDemand,
    Observation,
    Performances,
    Proposal,
    Proposed,
    Thresholds,
    TokenThresholds,
)
from modelyard.autoscaling.variants.tokens import (
    EngineArguments,
    Replica,
    ReplicaCapacity,
    arguments_of,
    derived_limit,
    memory_limit,
    middle,
    output_bucket,
    remember,
    replica_capacity,
    tokens_in_use,
)
from modelyard.metrics.vocabulary import PodPerformance


class VariantInput(NamedTuple):
    """What the documented analysis knows of a variant. ``replicas`` are those that report, ``learnt`` is the tokens
    each could hold when some last did.

    A variant of which none reports has no cost there, and no accelerator: it is always the cheapest.
    """

    name: str
    cost: float
    current: int
    pending: int = 0
    replicas: tuple[Replica, ...] = ()
    arguments: EngineArguments = EngineArguments()
    hardware: str = ""
    history: Mapping[str, Sequence[float]] = {}
    learnt: int | None = None

    @property
    def ready(self) -> int:
        return max(0, self.current - self.pending)


class VariantCapacity(NamedTuple):
    """A variant analysed: tokens per replica, and what it was learnt from."""

    variant: VariantInput
    capacity: int
    replicas: tuple[ReplicaCapacity, ...]
    history: dict[str, list[float]]


class ModelTokens(NamedTuple):
    """A model analysed, in tokens. ``required`` and ``spare`` are what is missing and what is too much."""

    variants: tuple[VariantCapacity, ...]
    demand: float
    supply: float
    anticipated: float
    required: float
    spare: float


def analyse_tokens_published(
    variants: Sequence[VariantInput], limits: Thresholds, thresholds: TokenThresholds
) -> ModelTokens:
    """The documented analysis, by the limits learnt before this tick. A threshold of 0 disables its side."""
    reporting = [r for v in variants for r in v.replicas if r.prompt > 0 or r.output > 0]
    prompt = fsum(r.prompt for r in reporting) / len(reporting) if reporting else 0.0
    output = fsum(r.output for r in reporting) / len(reporting) if reporting else 0.0
    analysed: list[VariantCapacity] = []
    for v in variants:
        known = [replica for replica in v.replicas if replica.total > 0]
        replicas = [replica_capacity(replica, limits, v.history, v.arguments) for replica in known]
        history: Mapping[str, Sequence[float]] = v.history
        for bucket, observed in sorted(
            (output_bucket(replica.output), capacity.observed)
            for replica, capacity in zip(known, replicas, strict=True)
            if capacity.observed is not None
        ):
            history = remember(history, bucket, observed)
        kept = {bucket: list(values) for bucket, values in history.items()}
        capacity = middle([c.effective for c in replicas]) if v.replicas else v.learnt or 0
        analysed.append(VariantCapacity(v, capacity, tuple(replicas), kept))
    live = [a for a in analysed if a.capacity > 0]
    analysed = [
        a
        if a.variant.replicas or a.capacity > 0
        else a._replace(capacity=_stored(a.variant, live, prompt, output, limits))
        for a in analysed
    ]
    demand = fsum(c.demand for a in analysed for c in a.replicas)
    supply = fsum(a.variant.ready * a.capacity for a in analysed)
    anticipated = fsum((a.variant.ready + a.variant.pending) * a.capacity for a in analysed)
    required = max(0.0, demand / thresholds.up - anticipated) if thresholds.up > 0 else 0.0
    spare = max(0.0, supply - demand / thresholds.down) if thresholds.down > 0 else 0.0
    return ModelTokens(tuple(analysed), demand, supply, anticipated, required, spare)


def _stored(
    variant: VariantInput, live: Sequence[VariantCapacity], prompt: float, output: float, limits: Thresholds
) -> int:
    """As its arguments say, capped by its memory limit and by what compatible variants hold."""
    arguments = variant.arguments
    derived = derived_limit(arguments, prompt, output)
    if derived is None:
        return arguments.effective_batched_tokens
    like = (a for a in live if a.variant.hardware == variant.hardware and a.variant.arguments.compatible(arguments))
    caps = [memory_limit(arguments, limits), *(a.capacity for a in like)]
    return min([derived, *(cap for cap in caps if cap is not None)])


def optimize_published(model: ModelTokens) -> DocumentedTargets:
    """The documented cost-aware optimizer: one variant grows at once, the most expensive shrink first."""
    replicas = {a.variant.name: a.variant.current for a in model.variants}
    able = [a for a in model.variants if a.capacity > 0]
    cost = {a.variant.name: a.variant.cost if a.variant.replicas else 0.0 for a in model.variants}
    if model.required > 0:
        if not able:
            return DocumentedTargets(replicas, Explanation(Reason.TOKENS_NO_CAPACITY, required=model.required))
        chosen = min(able, key=lambda a: (cost[a.variant.name] / a.capacity, a.variant.name))
        replicas[chosen.variant.name] += ceil(model.required / chosen.capacity)
        return DocumentedTargets(replicas, Explanation(Reason.TOKENS_REQUIRED, required=model.required))
    if model.spare > 0:
        left = model.spare
        cheapest = min((a.variant.name for a in able), key=lambda name: (cost[name], name), default="")
        for a in sorted(able, key=lambda a: (-cost[a.variant.name], a.variant.name)):
            name = a.variant.name
            others = sum(count for other, count in replicas.items() if other != name)
            least = 1 if name == cheapest and others == 0 else 0
            step = min(floor(left / a.capacity), max(0, replicas[name] - least))
            replicas[name] -= step
            left -= step * a.capacity
        return DocumentedTargets(replicas, Explanation(Reason.TOKENS_SPARE, spare=model.spare))
    return DocumentedTargets(replicas, Explanation(Reason.TOKENS_NEITHER))


class PublishedTokens:
    """The token analysis and the cost-aware optimizer as documented."""

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        """Return targets at once, without transitions or limits; one for a variant without metrics is dropped."""
        config, running = demand.config, demand.running
        inputs = [_input(seen, demand.performances) for seen in running]
        model = analyse_tokens_published(inputs, config.thresholds, config.tokens or TokenThresholds())
        if not any(a.replicas for a in model.variants):
            return Proposal(problem=ConditionValue.of("False", Explanation(Reason.CACHES_UNKNOWN)))
        targets = optimize_published(model)
        proposed: dict[str, Proposed] = {}
        for seen, analysed in zip(running, model.variants, strict=True):
            target = targets.replicas[seen.name]
            if not analysed.variant.replicas:
                why = Explanation(Reason.VARIANT_SILENT_INSTEAD, replicas=target)
                proposed[seen.name] = keep_silent(seen, why)
                continue
            why = Explanation(
                Reason.TOKEN_STEP,
                action=Action.of(target, seen.current or 0),
                replicas=Count(target, "replica"),
                why=targets.why,
                demand=model.demand,
                supply=model.supply,
                anticipated=model.anticipated,
            )
            learnt: dict[str, object] = {}
            if analysed.history != seen.memory.compute_limits:
                learnt["compute_limits"] = analysed.history
            if analysed.capacity > 0:
                learnt["token_capacity"] = analysed.capacity
            proposed[seen.name] = Proposed(target, targets.why.code, Parts((why,)), learnt=learnt)
        evidence = _evidence(running, model)
        return Proposal(proposed, scale_down_safe=evidence.scale_down_safe, evidence=evidence)


def _input(seen: Observation, performances: Performances) -> VariantInput:
    replicas = []
    for signal, _ in seen.units:
        place = signal.namespace, signal.pod, signal.model
        reported = performances.get(place) or PodPerformance(*place)
        total, waiting = reported.kv_tokens or 0, float(int(signal.waiting or 0.0))
        sizes = reported.prompt_tokens or 0.0, reported.output_tokens or 0.0
        in_use = tokens_in_use(signal.kv or 0.0, total)
        replicas.append(Replica(total, in_use, waiting, *sizes, signal.engines or 1.0))
    return VariantInput(
        seen.name,
        seen.variant.cost,
        seen.current or 0,
        seen.pending,
        tuple(replicas),
        arguments_of(seen),
        f"{seen.accelerator_name}/{seen.gpus}",
        seen.memory.compute_limits,
        seen.memory.token_capacity,
    )


def _evidence(running: Sequence[Observation], model: ModelTokens) -> Evidence:
    signals = [signal for seen in running for signal, _ in seen.units]
    return Evidence(
        len(signals),
        sum(c.saturated for a in model.variants for c in a.replicas),
        max_kv=max((s.kv for s in signals if s.kv is not None), default=None),
        total_waiting=sum(s.waiting or 0.0 for s in signals),
        scale_up=model.required > 0,
        scale_down_safe=not model.required and model.spare > 0,
    )
