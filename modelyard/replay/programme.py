"""A linear or mixed-integer programme put together entry by entry, minimised by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

GIVE_UP: Final = 300.0
"""Seconds after which a solver is stopped that has gone astray; then there is no bound, or a weaker one."""


class Programme:
    """Minimise the sum of column costs. Columns and rows are named by their numbers."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        self._rows: list[list[tuple[int, float]]] = []

    def column(self, cost: float, *, upper: float = math.inf, whole: bool = False) -> int:
        """A variable from 0 to ``upper``."""
        self._costs.append(cost)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._costs) - 1

    def row(self, lower: float, upper: float, entries: Iterable[tuple[int, float]]) -> int:
        """A constraint on the sum of (column, factor)."""
        self._rows.append(list(entries))
        self._row_lower.append(lower)
        self._row_upper.append(upper)
        return len(self._rows) - 1

    def entry(self, row: int, column: int, factor: float) -> None:
        """One more term of a constraint."""
        self._rows[row].append((column, factor))

    def solve(self) -> float:
        """A value that no solution can be below; infinite when there is no solution.

        The optimum of a linear programme, or the best bound that the first node of a mixed-integer one gives (which is
        within a percent here, and equal on every machine, unlike that of a time limit).
        """
        import highspy

        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("mip_max_nodes", 1)
        solver.setOptionValue("time_limit", GIVE_UP)
        lp = highspy.HighsLp()
        lp.num_col_ = len(self._costs)
        lp.num_row_ = len(self._rows)
        lp.col_cost_ = np.array(self._costs)
        lp.col_lower_ = np.zeros(len(self._costs))
        lp.col_upper_ = np.array(self._upper)
        lp.row_lower_ = np.array(self._row_lower)
        lp.row_upper_ = np.array(self._row_upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for row in self._rows)])
        lp.a_matrix_.index_ = np.array([column for row in self._rows for column, _ in row], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([factor for row in self._rows for _, factor in row])
        mixed = any(self._whole)
        if mixed:
            kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
            lp.integrality_ = [kinds[whole] for whole in self._whole]
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return math.inf
        info = solver.getInfo()
        if mixed:
            return float(info.mip_dual_bound) if math.isfinite(info.mip_dual_bound) else -math.inf
        # An unfinished simplex has no bound to give.
        return float(info.objective_function_value) if status == highspy.HighsModelStatus.kOptimal else -math.inf
