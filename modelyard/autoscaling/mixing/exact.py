"""The exact allocation of scarce accelerators: integer programs, solved class by class.

Source: WVA SLO reference, "Integer-programming form" and its repair.

The classes are served in order of importance: the most important one as well as the capacity allows, then the next
with that service held, and so on; last the cheapest way to do all of it. A replica is therefore never given to a class
while a more important one could use its accelerators, and none stays idle that could serve somebody.

*As well as the capacity allows* is the sum of served fractions of load over the class's demands. Fractions rather than
requests, because a request of a large model needs many times the hardware of a small model's: counting requests would
starve large models as a rule.

Where there are few demands, one integer program answers a stage and proves it. Of many, the relaxation of ``columns``
leaves some open, and integer programs improve on that: of the columns near it, and of some demands at a time beside the
others. A stage for which the effort does not suffice keeps what the classes before it got, and the rest is filled
greedily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random
from typing import Any

import pulp

from modelyard.autoscaling.mixing.columns import CLOSE, GAP, pick, relax
from modelyard.autoscaling.mixing.greedy import by_regret, fill, units_used
from modelyard.autoscaling.mixing.model import SLACK, Capacity, Demand, Replicas
from modelyard.autoscaling.mixing.solver import SolverError, solve
from modelyard.autoscaling.mixing.stage import HELD, Columns, Stage, counts_of, share
from modelyard.fairness import WorkBudget

PROVEN = 1e-6
"""Relative gap below which an answer counts as the optimum."""
_TOGETHER = 12
"""Demands that are decided together: the time grows faster than what they gain."""
_IDLE = 8
"""Searches without a gain after which a stage ends."""


@dataclass
class Exact:
    """What an exact allocation gives: replicas, notes, and whether the effort sufficed for every stage."""

    replicas: Replicas
    effort: WorkBudget
    stages: int
    held: dict[int, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = True
    columns: Columns = field(default_factory=Columns)


def exact(demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, effort: WorkBudget) -> Exact:
    """Replicas of demands that compete; ``kept`` is the minimums that must be kept (they fit).

    Classes without an answer (effort used up, solver failed) get what the greedy allocation gives beside the others.
    """
    ordered = sorted(demands, key=lambda d: (d.priority, d.name))
    priorities = sorted({d.priority for d in ordered if d.load > 0})
    progress = Exact({name: dict(counts) for name, counts in kept.items()}, effort, len(priorities) + 1)
    for priority in priorities:
        _serve(priority, ordered, kept, capacity, penalty, progress)
    stage = Stage(ordered, kept, _limits(ordered, capacity, {}), progress.held, frozenset(), penalty)
    progress.replicas, bound = _answer(stage, progress.replicas, progress, "cost")
    cost = stage.value(progress.replicas)
    if -inf < bound < cost - PROVEN * cost:
        progress.notes.append(f"cost at most {100 * (cost - bound) / cost:.2g} % above the least")
    return progress


def _serve(
    priority: int, demands: Sequence[Demand], kept: Replicas, capacity: Capacity, penalty: float, progress: Exact
) -> None:
    group = [d for d in demands if d.priority == priority and d.load > 0]
    start = dict(progress.replicas)
    fill(by_regret(group), start, units_used(demands, start), capacity, penalty)
    part = [d for d in demands if d.priority <= priority]
    limits = _limits(part, capacity, units_used([d for d in demands if d.priority > priority], kept))
    stage = Stage(part, kept, limits, progress.held, frozenset(d.name for d in group), penalty)
    if -stage.value(start) < len(group):
        answer, bound = _answer(stage, start, progress, f"priority {priority}")
        start.update(answer)
        fill(by_regret(group), start, units_used(demands, start), capacity, penalty)
        served = -stage.value(start)
        if bound > -inf and -bound - served > PROVEN * max(1.0, served):
            progress.notes.append(f"priority {priority} serves {served:.6g} of at most {-bound:.6g} loads")
    reached = -stage.value(start)
    progress.replicas = start
    progress.stages -= 1
    progress.held[priority] = None if reached == len(group) else reached


def _answer(stage: Stage, start: Replicas, progress: Exact, what: str) -> tuple[Replicas, float]:
    """The best replicas found for a stage, at least as good as ``start``, and a bound on its value."""
    start = {d.name: start[d.name] for d in stage.demands}
    stay = {d.name: _running(d, stage.kept[d.name]) for d in stage.demands}
    # What runs is tried first: where it is as good as can be told, nothing moves.
    if stage.allows(stay) and stage.value(stay) <= stage.value(start):
        start = stay
    effort = progress.effort
    floor = effort.left - effort.left // progress.stages
    try:
        chosen, prices, bound = relax(stage, start, progress.columns, effort, floor)
    except SolverError as error:
        progress.complete = False
        progress.notes.append(f"greedy for {what}: {error}")
        return start, -inf
    best, value, idle = start, stage.value(start), 0
    names = [d.name for d in stage.demands]
    draw, gap = Random(0), PROVEN if len(names) <= _TOGETHER else GAP
    # First those that the relaxation left open, beside what it has for the others; then all among the columns near it.
    beside, some = {**start, **chosen}, [name for name in names if name not in chosen]
    for turn in count():
        if value - bound <= gap * abs(value) or idle == _IDLE or effort.left <= floor:
            break
        idle += 1
        found = best
        try:
            if turn == 1 and value - bound > CLOSE * abs(value):
                found = pick(stage, best, progress.columns, prices, effort, floor)
            else:
                rest = [name for name in names if name not in some]
                some += draw.sample(rest, max(0, min(_TOGETHER - len(some), len(rest))))
                answer, least = direct(stage.part(some, beside), beside, effort, floor)
                found = {**beside, **answer}
                if len(some) == len(names):
                    bound, idle = max(bound, least), _IDLE
        except SolverError:
            pass
        if stage.value(found) < value and stage.allows(found):
            best, value, idle = found, stage.value(found), 0 if turn else 1
        # Then a third of those that are not served whole, a third of those that the relaxation decided otherwise.
        beside = best
        short = [d.name for d in stage.demands if d.name in stage.group and share(d, counts_of(d, best[d.name])) < 1]
        some = draw.sample(short, min(len(short), _TOGETHER // 3))
        other = [name for name in names if name not in some and chosen.get(name) != best[name]]
        some += draw.sample(other, min(len(other), _TOGETHER // 3))
    return best, bound


def _running(demand: Demand, kept: Mapping[str, int]) -> dict[str, int]:
    """The replicas that run, within bounds; the minimums without load."""
    if demand.load <= 0:
        return dict(kept)
    return {o.name: max(kept[o.name], min(o.current, demand.most(o))) for o in demand.options}


def _limits(demands: Sequence[Demand], capacity: Capacity, reserved: Mapping[str, int]) -> dict[str, int]:
    names = sorted({row for d in demands for o in d.options for row in o.rows})
    return {name: capacity.of(name) - reserved.get(name, 0) for name in names}


def direct(stage: Stage, start: Replicas, effort: WorkBudget, floor: int) -> tuple[Replicas, float]:
    """The best replicas for a stage of few demands, sought from ``start``, and a bound; ``SolverError`` without.
    Source: WVA SLO reference, "Integer-programming form" (heterogeneous), with partial service and penalty."""
    problem = pulp.LpProblem("allocation", pulp.LpMinimize)

    def variable(name: str, low: float, high: float | None, value: float, kind: str = pulp.LpContinuous) -> Any:
        one = problem.add_variable(name, low, high, kind)
        one.setInitialValue(value, check=False)
        return one

    replicas: dict[str, list[Any]] = {}
    units: dict[str, list[Any]] = {}
    parts: dict[int, list[Any]] = {}
    objective = []
    for i, demand in enumerate(stage.demands):
        counts = replicas[demand.name] = []
        for j, option in enumerate(demand.options):
            low, now, current = stage.kept[demand.name][option.name], start[demand.name][option.name], option.current
            room = stage.room(option) if demand.load > 0 else low
            made = variable(f"n{i}_{j}", low, max(low, min(demand.most(option), room)), now, pulp.LpInteger)
            counts.append(made)
            for row in option.rows:
                units.setdefault(row, []).append(option.units * made)
            if not stage.group:
                # Up to what runs a replica more is a change less; beyond, a change more.
                more = variable(f"m{i}_{j}", 0, None, max(0, now - current)) if low < current else made - current
                objective.append(option.cost * (made + stage.penalty * (current - made + 2 * more)))
                if low < current:
                    problem += more >= made - current
        held = stage.held.get(demand.priority, 0.0)
        if demand.load <= 0 or (demand.name not in stage.group and held == 0.0):
            continue
        carried = pulp.lpSum(min(1, o.rate / demand.load) * n for o, n in zip(demand.options, counts, strict=True))
        if held is None:
            problem += carried >= 1 - SLACK
            continue
        fraction = variable(f"s{i}", 0, 1, share(demand, counts_of(demand, start[demand.name])))
        problem += fraction <= carried
        parts.setdefault(demand.priority, []).append(fraction)
        if demand.name in stage.group:
            objective.append(-fraction)
    for accelerator, terms in sorted(units.items()):
        problem += pulp.lpSum(terms) <= stage.limits[accelerator]
    for priority, fractions in parts.items():
        if least := stage.held.get(priority):
            problem += pulp.lpSum(fractions) >= least - HELD / 2
    problem += pulp.lpSum(objective)
    bound = solve(problem, effort, floor, PROVEN) + problem.objective.constant
    return {
        d.name: {o.name: round(n.varValue) for o, n in zip(d.options, replicas[d.name], strict=True)}
        for d in stage.demands
    }, bound
