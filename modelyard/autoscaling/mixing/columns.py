"""Column generation: what a unit of each accelerator is worth to a large fleet, and a mix for nearly every demand.

A *column* is one mix of replicas of one demand. The master program picks one column per demand within the capacity;
its dual prices per accelerator say what a unit is worth, and ``covering.mix`` finds for each demand the best mix at
these prices. Because a column is already whole replicas, the master's relaxation is nearly integer: with A scarce
accelerators at most A + 1 demands are split, which ``exact`` decides. ``pick`` chooses among columns near the prices.

The prices also give a bound that no allocation can beat (Lagrange), so the answer carries its distance from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import Any

import pulp

from modelyard.autoscaling.mixing.covering import mix
from modelyard.autoscaling.mixing.model import Demand, Option, Replicas
from modelyard.autoscaling.mixing.solver import FloatArray, Linear, solve
from modelyard.autoscaling.mixing.stage import HELD, Columns, Stage, counts_of, share
from modelyard.fairness import WorkBudget

ROUNDS = 20
GAP = 2e-4
"""Relative distance from the bound at which an answer is good enough."""
CLOSE = 1e-3
"""The same for the choice among the columns: closer takes many times as long and hardly serves more."""
_WIDTH = 300
"""Columns beside each demand's best one that the integer program chooses from."""
_AROUND = 2000
"""Options up to which columns are also sought around the prices; with more there are enough that fit together."""


class Master:
    """The relaxed program that picks one column for each demand, within capacity and held service."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._picks: list[tuple[str, tuple[int, ...]]] = []
        rows: dict[Any, tuple[float, float]] = {a: (-inf, limit) for a, limit in stage.limits.items()}
        rows |= {p: (least - HELD, inf) for p, least in stage.held.items() if least is not None}
        self._rows = {key: i for i, key in enumerate(rows)}
        self._one = {d.name: len(rows) + i for i, d in enumerate(stage.demands)}
        self._known = dict.fromkeys(self._one, 0)
        self._program = Linear([*rows.values(), *((1.0, 1.0) for _ in stage.demands)])

    def add(self, columns: Columns) -> None:
        stage, fresh = self._stage, []
        for demand in stage.demands:
            known = columns.counts[demand.name]
            for counts in islice(known, self._known[demand.name], None):
                fraction = share(demand, counts)
                if stage.whole(demand) and fraction < 1:
                    continue
                units: dict[int, float] = {self._one[demand.name]: 1}
                for option, n in zip(demand.options, counts, strict=True):
                    if n:
                        for row in map(self._rows.__getitem__, option.rows):
                            units[row] = units.get(row, 0) + n * option.units
                if fraction and demand.priority in self._rows:
                    units[self._rows[demand.priority]] = fraction
                fresh.append((stage.worth(demand, counts), units))
                self._picks.append((demand.name, counts))
            self._known[demand.name] = len(known)
        self._program.add(fresh)

    def solve(self, effort: WorkBudget, floor: int) -> tuple[float, dict[Any, float], FloatArray]:
        """The value, what a unit of each accelerator and a fraction of each held class is worth, the columns' parts."""
        value, parts, duals = self._program.solve(effort, floor)
        prices = {k: max(0.0, float(-duals[r] if isinstance(k, str) else duals[r])) for k, r in self._rows.items()}
        return value, prices, parts

    def chosen(self, parts: FloatArray) -> Replicas:
        """The replicas of the demands that have one column."""
        options = {d.name: [o.name for o in d.options] for d in self._stage.demands}
        picked = [pick for pick, part in zip(self._picks, parts, strict=True) if part > 1 - HELD]
        return {name: dict(zip(options[name], counts, strict=True)) for name, counts in picked}


def relax(
    stage: Stage, start: Replicas, columns: Columns, effort: WorkBudget, floor: int
) -> tuple[Replicas, dict[Any, float], float]:
    """Replicas of nearly all demands that fit together, prices, and a bound on the value, leaving ``floor`` of effort.

    ``start`` must be allowed. Raises ``SolverError`` when the effort is used up before.
    """
    for demand in stage.demands:
        columns.add(demand, counts_of(demand, start[demand.name]))
        columns.add(demand, counts_of(demand, stage.kept[demand.name]))
    best, center = -inf, None
    master = Master(stage)
    for _ in range(ROUNDS):
        master.add(columns)
        value, prices, parts = master.solve(effort, floor)
        # Halfway to the best prices so far: raw prices swing from round to round.
        asked = prices if center is None else {key: (prices[key] + center[key]) / 2 for key in prices}
        bound, fresh = _price(stage, columns, asked, effort)
        if bound > best:
            best, center = bound, asked
        if not fresh and asked != prices:
            bound, fresh = _price(stage, columns, prices, effort)
            if bound > best:
                best, center = bound, prices
        if not fresh or value - best <= GAP / 10 * abs(value):
            break
    return master.chosen(parts), prices, best


def pick(
    stage: Stage, start: Replicas, columns: Columns, prices: Mapping[Any, float], effort: WorkBudget, floor: int
) -> Replicas:
    """Choose all demands' replicas from columns near these prices, starting at ``start``. Raises ``SolverError``."""
    if sum(len(d.options) for d in stage.demands) <= _AROUND:
        for accelerator in stage.limits:
            for factor in (0.8, 1.25):
                _price(stage, columns, {**prices, accelerator: prices[accelerator] * factor}, effort)
    problem = pulp.LpProblem("columns", pulp.LpMinimize)
    rows: dict[Any, dict[Any, float]] = {key: {} for key in (*stage.limits, *(d.priority for d in stage.demands))}
    objective, picks = [], []
    for i, (demand, known) in enumerate(_nearest(stage, columns, prices, start)):
        one = []
        for j, counts in enumerate(known):
            taken = problem.add_variable(f"c{i}_{j}", 0, 1, pulp.LpInteger)
            taken.setInitialValue(float(counts == counts_of(demand, start[demand.name])))
            one.append((taken, 1))
            objective.append((taken, stage.worth(demand, counts)))
            for option, n in zip(demand.options, counts, strict=True):
                for row in map(rows.__getitem__, option.rows):
                    row[taken] = row.get(taken, 0) + n * option.units
            rows[demand.priority][taken] = share(demand, counts)
            picks.append((demand, counts, taken))
        problem += pulp.LpAffineExpression(one) == 1
    for accelerator, limit in stage.limits.items():
        problem += pulp.LpAffineExpression(rows[accelerator]) <= limit
    for priority, least in stage.held.items():
        if least is not None:
            problem += pulp.LpAffineExpression(rows[priority]) >= least - HELD / 2
    problem += pulp.LpAffineExpression(objective)
    solve(problem, effort, floor, CLOSE)
    chosen = [(demand, counts) for demand, counts, taken in picks if taken.varValue > 0.5]
    return {d.name: dict(zip((o.name for o in d.options), counts, strict=True)) for d, counts in chosen}


def _nearest(
    stage: Stage, columns: Columns, prices: Mapping[Any, float], start: Replicas
) -> list[tuple[Demand, list[tuple[int, ...]]]]:
    """The best column, the one in ``start``, and those least behind the best."""
    chosen: list[dict[tuple[int, ...], None]] = []
    behind: list[tuple[float, int, tuple[int, ...]]] = []
    for i, demand in enumerate(stage.demands):
        known = [c for c in columns.counts[demand.name] if not stage.whole(demand) or share(demand, c) == 1]
        priced = sorted((_reduced(stage, demand, counts, prices), counts) for counts in known)
        least, best = priced[0]
        chosen.append(dict.fromkeys((best, counts_of(demand, start[demand.name]))))
        behind += [(reduced - least, i, counts) for reduced, counts in priced[1:]]
    for _, i, counts in nsmallest(_WIDTH, behind):
        chosen[i][counts] = None
    return [(demand, list(known)) for demand, known in zip(stage.demands, chosen, strict=True)]


def _reduced(stage: Stage, demand: Demand, counts: Sequence[int], prices: Mapping[Any, float]) -> float:
    """Units and held service are paid for at these prices."""
    units = sum(_price_of(o, prices) * n for o, n in zip(demand.options, counts, strict=True))
    return stage.worth(demand, counts) + units - prices.get(demand.priority, 0.0) * share(demand, counts)


def _price(stage: Stage, columns: Columns, prices: Mapping[Any, float], effort: WorkBudget) -> tuple[float, int]:
    """The Lagrange bound at these prices, and how many new columns they gave. No bound once the effort is used up."""
    bound, fresh = 0.0, 0
    for accelerator, limit in stage.limits.items():
        bound -= prices[accelerator] * limit
    for priority, least in stage.held.items():
        if least is not None:
            bound += prices[priority] * least
    for demand in stage.demands:
        counts = _best(stage, demand, prices, effort)
        fresh += columns.add(demand, counts)
        bound += _reduced(stage, demand, counts, prices)
    return (bound if effort.left else -inf), fresh


def _best(stage: Stage, demand: Demand, prices: Mapping[Any, float], effort: WorkBudget) -> list[int]:
    kept = [stage.kept[demand.name][o.name] for o in demand.options]
    if demand.load <= 0:
        return kept
    uppers, slopes = [], []
    for option, low in zip(demand.options, kept, strict=True):
        uppers.append(max(low, min(demand.most(option), stage.room(option))))
        slopes.append(_slopes(stage, option, _price_of(option, prices)))
    unserved = inf
    if not stage.whole(demand):
        unserved = prices.get(demand.priority, 0.0) + (1.0 if demand.name in stage.group else 0.0)
    return mix(demand, kept, uppers, slopes, unserved, effort)


def _price_of(option: Option, prices: Mapping[Any, float]) -> float:
    return sum(prices[row] for row in option.rows) * option.units


def _slopes(stage: Stage, option: Option, price: float) -> tuple[float, float]:
    if stage.group:
        return price, price
    return option.cost * (1 - stage.penalty) + price, option.cost * (1 + stage.penalty) + price
