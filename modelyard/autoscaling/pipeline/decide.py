"""One tick's decision: a picture of the fleet in, a record per variant out. Pure: no clock, no network, no randomness.

The same function serves the live loop, ``modelyard plan``, replay and the tests. It is a pipeline; every stage returns
something new and changes nothing it was given:

1. ``observe``: what is known of each variant, an ``Observation``;
2. ``_demands``: which variants are decided together and what is asked of them, a ``ModelDemand``;
3. a strategy of ``strategies.REGISTRY``: what it proposes for a model, a ``Proposal``;
4. ``stages.MODEL_STAGES``, model by model: idleness and replica bounds;
5. ``stages.FLEET_STAGES``, for all together: accelerators and quotas;
6. ``records``: the decision about each variant, with its explanation, conditions and memory.

Stages 4 and 5 return ``ReplicaChange``s, which ``Sized`` adds up. Policy bindings go through ``bindings.decide``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modelyard.autoscaling.bindings import decide_bindings, settled
from modelyard.autoscaling.configuration import Compatibility, FleetSettings, look_alikes
from modelyard.autoscaling.decisions import (
    SEARCHES,
    TRIALS,
    Explanation,
    Reason,
    TickContext,
    TickDecision,
    VariantDecision,
)
from modelyard.autoscaling.fleet import Fleet, shared_models
from modelyard.autoscaling.pipeline.stages import FLEET_STAGES, MODEL_STAGES
from modelyard.autoscaling.pipeline.strategies import FORECASTINGS, analyzers, binding_strategy, entries
from modelyard.autoscaling.variants import (
    Group,
    LoadForecast,
    ModelDemand,
    Observation,
    Observed,
    Proposal,
    Proposed,
    ProposedModel,
    Rate,
    SaturationConfigs,
    Sized,
    Variants,
    ZeroConfigs,
    by_pod,
    changed,
    keep,
    make_record,
    observe,
    target_found,
    with_groups,
)
from modelyard.autoscaling.variants.slo import Outlook, forecast_loads
from modelyard.fairness import WorkBudget
from modelyard.metrics.vocabulary import queued_for
from modelyard.objects import Key, collector_paused


def decide(fleet: Fleet, settings: FleetSettings) -> TickDecision:
    """Decide for every variant and policy binding here. Never raises for a single one: see ``TickDecision.errors``."""
    with collector_paused():
        return _decide(fleet, settings)


def _decide(fleet: Fleet, settings: FleetSettings) -> TickDecision:
    observed = observe(fleet, settings)
    saturation = SaturationConfigs(fleet.config_maps, settings, analyzers())
    zeros = ZeroConfigs(fleet.config_maps, settings)
    tick = TickContext(fleet, settings, saturation.limiter, saturation.quotas)
    demands, refused, failed = _demands(observed.active, saturation, zeros, tick)
    errors = list(failed.errors)
    models: list[ProposedModel] = []
    sized = {key: Sized.of(seen, proposed) for key, (seen, proposed) in refused.items()}
    for place, demand in enumerate(demands):
        try:
            if (problem := failed.models.get(place)) is not None:
                raise RuntimeError(problem)
            proposal, variants, problems = _bounded(demand, tick)
            errors += problems
        except Exception as error:  # one model's failure must never stop another model
            why = Explanation(Reason.FAILED, model=demand.name, error=f"{type(error).__name__}: {error}")
            errors.append(str(why))
            kept = {
                seen.name: keep(seen, why, Explanation(Reason.KEPT))._replace(failed=True) for seen in demand.variants
            }
            proposal = Proposal(kept)
            variants = {seen.key: Sized.of(seen, kept[seen.name]) for seen in demand.variants}
        models.append(ProposedModel(demand, proposal))
        sized |= variants
    variants = {seen.key: sized[seen.key] for seen in observed.active}
    for stage in FLEET_STAGES:
        try:
            result = stage.run(models, variants, tick)
            variants = changed(variants, result.changes)
            errors += [result.problem] if result.problem is not None else []
        except Exception as error:  # without the stage decisions pass as they are
            errors.append(f"{stage.on_failure}: {type(error).__name__}: {error}")
    decisions = _records(observed, models, variants, _outlook(models, variants, settings, errors), tick, errors)
    bindings, binding_errors = decide_bindings(settled(fleet.bindings, fleet, settings), tick, binding_strategy)
    namespaces = {seen.key.namespace for seen in observed.variants}
    notices = (*saturation.notices, *zeros.notices, *observed.notices)
    return TickDecision(
        now=fleet.now,
        decisions=(*decisions, *bindings),
        notices=(*notices, *look_alikes(fleet.config_maps, settings, namespaces)),
        errors=(*errors, *binding_errors),
        unattributed_signals=observed.unattributed,
    )


class Failures(NamedTuple):
    """Models whose load could not be worked out, by their place, and what to report of others."""

    models: Mapping[int, str]
    errors: Sequence[str]


def _demands(
    active: Sequence[Observation], saturation: SaturationConfigs, zeros: ZeroConfigs, tick: TickContext
) -> tuple[list[ModelDemand], dict[Key, tuple[Observation, Proposed]], Failures]:
    fleet, signals, settings = tick.fleet, tick.signals, tick.settings
    groups, refused = _groups(active)
    forecasts: Sequence[LoadForecast | str | None] = [None] * len(groups)
    if any(group.service is not None for group in groups):
        forecasts = forecast_loads(groups, FORECASTINGS, by_pod(signals.performance), fleet, settings)
    shared = shared_models(fleet.variants) if signals.gateway_queue or signals.gateway_bytes else frozenset[str]()
    configs = [saturation.resolve(group.namespace, group.model_id) for group in groups]
    performances = with_groups(signals.performance, active) if any(config.tokens for config in configs) else {}
    strategies = entries()
    demands: list[ModelDemand] = []
    models: dict[int, str] = {}
    errors: list[str] = []
    for place, (group, config, forecast) in enumerate(zip(groups, configs, forecasts, strict=True)):
        aimed: LoadForecast | None = None
        rates: Mapping[str, Rate] = {}
        if isinstance(forecast, str) and any(s.objective is not None and s.objective.spec for s in group.variants):
            models[place] = forecast
        elif isinstance(forecast, str):
            errors.append(f"{group.name}: latency targets are not aimed at: {forecast}")
        elif forecast is not None:
            rates = forecast.rates
            aimed = forecast if _is_aimed_at(forecast) else None
        location = group.namespace, group.model_id, group.model_id in shared
        entry = strategies.get((group.compatibility, config.analyzer))
        if entry is None:
            entry = strategies[group.compatibility, ""]
            why = Explanation(Reason.ANALYZER_NOT_IN_MODE, name=config.analyzer, mode=group.compatibility)
            group = group.warned(why, [seen.key for seen in group.variants])
        demands.append(
            ModelDemand(
                group,
                tuple(seen for seen in group.variants if seen.spec > 0),
                config,
                zeros.resolve(group.namespace, group.model_id),
                entry,
                aimed,
                rates,
                signals.loads.get((group.namespace, group.model_id)),
                signals.queued(*location) or 0.0,
                queued_for(signals.gateway_bytes, *location) or 0.0,
                performances,
            )
        )
    return demands, refused, Failures(models, errors)


def _is_aimed_at(forecast: LoadForecast) -> bool:
    """Saturation form aims only at reachable targets, but keeps its caution while only the load is unknown."""
    rates = forecast.rates.values()
    if forecast.attaining or any(rate.objective.spec is not None for rate in rates):
        return True
    return forecast.load is None and any(rate.memory.rule is not None for rate in rates)


def _groups(active: Sequence[Observation]) -> tuple[list[Group], dict[Key, tuple[Observation, Proposed]]]:
    """Return the variants that are decided together, and those that cannot be decided with any.

    Those with latency targets by service class; one whose profile or class cannot be used is left to saturation, with
    those that have no targets. Those in saturation form aim at targets together: once all engines' speeds are learnt
    and no other of the model is left to saturation.
    """
    aimless = {
        (seen.key.namespace, seen.variant.model_id)
        for seen in active
        if seen.objective is None or seen.objective.problem is not None
    }
    members: defaultdict[tuple[str, str, str, bool], list[Observation]] = defaultdict(list)
    refused: dict[Key, tuple[Observation, Proposed]] = {}
    for seen in active:
        place, objective = (seen.key.namespace, seen.variant.model_id), seen.objective
        must_aim = seen.handling.reading.needs_objective
        service = None
        if objective is not None:
            waits = objective.spec is None and place in aimless
            if must_aim or not (waits or objective.problem is not None):
                service = objective.service
            if service is None and must_aim:
                refused[seen.key] = seen, keep(seen, Explanation(Reason.NO_OBJECTIVE, problem=objective.problem))
                continue
        # A variant without a profile is not sized together with one that has one: where nothing can be aimed at, each
        # goes its own way.
        members[
            *place, service.name if service is not None else "", service is None or seen.variant.slo is None
        ].append(seen)
    efforts: defaultdict[str, WorkBudget] = defaultdict(lambda: WorkBudget(SEARCHES))
    trials: defaultdict[str, WorkBudget] = defaultdict(lambda: WorkBudget(TRIALS))
    groups: list[Group] = []
    for (namespace, model_id, name, _), variants in members.items():
        group = Group(namespace, model_id, tuple(variants), variants[0].handling.compatibility)
        if name and variants[0].objective is not None:
            service = variants[0].objective.service
            group = group._replace(service=service, effort=efforts[namespace], trials=trials[namespace])
        groups.append(_in_one_mode(group))
    return groups, refused


def _in_one_mode(group: Group) -> Group:
    default = Compatibility.REPAIRED
    published = [seen.key for seen in group.variants if seen.handling.compatibility is not default]
    if len(published) in (0, len(group.variants)):
        return group
    variants = []
    for seen in group.variants:
        if seen.handling.compatibility is not default:
            seen = seen.without_surge()
            handling = seen.handling._replace(compatibility=default)
            seen = seen._replace(handling=handling, pending=max(0, (seen.current or 0) - (seen.ready or 0)))
        variants.append(seen)
    group = group._replace(variants=tuple(variants), compatibility=default)
    return group.warned(Explanation(Reason.MODES_MIXED, model=group.name), published)


def _bounded(demand: ModelDemand, tick: TickContext) -> tuple[Proposal, Variants, list[str]]:
    strategy = demand.entry.strategy if demand.forecast is None else demand.entry.with_targets
    proposal = strategy.propose(demand, tick)
    variants: Variants = {seen.key: Sized.of(seen, proposal.variants[seen.name]) for seen in demand.variants}
    models = [ProposedModel(demand, proposal)]
    problems: list[str] = []
    for stage in MODEL_STAGES:
        result = stage.run(models, variants, tick)
        variants = changed(variants, result.changes)
        problems += [result.problem] if result.problem is not None else []
    return proposal, variants, problems


def _outlook(
    models: Sequence[ProposedModel], variants: Variants, settings: FleetSettings, errors: list[str]
) -> Outlook:
    """A failure loses explanations only."""
    outlooks: list[Outlook] = []
    try:
        for compatibility, forecasting in FORECASTINGS.items():
            mine = [(d, variants) for d, _ in models if d.group.compatibility is compatibility]
            outlooks.append(forecasting.look_ahead(mine, settings))
    except Exception as error:
        errors.append(f"predictions failed: {type(error).__name__}: {error}")
    return Outlook(
        {key: value for outlook in outlooks for key, value in outlook.predictions.items()},
        {key: value for outlook in outlooks for key, value in outlook.alternatives.items()},
    )


def _records(
    observed: Observed,
    models: Sequence[ProposedModel],
    variants: Variants,
    outlook: Outlook,
    tick: TickContext,
    errors: list[str],
) -> list[VariantDecision]:
    models_of = {seen.key: model for model in models for seen in model.demand.variants}
    decisions: list[VariantDecision] = []
    for seen in observed.variants:
        key = seen.key
        try:
            if (kept := observed.kept.get(key)) is not None:
                sized, target = Sized.of(seen, kept), kept.target
            else:
                sized, target = variants[key], target_found(seen)
            demand, proposal = models_of.get(key, (None, None))
            decisions.append(make_record(sized, demand, proposal, target, outlook, tick))
        except Exception as error:  # one variant's failure must never stop another
            errors.append(f"VariantAutoscaling {key}: no record: {type(error).__name__}: {error}")
    return decisions
