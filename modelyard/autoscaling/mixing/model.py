"""Input and output of an allocation: demands with their options in, shares out.

Of the SLO strategy, one ``Demand`` is a model in a service class and one ``Option`` a variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, fsum, isfinite

from modelyard.fairness import WorkBudget

SLACK = 1e-9
"""Relative slack of every comparison of rates: n replicas carry a load of exactly n times their rate."""

LOWEST_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Option:
    """One kind of replica that can serve a demand.

    ``name`` is the variant's (or accelerator's), unique within the demand. ``rate`` is the requests per second that
    one replica carries within the SLO, ``cost`` what it costs per hour. A replica takes ``units`` accelerators of the
    capacity row ``accelerator``, and as many of each row in ``also`` (quotas). ``minimum`` and ``maximum`` bound the
    replicas, ``current`` is how many there are.
    """

    name: str
    rate: float
    cost: float
    accelerator: str
    units: int = 1
    minimum: int = 0
    maximum: int | None = None
    current: int = 0
    also: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.accelerator, *self.also)

    def take(self, used: dict[str, int], replicas: int) -> None:
        for row in self.rows:
            used[row] = used.get(row, 0) + replicas * self.units

    def __post_init__(self) -> None:
        where = f"option {self.name!r}"
        if not (isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"{where}: rate is {self.rate!r}; leave out options that cannot serve within the SLO")
        if not (isfinite(self.cost) and self.cost >= 0):
            raise ValueError(f"{where}: cost is {self.cost!r}; it must be a number of at least 0")
        if self.units < 1:
            raise ValueError(f"{where}: units is {self.units}; a replica takes at least one accelerator")
        if self.minimum < 0 or self.current < 0:
            raise ValueError(f"{where}: minimum and current must be at least 0")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"{where}: maximum {self.maximum} is below minimum {self.minimum}; raise one or lower one")

    def price(self, replicas: int, penalty: float) -> float:
        """Cost per hour of so many replicas, and ``penalty`` times the cost of each that comes or goes."""
        return self.cost * (replicas + penalty * abs(replicas - self.current))


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of one model in one service class, and what could serve it.

    ``priority`` is the class's, 1 (most important) to 100; ``load`` is in requests per second. ``effort`` bounds the
    search for the cheapest replicas, in items of nodes or rows of simplex iterations: where it is used up, the answer
    is the best one found.
    """

    name: str
    priority: int
    load: float
    options: tuple[Option, ...]
    effort: WorkBudget | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        where = f"demand {self.name!r}"
        if not (isfinite(self.load) and self.load >= 0):
            raise ValueError(f"{where}: load is {self.load!r}; a load that is not known cannot be allocated for")
        if not 1 <= self.priority <= LOWEST_PRIORITY:
            raise ValueError(f"{where}: priority is {self.priority}; it must be 1 (most important) to 100")
        if len({option.name for option in self.options}) != len(self.options):
            raise ValueError(f"{where}: two options have the same name; names must be unique within a demand")

    @property
    def need(self) -> float:
        """Requests per second that count as the whole load (rounding allowed for)."""
        return self.load * (1 - SLACK)

    def carried(self, replicas: Mapping[str, int]) -> float:
        """Requests per second these replicas can carry, which may be more than the load."""
        return fsum(option.rate * replicas.get(option.name, 0) for option in self.options)

    def served(self, replicas: Mapping[str, int]) -> float:
        """Requests per second of the load these replicas carry; exactly the load when they carry all of it."""
        carried = self.carried(replicas)
        return self.load if carried >= self.need else carried

    def cost(self, replicas: Mapping[str, int]) -> float:
        """Cost per hour."""
        return fsum(option.cost * replicas.get(option.name, 0) for option in self.options)

    def objective(self, replicas: Mapping[str, int], penalty: float) -> float:
        """Cost per hour plus the transition penalty: ``penalty`` times the cost of every replica that comes or goes."""
        return fsum(option.price(replicas.get(option.name, 0), penalty) for option in self.options)

    def most(self, option: Option) -> int:
        """The most replicas of an option that can ever be useful: enough for the whole load, within its bounds."""
        alone = max(option.minimum, ceil(self.need / option.rate))
        return alone if option.maximum is None else min(option.maximum, alone)


@dataclass(frozen=True, slots=True)
class Share:
    """What one demand gets.

    ``replicas`` is by option name; ``served`` the requests per second they can carry, at most the load; ``cost`` per
    hour; ``wanted`` the replicas without any capacity limit; ``limited`` whether the limit makes a difference: less
    is served than wanted, or the same at a higher cost, or a minimum is not kept.
    """

    demand: str
    replicas: dict[str, int]
    served: float
    cost: float
    wanted: dict[str, int]
    limited: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """All shares, and units ``used`` by accelerator. ``method``: ``covering`` (no limit binds), ``exact``, ``greedy``.

    ``note`` names the classes without effort left, or bounds how far an unproven answer can be from the optimum.
    """

    shares: dict[str, Share]
    cost: float
    used: dict[str, int]
    method: str
    note: str = ""


Replicas = dict[str, dict[str, int]]
"""Replicas by demand name and option name."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Units by accelerator. An accelerator that is not listed has none."""

    units: Mapping[str, int]

    def of(self, accelerator: str) -> int:
        return max(0, self.units.get(accelerator, 0))

    def room(self, option: Option, used: Mapping[str, int]) -> int:
        return min(max(0, self.of(row) - used.get(row, 0)) // option.units for row in option.rows)
