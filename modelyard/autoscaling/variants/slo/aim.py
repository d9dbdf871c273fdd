"""Groups that aim at the share of requests within their targets: what to carry, and at which rates.

``attainment`` says what follows from the load's history; here it is applied to the variants of a group. The result is
a forecast like any other, with another planned load and other rates, so that the cheapest mix, bounds, scarce
accelerators and saturation's veto are the same as for any other aim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason
from modelyard.autoscaling.sizing import Speed, per_request, sizes_of
from modelyard.autoscaling.variants import attainment
from modelyard.autoscaling.variants.attainment import Floats, Holding, Shadow
from modelyard.autoscaling.variants.classes import DEFAULT
from modelyard.autoscaling.variants.demand import Attains, LoadForecast, Rate
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.slo.feedback import CALM, calm, mean, observed_rate
from modelyard.autoscaling.variants.slo.load import BELIEVABLE, QUIET, MeasuredLoad
from modelyard.objects import Notice

RISE = 1.25
"""A load that was higher than so many times its mean meanwhile was not calm."""
INFORMATIVE = 0.3
"""Load of a replica, in engines, below which its ITL says little of what it would carry."""
TURNS = 8
"""All rules are tried in every eighth tick of a model; in between the one that is followed goes on."""
ANYWAY = 64
"""Replicas that trying all rules costs as much as beside those there may be."""
HOPELESS = 0.5
"""Share of requests that miss on idle replicas above which the target is not aimed at."""
WORTH = 0.25
"""Share of what an engine could do at most that it has to do within targets that nobody asked for in so many words;
otherwise they cost several times the replicas. Once they are aimed at, a fifth less."""
NOTICEABLE = 0.01
"""Relative change of what is learnt that is worth remembering."""


class _Known(NamedTuple):
    """A variant that can be aimed with: its engines' speed, what they hold, the engines that a request per second keeps
    busy, the share that may miss, and the load that 0, 1, 2 ... of them carry then."""

    seen: Observation
    rate: Rate
    engine: Speed
    holding: Holding
    busy: float
    may: float
    capacity: Floats


def attain(measured: MeasuredLoad, settings: FleetSettings, now: float) -> LoadForecast:
    """Return the forecast planned for the share asked for; as it is without load, sizes, feasible target or history."""
    group, forecast = measured.group, measured.forecast
    sizes = forecast.sizes
    if forecast.load is None or sizes is None or forecast.load <= QUIET or not measured.history:
        return forecast
    rates, notices = dict(forecast.rates), dict[str, tuple[Notice, ...]]()
    # Means over a minute scatter too much to compare an hour's loads by.
    pods = [pod for rate in rates.values() for pod in rate.objective.performance]
    prompt, output = mean(pods, "steady_prompt") or sizes.prompt, mean(pods, "steady_output") or sizes.output
    prompts, outputs = (sizes_of(*pair) for pair in zip(measured.buckets, (prompt, output), strict=True))
    mean_sizes = (prompts.mean, outputs.mean)
    allowed = min(settings.allowed)
    counts = allowed / settings.allowed[0], allowed / settings.allowed[1]
    known: list[_Known] = []
    for seen in group.variants:
        try:
            rate = rates[seen.name]
            engine = _engine(rate, *mean_sizes)
            busy = per_request(engine, *mean_sizes) if engine is not None else None
            if engine is None or busy is None or not rate.known or rate.feasible is False or rate.eased:
                continue
            rate, carried = _learn(seen, rate, engine, busy, measured.history, settings, now)
            holding = attainment.holding_of(engine, prompts, outputs, carried, counts)
            may = holding.attainable(allowed)
            capacity = holding.capacities(may)
            worth = may < HOPELESS
            if worth and rate.objective.spec is None:
                rate, worth = _worth(rate, engine, float(capacity[8]) / 8)
            rates[seen.name] = rate
            if worth:
                known.append(_Known(seen, rate, engine, holding, busy, may, capacity))
        except Exception as error:  # this variant's alone: the others of its model can be aimed with
            text = f"the share of requests is not aimed at with it: {type(error).__name__}: {error}"
            notices[seen.name] = (Notice("EngineNotUsable", text, "Warning"),)
    forecast = forecast._replace(rates=rates, notices=notices)
    if not known:
        return forecast
    # The variant that carries the load most cheaply stands for the group: a rule is about the load, not about the mix.
    best = min(known, key=lambda variant: variant.rate.cost * variant.busy / float(variant.capacity[8]))
    scatter = attainment.variety(prompts, outputs, best.engine)
    second = settings.load_window / attainment.MINUTE  # of a world that may run faster
    history, sizes_seen = measured.history, measured.sizes_seen
    load = measured.share * attainment.resampled(history, now, best.engine, mean_sizes, sizes_seen, scatter, second)
    lead = (settings.tick + max(startup(variant.seen, settings) for variant in known)) / second
    memory = best.rate.memory
    turn = int(now // settings.tick) % TURNS == crc32(group.name.encode()) % TURNS
    kept = memory.rule if memory.rule is not None and attainment.known_rule(memory.rule) else None
    followed = None if turn else kept
    if followed is None and group.trials is not None:
        cells = len(load) * (ANYWAY + int(attainment.needed(best.capacity, np.array(3 * load.max()))))
        if group.trials.left >= cells:
            group.trials.left -= cells
        elif kept is None:
            return forecast
        else:
            followed = kept
    shadow = attainment.follow(load, best.holding, lead, best.may, followed)
    if shadow is None or not shadow.load / best.busy < BELIEVABLE:  # of a damaged history
        return forecast
    planned = shadow.load / best.busy
    for variant in known:
        replicas = int(attainment.needed(variant.capacity, np.array(planned * variant.busy)))
        idle = float(variant.holding.missed[0]) if variant.may > allowed else None
        # What each of so many has of the load: fewer carry less each, so that none of them may be taken for enough.
        attains = Attains(variant.may, replicas, idle, variant.holding, variant.busy)
        rates[variant.seen.name] = variant.rate._replace(rate=planned / replicas * (1 + 1e-9), attains=attains)
    if memory.rule != shadow.key:
        memory = memory.model_copy(update={"rule": shadow.key})
        rates[best.seen.name] = rates[best.seen.name]._replace(memory=memory)
    basis = _basis(shadow, load, best.holding, best.capacity, best.may)
    return forecast._replace(rates=rates, planned=planned, attaining=True, basis=basis)


def _engine(rate: Rate, prompt: float, output: float) -> Speed | None:
    objective = rate.objective
    if objective.profile is None or objective.service is None:
        return None
    return Speed(*objective.profile.behind(prompt, output), objective.service.ttft, objective.service.itl)


def _worth(rate: Rate, engine: Speed, load: float) -> tuple[Rate, bool]:
    """Decide whether to aim with a variant in saturation form; ``load``: engines of work per replica."""
    service, memory = rate.objective.service, rate.memory
    if service is None or service.name != DEFAULT:
        return rate, True
    use = load * (1 - engine.alpha / engine.itl if engine.itl > 0 else 1.0)
    if use >= WORTH * (0.8 if memory.rule is not None else 1.0):
        return rate, True
    if memory.rule is not None:
        rate = rate._replace(memory=memory.model_copy(update={"rule": None}))
    return rate, False


def _learn(
    seen: Observation,
    rate: Rate,
    engine: Speed,
    busy: float,
    history: Sequence[tuple[float, float]],
    settings: FleetSettings,
    now: float,
) -> tuple[Rate, float]:
    objective, memory, since = rate.objective, rate.memory, now - CALM * settings.load_window
    before = 1.0 if objective.learnt is not None else memory.capacity
    if objective.learnt is not None or not calm(seen, objective.performance, settings, now):
        return rate, before
    rates = [arrivals for at, arrivals in history if at > since]
    load = observed_rate(objective.performance, settings) * busy
    if not rates or max(rates) > RISE * sum(rates) / len(rates) or not INFORMATIVE < load < 1:
        return rate, before
    carried = attainment.learnt(before, engine, load, mean(objective.performance, "itl"))
    if abs(carried - before) > NOTICEABLE * before:
        memory = memory.model_copy(update={"capacity": round(carried, 3)})
        rate = rate._replace(memory=memory)
    return rate, memory.capacity


def _basis(shadow: Shadow, load: Floats, holding: Holding, capacity: Floats, allowed: float) -> Explanation:
    replicas = int(attainment.needed(capacity, np.array(shadow.load)))
    fewer: object = ""
    if replicas > 1:
        held = attainment.held_by(load, holding, replicas - 1)
        fewer = Explanation(Reason.FEWER_HELD, replicas=replicas - 1, held=100 * held)
    return Explanation(
        Reason.ATTAINS,
        rule=shadow.rule,
        load=shadow.load,
        replicas=replicas,
        held=100 * attainment.held_by(load, holding, replicas),
        minutes=len(load) * attainment.STEP / 60,
        fewer=fewer,
        unattained="" if shadow.enough else Explanation(Reason.NO_RULE_ATTAINS, asked=100 * (1 - allowed)),
    )
