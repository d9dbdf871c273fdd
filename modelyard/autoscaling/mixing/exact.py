"""The exact allocation of scarce accelerators: integer programs, solved class by class.

Source: WVA SLO reference, "Integer-programming form" and its repair.

The classes are served in order of importance: the most important one as well as the capacity allows, then the next
with that service held, and so on; last the cheapest way to do all of it. A replica is therefore never given to a class
while a more important one could use its accelerators, and none stays idle that could serve somebody.

*As well as the capacity allows* is the sum of served fractions of load over the class's demands. Fractions rather than
requests, because a request of a large model needs many times the hardware of a small model's: counting requests would
starve large models as a rule.

Each stage is answered by ``columns``, which is fast at any size, and, where the group is small enough, carried on by
the direct ``program`` until it is proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelyard.autoscaling.mixing.columns import generate
from modelyard.autoscaling.mixing.greedy import by_regret, fill, units_used
from modelyard.autoscaling.mixing.model import Capacity, Demand, Replicas
from modelyard.autoscaling.mixing.program import Program
from modelyard.autoscaling.mixing.solver import SolverError, solve
from modelyard.autoscaling.mixing.stage import Columns, Stage

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
    """Units by accelerator that has a limit."""
    names = sorted({o.accelerator for d in demands for o in d.options})
    return {n: limit - reserved.get(n, 0) for n in names if (limit := capacity.of(n)) is not None}
