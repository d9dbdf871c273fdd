"""Groups that aim at the share of requests within their targets: what to carry, and at which rates.

``attainment`` says what follows from the load's history; here it is applied to the variants there are. What is written
are ``GroupWork.planned`` and each variant's ``rate``, so that the cheapest mix, bounds, scarce accelerators and
saturation's veto are the same as for any other aim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.sizing.stalls import Speed, per_request, sizes_of
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.slo.attainment import (
    MINUTE,
    STEP,
    Floats,
    Holding,
    Shadow,
    follow,
    held_by,
    holding_of,
    known_rule,
    learnt,
    needed,
    resampled,
    variety,
)
from modelyard.autoscaling.variants.slo.classes import DEFAULT
from modelyard.autoscaling.variants.slo.feedback import CALM, calm, mean, observed_rate
from modelyard.autoscaling.variants.slo.load import BELIEVABLE, QUIET
from modelyard.autoscaling.variants.slo.work import VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of
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

    state: State
    engine: Speed
    holding: Holding
    busy: float
    may: float
    capacity: Floats


def attain(group: Group, settings: FleetSettings, now: float) -> None:
    """Plan for the share asked for; a group without load, sizes, a feasible target or some minutes of history is left
    to the other sizing."""
    work = group.slo
    assert work is not None
    sizes = work.sizes
    if work.load is None or sizes is None or work.load <= QUIET or not work.history:
        return
    # Means over a minute scatter too much to compare an hour's loads by.
    pods = [pod for state in group.states for pod in work_of(state).performance]
    prompt, output = mean(pods, "steady_prompt") or sizes.prompt, mean(pods, "steady_output") or sizes.output
    prompts, outputs = (sizes_of(*one) for one in zip(work.buckets, (prompt, output), strict=True))
    known: list[_Known] = []
    mean_sizes = (prompts.mean, outputs.mean)
    allowed = min(settings.allowed)
    counts = allowed / settings.allowed[0], allowed / settings.allowed[1]
    for state in group.states:
        own = work_of(state)
        try:
            engine = _engine(own, *mean_sizes)
            busy = per_request(engine, *mean_sizes) if engine is not None else None
            if engine is None or busy is None or not own.known or own.feasible is False or own.eased:
                continue
            found = _learn(state, engine, busy, work.history, settings, now)
            holding = holding_of(engine, prompts, outputs, found, counts)
            may = holding.attainable(allowed)
            capacity = holding.capacities(may)
            if may < HOPELESS and (own.spec is not None or _worth(own, engine, float(capacity[8]) / 8)):
                known.append(_Known(state, engine, holding, busy, may, capacity))
        except Exception as error:  # this variant's alone: the others of its model can be aimed with
            text = f"the share of requests is not aimed at with it: {type(error).__name__}: {error}"
            state.notices = (*state.notices, Notice("EngineNotUsable", text, "Warning"))
    if not known:
        return
    # The variant that carries the load most cheaply stands for the group: a rule is about the load, not about the mix.
    state, engine, holding, busy, may, capacity = min(
        known, key=lambda one: work_of(one.state).cost * one.busy / float(one.capacity[8])
    )
    scatter = variety(prompts, outputs, engine)
    second = settings.load_window / MINUTE  # of a world that may run faster
    load = work.share * resampled(work.history, now, engine, mean_sizes, work.sizes_seen, scatter, second)
    lead = (settings.tick + max(startup(one.state, settings) for one in known)) / second
    own = work_of(state)
    turn = int(now // settings.tick) % TURNS == crc32(group.name.encode()) % TURNS
    kept = own.memory.rule if own.memory.rule is not None and known_rule(own.memory.rule) else None
    followed = None if turn else kept
    if followed is None and group.trials is not None:
        cells = len(load) * (ANYWAY + int(needed(capacity, np.array(3 * load.max()))))
        if group.trials.left >= cells:
            group.trials.left -= cells
        elif kept is None:
            return
        else:
            followed = kept
    shadow = follow(load, holding, lead, may, followed)
    if shadow is None or not shadow.load / busy < BELIEVABLE:  # of a damaged history
        return
    if own.memory.rule != shadow.key:
        own.memory = own.memory.model_copy(update={"rule": shadow.key})
    work.planned = shadow.load / busy
    work.attaining = True
    for one in known:
        replicas = int(needed(one.capacity, np.array(work.planned * one.busy)))
        mine = work_of(one.state)
        # What one of so many has of the load: fewer carry less each, so that none of them may be taken for enough.
        mine.rate = work.planned / replicas * (1 + 1e-9)
        mine.attains = f"{100 * (1 - one.may):.3g} % of the requests, {replicas} of them together"
        if one.may > allowed:
            mine.attains += f" ({_percent(float(one.holding.missed[0]))} miss on idle replicas too)"
    work.trend = _story(shadow, load, holding, capacity, may)


def _engine(work: VariantWork, prompt: float, output: float) -> Speed | None:
    if work.profile is None or work.service is None:
        return None
    return Speed(*work.profile.behind(prompt, output), work.service.ttft, work.service.itl)


def _worth(work: VariantWork, engine: Speed, load: float) -> bool:
    """Whether a variant in saturation form, of which a replica carries so much (in engines), is to be aimed with."""
    if work.service is None or work.service.name != DEFAULT:
        return True
    use = load * (1 - engine.alpha / engine.itl if engine.itl > 0 else 1.0)
    if use >= WORTH * (0.8 if work.memory.rule is not None else 1.0):
        return True
    if work.memory.rule is not None:
        work.memory = work.memory.model_copy(update={"rule": None})
    return False


def _learn(
    state: State,
    engine: Speed,
    busy: float,
    history: Sequence[tuple[float, float]],
    settings: FleetSettings,
    now: float,
) -> float:
    work, since = work_of(state), now - CALM * settings.load_window
    before = 1.0 if work.learnt else work.memory.capacity
    if work.learnt or not calm(state, settings, now):
        return before
    rates = [rate for at, rate in history if at > since]
    load = observed_rate(state, settings) * busy
    if not rates or max(rates) > RISE * sum(rates) / len(rates) or not INFORMATIVE < load < 1:
        return before
    found = learnt(before, engine, load, mean(work.performance, "itl"))
    if abs(found - before) > NOTICEABLE * before:
        work.memory = work.memory.model_copy(update={"capacity": round(found, 3)})
    return work.memory.capacity


def _story(shadow: Shadow, load: Floats, holding: Holding, capacity: Floats, allowed: float) -> str:
    replicas = int(needed(capacity, np.array(shadow.load)))
    minutes = len(load) * STEP / 60
    text = f"{shadow.rule}: {shadow.load:.3g} engines, for which {replicas} are needed"
    text += f"; {replicas} would have held {_percent(held_by(load, holding, replicas))} of the last {minutes:.0f} min"
    if replicas > 1:
        text += f", {replicas - 1} {_percent(held_by(load, holding, replicas - 1))}"
    if not shadow.enough:
        text += f"; no rule would have held {_percent(1 - allowed)}"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
