"""Groups in SLO form that aim at the share of requests within their targets: what to carry, and at which rates.

``attainment`` says what follows from the load's history; here it is applied to the variants there are. What is written
are ``GroupWork.planned`` and each variant's ``rate``, so that the cheapest mix, bounds, scarce accelerators and
saturation's veto are the same as for any other aim.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.slo.attainment import (
    OVERLOAD,
    STEP,
    Floats,
    Footprint,
    Shadow,
    Speed,
    capacities,
    demand_of,
    follow,
    held_by,
    learnt,
    needed,
    resampled,
)
from modelyard.autoscaling.variants.slo.feedback import mean, observed_rate, steady
from modelyard.autoscaling.variants.slo.load import QUIET
from modelyard.autoscaling.variants.slo.work import VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of

CALM = 5.0
"""Load windows without a change of replicas before latencies say something of the engine; tails are over as many."""
RISE = 1.25
"""A load that was higher than so many times its mean meanwhile was not calm."""
TURNS = 4
"""All rules are tried in every fourth tick of a model; in between the one that is followed goes on."""
NOTICEABLE = 0.03
"""Relative change of what is learnt that is worth remembering."""


def attain(group: Group, settings: FleetSettings, now: float) -> None:
    """Plan for the share asked for; a group without load, sizes or a feasible target is left to the other sizing."""
    work = group.slo
    assert work is not None
    sizes = work.sizes
    if work.load is None or sizes is None or work.load <= QUIET or not work.history:
        return
    # Means over a minute scatter too much to compare an hour's loads by.
    pods = [pod for state in group.states for pod in work_of(state).performance]
    prompt, output = mean(pods, "steady_prompt") or sizes.prompt, mean(pods, "steady_output") or sizes.output
    known: list[tuple[State, Speed, Footprint, Floats]] = []
    for state in group.states:
        own = work_of(state)
        engine = _engine(own)
        demand = demand_of(engine, prompt, output) if engine is not None else None
        if engine is None or demand is None or not own.known or own.feasible is False or own.eased:
            continue
        _learn(state, engine, demand, work.history, settings, now)
        known.append((state, engine, demand, capacities(demand.burden, own.memory.capacity)))
    if not known:
        return
    # The variant that carries the load most cheaply stands for the group: a rule is about the load, not about the mix.
    state, _, demand, capacity = min(known, key=lambda one: work_of(one[0]).cost * one[2].per_request)
    load = resampled(work.history, now, demand.per_request * work.share)
    allowed = 1 - min(settings.tails.values())
    lead = settings.tick + max(startup(one, settings) for one, *_ in known)
    own = work_of(state)
    turn = int(now // settings.tick) % TURNS == crc32(group.name.encode()) % TURNS
    shadow = follow(load, capacity, lead, allowed, own.memory.rule, stay=own.memory.rule is not None and not turn)
    if own.memory.rule != shadow.key:
        own.memory = own.memory.model_copy(update={"rule": shadow.key})
    work.planned = shadow.load / demand.per_request
    work.attaining = True
    percent = 100 * (1 - allowed)
    for one, _, its, carried in known:
        replicas = int(needed(carried, np.array(work.planned * its.per_request)))
        mine = work_of(one)
        mine.rate = float(carried[replicas]) / replicas / its.per_request
        mine.attains = f"{percent:g} % of the requests, {replicas} of them together"
    work.trend = _story(shadow, load, capacity, allowed)


def _engine(work: VariantWork) -> Speed | None:
    if work.profile is None or work.service is None:
        return None
    alpha, beta, _, delta = work.coefficients or (
        work.profile.alpha, work.profile.beta, work.profile.gamma, work.profile.delta
    )  # fmt: skip
    return Speed(alpha, beta, delta, work.service.ttft, work.service.itl)


def _learn(
    state: State,
    engine: Speed,
    demand: Footprint,
    history: Sequence[tuple[float, float]],
    settings: FleetSettings,
    now: float,
) -> None:
    work, since = work_of(state), now - CALM * settings.load_window
    shrunk = state.memory.shrunk_at
    if not steady(state, settings, now) or (shrunk is not None and shrunk > since):
        return
    if any(pod.ready_since is None or pod.ready_since > since for pod in state.pods):
        return
    rates = [rate for at, rate in history if at > since]
    if not rates or max(rates) > RISE * sum(rates) / len(rates):
        return
    replicas = state.ready or 0
    load = observed_rate(state, settings) * replicas * demand.per_request
    capacity = capacities(demand.burden, work.memory.capacity)
    if not replicas or load > OVERLOAD * float(capacity[replicas]):
        return
    ttft, itl = mean(work.performance, "ttft_tail"), mean(work.performance, "itl_tail")
    found = learnt(work.memory.capacity, engine, load, replicas, capacity, ttft, itl)
    if abs(found - work.memory.capacity) > NOTICEABLE * work.memory.capacity:
        work.memory = work.memory.model_copy(update={"capacity": round(found, 3)})


def _story(shadow: Shadow, load: Floats, capacity: Floats, allowed: float) -> str:
    replicas = int(needed(capacity, np.array(shadow.load)))
    minutes = len(load) * STEP / 60
    text = f"{shadow.rule}: {shadow.load:.3g} engines, for which {replicas} are needed"
    if minutes < 10:
        return f"{text}; too little history to try rules on"
    held, fewer = (held_by(load, capacity, n, allowed) for n in (replicas, replicas - 1))
    text += f"; {replicas} would have held {_percent(held)} of the last {minutes:.0f} min"
    if replicas > 1:
        text += f", {replicas - 1} {_percent(fewer)}"
    if not shadow.enough:
        text += f"; no rule would have held {_percent(1 - allowed)}"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
