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

from modelyard.autoscaling.mixing.model import Demand, Option, Share
from modelyard.fairness import WorkBudget

_TIE = 1e-9
"""What a changed replica counts for beside the cheapest item's cost: it decides between equal costs only."""
_GRID_NODES = 200
_TIE_NODES = 2_000
_NEAR = 1e-7
"""After that many steps equal costs are no longer told apart, nor costs this close (relative)."""
_NODES = 300_000
"""Where the search stops with the best mix so far. Where costs are in exact proportion to rates and on no grid it can
come to that; the mix was then found within a millionth of the least cost."""


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
    """The replicas of ``cover``, maxima (and minima with them) lowered to ``limits`` by option name."""
    if not 0 <= penalty <= 1:
        raise ValueError(f"transition penalty is {penalty!r}; it must be 0 to 1")
    bounds = [_bounds(option, limits) for option in demand.options]
    lowers = [low for low, _ in bounds]
    if demand.load <= 0:
        return _named(demand.options, lowers)
    uppers = [
        max(low, ceil(demand.need / o.rate)) if high is None else high
        for o, (low, high) in zip(demand.options, bounds, strict=True)
    ]
    if sum(o.rate * n for o, n in zip(demand.options, uppers, strict=True)) < demand.need:
        return _named(demand.options, uppers)
    slopes = [(o.cost * (1 - penalty), o.cost * (1 + penalty)) for o in demand.options]
    return _named(demand.options, mix(demand, lowers, uppers, slopes, effort=demand.effort))


def mix(
    demand: Demand,
    lowers: Sequence[int],
    uppers: Sequence[int],
    slopes: Sequence[tuple[float, float]],
    unserved: float = inf,
    effort: WorkBudget | None = None,
) -> list[int]:
    """Replicas by option that carry the load at the least price, within bounds (which must be able to).

    ``slopes`` price running and new replicas; any part of the load may go unserved at a finite ``unserved`` price.
    """
    counts = list(lowers)
    need = demand.need - sum(o.rate * n for o, n in zip(demand.options, counts, strict=True))
    if demand.load <= 0 or need <= 0:
        return counts
    items = _items(demand.options, counts, uppers, need, slopes)
    for item, n in zip(items, _search(items, need, unserved / demand.load, effort), strict=True):
        counts[item.option] += n
    return counts


def _bounds(option: Option, limits: Mapping[str, int] | None) -> tuple[int, int | None]:
    if limits is None or option.name not in limits:
        return option.minimum, option.maximum
    limit = limits[option.name] if option.maximum is None else min(limits[option.name], option.maximum)
    return min(option.minimum, limit), limit


def _named(options: Sequence[Option], counts: Sequence[int]) -> dict[str, int]:
    return {option.name: n for option, n in zip(options, counts, strict=True)}


def _items(
    options: Sequence[Option],
    lowers: Sequence[int],
    uppers: Sequence[int],
    need: float,
    slopes: Sequence[tuple[float, float]],
) -> list[_Item]:
    """Items above the lower bounds, cheapest per request first."""
    unit = min((new for _, new in slopes if new > 0), default=1.0) * _TIE
    rank = {name: i for i, name in enumerate(sorted(o.name for o in options))}
    items = []
    for index, (option, low, high) in enumerate(zip(options, lowers, uppers, strict=True)):
        by_name = unit * 1e-3 * rank[option.name]
        useful = min(high - low, max(0, ceil(need / option.rate)))
        running = min(max(0, option.current - low), useful)
        if running:
            slope = slopes[index][0]
            items.append(_Item(index, option.rate, slope, max(0.0, slope - unit) + by_name, running))
        if useful > running:
            slope = slopes[index][1]
            items.append(_Item(index, option.rate, slope, slope + unit + by_name, useful - running))
    # At equal prices big replicas first: the small ones then fill the remainder exactly.
    items.sort(key=lambda item: (item.key / item.rate, -item.rate, item.option, item.key))
    return items


def _grid(items: Sequence[_Item]) -> tuple[float, float]:
    """The step all costs are multiples of, 0 when there is none worth using, and what tie-breaks can add to a cost."""
    fractions = [Fraction(item.slope).limit_denominator(1_000_000) for item in items]
    if any(abs(float(f) - item.slope) > 1e-12 * max(1.0, item.slope) for f, item in zip(fractions, items, strict=True)):
        return 0.0, 0.0
    denominator = lcm(*(f.denominator for f in fractions))
    step = gcd(*(f.numerator * (denominator // f.denominator) for f in fractions)) / denominator
    noise = max(abs(item.key - item.slope) for item in items) * (sum(item.count for item in items) + 1)
    return (step, noise) if noise < step / 4 else (0.0, 0.0)


def _search(items: Sequence[_Item], need: float, spare: float = inf, effort: WorkBudget | None = None) -> list[int]:
    """Counts by item with the least cost that carry ``need``; what is not carried costs ``spare`` per request/s."""
    given = len(items)
    while items and items[-1].key / items[-1].rate >= spare:
        items = items[:-1]
    size = len(items)
    most = _NODES if effort is None else min(_NODES, effort.left // max(1, size))
    rates, keys, tops = [i.rate for i in items], [i.key for i in items], [i.count for i in items]
    slopes = [i.slope for i in items]
    grid, noise = -1.0, 0.0
    tiny = 1e-12 * need
    best_cost, best_real = inf, inf
    best: list[int] = [0] * size
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
        return cost if rest <= tiny else cost + rest * spare

    def hopeless(least: float) -> bool:
        nonlocal grid, noise
        if least >= best_cost or (nodes > _TIE_NODES and least >= best_cost * (1 - _NEAR)):
            return True
        if nodes < _GRID_NODES or spare < inf or best_real == inf:
            return False
        if grid < 0:
            grid, noise = _grid(items)
        if grid == 0:
            return False
        steps = ceil((least - noise) / grid - 1e-6)
        reached = round(best_real / grid)
        return steps > reached or (steps == reached and nodes > _TIE_NODES)

    def descend(k: int, rest: float, cost: float, real: float) -> None:
        nonlocal best_cost, best_real, best, nodes
        nodes += 1
        total = cost if rest <= tiny else cost + rest * spare
        if total < best_cost:
            best_cost, best_real, best = total, real, taken[:k] + [0] * (size - k)
        if rest <= tiny or k == size:
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
            if nodes > most and best_cost < inf:
                break
            taken[k] = n
            descend(k + 1, left, spent, real + n * slopes[k])
        taken[k] = 0

    descend(0, need, 0.0, 0.0)
    if effort is not None:
        effort.spend(nodes * size)
    return best + [0] * (given - size)
