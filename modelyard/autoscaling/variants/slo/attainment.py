"""Aiming at the share of requests within their targets: which load to carry, and what one replica carries at it.

**Load** in *engines*: 1 is what keeps one engine's mean ITL at its target for ever, prompts delaying those who decode.
**Capacity**: a fleet of n holds the target up to n · ρ(n) · g of it. ρ is less for few replicas, whose arrivals even
out less, and for long prompts; g is learnt from the tails of the latencies, up only near the limit and down only where
the target is missed, since a tail far from its target says little, and an overload nothing at all.

**Shadows.** Many simple rules (a margin times the highest load of the last so many minutes, with or without its trend)
are tried on the load of the last 90 minutes, start-ups included; the cheapest that would have held the target is
followed. A memory has to hold with half its length: how long pauses may be is known only from those that were seen.

Pure: the same history, capacity and former choice give the same answer, so that a restarted worker decides likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEP: Final = 30.0
"""Seconds between two points of the load that shadows are tried on."""
SPAN: Final = 5400.0
MARGINS: Final = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0])
MEMORIES: Final = (1, 5, 10, 20, 40, 80, 160)
"""In steps; what is followed remembers twice as long."""
SLOPE_STEPS: Final = 6
COLD: Final = 10
"""Steps at the beginning of a history that no shadow is blamed for: it knew no load before them."""
SPARE: Final = 0.85
"""Of the misses that are allowed, those that a shadow may have had."""
STAY: Final = 1.03
"""A shadow that would have held the target is left only for one that is so much cheaper."""
PRIOR: Final = 600.0
"""Seconds of history that stand for what is thought of a margin beforehand."""
FIRST: Final = (5, 2, 0)
"""What is followed before there is a history: a margin of 1.35 over the highest load of ten minutes."""
MOST: Final = 4096
FULL: Final = 0.94
"""Share of an engine that is ever counted on: beyond it queues grow without limit."""
OVERLOAD: Final = 1.15
"""Load over capacity beyond which misses are the queue's and say nothing of the engine."""
LEARN: Final = 0.15
LOWEST, HIGHEST = 0.1, 1.6
"""Of g."""


class Speed(NamedTuple):
    """One replica's speed in ms, as in its profile, and its targets in ms (0: none)."""

    alpha: float
    beta: float
    delta: float
    ttft: float
    itl: float


class Footprint(NamedTuple):
    """``per_request``: engines that one request per second keeps busy; ``burden``: what a prompt takes, over the room
    that the ITL target leaves a step."""

    per_request: float
    burden: float


def demand_of(engine: Speed, prompt: float, output: float) -> Footprint | None:
    """What requests of these mean sizes (tokens) ask of an engine; ``None`` where not even one could be within."""
    room = engine.itl - engine.alpha if engine.itl > 0 else math.inf
    if room <= 0:
        return None
    stretch = 1.0 if math.isinf(room) else engine.itl / room
    busy = stretch * (engine.delta * prompt + engine.beta * output) / 1000
    if math.isinf(room):  # decoding is not limited by a target: it takes its own time
        busy = (engine.delta * prompt + (engine.beta + engine.alpha / 64) * output) / 1000
    return Footprint(max(busy, 1e-9), 0.0 if math.isinf(room) else engine.delta * prompt / room)


def capacities(burden: float, learnt: float) -> Floats:
    """Load in engines that 0, 1, 2 ... replicas carry within the target."""
    n = np.arange(1.0, MOST + 1)
    few = 0.095 + 0.07 * burden
    share = np.minimum(FULL, learnt / (1 + 0.11 * burden)) * (1 - few / (1 + few) / n**0.9)
    return np.concatenate([[0.0], n * share])


def needed(capacity: Floats, load: NDArray[np.float64]) -> NDArray[np.int64]:
    """The fewest replicas that carry a load; at least one."""
    return np.clip(np.searchsorted(capacity, load * (1 - 1e-9)), 1, MOST).astype(np.int64)


class Shadow(NamedTuple):
    """What is followed: indices of margin and memory, and 1 with the trend. ``load`` in engines is to be carried now;
    ``held`` the share of the last time it would have held, ``mean`` the replicas for it. ``enough``: whether any would
    have."""

    margin: int
    memory: int
    trend: int
    load: float
    held: float
    mean: float
    enough: bool

    @property
    def key(self) -> tuple[int, int, int]:
        """What is remembered of it."""
        return self.margin, self.memory, self.trend

    @property
    def rule(self) -> str:
        """In words."""
        minutes = 2 * MEMORIES[self.memory] * STEP / 60
        trend = ", with its trend" if self.trend else ""
        return f"{MARGINS[self.margin]:g} × the highest load of {minutes:g} min{trend}"


def resampled(history: Sequence[tuple[float, float]], now: float, factor: float) -> Floats:
    """The last ``SPAN`` of (time, requests/s) in steps back from now, in engines; what is missing is as before it."""
    if not history:
        return np.empty(0)
    times = np.array([point[0] for point in history])
    rates = np.array([point[1] for point in history])
    count = int(min(SPAN, now - times[0]) / STEP + 1e-6) + 1
    places = np.searchsorted(times, now - STEP * np.arange(count)[::-1] + 1e-6, side="right") - 1
    return np.asarray(np.maximum(0.0, rates[np.maximum(places, 0)]) * factor, dtype=np.float64)


def _highest(values: Floats, steps: int) -> Floats:
    """The highest of the last so many points, along the last axis."""
    found, reach = values, 1
    while reach < steps:
        shift = min(reach, steps - reach)
        found = np.concatenate([found[..., :shift], np.maximum(found[..., shift:], found[..., :-shift])], axis=-1)
        reach += shift
    return found


def _even(load: Floats) -> Floats:
    """Means over some minutes: what is counted in one minute scatters."""
    found = load.copy()
    for back in (2, 4):
        found[back:] += load[:-back]
        found[:back] += load[:back]
    return found / 3


def follow(
    load: Floats,
    capacity: Floats,
    lead: float,
    allowed: float,
    kept: tuple[int, int, int] | None = None,
    *,
    stay: bool = False,
) -> Shadow:
    """The shadow to follow now. ``load`` in engines, a point a ``STEP``, the newest last; ``lead`` is seconds from an
    order until a replica serves; ``allowed`` is the share of requests that may miss; ``stay`` follows the one that was
    ``kept`` without trying others."""
    if kept is not None and not all(
        place < count for place, count in zip(kept, (len(MARGINS), len(MEMORIES), 2), strict=True)
    ):
        kept = None
    ahead = max(1, math.ceil(lead / STEP))
    slope = np.zeros_like(load)
    if len(load) > SLOPE_STEPS:
        slope[SLOPE_STEPS:] = np.maximum(0.0, load[SLOPE_STEPS:] - load[:-SLOPE_STEPS]) / SLOPE_STEPS
    even = _even(load)
    seen = np.stack([load, load + np.minimum(slope * ahead, load)])
    calm = np.stack([even, even + np.minimum(slope * ahead, even)])
    if stay and kept is not None:
        margin, memory, trend = kept
        highest = max(float(seen[trend, -1]), float(calm[trend, -2 * MEMORIES[memory] :].max()))
        return Shadow(*kept, float(MARGINS[margin] * highest), math.nan, math.nan, True)
    # (memory, trend, time), the memories twice: as they are tried, and as they are followed.
    tried = np.stack([np.maximum(seen, _highest(calm, steps)) for steps in MEMORIES])
    followed = np.stack([np.maximum(seen, _highest(calm, 2 * steps)) for steps in MEMORIES])
    cold = ahead + COLD
    if len(load) < 2 + cold:
        return _told(FIRST, followed, math.nan, math.nan, True)
    weight = load.copy()
    weight[:cold] = 0.0
    total = float(weight.sum())
    if total <= 0:
        return _told(FIRST, followed, 1.0, 1.0, True)
    replicas = needed(capacity, MARGINS[:, None, None, None] * tried)
    ready = -_highest(-replicas.astype(np.float64), ahead + 1)
    missed = _missing(_came(load), ready.astype(np.int64), capacity, allowed) @ weight
    thought = allowed * 1.1 * (1.25 / MARGINS[:, None, None]) ** 3
    prior = PRIOR / STEP * total / len(load)
    share = (missed + prior * thought) / (total + prior)
    cost = needed(capacity, MARGINS[:, None, None, None] * followed).mean(axis=-1)
    good = share <= SPARE * allowed
    if good.any():
        place = _place(np.where(good, cost, np.inf))
        if kept is not None and good[kept] and cost[kept] <= STAY * cost[place]:
            place = kept
    else:
        place = _place(cost * (1 + 2 * np.maximum(0.0, share / (SPARE * allowed) - 1)))
    return _told(place, followed, 1 - float(missed[place]) / total, float(cost[place]), bool(good.any()))


def _place(price: Floats) -> tuple[int, int, int]:
    margin, memory, trend = np.unravel_index(np.argmin(price), price.shape)
    return int(margin), int(memory), int(trend)


def _came(load: Floats) -> Floats:
    """The load that came around each point: a rate over a minute is known half a minute late, and scatters."""
    return np.asarray(np.mean([load, *(np.append(load[by:], load[-1:].repeat(by)) for by in (1, 2))], axis=0))


def _missing(load: Floats, replicas: NDArray[np.int64], capacity: Floats, allowed: float) -> Floats:
    """The share of requests that miss: at its capacity a fleet misses what it may, at the load of whole engines all."""
    each = capacity[replicas] / replicas
    blame = math.log(allowed) / np.log(np.clip(each, 1e-3, FULL))
    return np.asarray(np.minimum(1.0, (load / replicas) ** blame), dtype=np.float64)


def held_by(load: Floats, capacity: Floats, replicas: int, allowed: float) -> float:
    """The share of requests that so many replicas, all the time, would have had within the targets."""
    if replicas < 1:
        return 0.0
    missing = _missing(_came(load), np.full(len(load), replicas), capacity, allowed)
    return 1 - float(missing @ load) / max(float(load.sum()), 1e-12)


def _told(place: tuple[int, int, int], followed: Floats, held: float, mean: float, enough: bool) -> Shadow:
    margin, memory, trend = place
    return Shadow(*place, float(MARGINS[margin] * followed[memory, trend, -1]), held, mean, enough)


def learnt(
    before: float, engine: Speed, load: float, replicas: int, capacity: Floats, ttft: float | None, itl: float | None
) -> float:
    """g after what was seen in a calm time: ``load`` in engines on so many replicas, and the latencies (ms) within
    which the asked share of requests was. ``capacity`` is that of ``before``."""
    if load <= 0 or not 0 < replicas <= MOST:
        return before
    use = load / float(capacity[replicas])
    if use > OVERLOAD:
        return before
    found = math.inf
    if itl is not None and engine.itl > 0:
        found = use * (engine.itl - engine.alpha) / max(itl - engine.alpha, 0.05 * (engine.itl - engine.alpha))
    if ttft is not None and engine.ttft > 0:
        found = min(found, use * math.sqrt(engine.ttft / max(ttft, 1e-3)))
    missing = (itl or 0.0) > engine.itl > 0 or (ttft or 0.0) > engine.ttft > 0
    if math.isinf(found) or (found < 1 and not missing) or (found > 1 and use < 0.5):
        return before
    return min(max(before * (1 + LEARN * (min(max(found, 0.5), 1.5) - 1)), LOWEST), HIGHEST)
