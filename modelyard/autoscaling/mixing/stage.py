"""One stage of the exact allocation: the question that ``columns`` and ``program`` answer, and the columns known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from modelyard.autoscaling.mixing.greedy import units_used
from modelyard.autoscaling.mixing.model import Demand, Option, Replicas

HELD = 1e-7
"""What a class's summed fractions may lose in later stages: rounding."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One question: which demands take part, what is held, what is minimised.

    ``group`` is the demands whose served fraction is maximised; empty: the cost with ``penalty`` is minimised.
    ``held`` is as in ``exact``: the least sum of fractions by priority, ``None`` for all of every load.
    """

    demands: Sequence[Demand]
    kept: Replicas
    limits: Mapping[str, int]
    held: Mapping[int, float | None]
    group: frozenset[str]
    penalty: float

    def room(self, option: Option) -> int:
        return min(self.limits[row] for row in option.rows) // option.units

    def whole(self, demand: Demand) -> bool:
        return demand.load > 0 and self.held.get(demand.priority, 0.0) is None

    def worth(self, demand: Demand, counts: Sequence[int]) -> float:
        """What the program minimises, for one column."""
        if not self.group:
            return sum(o.price(n, self.penalty) for o, n in zip(demand.options, counts, strict=True))
        return -share(demand, counts) if demand.name in self.group else 0.0

    def value(self, replicas: Replicas) -> float:
        """What the program minimises, for all demands; exactly minus the number of demands when all are served."""
        return fsum(self.worth(d, counts_of(d, replicas[d.name])) for d in self.demands)

    def part(self, names: Collection[str], replicas: Replicas) -> Stage:
        """The same question about some of the demands, where the others keep these replicas."""
        rest = [d for d in self.demands if d.name not in names]
        used, held = units_used(rest, replicas), dict(self.held)
        for demand in rest:
            if (least := held.get(demand.priority)) is not None:
                held[demand.priority] = least - share(demand, counts_of(demand, replicas[demand.name]))
        limits = {a: limit - used.get(a, 0) for a, limit in self.limits.items()}
        return replace(self, demands=[d for d in self.demands if d.name in names], limits=limits, held=held)

    def allows(self, replicas: Replicas) -> bool:
        """Whether these replicas are within the limits, keep the minimums and serve what is held."""
        used = units_used(self.demands, replicas)
        if any(used.get(a, 0) > limit for a, limit in self.limits.items()):
            return False
        served: dict[int, float] = {}
        for demand in self.demands:
            counts = counts_of(demand, replicas[demand.name])
            part = share(demand, counts)
            if self.whole(demand) and part < 1:
                return False
            if any(n < self.kept[demand.name][o.name] for o, n in zip(demand.options, counts, strict=True)):
                return False
            served[demand.priority] = served.get(demand.priority, 0.0) + part
        return all(least is None or served.get(p, 0.0) >= least - HELD for p, least in self.held.items())


def share(demand: Demand, counts: Sequence[int]) -> float:
    """The served fraction of the load; 0 without load, which adds nothing to its class."""
    if demand.load <= 0:
        return 0.0
    carried = sum(o.rate * n for o, n in zip(demand.options, counts, strict=True))
    return 1.0 if carried >= demand.need else carried / demand.load


@dataclass(slots=True)
class Columns:
    """Known columns by demand."""

    counts: dict[str, dict[tuple[int, ...], None]] = field(default_factory=dict)

    def add(self, demand: Demand, counts: Sequence[int]) -> bool:
        """Return whether the column is new."""
        known = self.counts.setdefault(demand.name, {})
        before = len(known)
        known[tuple(counts)] = None
        return len(known) > before


def counts_of(demand: Demand, replicas: Mapping[str, int]) -> tuple[int, ...]:
    """Replicas in the order of the demand's options."""
    return tuple(replicas[o.name] for o in demand.options)
