"""The exact allocation of scarce accelerators: integer programs, solved class by class.

Source: WVA SLO reference, "Integer-programming form" and its repair.

The classes are served in order of importance: the most important one as well as the capacity allows, then the next
with that service held, and so on; last the cheapest way to do all of it. A replica is therefore never given to a class
while a more important one could use its accelerators, and none stays idle that could serve somebody.

*As well as the capacity allows* is the sum of served fractions of load over the class's demands. Fractions rather than
requests, because a request of a large model needs many times the hardware of a small model's: counting requests would
starve large models as a rule.

Each stage is answered by ``columns``, which is fast at any size, and, where the group is small enough, carried on by
the direct ``Program`` until it is proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulp

from modelyard.autoscaling.mixing.columns import generate
from modelyard.autoscaling.mixing.greedy import by_regret, fill, units_used
from modelyard.autoscaling.mixing.model import SLACK, Capacity, Demand, Option, Replicas
from modelyard.autoscaling.mixing.solver import SolverError, row, solve
from modelyard.autoscaling.mixing.stage import HELD, Columns, Stage

PROVEN = 1e-6
"""Relative gap below which an answer counts as the optimum."""

_DIRECT = 400
"""Options up to which the direct program is tried."""

_FIRST = 0.5
"""The part of a stage's seconds that columns may take where the direct program follows."""


@dataclass
class _Progress:
    """Where the stages stand: replicas so far, seconds and stages left, fractions held by priority (``None``: all)."""

    replicas: Replicas
    seconds: float
    stages: int
    held: dict[int, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    columns: Columns = field(default_factory=Columns)


def exact(
    demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, seconds: float
) -> tuple[Replicas, str, float]:
    """Replicas of demands that compete, a note, and the seconds left of ``seconds``.

    ``kept`` is the minimums that must be kept (they fit). Raises ``SolverError`` when the time is up before every stage
    has an answer, or the solver fails.
    """
    ordered = sorted(demands, key=lambda d: (d.priority, d.name))
    priorities = sorted({d.priority for d in ordered if d.load > 0})
    progress = _Progress({name: dict(counts) for name, counts in kept.items()}, seconds, len(priorities) + 1)
    try:
        for priority in priorities:
            _serve(priority, ordered, kept, capacity, penalty, progress)
        stage = Stage(ordered, kept, _limits(ordered, capacity, {}), progress.held, frozenset(), penalty)
        progress.replicas, bound = _answer(stage, progress.replicas, progress)
    except SolverError as error:
        raise SolverError(str(error), seconds - progress.seconds + error.seconds) from error
    cost = stage.value(progress.replicas)
    if cost - bound > PROVEN * cost:
        progress.notes.append(f"cost at most {100 * (cost - bound) / cost:.2g} % above the least")
    return progress.replicas, "; ".join(progress.notes), progress.seconds


def _serve(
    priority: int, demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, progress: _Progress
) -> None:
    """Find out how much of a class can be served beside the classes before it."""
    group = [d for d in demands if d.priority == priority and d.load > 0]
    start = dict(progress.replicas)
    fill(by_regret(group), start, units_used(demands, start), capacity, penalty)
    part = [d for d in demands if d.priority <= priority]
    limits = _limits(part, capacity, units_used([d for d in demands if d.priority > priority], kept))
    stage = Stage(part, kept, limits, progress.held, frozenset(d.name for d in group), penalty)
    if -stage.value(start) < len(group):
        answer, bound = _answer(stage, start, progress)
        start.update(answer)
        fill(by_regret(group), start, units_used(demands, start), capacity, penalty)
        served = -stage.value(start)
        if -bound - served > PROVEN * max(1.0, served):
            progress.notes.append(f"priority {priority} serves {served:.6g} of at most {-bound:.6g} loads")
    reached = -stage.value(start)
    progress.replicas = start
    progress.stages -= 1
    progress.held[priority] = None if reached == len(group) else reached


def _answer(stage: Stage, start: Replicas, progress: _Progress) -> tuple[Replicas, float]:
    """The best replicas found for a stage, at least as good as ``start``, and a bound on its value.

    What runs is tried first: where it is as good as can be told, nothing moves.
    """
    stay = {d.name: _running(d, stage.kept[d.name]) for d in stage.demands}
    if stage.allows(stay) and stage.value(stay) <= stage.value(start):
        start = stay
    direct = sum(len(d.options) for d in stage.demands) <= _DIRECT
    mine = progress.seconds / progress.stages
    found, bound, used = generate(stage, start, progress.columns, mine * _FIRST if direct else mine)
    progress.seconds -= used
    if stage.value(start) < stage.value(found):
        found = {d.name: start[d.name] for d in stage.demands}
    value = stage.value(found)
    if value - bound <= PROVEN * abs(value) or not direct:
        return found, bound
    program = Program(stage.demands, stage.kept, stage.limits)
    program.hold(stage.held)
    if stage.group:
        program.maximise_service([d for d in stage.demands if d.name in stage.group])
    else:
        program.minimise_cost(stage.penalty)
    try:
        solved = solve(program.problem, program.values(found), mine - used, PROVEN)
    except SolverError as error:
        progress.seconds -= error.seconds
        return found, bound
    progress.seconds -= solved.seconds
    better = program.replicas(solved.values)
    bound = max(bound, solved.bound + program.constant)
    return (better if stage.value(better) < value else found), bound


def _running(demand: Demand, kept: Mapping[str, int]) -> dict[str, int]:
    """The replicas that run, within bounds; the minimums without load."""
    if demand.load <= 0:
        return dict(kept)
    return {o.name: max(kept[o.name], min(o.current, demand.most(o))) for o in demand.options}


def _limits(demands: Sequence[Demand], capacity: Capacity, reserved: Mapping[str, int]) -> dict[str, int]:
    """Units by accelerator."""
    names = sorted({o.accelerator for d in demands for o in d.options})
    return {name: capacity.of(name) - reserved.get(name, 0) for name in names}


class Program:
    """One stage's integer program: a variable for the replicas of every option, within bounds and capacity.

    Source: WVA SLO reference, "Integer-programming form" (heterogeneous), with priorities, partial service and
    transition penalty.
    """

    def __init__(self, demands: Sequence[Demand], kept: Replicas, limits: Mapping[str, int]) -> None:
        self.problem = pulp.LpProblem("allocation", pulp.LpMinimize)
        self._demands = demands
        self._replicas: dict[tuple[str, str], Any] = {}
        self._fractions: dict[str, Any] = {}
        self.constant = 0.0
        self._changes: list[tuple[str, Demand, Option]] = []
        rows: dict[str, list[tuple[Any, int]]] = {}
        for i, demand in enumerate(demands):
            for j, option in enumerate(demand.options):
                low = kept[demand.name][option.name]
                most = min(demand.most(option), limits[option.accelerator] // option.units) if demand.load > 0 else low
                variable = self.problem.add_variable(f"n{i:05d}_{j}", low, max(low, most), pulp.LpInteger)
                self._replicas[demand.name, option.name] = variable
                rows.setdefault(option.accelerator, []).append((variable, option.units))
        for accelerator, terms in sorted(rows.items()):
            row(self.problem, terms, pulp.LpConstraintLE, limits[accelerator])

    def _carried(self, demand: Demand) -> list[tuple[Any, float]]:
        """The terms of the fraction of the load that the replicas can carry."""
        return [(self._replicas[demand.name, o.name], o.rate / demand.load) for o in demand.options]

    def hold(self, held: Mapping[int, float | None]) -> None:
        """Demand at least the service found possible for the classes before."""
        for priority, least in held.items():
            group = [d for d in self._demands if d.priority == priority and d.load > 0]
            if least is None:
                for demand in group:
                    row(self.problem, self._carried(demand), pulp.LpConstraintGE, 1 - SLACK)
            else:
                row(self.problem, [(self._fraction(d), 1) for d in group], pulp.LpConstraintGE, least - HELD)

    def _fraction(self, demand: Demand) -> Any:
        """The variable for a demand's served fraction."""
        if demand.name not in self._fractions:
            variable = self.problem.add_variable(f"s{len(self._fractions):05d}", 0, 1)
            self._fractions[demand.name] = variable
            row(self.problem, [(variable, 1), *((n, -r) for n, r in self._carried(demand))], pulp.LpConstraintLE, 0)
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
                    self.constant -= penalty * option.cost * option.current
                    continue
                terms.append((variable, option.cost * (1 - penalty)))
                self.constant += penalty * option.cost * option.current
                if option.current < variable.upBound and penalty > 0:
                    name = f"t{len(self._changes):05d}"
                    more = self.problem.add_variable(name, 0)
                    self._changes.append((name, demand, option))
                    row(self.problem, [(variable, 1), (more, -1)], pulp.LpConstraintLE, option.current)
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
