"""Exact covering of one demand: the cheapest replicas that carry its load within their bounds.

``allocate`` solves every demand this way when no capacity binds; the greedy allocation and the SLO strategy call it
too. Source: WVA SLO reference, "Splitting load among variants".

The cost of an option is convex in its replicas: removing one that runs saves less than adding one costs, because both
pay the transition penalty. So every option is at most two items, the replicas that run and the ones beyond, and the
problem is a bounded covering knapsack over these. It is solved by depth-first branch and bound, items in order of cost
per request, with the fractional solution as the bound. Costs usually lie on a grid (cents); then the bound is rounded
up to the grid, which ends the search early where many mixes cost nearly the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd, inf, lcm

from modelyard.autoscaling.allocation.model import Demand, Option, Share

_TIE = 1e-9
"""What a changed replica counts for beside the cheapest item's cost: it decides between equal costs only."""

_TIE_NODES = 2_000
_NODES = 300_000


@dataclass(frozen=True, slots=True)
class _Item:
    """Up to ``count`` replicas of one option at one marginal cost; ``key`` is the marginal cost with tie-breaks."""

    option: int
    rate: float
    slope: float
    key: float
    count: int


def cover(demand: Demand, *, penalty: float = 0.1) -> Share:
    """The cheapest replicas that carry the demand's load.

    Minimises Σ c·n + penalty·c·|n - current| subject to Σ rate·n ≥ load and the bounds. Equal costs are decided by
    fewer changed replicas, then by more replicas of the option whose name comes first. When the bounds cannot cover
    the load every option is at its maximum; without load every option is at its minimum.

    ``penalty`` is the share of a replica's cost that starting or stopping it counts for, 0 to 1 (``ValueError``).
    """
    replicas = cheapest(demand, penalty)
    return Share(demand.name, replicas, demand.served(replicas), demand.cost(replicas), dict(replicas), False)


def cheapest(demand: Demand, penalty: float, limits: Mapping[str, int] | None = None) -> dict[str, int]:
    """The replicas of ``cover`` with the maxima lowered to ``limits`` (by option name; minima are lowered with them)."""
    if not 0 <= penalty <= 1:
        raise ValueError(f"transition penalty is {penalty!r}; it must be 0 to 1")
    bounds = [_bounds(option, limits) for option in demand.options]
    counts = [low for low, _ in bounds]
    need = demand.need - sum(o.rate * n for o, n in zip(demand.options, counts, strict=True))
    if demand.load <= 0 or need <= 0:
        return _named(demand.options, counts)
    uppers = [
        max(low, ceil(demand.need / o.rate)) if high is None else high
        for o, (low, high) in zip(demand.options, bounds, strict=True)
    ]
    if sum(o.rate * n for o, n in zip(demand.options, uppers, strict=True)) < demand.need:
        return _named(demand.options, uppers)
    items = _items(demand.options, counts, uppers, need, penalty)
    for item, n in zip(items, _search(items, need), strict=True):
        counts[item.option] += n
    return _named(demand.options, counts)


def _bounds(option: Option, limits: Mapping[str, int] | None) -> tuple[int, int | None]:
    if limits is None or option.name not in limits:
        return option.minimum, option.maximum
    limit = limits[option.name] if option.maximum is None else min(limits[option.name], option.maximum)
    return min(option.minimum, limit), limit


def _named(options: Sequence[Option], counts: Sequence[int]) -> dict[str, int]:
    return {option.name: n for option, n in zip(options, counts, strict=True)}


def _items(
    options: Sequence[Option], lowers: Sequence[int], uppers: Sequence[int], need: float, penalty: float
) -> list[_Item]:
    """The options' items above their lower bounds, cheapest per request first."""
    unit = min((o.cost for o in options if o.cost > 0), default=1.0) * _TIE
    rank = {name: i for i, name in enumerate(sorted(o.name for o in options))}
    items = []
    for index, (option, low, high) in enumerate(zip(options, lowers, uppers, strict=True)):
        by_name = unit * 1e-3 * rank[option.name]
        useful = min(high - low, max(0, ceil(need / option.rate)))
        running = min(max(0, option.current - low), useful)
        if running:
            slope = option.cost * (1 - penalty)
            items.append(_Item(index, option.rate, slope, max(0.0, slope - unit) + by_name, running))
        if useful > running:
            slope = option.cost * (1 + penalty)
            items.append(_Item(index, option.rate, slope, slope + unit + by_name, useful - running))
    # At equal prices big replicas first: the small ones then fill the remainder exactly.
    items.sort(key=lambda item: (item.key / item.rate, -item.rate, item.option, item.key))
    return items


def _grid(items: Sequence[_Item]) -> float:
    """The step all costs are multiples of, 0 when there is none worth using."""
    fractions = [Fraction(item.slope).limit_denominator(1_000_000) for item in items]
    if any(abs(float(f) - item.slope) > 1e-12 * max(1.0, item.slope) for f, item in zip(fractions, items, strict=True)):
        return 0.0
    denominator = lcm(*(f.denominator for f in fractions))
    step = gcd(*(f.numerator * (denominator // f.denominator) for f in fractions))
    return step / denominator


def _search(items: Sequence[_Item], need: float) -> list[int]:
    """Counts by item with the least cost that carry ``need``, which all items together can."""
    size = len(items)
    rates, keys, tops = [i.rate for i in items], [i.key for i in items], [i.count for i in items]
    slopes = [i.slope for i in items]
    # Costs round up to the grid only when tie-breaks cannot reach the next step.
    grid = _grid(items)
    drift = max((abs(k - s) for k, s in zip(keys, slopes, strict=True)), default=0.0)
    grid = grid if drift * (sum(tops) + 1) < grid / 4 else 0.0
    noise = drift * (sum(tops) + 1)
    room = [0.0] * (size + 1)
    for k in range(size - 1, -1, -1):
        room[k] = room[k + 1] + rates[k] * tops[k]
    tiny = 1e-12 * need
    best_cost, best_real = inf, inf
    best: list[int] = []
    taken = [0] * size
    nodes = 0

    def bound(k: int, rest: float) -> float:
        cost = 0.0
        while rest > tiny and k < size:
            whole = rates[k] * tops[k]
            if whole >= rest:
                return cost + rest / rates[k] * keys[k]
            cost += keys[k] * tops[k]
            rest -= whole
            k += 1
        return cost if rest <= tiny else inf

    def hopeless(least: float) -> bool:
        if least >= best_cost:
            return True
        if not grid or best_real == inf:
            return False
        steps = ceil((least - noise) / grid - 1e-6)
        reached = round(best_real / grid)
        return steps > reached or (steps == reached and nodes > _TIE_NODES)

    def descend(k: int, rest: float, cost: float, real: float) -> None:
        nonlocal best_cost, best_real, best, nodes
        nodes += 1
        if rest <= tiny:
            if cost < best_cost:
                best_cost, best_real, best = cost, real, taken[:k] + [0] * (size - k)
            return
        if k == size or room[k] < rest - tiny:
            return
        enough = ceil((rest - tiny) / rates[k])
        for n in range(min(tops[k], enough), -1, -1):
            left = rest - n * rates[k]
            spent = cost + n * keys[k]
            if hopeless(spent + bound(k + 1, left)):
                if left < -tiny:
                    # More than enough: one replica fewer may do better.
                    continue
                # From here on a replica fewer only moves load to items that are dearer.
                break
            if nodes > _NODES and best:
                break
            taken[k] = n
            descend(k + 1, left, spent, real + n * slopes[k])
        taken[k] = 0

    descend(0, need, 0.0, 0.0)
    return best
