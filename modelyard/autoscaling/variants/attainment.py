"""Aiming at the share of requests within their targets: which load to carry, and how many replicas carry it.

**Load** in *engines*: 1 is what keeps one engine's mean ITL at its target for ever, prompts delaying those who decode.
**Holding**: the share of requests that miss on n replicas under a load, by ``sizing.stalls`` from the profile, the
targets and the sizes of the requests there are. What a replica really carries of its load is learnt from mean ITL.

**Shadows.** Simple rules (a margin times the highest load of the last so many minutes, with or without its trend, and
at least so many replicas) are tried on the load of the last 90 minutes, start-ups and waiting requests included. Of the
cheapest that would have held the target the one with the fewest misses is followed. Two things are thought of that the
history need not have: a load that rises at once (``ONSET``), and that one onset says little of the next (``LESSON``). A
memory has to hold with half its length: how long pauses may be is known only from those that were seen.

Pure: the same history, holding and kept choice give the same answer, so that a restarted worker decides likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelyard.autoscaling.sizing import Sizes, Speed, per_request, stalls

Floats = NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)

STEP: Final = 30.0
"""Seconds between two points of the load that shadows are tried on."""
SPAN: Final = 5400.0
MARGINS: Final = np.array([0.9, 1.0, 1.1, 1.2, 1.35, 1.5])
MEMORIES: Final = (1, 5, 10, 20, 40)
"""In steps; what is followed remembers twice as long."""
SLOPE_STEPS: Final = 6
EVEN: Final = 300.0
MINUTE: Final = 60.0
VARIES: Final = 200.0
"""Equally varied requests after which a minute's mean size says as much as that of ``EVEN`` seconds."""
COLD: Final = 10
"""Steps at the beginning of a history that no shadow is blamed for: it knew no load before them."""
NEW: Final = 1.1
LESSON: Final = 0.25
"""A load so much above all that was known a start-up before counts for so much less."""
SPARE: Final = 0.92
"""Of the misses that are allowed, those that a shadow may have had."""
STAY: Final = 1.03
"""Among the shadows that cost up to so much more than the cheapest, the one with the fewest misses is followed."""
FLOORS: Final = np.array(sorted({*range(1, 11), *(round(10 * 1.12**step) for step in range(1, 48))}))
"""Replicas that are always kept."""
ONSET: Final = 0.5
SELDOM: Final = 10800.0
"""A load that rises at once by so many engines is thought of once in so many seconds: small fleets get room for it."""
MOST: Final = 4096
QUEUE: Final = 0.1
"""Waiting work, in steps of a replica, beyond which requests wait too long."""
LOADS: Final = np.array([0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
"""Loads of a replica for which the share of misses is known; at the last all miss."""
LEARN: Final = 0.1
LOWEST, HIGHEST = 0.4, 1.25
"""Of what is learnt of a replica."""
_REPLICAS: Final = np.arange(MOST + 1.0)
_EVENED: Final = stalls.evened(np.maximum(_REPLICAS, 1.0))


class Holding(NamedTuple):
    """What replicas hold: ``missed`` is the share of requests that miss their targets by ``LOADS``, ``learnt`` how much
    of a load a replica really carries."""

    missed: Floats
    learnt: float = 1.0

    def missing(self, load: Floats, replicas: Floats | NDArray[np.int64]) -> Floats:
        each = load / replicas * _EVENED[replicas.astype(np.int64)] / self.learnt
        return np.asarray(np.exp(np.interp(each, LOADS, np.log(self.missed))))

    def attainable(self, allowed: float) -> float:
        """The share that may miss: what is ``allowed``, or twice what misses on replicas that are next to idle, where
        that is more. No number of replicas would help those, and ever more for the few others are a waste."""
        return max(allowed, 2 * float(self.missed[0]))

    def capacities(self, allowed: float) -> Floats:
        """Load in engines that 0, 1, 2 ... replicas carry with so many misses, which are ``attainable``."""
        share = np.interp(math.log(allowed), np.log(self.missed), LOADS)
        return np.asarray(_REPLICAS * share * self.learnt / _EVENED)


def holding_of(
    engine: Speed, prompts: Sizes, outputs: Sizes, learnt: float, counts: tuple[float, float] = (1.0, 1.0)
) -> Holding:
    """What replicas of such an engine hold of such requests; ``counts`` as in ``stalls.missed``."""
    missed = np.clip(stalls.missed(engine, prompts, outputs, LOADS[:-1], counts), 1e-6, 1.0)
    rising = np.maximum.accumulate(missed * (1 + 1e-9 * np.arange(len(missed))))
    return Holding(np.append(np.minimum(rising, 1.0), 1.0), learnt)


def needed(capacity: Floats, load: NDArray[np.float64]) -> NDArray[np.int64]:
    """The fewest replicas that carry a load; at least one."""
    return np.asarray(np.minimum(np.maximum(np.searchsorted(capacity, load * (1 - 1e-9)), 1), MOST))


class Shadow(NamedTuple):
    """What is followed: indices of margin and memory, and 1 with the trend. ``load`` in engines is to be carried now;
    ``enough``: whether any shadow would have held the target."""

    margin: int
    memory: int
    trend: int
    floor: int
    load: float
    enough: bool

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.margin, self.memory, self.trend, self.floor

    @property
    def rule(self) -> str:
        minutes = 2 * MEMORIES[self.memory] * STEP / 60
        trend = ", with its trend" if self.trend else ""
        least = f", at least {FLOORS[self.floor]} replicas" if self.floor else ""
        return f"{MARGINS[self.margin]:g} × the highest load of {minutes:g} min{trend}{least}"


def known_rule(key: tuple[int, int, int, int]) -> bool:
    """Whether what is remembered of a shadow is one of them."""
    counts = len(MARGINS), len(MEMORIES), 2, len(FLOORS)
    return all(0 <= place < count for place, count in zip(key, counts, strict=True))


def resampled(
    history: Sequence[tuple[float, float]],
    now: float,
    engine: Speed,
    mean: tuple[float, float],
    seen: Sequence[tuple[float, float, float]] = (),
    even: float = math.inf,
    second: float = 1.0,
) -> Floats:
    """The last ``SPAN`` of (time, requests/s) in steps back from now, in engines; what is missing is as before it.

    Requests have the sizes that were ``seen`` then, (time, prompt, output), else those of the ``mean``. A minute's mean
    scatters: it counts for as much as it has requests beyond ``even``, and the mean of the minutes before it for the
    rest. ``second`` is what one takes where a world runs faster.
    """
    if not history:
        return np.empty(0)
    times, rates = _columns(history, 2)
    times, now = times / second, now / second
    count = int(min(SPAN, now - times[0]) / STEP + 1e-6) + 1
    points = now - STEP * np.arange(count)[::-1] + 1e-6
    rates = np.maximum(0.0, rates[np.maximum(np.searchsorted(times, points, side="right") - 1, 0)])
    busy = per_request(engine, *mean) or 1e-9
    if not seen or math.isinf(even):
        return np.asarray(rates * busy, dtype=np.float64)
    told, prompts, outputs = _columns(seen, 3)
    told = told / second
    # The work of a request is linear in its sizes.
    by_prompt, by_output = (per_request(engine, *size) or 1e-9 for size in ((1e6, 0.0), (0.0, 1e6)))
    each = (prompts * by_prompt + outputs * by_output) / 1e6
    sums = np.concatenate([[0.0], np.cumsum(each)])
    around = np.searchsorted(told, points - EVEN), np.searchsorted(told, points, side="right")
    counts = around[1] - around[0]
    broad = np.where(counts > 0, (sums[around[1]] - sums[around[0]]) / np.maximum(counts, 1), busy)
    near = np.where(counts > 0, each[np.maximum(around[1] - 1, 0)], busy)
    requests = rates * MINUTE
    share = requests / (requests + even)
    return np.asarray(rates * (share * near + (1 - share) * broad), dtype=np.float64)


def _columns(rows: Sequence[tuple[float, ...]], count: int) -> Floats:
    return np.fromiter(chain.from_iterable(rows), np.float64, count * len(rows)).reshape(-1, count).T


def _highest(values: NDArray[Number], steps: int, reach: int = 1) -> NDArray[Number]:
    """The highest of the last so many points, along the last axis, of ``values`` that are the highest of ``reach``."""
    found = values
    while reach < steps:
        shift = min(reach, steps - reach)
        found = np.concatenate([found[..., :shift], np.maximum(found[..., shift:], found[..., :-shift])], axis=-1)
        reach += shift
    return found


def _even(load: Floats) -> Floats:
    """Counts of single minutes scatter."""
    found = load.copy()
    for back in (2, 4):
        found[back:] += load[:-back]
        found[:back] += load[:back]
    return found / 3


def follow(
    load: Floats, holding: Holding, lead: float, allowed: float, kept: tuple[int, int, int, int] | None = None
) -> Shadow | None:
    """The shadow to follow now; ``None`` while there is too little history to try any.

    ``load`` in engines, a point a ``STEP``, the newest last; ``lead`` is seconds from an order until a replica serves;
    ``allowed`` is the share of requests that may miss; the one that was ``kept`` is followed without a try.
    """
    capacity = holding.capacities(allowed)
    if kept is not None and not known_rule(kept):
        kept = None
    ahead = max(1, math.ceil(lead / STEP))
    cold = ahead + COLD
    if len(load) < 2 + cold or not load[cold:].any():
        return None
    slope = np.zeros_like(load)
    if len(load) > SLOPE_STEPS:
        slope[SLOPE_STEPS:] = np.maximum(0.0, load[SLOPE_STEPS:] - load[:-SLOPE_STEPS]) / SLOPE_STEPS
    even = _even(load)
    seen = np.stack([load, load + np.minimum(slope * ahead, load)])
    calm = np.stack([even, even + np.minimum(slope * ahead, even)])
    if kept is not None:
        margin, memory, trend, floor = kept
        highest = max(float(seen[trend, -1]), float(calm[trend, -2 * MEMORIES[memory] :].max()))
        carried = max(float(MARGINS[margin] * highest), float(capacity[FLOORS[floor]]))
        return Shadow(*kept, carried, True)
    # (memory, trend, time), the memories twice: as they are tried, and as they are followed.
    tops = [(_highest(calm, steps), steps) for steps in MEMORIES]
    tried = np.maximum(seen, [found for found, _ in tops])
    followed = np.maximum(seen, [_highest(found, 2 * steps, steps) for found, steps in tops])
    weight = load.copy()
    weight[:cold] = 0.0
    # What no memory could have known teaches little.
    weight[ahead:][load[ahead:] > NEW * np.maximum.accumulate(even)[:-ahead]] *= LESSON
    weight /= weight.sum()
    most = int(needed(capacity, np.array(1.2 * even.max())))
    floors = FLOORS[: int(np.searchsorted(FLOORS, most)) + 1]
    margins = MARGINS[:, None, None, None]
    top = int(needed(capacity, np.array(MARGINS[-1] * followed.max())))
    # (margin, memory, trend, time)
    asked = -_highest(-needed(capacity[: top + 1], margins * tried), ahead + 1)
    later = needed(capacity[: top + 1], margins * followed).astype(np.float64)
    came = _came(load)
    # (replicas, time): what so many miss at a point, and what this adds to the share, is the same for all shadows.
    replicas = np.arange(1, max(top, floors[-1]) + 1)[:, None]
    missing = holding.missing(came, replicas)
    risen = came + ONSET
    onset = risen * np.where(risen < replicas * holding.learnt, holding.missing(risen, replicas), 1.0)
    seldom = np.where(np.arange(len(load)) < cold, 0.0, lead / (SELDOM * float(load[cold:].sum())))
    adds, spared = missing * weight + onset * seldom, (1 - missing) * weight
    begins = np.arange(-len(load), 0)
    places = asked * len(load) + begins
    peak = np.where(came > asked * holding.learnt, came, 0.0).max(axis=-1)
    shares: list[Floats] = []
    costs: list[Floats] = []
    cheapest = math.inf
    for floor in floors:
        cost = np.maximum(later, floor).mean(axis=-1)
        if cost.min() > STAY * cheapest:  # as is all that keeps more
            break
        place = np.maximum(places, floor * len(load) + begins)
        share = adds.take(place).sum(axis=-1)
        short = peak > floor * holding.learnt
        waits = _waits(came, np.maximum(asked[short], floor), holding)
        share[short] += spared.take(place[short]).sum(axis=-1, where=waits)
        cheapest = min(cheapest, float(cost[share <= SPARE * allowed].min(initial=math.inf)))
        shares.append(share)
        costs.append(cost)
    # (margin, memory, trend, floor)
    share, cost = np.stack(shares, axis=-1), np.stack(costs, axis=-1)
    enough = cheapest < math.inf
    if enough:
        # Of equals, the one that is sure to keep what it would have kept.
        among = (share <= SPARE * allowed) & (cost <= STAY * cheapest)
        price = np.where(among, share - 1e-9 * floors[: len(shares)], np.inf)
    else:
        price = cost * (1 + 2 * np.maximum(0.0, share / (SPARE * allowed) - 1))
    margin, memory, trend, least = (int(one) for one in np.unravel_index(np.argmin(price), price.shape))
    carried = max(float(MARGINS[margin] * followed[memory, trend, -1]), float(capacity[FLOORS[least]]))
    return Shadow(margin, memory, trend, least, carried, enough)


def _came(load: Floats) -> Floats:
    """A rate over a minute is known half a minute late, and scatters."""
    later = np.concatenate([load, load[-1:], load[-1:]])
    return np.asarray((load + later[1:-1] + later[2:]) / 3)


def _waits(load: Floats, replicas: NDArray[np.int64], holding: Holding) -> NDArray[np.bool_]:
    """All requests that came when there was too much load miss."""
    more = np.cumsum(load - replicas * holding.learnt, axis=-1)
    return np.asarray(more - np.minimum(0.0, np.minimum.accumulate(more, axis=-1)) > QUEUE * replicas)


def held_by(load: Floats, holding: Holding, replicas: int) -> float:
    """The share of requests that so many replicas, all the time, would have had within the targets."""
    if replicas < 1:
        return 0.0
    came, count = _came(load), np.array(replicas)
    missing = np.where(_waits(came, count, holding), 1.0, holding.missing(came, count))
    return 1 - float(missing @ load) / max(float(load.sum()), 1e-12)


def learnt(before: float, engine: Speed, load: float, itl: float | None) -> float:
    """How much of its load a replica really carries, after what was seen in a calm time: ``load`` in engines, mean
    ``itl`` in ms. At a load x a step takes α / (1 - x (T - α) / T); what it really takes says which x that was."""
    if itl is None or engine.itl <= engine.alpha or load <= 0:
        return before
    thought = load * (1 - engine.alpha / engine.itl)
    seen = 1 - engine.alpha / max(itl, 1.001 * engine.alpha)
    found = min(max(thought / seen, LOWEST), HIGHEST)
    return before + LEARN * (found - before)


def variety(prompts: Sizes, outputs: Sizes, engine: Speed) -> float:
    """Requests after which a minute's mean work is told from chance."""
    work = engine.delta * prompts.mean + engine.beta * outputs.mean
    of_prompts = float((engine.delta * prompts.tokens) ** 2 @ prompts.shares)
    spread = of_prompts + float((engine.beta * outputs.tokens) ** 2 @ outputs.shares)
    return VARIES * spread / max(work, 1e-9) ** 2
