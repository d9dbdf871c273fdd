"""What the documented optimizer chooses from: per server, one sized candidate per accelerator.

Filled by the SLO strategy in published mode and by ``plan``; solved by ``published``. Source: WVA SLO reference,
"Candidate allocations".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite

from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY

SWITCH = 0.1
"""Share of both costs that a change of accelerator counts for."""


@dataclass(frozen=True, slots=True)
class Current:
    """What a server has now. A new server has no accelerator and costs nothing."""

    accelerator: str = ""
    replicas: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve a server's load within its SLO.

    ``accelerator`` is empty for zero replicas. ``type`` is the capacity row, the accelerator's name unless given.
    ``count`` is accelerators per replica and ``multiplicity`` physical units per accelerator. ``cost`` is per hour
    for all replicas, ``value`` what the solver minimises (``with_values`` sets it).
    """

    accelerator: str
    replicas: int
    cost: float
    value: float = 0.0
    count: int = 1
    multiplicity: int = 1
    type: str = ""

    @property
    def row(self) -> str:
        """The capacity row it draws on."""
        return self.type or self.accelerator

    @property
    def units(self) -> int:
        """Units of one replica."""
        return max(1, self.count) * self.multiplicity


@dataclass(frozen=True, slots=True)
class Server:
    """One model in one service class, with its candidates. ``priority`` is 1 (most important) to 100."""

    name: str
    priority: int
    candidates: tuple[Candidate, ...]
    current: Current = Current()

    def __post_init__(self) -> None:
        if not 1 <= self.priority <= LOWEST_PRIORITY:
            raise ValueError(f"server {self.name!r}: priority is {self.priority}; it must be 1 (most important) to 100")


def transition_value(current: Current, candidate: Candidate) -> float:
    """What moving from ``current`` to ``candidate`` counts for; may be negative.

    The same accelerator: the difference in cost. Another one: that, and a tenth of both costs. So a change of
    accelerator pays only below 9/11 of the old cost.
    """
    if candidate.accelerator == current.accelerator:
        return 0.0 if candidate.replicas == current.replicas else candidate.cost - current.cost
    return SWITCH * (current.cost + candidate.cost) + candidate.cost - current.cost


def with_values(server: Server) -> Server:
    """The server with its candidates' values set by the transition penalty."""
    valued = (replace(c, value=transition_value(server.current, c)) for c in server.candidates)
    return replace(server, candidates=tuple(valued))


def sized(
    accelerator: str,
    load: float,
    rate: float,
    price: float,
    *,
    count: int = 1,
    minimum: int = 0,
    multiplicity: int = 1,
    type: str = "",
) -> Candidate:
    """The candidate of one accelerator.

    ``load`` is the requests per second to serve, ``rate`` the most one replica carries within the SLO, ``price`` of
    one accelerator per hour. Without load the minimum is kept; with a minimum of zero that is no accelerator at all.
    ``value`` is the cost until ``with_values`` sets it. ``ValueError`` for a load or rate that is no number.
    """
    if not (isfinite(load) and load >= 0):
        raise ValueError(f"accelerator {accelerator!r}: load is {load!r}; without a known load there is no candidate")
    if load == 0 and minimum == 0:
        return Candidate("", 0, 0.0)
    if load > 0 and not (isfinite(rate) and rate > 0):
        raise ValueError(f"accelerator {accelerator!r}: rate is {rate!r}; leave it out where the SLO is infeasible")
    replicas = max(ceil(load / rate), minimum) if load > 0 else minimum
    cost = price * max(1, count) * replicas
    return Candidate(accelerator, replicas, cost, cost, max(1, count), multiplicity, type)


def by_value(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best first; equal values by cost, then by accelerator name, so that the order is always the same."""
    return sorted(candidates, key=lambda c: (c.value, c.cost, c.accelerator))
