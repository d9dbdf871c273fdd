"""The master program of column generation: one column for each demand, within capacity and held service."""

from __future__ import annotations

from typing import Any

import pulp

from modelyard.autoscaling.mixing.model import Demand, Replicas
from modelyard.autoscaling.mixing.solver import Solved, SolverError
from modelyard.autoscaling.mixing.stage import HELD, Columns, Stage, counts_of, share


class Master:
    """The program that picks one column for each demand."""

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
                    if n and option.accelerator in stage.limits:
                        units[option.accelerator] = units.get(option.accelerator, 0) + n * option.units
                for accelerator, n in units.items():
                    rows[accelerator].append((pick, n))
                if fraction and demand.priority in rows:
                    rows[demand.priority].append((pick, fraction))
            self._row(one, pulp.LpConstraintEQ, 1)
        self._rows: dict[Any, Any] = {}
        for key, terms in rows.items():
            if terms and isinstance(key, str):
                self._rows[key] = self._row(terms, pulp.LpConstraintLE, stage.limits[key])
            elif terms:
                least = stage.held[key]
                assert least is not None
                self._rows[key] = self._row(terms, pulp.LpConstraintGE, least - HELD)
        self._keys = list(rows)
        self.problem.setObjective(pulp.LpAffineExpression(objective))

    def _row(self, terms: list[tuple[Any, Any]], sense: int, right: float) -> Any:
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=right)
        self.problem.addConstraint(row)
        return row

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
