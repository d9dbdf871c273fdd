"""The strategy where latency targets are aimed at: a forecast, combined with what saturation says of the same pods.

Both ask for replicas; ``arbitration.arbitrate`` decides per variant: the larger wins upwards, downwards both must
agree. Without a known load saturation alone decides; without either the replicas are kept. Source: WVA SLO reference,
"Candidate allocations"; WVA saturation reference, "Hybrid mode".
"""

from __future__ import annotations

from collections.abc import Mapping

from modelyard.autoscaling.decisions import ConditionValue, Explanation, Parts, Reason, TickContext
from modelyard.autoscaling.variants.arbitration import arbitrate
from modelyard.autoscaling.variants.demand import LoadForecast, ModelDemand, Rate, VariantStrategy
from modelyard.autoscaling.variants.health import load_problem
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Proposal, Proposed, ReplicaChange, Tracked, VariantTransition
from modelyard.autoscaling.variants.slo.targets import GroupProposal, propose
from modelyard.autoscaling.variants.targets import relaxed_since, with_given_up
from modelyard.autoscaling.variants.transition import observe_transition

BLIND = 2.5
"""Scale-down delays that saturation alone waits before it takes replicas from a model with targets."""

FOUND = ConditionValue.of("True", Explanation(Reason.METRICS_FOUND))


class LatencyTargets:
    """Sizes a group by its load, and lets ``reactive`` (the saturation form) veto and add."""

    def __init__(self, reactive: VariantStrategy) -> None:
        self._reactive = reactive

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        settings, now = tick.settings, tick.now
        forecast = demand.model_forecast
        saturation = self._reactive.propose(demand, tick)
        if forecast.load is None:
            return _saturation_alone(demand, forecast, saturation, tick)
        blind: object = saturation.invalid or (saturation.problem.message if saturation.problem is not None else None)
        reactive = saturation.variants if blind is None else None
        transitions = [_transition(seen, reactive or {}, tick) for seen in demand.variants]
        safe = saturation.scale_down_safe if blind is None else None
        if forecast.sizes is None and not forecast.idle:
            least, window = settings.min_completions, settings.load_window
            why = Explanation(Reason.FORECAST_SIZES_UNKNOWN, least=least, window=window)
            proposal = GroupProposal({v.name: v.base for v in transitions}, why)
            metrics = ConditionValue.of("False", Explanation(Reason.SIZES_MISSING, finding=why))
        else:
            proposal = propose(demand, transitions, settings, now, safe)
            metrics = FOUND
        variants: dict[str, Proposed] = {}
        for v in transitions:
            saturated = reactive.get(v.name) if reactive is not None else None
            combined = _combine(v, forecast, proposal, saturated, blind, safe)._replace(metrics=metrics)
            variants[v.name] = with_given_up(combined, v, settings)
        return Proposal(variants, scale_down_safe=safe, evidence=saturation.evidence, wanted=proposal.wanted)


def _transition(seen: Observation, variants: Mapping[str, Proposed], tick: TickContext) -> VariantTransition:
    proposed = variants.get(seen.name)
    if proposed is None or proposed.transition is None:
        return observe_transition(seen, tick.settings, tick.now)
    return proposed.transition


def _combine(
    variant: VariantTransition,
    forecast: LoadForecast,
    proposal: GroupProposal,
    reactive: Proposed | None,
    blind: object,
    safe: bool | None,
) -> Proposed:
    """``reactive`` is saturation's proposal for the variant, if any; ``blind`` is why it could not be asked."""
    base = variant.base
    wanted = proposal.replicas.get(variant.name, base)
    asked = base if reactive is None or reactive.replicas is None else reactive.replicas
    result = arbitrate(base, asked, wanted, safe)
    override = result.why if result.overridden else proposal.overridden.get(variant.name)
    steps: list[ReplicaChange] = []
    if reactive is not None:
        steps.append(ReplicaChange("saturation", base, asked, reactive.reason))
    says = Explanation(Reason.FORECAST_SAYS, code=proposal.why.code, forecast=proposal.why)
    steps.append(ReplicaChange("forecast", base, wanted, says))
    if asked != wanted or result.overridden:
        steps.append(ReplicaChange("arbitration", wanted, result.target, result.why))
    follows_saturation = result.target == asked != wanted and not result.overridden
    reason = reactive.reason if follows_saturation and reactive is not None else proposal.why.code
    if result.overridden:
        reason = Reason.SHRINK_BLOCKED.code
    load, sizing = _load_text(forecast), _sizing_text(forecast.rates[variant.name])
    why = [proposal.why, load] if proposal.why.reason is Reason.LAST_REPLICA else [load, sizing, proposal.why]
    if blind is not None:
        why.append(Explanation(Reason.WITHOUT_SATURATION, why=blind))
    elif reactive is not None and (follows_saturation or override is not None):
        verdict = override if override is not None and not follows_saturation else result.why
        why.append(Explanation(Reason.ARBITRATED, why=verdict, saturation=reactive.why))
    elif reactive is not None:
        why.append(Explanation(Reason.SATURATION_SAYS, code=reactive.reason))
    tracked = reactive.tracked if reactive is not None else Tracked(variant.since, variant.heading)
    return Proposed(
        result.target,
        reason,
        Parts(part for part in why if part is not None),
        steps=tuple(steps),
        transition=variant,
        tracked=tracked._replace(relax_since=proposal.relax_since),
        learnt=reactive.learnt if reactive is not None else {},
        shortage=proposal.shortages.get(variant.name) or (reactive.shortage if reactive is not None else None),
        override=override,
    )


def _saturation_alone(demand: ModelDemand, forecast: LoadForecast, saturation: Proposal, tick: TickContext) -> Proposal:
    metrics = load_problem(demand, tick.signals, tick.now, tick.settings.stale_after)
    if saturation.invalid is not None:
        return saturation
    if saturation.problem is not None:
        return Proposal(problem=metrics)
    held = _held_unseen(demand, saturation.variants, tick)
    alone = Explanation(Reason.SATURATION_ALONE, load=forecast.problem)
    variants: dict[str, Proposed] = {}
    for name, proposed in held.items():
        why = Parts((alone, *proposed.why))
        optimization = proposed.optimization or ConditionValue("True", "SaturationOnlyMode", why)
        variants[name] = proposed._replace(metrics=metrics, why=why, optimization=optimization)
    return saturation._replace(variants=variants)


def _held_unseen(demand: ModelDemand, variants: Mapping[str, Proposed], tick: TickContext) -> Mapping[str, Proposed]:
    """Saturation knows nothing of latency targets: what it would give up while the load is not known waits longer."""
    bases = {seen.name: _transition(seen, variants, tick).base for seen in demand.variants}
    if not any((proposed.replicas or 0) < bases[name] for name, proposed in variants.items()):
        return variants
    delay = BLIND * tick.settings.scale_down_delay
    since = relaxed_since(demand.variants, tick.now)
    if tick.now - since >= delay:
        return variants
    why = Explanation(Reason.SHRINK_DELAYED_UNSEEN, delay=delay)
    return {
        name: proposed._replace(
            replicas=max(proposed.replicas or 0, bases[name]),
            reason=why.code,
            why=Parts((why, *proposed.why)),
            tracked=proposed.tracked._replace(relax_since=since),
        )
        for name, proposed in variants.items()
    }


def _sizing_text(rate: Rate) -> Explanation | None:
    service = rate.objective.service
    if not rate.known or service is None:
        return None
    named = (("TTFT", service.ttft), ("ITL", service.itl))
    targets = " and ".join(f"{name} {value:g} ms" for name, value in named if value > 0)
    within = f" within {targets} ({service.name})" if targets else f" ({service.name}: no latency target)"
    if rate.attains is not None:
        return Explanation(Reason.TAKES_FOR_SHARE, rate=rate.rate, within=within, share=rate.attains)
    if rate.eased or rate.feasible is False:
        outcome = Reason.TAKES_AT_EASED_TARGET if rate.eased else Reason.TAKES_AT_NEAREST_TARGET
        return Explanation(outcome, rate=rate.rate, within=within)
    return Explanation(Reason.TAKES, rate=rate.rate, within=within, binding=rate.binding, utilisation=rate.utilisation)


def _load_text(forecast: LoadForecast) -> Explanation:
    sizes: object = ""
    if forecast.sizes is not None and not forecast.idle:
        outcome = Reason.OF_SIZE if forecast.sizes.measured else Reason.OF_REMEMBERED_SIZE
        sizes = Explanation(outcome, prompt=forecast.sizes.prompt, output=forecast.sizes.output)
    basis: object = "" if forecast.basis is None else Explanation(Reason.BASIS, basis=forecast.basis)
    if forecast.idle:
        return Explanation(Reason.NO_REQUESTS, sizes=sizes, basis=basis)
    return Explanation(Reason.LOAD, load=forecast.load, sizes=sizes, basis=basis)
