"""The exact allocation of scarce accelerators: an integer program, solved class by class.

Used by ``allocate`` for demands that compete. Source: WVA SLO reference, "Integer-programming form" and its repair.

The classes are served in order of importance: the most important one as well as the capacity allows, then the next
with that service held, and so on; last the cheapest way to do all of it. A replica is therefore never given to a class
while a more important one could use its accelerators, and none stays idle that could serve somebody.

*As well as the capacity allows* is the sum of served fractions of load over the class's demands. Fractions rather than
requests, because a request of a large model needs many times the hardware of a small model's: counting requests would
starve large models as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pulp

from modelyard.autoscaling.allocation.greedy import fill, units_used
from modelyard.autoscaling.allocation.model import SLACK, Capacity, Demand, Option, Replicas
from modelyard.autoscaling.allocation.solver import solve

_HELD = 1e-7
"""What a class's summed fractions may lose in later stages: rounding."""

_GAP = 1e-6


@dataclass
class _Progress:
    """Where the stages stand: replicas so far, fractions held by priority (``None``: all served), seconds left."""

    replicas: Replicas
    held: dict[int, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def exact(
    demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, seconds: float
) -> tuple[Replicas, str, float]:
    """Replicas of demands that compete, a note, and the seconds left of ``seconds``.

    ``kept`` is the minimums that must be kept (they fit). Raises ``SolverError`` when the time is up or the solver
    fails before the first answer to the last question.
    """
    ordered = sorted(demands, key=lambda d: (d.priority, d.name))
    progress = _Progress({name: dict(counts) for name, counts in kept.items()}, seconds=seconds)
    for priority in sorted({d.priority for d in ordered if d.load > 0}):
        _serve(priority, ordered, kept, capacity, penalty, progress)
    _cheapen(ordered, kept, capacity, penalty, progress)
    return progress.replicas, "; ".join(progress.notes), progress.seconds


def fraction(demand: Demand, replicas: Mapping[str, int]) -> float:
    """Served share of the load, 0 to 1; exactly 1 when all of it is."""
    return 1.0 if demand.load <= 0 else demand.served(replicas) / demand.load


def _serve(
    priority: int, demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, progress: _Progress
) -> None:
    """Find out how much of a class can be served beside the classes before it."""
    group = [d for d in demands if d.priority == priority and d.load > 0]
    used = units_used(demands, progress.replicas)
    start = dict(progress.replicas)
    fill(group, start, used, capacity, penalty)
    total = sum(fraction(d, start[d.name]) for d in group)
    if total == len(group):
        progress.replicas, progress.held[priority] = start, None
        return
    part = [d for d in demands if d.priority <= priority]
    later = [d for d in demands if d.priority > priority]
    program = _Program(part, kept, capacity, units_used(later, kept))
    program.hold(progress.held)
    program.maximise_service(group)
    solved = solve(program.problem, program.values(start), progress.seconds, _GAP)
    progress.seconds -= solved.seconds
    found = program.replicas(solved.values)
    reached = sum(fraction(d, found[d.name]) for d in group)
    if reached > total:
        progress.replicas = {**start, **found}
    else:
        progress.replicas, reached = start, total
    progress.held[priority] = None if reached == len(group) else reached
    if not solved.proven:
        progress.notes.append(f"priority {priority}: time limit, serves {reached:.4g} of at most {-solved.bound:.4g}")


def _cheapen(
    demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, progress: _Progress
) -> None:
    """The cheapest replicas that serve as much as has been found possible."""
    program = _Program(demands, kept, capacity, {})
    program.hold(progress.held)
    program.minimise_cost(penalty)
    solved = solve(program.problem, program.values(progress.replicas), progress.seconds, _GAP)
    progress.seconds -= solved.seconds
    progress.replicas = program.replicas(solved.values)
    if not solved.proven:
        gap = (solved.objective - solved.bound) / abs(solved.objective) if solved.objective else inf
        progress.notes.append(f"cost: time limit, at most {gap:.2%} above the least")


class _Program:
    """One stage's integer program: replicas within bounds and capacity."""

    def __init__(
        self, demands: Sequence[Demand], kept: Replicas, capacity: Capacity, reserved: Mapping[str, int]
    ) -> None:
        self.problem = pulp.LpProblem("allocation", pulp.LpMinimize)
        self._demands = demands
        self._replicas: dict[tuple[str, str], Any] = {}
        self._fractions: dict[str, Any] = {}
        self._changes: list[tuple[str, Demand, Option]] = []
        rows: dict[str, list[tuple[Any, int]]] = {}
        for i, demand in enumerate(demands):
            for j, option in enumerate(demand.options):
                low = kept[demand.name][option.name]
                high = max(low, demand.most(option)) if demand.load > 0 else low
                limit = capacity.of(option.accelerator)
                if limit is not None:
                    high = max(low, min(high, limit // option.units))
                variable = self.problem.add_variable(f"n{i:05d}_{j}", low, high, pulp.LpInteger)
                self._replicas[demand.name, option.name] = variable
                if limit is not None:
                    rows.setdefault(option.accelerator, []).append((variable, option.units))
        for accelerator, terms in sorted(rows.items()):
            limit = capacity.of(accelerator)
            assert limit is not None
            self._row(terms, pulp.LpConstraintLE, limit - reserved.get(accelerator, 0))

    def _row(self, terms: list[tuple[Any, Any]], sense: int, right: float) -> None:
        self.problem.addConstraint(pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=right))

    def _carried(self, demand: Demand) -> list[tuple[Any, float]]:
        """The terms of the fraction of the load that the replicas can carry."""
        return [(self._replicas[demand.name, o.name], o.rate / demand.load) for o in demand.options]

    def hold(self, held: Mapping[int, float | None]) -> None:
        """Demand at least the service found possible for the classes before."""
        for priority, least in held.items():
            group = [d for d in self._demands if d.priority == priority and d.load > 0]
            if least is None:
                for demand in group:
                    self._row(self._carried(demand), pulp.LpConstraintGE, 1 - SLACK)
            else:
                self._row([(self._fraction(d), 1) for d in group], pulp.LpConstraintGE, least - _HELD)

    def _fraction(self, demand: Demand) -> Any:
        """The variable for a demand's served fraction."""
        if demand.name not in self._fractions:
            variable = self.problem.add_variable(f"s{len(self._fractions):05d}", 0, 1)
            self._fractions[demand.name] = variable
            self._row([(variable, 1), *((n, -r) for n, r in self._carried(demand))], pulp.LpConstraintLE, 0)
        return self._fractions[demand.name]

    def maximise_service(self, group: Sequence[Demand]) -> None:
        """Ask for the largest sum of served fractions."""
        self.problem.setObjective(pulp.LpAffineExpression([(self._fraction(d), -1) for d in group]))

    def minimise_cost(self, penalty: float) -> None:
        """Ask for the least cost with transition penalty."""
        terms: list[tuple[Any, float]] = []
        for demand in self._demands:
            for option in demand.options:
                variable = self._replicas[demand.name, option.name]
                if option.current <= variable.lowBound:
                    terms.append((variable, option.cost * (1 + penalty)))
                    continue
                terms.append((variable, option.cost * (1 - penalty)))
                if option.current < variable.upBound and penalty > 0:
                    name = f"t{len(self._changes):05d}"
                    more = self.problem.add_variable(name, 0)
                    self._changes.append((name, demand, option))
                    self._row([(variable, 1), (more, -1)], pulp.LpConstraintLE, option.current)
                    terms.append((more, 2 * penalty * option.cost))
        self.problem.setObjective(pulp.LpAffineExpression(terms))

    def values(self, replicas: Replicas) -> dict[str, float]:
        """Values of all variables at given replicas, by variable name."""
        values = {v.name: float(replicas[demand][option]) for (demand, option), v in self._replicas.items()}
        for demand in self._demands:
            if demand.name in self._fractions:
                values[self._fractions[demand.name].name] = min(
                    1.0, demand.carried(replicas[demand.name]) / demand.load
                )
        for name, demand, option in self._changes:
            values[name] = float(max(0, replicas[demand.name][option.name] - option.current))
        return values

    def replicas(self, values: Mapping[str, float]) -> Replicas:
        """Replicas of a solution."""
        found: Replicas = {d.name: {} for d in self._demands}
        for (demand, option), variable in self._replicas.items():
            found[demand][option] = round(values[variable.name])
        return found
