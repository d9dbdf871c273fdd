"""The mixed-integer solver: PuLP's model on HiGHS in this process, started from a known solution.

PuLP hands HiGHS a model without a starting point; the solver below adds one, which is what guarantees an answer at
least as good as the start whenever the time limit ends the search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import highspy
import pulp

TOLERANCE = 1e-9
"""How far the solver may break a row: as little as it can, loads are compared with a slack of that size."""


class SolverError(Exception):
    """The solver ended without a solution; the text says how. ``seconds`` is the time it took."""

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        super().__init__(text)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Solved:
    """Values by variable name, the objective's value, the best proven bound on it, and wall seconds used."""

    values: dict[str, float]
    objective: float
    bound: float
    seconds: float


class _Started(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS that begins its search at a given point."""

    start: Mapping[str, float] | None = None

    def callSolver(self, lp: Any) -> None:
        if self.start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = [self.start.get(variable.name, 0.0) for variable in lp.variables()]
            lp.solverModel.setSolution(solution)
        super().callSolver(lp)


def row(problem: Any, terms: list[tuple[Any, Any]], sense: int, right: float) -> Any:
    """Add a constraint on the sum of (variable, factor); it is returned."""
    constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=right)
    problem.addConstraint(constraint)
    return constraint


def solve(
    problem: Any, start: Mapping[str, float] | None, seconds: float, gap: float, *, integer: bool = True
) -> Solved:
    """Solve a PuLP problem to a relative ``gap``, from ``start`` (values by variable name), within ``seconds``.

    ``integer`` false solves the relaxation.
    Raises ``SolverError`` when there is no solution in that time or the solver fails.
    """
    if seconds <= 0:
        raise SolverError("no time was left")
    solver = _Started(
        mip=integer,
        msg=False,
        timeLimit=seconds,
        gapRel=gap,
        gapAbs=TOLERANCE,
        threads=1,
        random_seed=0,
        mip_feasibility_tolerance=TOLERANCE,
        primal_feasibility_tolerance=TOLERANCE,
    )
    solver.start = start
    try:
        problem.solve(solver)
    except (pulp.PulpError, IndexError, RuntimeError) as error:
        raise SolverError(f"{type(error).__name__}: {error}") from error
    highs = problem.solverModel
    status = highs.getModelStatus()
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
        raise SolverError(f"HiGHS ended with {highs.modelStatusToString(status)!r}", problem.solutionTime)
    info = highs.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SolverError("the time limit was reached before there was a solution", problem.solutionTime)
    values = {variable.name: float(variable.varValue) for variable in problem.variables()}
    return Solved(values, float(info.objective_function_value), float(info.mip_dual_bound), problem.solutionTime)
