"""The direct integer program of one stage: a variable for the replicas of every option.

Source: WVA SLO reference, "Integer-programming form" (heterogeneous), with priorities, partial service and transition
penalty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulp

from modelyard.autoscaling.mixing.model import SLACK, Demand, Option, Replicas
from modelyard.autoscaling.mixing.stage import HELD


class Program:
    """One stage's integer program: replicas within bounds and capacity."""

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
                high = max(low, demand.most(option)) if demand.load > 0 else low
                limit = limits.get(option.accelerator)
                if limit is not None:
                    high = max(low, min(high, limit // option.units))
                variable = self.problem.add_variable(f"n{i:05d}_{j}", low, high, pulp.LpInteger)
                self._replicas[demand.name, option.name] = variable
                if limit is not None:
                    rows.setdefault(option.accelerator, []).append((variable, option.units))
        for accelerator, terms in sorted(rows.items()):
            self._row(terms, pulp.LpConstraintLE, limits[accelerator])

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
                self._row([(self._fraction(d), 1) for d in group], pulp.LpConstraintGE, least - HELD)

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
                    self.constant -= penalty * option.cost * option.current
                    continue
                terms.append((variable, option.cost * (1 - penalty)))
                self.constant += penalty * option.cost * option.current
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
