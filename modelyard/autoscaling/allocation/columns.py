"""Column generation: the integer program of a large fleet, decided over whole mixes of replicas per demand.

Used by ``exact`` where a group is too large for the direct program. A *column* is one mix of replicas of one demand.
The master program picks one column per demand within the capacity; its dual prices per accelerator say what a unit is
worth, and ``covering.mix`` finds for each demand the best mix at these prices. Because a column is already whole
replicas, the master's relaxation is nearly integer: with A scarce accelerators at most A + 1 demands are split.

The prices also give a bound that no allocation can beat (Lagrange), so the answer carries its distance from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import pulp

from modelyard.autoscaling.allocation.covering import mix
from modelyard.autoscaling.allocation.master import Master
from modelyard.autoscaling.allocation.model import Demand, Option, Replicas
from modelyard.autoscaling.allocation.solver import solve
from modelyard.autoscaling.allocation.stage import Columns, Stage, counts_of, share

ROUNDS = 20
GAP = 2e-4
"""Relative distance from the bound at which columns are good enough."""

_PART = 0.4
"""One integer program may take this part of the seconds that are left."""


def generate(stage: Stage, start: Replicas, columns: Columns, seconds: float) -> tuple[Replicas, float, float]:
    """Answer a stage: replicas, a bound on the objective, and the seconds left.

    ``start`` must be allowed. Raises ``SolverError`` when ``seconds`` are used up before there are prices.
    """
    for demand in stage.demands:
        columns.add(demand, counts_of(demand, start[demand.name]))
        kept = counts_of(demand, stage.kept[demand.name])
        columns.add(demand, kept)
    bound, prices, seconds = _converge(stage, columns, seconds)
    found, value = start, stage.value(start)
    for attempt in range(2):
        if value - bound <= GAP * abs(value):
            break
        if attempt:
            # Whole replicas do not fit together well enough: look around the prices for other mixes.
            for accelerator in stage.limits:
                for factor in (0.8, 1.25):
                    _price(stage, columns, {**prices, accelerator: prices[accelerator] * factor})
        master = Master(stage, columns, pulp.LpInteger)
        solved = solve(master.problem, master.start(found), seconds * _PART, GAP / 2)
        seconds -= solved.seconds
        found = master.replicas(solved)
        value = stage.value(found)
    return found, bound, seconds


def _converge(stage: Stage, columns: Columns, seconds: float) -> tuple[float, dict[Any, float], float]:
    """Find prices and the columns for them: a bound on the objective, the prices, the seconds left."""
    best, center, prices = -inf, None, {}
    for _ in range(ROUNDS):
        master = Master(stage, columns, pulp.LpContinuous)
        solved = solve(master.problem, None, seconds, 0.0, integer=False)
        seconds -= solved.seconds
        prices = master.prices()
        # Halfway to the best prices so far: raw prices swing from round to round.
        asked = prices if center is None else {key: (prices[key] + center[key]) / 2 for key in prices}
        bound, fresh = _price(stage, columns, asked)
        if bound > best:
            best, center = bound, asked
        if not fresh and asked != prices:
            bound, fresh = _price(stage, columns, prices)
            if bound > best:
                best, center = bound, prices
        if not fresh or solved.objective - best <= GAP / 10 * abs(solved.objective):
            break
    return best, prices, seconds


def _price(stage: Stage, columns: Columns, prices: Mapping[Any, float]) -> tuple[float, int]:
    """The Lagrange bound at these prices, and how many new columns they gave."""
    bound, fresh = 0.0, 0
    for accelerator, limit in stage.limits.items():
        bound -= prices[accelerator] * limit
    for priority, least in stage.held.items():
        if least is not None:
            bound += prices[priority] * least
    for demand in stage.demands:
        counts = _best(stage, demand, prices)
        fresh += columns.add(demand, counts)
        bound += stage.worth(demand, counts) + sum(
            prices[o.accelerator] * o.units * n
            for o, n in zip(demand.options, counts, strict=True)
            if o.accelerator in stage.limits
        )
        if demand.priority in prices:
            bound -= prices[demand.priority] * share(demand, counts)
    return bound, fresh


def _best(stage: Stage, demand: Demand, prices: Mapping[Any, float]) -> list[int]:
    """The best column of a demand at these prices."""
    kept = [stage.kept[demand.name][o.name] for o in demand.options]
    if demand.load <= 0:
        return kept
    uppers, slopes = [], []
    for option, low in zip(demand.options, kept, strict=True):
        limit = stage.limits.get(option.accelerator)
        high = demand.most(option)
        uppers.append(max(low, high if limit is None else min(high, limit // option.units)))
        slopes.append(_slopes(stage, option, prices.get(option.accelerator, 0.0) * option.units))
    unserved = inf
    if not stage.whole(demand):
        unserved = prices.get(demand.priority, 0.0) + (1.0 if demand.name in stage.group else 0.0)
    return mix(demand, kept, uppers, slopes, unserved)


def _slopes(stage: Stage, option: Option, price: float) -> tuple[float, float]:
    if stage.group:
        return price, price
    return option.cost * (1 - stage.penalty) + price, option.cost * (1 + stage.penalty) + price
