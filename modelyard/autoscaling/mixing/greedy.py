"""The greedy allocation: demand by demand, each the cheapest replicas that still fit.

``allocate`` falls back on it where the exact solver fails or the effort is used up, and starts the solver from it; the
benchmark compares the two. It keeps to the capacity, but what one demand takes is not available to the next, so that a
demand may end up dearer or worse served than it need be. ``keep_minimums`` serves both allocations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modelyard.autoscaling.mixing.covering import cheapest
from modelyard.autoscaling.mixing.model import Capacity, Demand, Replicas


def units_used(demands: Iterable[Demand], replicas: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Units by accelerator that these replicas take; accelerators without a replica are left out."""
    used: dict[str, int] = {}
    for demand in demands:
        for option in demand.options:
            if n := replicas[demand.name].get(option.name, 0):
                option.take(used, n)
    return used


def keep_minimums(demands: Sequence[Demand], capacity: Capacity) -> Replicas:
    """The minimums that the capacity can hold: the most important class first, a replica each in turn within it."""
    kept: Replicas = {d.name: dict.fromkeys((o.name for o in d.options), 0) for d in demands}
    used: dict[str, int] = {}
    for priority in sorted({d.priority for d in demands}):
        waiting = sorted(
            ((d.name, o) for d in demands if d.priority == priority for o in d.options if o.minimum),
            key=lambda entry: (entry[1].units, entry[0], entry[1].name),
        )
        while waiting:
            again = []
            for name, option in waiting:
                if capacity.room(option, used) == 0:
                    continue
                kept[name][option.name] += 1
                option.take(used, 1)
                if kept[name][option.name] < option.minimum:
                    again.append((name, option))
            waiting = again
    return kept


def greedy(demands: Sequence[Demand], capacity: Capacity, penalty: float) -> Replicas:
    """Allocate by priority, within a class by regret: whose second choice costs most more than its first goes first."""
    replicas = keep_minimums(demands, capacity)
    fill(by_regret(demands), replicas, units_used(demands, replicas), capacity, penalty)
    return replicas


def by_regret(demands: Iterable[Demand]) -> list[Demand]:
    """The order of service: by priority, largest regret first, then by name."""
    return sorted(demands, key=lambda d: (d.priority, -_regret(d), d.name))


def fill(
    demands: Iterable[Demand], replicas: Replicas, used: dict[str, int], capacity: Capacity, penalty: float
) -> None:
    """Serve demands in the order given from what is left; changes ``replicas`` and ``used``."""
    for demand in demands:
        before = replicas[demand.name]
        after = _fitting(demand, before, used, capacity, penalty)
        for option in demand.options:
            if more := after[option.name] - before[option.name]:
                option.take(used, more)
        replicas[demand.name] = after


def _regret(demand: Demand) -> float:
    """What the load costs more on the second-best option alone than on the best one alone."""
    prices = sorted(o.cost / o.rate for o in demand.options)
    return (prices[1] - prices[0]) * demand.load if len(prices) > 1 else float("inf")


def _fitting(
    demand: Demand, kept: Mapping[str, int], used: Mapping[str, int], capacity: Capacity, penalty: float
) -> dict[str, int]:
    limits = {option.name: kept[option.name] + capacity.room(option, used) for option in demand.options}
    best = cheapest(demand, penalty, limits)
    grown = dict(used)
    for option in demand.options:
        option.take(grown, best[option.name] - kept[option.name])
    rows = {row for option in demand.options for row in option.rows}
    if all(best[name] >= n for name, n in kept.items()) and all(grown[row] <= capacity.of(row) for row in rows):
        return best
    # Options on one accelerator were each given all of its room: take them in turn, best price first.
    chosen, taken = dict(kept), dict(used)
    rest = demand.need - demand.carried(chosen)
    for option in sorted(demand.options, key=lambda o: (o.cost / o.rate, o.name)):
        if rest <= 0:
            break
        more = demand.most(option) - chosen[option.name]
        enough = max(0, min(more, int(rest // option.rate) + 1))
        n = min(capacity.room(option, taken), enough)
        chosen[option.name] += n
        option.take(taken, n)
        rest -= n * option.rate
    return chosen
