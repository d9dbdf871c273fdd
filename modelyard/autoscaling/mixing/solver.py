"""The solver: HiGHS in this process, bounded by work and never by a clock.

The same programme within the same effort gives the same answer on every machine and under any load. Integer programmes
are PuLP's. The columns' linear programme grows a little some ten times and goes on from where it stood, which PuLP
cannot: it would build and solve all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np
import pulp

from modelyard.fairness import WorkBudget

TOLERANCE = 1e-9
"""How far the solver may break a row: as little as it can, loads are compared with a slack of that size."""

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]

_OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_abs_gap": TOLERANCE,
    "mip_feasibility_tolerance": TOLERANCE,
    "primal_feasibility_tolerance": TOLERANCE,
}

_NODES = 4
"""Nodes of one integer programme; simplex iterations are not bounded within one, only counted."""


class SolverError(Exception):
    """The solver ended without a solution; the text says how."""


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS, begun at the variables' initial values where all have one."""

    def callSolver(self, lp: Any) -> None:
        values = [variable.varValue for variable in lp.variables()]
        if None not in values:
            lp.solverModel.setSolution(len(values), np.arange(len(values), dtype=np.int32), np.array(values, float))
        super().callSolver(lp)

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:
        """The variables' values. PuLP's own knows no end by nodes; ``solve`` looks at how it ended."""
        for variable, value in zip(lp.variables(), lp.solverModel.getSolution().col_value, strict=False):
            variable.varValue = value
        return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible


def solve(problem: pulp.LpProblem, effort: WorkBudget, floor: int, gap: float) -> float:
    """Solve an integer programme to a relative ``gap``, leaving ``floor`` of the effort. Raises ``SolverError``.

    An item of effort is a row of a simplex iteration. Limits ignore what is left: more effort only runs further.
    """
    if effort.left <= floor:
        raise SolverError("the effort was used up")
    problem.solve(_Highs(**_OPTIONS, msg=False, mip_rel_gap=gap, mip_max_nodes=_NODES))
    _count(problem.solverModel, effort)
    return float(problem.solverModel.getInfo().mip_dual_bound)


class Linear:
    """A growing linear programme over variables of 0 to 1, re-solved from where it stood; ``rows``: (least, most)."""

    def __init__(self, rows: Sequence[tuple[float, float]]) -> None:
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in _OPTIONS.items():
            self._highs.setOptionValue(name, value)
        nothing = np.array([], dtype=np.int32)
        for low, high in rows:
            self._highs.addRow(low, high, 0, nothing, np.array([]))

    def add(self, variables: Sequence[tuple[float, dict[int, float]]]) -> None:
        """Add variables: what each costs, and its factors by row."""
        costs = np.array([cost for cost, _ in variables])
        ends = np.cumsum([0, *(len(terms) for _, terms in variables)], dtype=np.int32)
        index = np.array([row for _, terms in variables for row in terms], dtype=np.int32)
        factors = np.array([factor for _, terms in variables for factor in terms.values()])
        none, whole = np.zeros(len(costs)), np.ones(len(costs))
        self._highs.addCols(len(costs), costs, none, whole, len(index), ends[:-1], index, factors)

    def solve(self, effort: WorkBudget, floor: int) -> tuple[float, FloatArray, FloatArray]:
        """The least cost, the variables' values and the rows' prices; errors as of ``solve``."""
        steps = (effort.left - floor) // max(1, self._highs.getNumRow())
        if steps <= 0:
            raise SolverError("the effort was used up")
        self._highs.setOptionValue("simplex_iteration_limit", min(steps, 2**31 - 1))
        self._highs.run()
        _count(self._highs, effort)
        found = self._highs.getSolution()
        cost = float(self._highs.getInfo().objective_function_value)
        return cost, np.array(found.col_value), np.array(found.row_dual)


def _count(highs: Any, effort: WorkBudget) -> None:
    """No answer is a ``SolverError``."""
    info, status, kinds = highs.getInfo(), highs.getModelStatus(), highspy.HighsModelStatus
    effort.spend((max(0, info.simplex_iteration_count) + 1) * highs.getNumRow())
    if status == kinds.kIterationLimit:
        raise SolverError("the effort was used up")
    if status not in (kinds.kOptimal, kinds.kSolutionLimit):
        raise SolverError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SolverError("there was no solution within its nodes")
