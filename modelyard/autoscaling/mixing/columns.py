"""Column generation: the integer program of a large fleet, decided over whole mixes of replicas per demand.

A *column* is one mix of replicas of one demand. The master program picks one column per demand within the capacity;
its dual prices per accelerator say what a unit is worth, and ``covering.mix`` finds for each demand the best mix at
these prices. Because a column is already whole replicas, the master's relaxation is nearly integer: with A scarce
accelerators at most A + 1 demands are split.

The prices also give a bound that no allocation can beat (Lagrange), so the answer carries its distance from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from math import inf
from typing import Any

import pulp

from modelyard.autoscaling.mixing.covering import mix
from modelyard.autoscaling.mixing.model import Demand, Option, Replicas
from modelyard.autoscaling.mixing.solver import Solved, SolverError, row, solve
from modelyard.autoscaling.mixing.stage import HELD, Columns, Stage, counts_of, share

ROUNDS = 20
GAP = 2e-4
"""Relative distance from the bound at which columns are good enough."""

_PART = 0.6
"""One integer program may take this part of the seconds that are left."""

_WIDTHS = (300, 2000, None)
"""Columns beside each demand's best one that the integer programs choose from, one after the other; last all."""

_LOOK_AROUND = 500
"""Demands up to which columns are also sought around the prices; with more there are enough that fit together."""


class Master:
    """The program that picks one column for each demand, within capacity and held service."""

    def __init__(self, stage: Stage, columns: Columns, category: str) -> None:
        self.problem = pulp.LpProblem("columns", pulp.LpMinimize)
        self._stage = stage
        self._picks: list[tuple[Demand, tuple[int, ...], Any]] = []
        rows: dict[Any, list[tuple[Any, float]]] = {a: [] for a in stage.limits}
        rows.update({p: [] for p, least in stage.held.items() if least is not None})
        objective: list[tuple[Any, float]] = []
        for i, demand in enumerate(stage.demands):
            one = []
            for j, counts in enumerate(columns.counts[demand.name]):
                fraction = share(demand, counts)
                if stage.whole(demand) and fraction < 1:
                    continue
                pick = self.problem.add_variable(f"c{i:05d}_{j}", 0, 1, category)
                self._picks.append((demand, counts, pick))
                one.append((pick, 1))
                if worth := stage.worth(demand, counts):
                    objective.append((pick, worth))
                units: dict[str, int] = {}
                for option, n in zip(demand.options, counts, strict=True):
                    if n:
                        units[option.accelerator] = units.get(option.accelerator, 0) + n * option.units
                for accelerator, n in units.items():
                    rows[accelerator].append((pick, n))
                if fraction and demand.priority in rows:
                    rows[demand.priority].append((pick, fraction))
            row(self.problem, one, pulp.LpConstraintEQ, 1)
        self._rows: dict[Any, Any] = {}
        for key, terms in rows.items():
            if terms and isinstance(key, str):
                self._rows[key] = row(self.problem, terms, pulp.LpConstraintLE, stage.limits[key])
            elif terms:
                least = stage.held[key]
                assert least is not None
                self._rows[key] = row(self.problem, terms, pulp.LpConstraintGE, least - HELD)
        self._keys = list(rows)
        self.problem.setObjective(pulp.LpAffineExpression(objective))

    def prices(self) -> dict[Any, float]:
        """What a unit of each accelerator, and a fraction of each held class, is worth: at least 0."""
        found = {}
        for key in self._keys:
            dual = self._rows[key].pi if key in self._rows else 0.0
            found[key] = max(0.0, -dual if isinstance(key, str) else dual)
        return found

    def start(self, replicas: Replicas) -> dict[str, float] | None:
        """Values of all variables at given replicas; ``None`` when one of their columns is not among these."""
        values = {
            pick.name: float(counts == counts_of(demand, replicas[demand.name])) for demand, counts, pick in self._picks
        }
        return values if sum(values.values()) == len(self._stage.demands) else None

    def replicas(self, solved: Solved) -> Replicas:
        """Replicas of a solution."""
        found: Replicas = {}
        for demand, counts, pick in self._picks:
            if solved.values[pick.name] > 0.5:
                found[demand.name] = dict(zip((o.name for o in demand.options), counts, strict=True))
        if len(found) != len(self._stage.demands):
            raise SolverError("the solver left demands without an answer")
        return found


def generate(stage: Stage, start: Replicas, columns: Columns, seconds: float) -> tuple[Replicas, float, float]:
    """Answer a stage: replicas, a bound on the objective, and the solver's seconds used.

    ``start`` must be allowed. Raises ``SolverError`` when ``seconds`` are used up before there are prices.
    """
    given = seconds
    for demand in stage.demands:
        columns.add(demand, counts_of(demand, start[demand.name]))
        kept = counts_of(demand, stage.kept[demand.name])
        columns.add(demand, kept)
    bound, prices, seconds = _converge(stage, columns, seconds)
    found, value = start, stage.value(start)
    known = sum(len(columns.counts[d.name]) - 1 for d in stage.demands)
    for width in _WIDTHS:
        if value - bound <= GAP * abs(value) or seconds <= 0:
            break
        if width is not None and width >= known:
            continue
        if width is None and len(stage.demands) <= _LOOK_AROUND:
            for accelerator in stage.limits:
                for factor in (0.8, 1.25):
                    _price(stage, columns, {**prices, accelerator: prices[accelerator] * factor})
        master = Master(stage, columns if width is None else _nearest(stage, columns, prices, width), pulp.LpInteger)
        try:
            solved = solve(master.problem, master.start(found), seconds * _PART, GAP / 2)
        except SolverError as error:
            # Few columns may hold no allowed answer; the start stands.
            seconds -= error.seconds
            continue
        seconds -= solved.seconds
        answer = master.replicas(solved)
        if stage.value(answer) < value:
            found, value = answer, stage.value(answer)
    return found, bound, given - seconds


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


def _nearest(stage: Stage, columns: Columns, prices: Mapping[Any, float], width: int) -> Columns:
    """Each demand's best column at these prices, and the ``width`` others that are least behind their demand's best."""
    chosen = Columns()
    behind: list[tuple[float, int, tuple[int, ...]]] = []
    for i, demand in enumerate(stage.demands):
        known = columns.counts[demand.name]
        if stage.whole(demand):
            known = {counts: None for counts in known if share(demand, counts) == 1}
        priced = sorted((_reduced(stage, demand, counts, prices), counts) for counts in known)
        least, best = priced[0]
        chosen.add(demand, best)
        behind += [(reduced - least, i, counts) for reduced, counts in priced[1:]]
    for _, i, counts in nsmallest(width, behind):
        chosen.add(stage.demands[i], counts)
    return chosen


def _reduced(stage: Stage, demand: Demand, counts: Sequence[int], prices: Mapping[Any, float]) -> float:
    """What a column minimises when units are paid for and held service is paid, at these prices."""
    units = sum(prices[o.accelerator] * o.units * n for o, n in zip(demand.options, counts, strict=True))
    return stage.worth(demand, counts) + units - prices.get(demand.priority, 0.0) * share(demand, counts)


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
        bound += _reduced(stage, demand, counts, prices)
    return bound, fresh


def _best(stage: Stage, demand: Demand, prices: Mapping[Any, float]) -> list[int]:
    """The best column of a demand at these prices."""
    kept = [stage.kept[demand.name][o.name] for o in demand.options]
    if demand.load <= 0:
        return kept
    uppers, slopes = [], []
    for option, low in zip(demand.options, kept, strict=True):
        uppers.append(max(low, min(demand.most(option), stage.limits[option.accelerator] // option.units)))
        slopes.append(_slopes(stage, option, prices[option.accelerator] * option.units))
    unserved = inf
    if not stage.whole(demand):
        unserved = prices.get(demand.priority, 0.0) + (1.0 if demand.name in stage.group else 0.0)
    return mix(demand, kept, uppers, slopes, unserved)


def _slopes(stage: Stage, option: Option, price: float) -> tuple[float, float]:
    if stage.group:
        return price, price
    return option.cost * (1 - stage.penalty) + price, option.cost * (1 + stage.penalty) + price
