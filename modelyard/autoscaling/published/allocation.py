"""The documented optimizer: one candidate per server, at least value, without or within capacity.

Source: WVA SLO reference, "Solver". The limited solver is greedy: it can leave a more important server with nothing
while a less important one is served, and units idle that could serve somebody.

In repaired mode a candidate of zero replicas is always satisfiable, a misspelt policy is an error and so is a
multiplicity below one. In published mode a server whose turn comes with a zero-replica candidate ends without an
allocation, an unknown policy means ``None``, and an accelerator with multiplicity 0 never runs out.
"""

from __future__ import annotations

from bisect import insort_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from modelyard.autoscaling.mixing.candidates import Candidate, Server, by_value
from modelyard.autoscaling.settings import Compatibility

_INFINITE = 3.4028234663852886e38
"""The regret of a last candidate: the largest single-precision number."""


class SaturationPolicy(StrEnum):
    """What servers get for which no whole candidate fits. A partial allocation does not meet the SLO."""

    NONE = "None"
    PRIORITY_EXHAUSTIVE = "PriorityExhaustive"
    PRIORITY_ROUND_ROBIN = "PriorityRoundRobin"
    ROUND_ROBIN = "RoundRobin"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a server gets: ``replicas`` of the candidate, ``cost`` and ``value`` scaled to them."""

    server: str
    candidate: Candidate
    replicas: int
    cost: float
    value: float

    @property
    def partial(self) -> bool:
        """Whether it is less than the SLO needs."""
        return self.replicas < self.candidate.replicas


@dataclass(frozen=True, slots=True)
class TypeUse:
    """One accelerator type's use: units, their limit (``None``: none), cost per hour."""

    units: int
    limit: int | None
    cost: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How a server's allocation changes: accelerator, replicas and cost, before and after."""

    accelerators: tuple[str, str]
    replicas: tuple[int, int]
    cost: float


@dataclass(frozen=True, slots=True)
class Solution:
    """Grants by server name; servers without one are left out. ``cost`` is per hour."""

    grants: dict[str, Grant]
    types: dict[str, TypeUse]
    differences: dict[str, Difference]
    cost: float


def parse_policy(text: str, compatibility: Compatibility = Compatibility.REPAIRED) -> SaturationPolicy:
    """The policy of that name. Unknown: ``ValueError``, or ``None`` in published mode."""
    try:
        return SaturationPolicy(text)
    except ValueError:
        if compatibility is Compatibility.PUBLISHED:
            return SaturationPolicy.NONE
        names = ", ".join(SaturationPolicy)
        raise ValueError(f"saturationPolicy is {text!r}; it must be one of {names}") from None


def optimize(
    servers: Iterable[Server],
    capacity: Mapping[str, int] | None,
    *,
    policy: str = "None",
    delayed: bool = False,
    compatibility: Compatibility = Compatibility.REPAIRED,
) -> Solution:
    """Solve for all servers.

    ``capacity`` is units by accelerator type, ``None`` for unlimited; a type that is not listed has none. ``delayed``
    gives partial allocations after all priority groups instead of after each. Values must have been set.
    """
    servers = tuple(servers)
    published = compatibility is Compatibility.PUBLISHED
    chosen = parse_policy(policy, compatibility)
    if not published:
        _check(servers)
    if capacity is None:
        grants = {s.name: _whole(s.name, by_value(s.candidates)[0]) for s in servers if s.candidates}
        return _solution(servers, grants, None)
    solver = _Limited(capacity, published)
    entries = [_Entry(s, by_value(s.candidates)) for s in servers if s.candidates]
    groups = [entries]
    if not delayed:
        groups = [[e for e in entries if e.priority == p] for p in sorted({e.priority for e in entries})]
    for group in groups:
        left = solver.allocate(group)
        solver.best_effort(left, chosen)
    return _solution(servers, solver.grants, capacity)


def _check(servers: Sequence[Server]) -> None:
    for server in servers:
        for candidate in server.candidates:
            if candidate.replicas and candidate.multiplicity < 1:
                raise ValueError(
                    f"server {server.name!r}, accelerator {candidate.accelerator!r}: multiplicity is "
                    f"{candidate.multiplicity}; an accelerator is at least one unit of its type"
                )


def _whole(server: str, candidate: Candidate) -> Grant:
    return Grant(server, candidate, candidate.replicas, candidate.cost, candidate.value)


@dataclass(slots=True)
class _Entry:
    """A server waiting for its turn, and the candidate it is at."""

    server: Server
    candidates: list[Candidate]
    index: int = 0

    @property
    def priority(self) -> int:
        return self.server.priority

    @property
    def candidate(self) -> Candidate:
        return self.candidates[self.index]

    def key(self) -> tuple[int, float, float]:
        """Its place in the queue: by priority, then largest regret, then largest value."""
        last = self.index + 1 == len(self.candidates)
        regret = _INFINITE if last else self.candidates[self.index + 1].value - self.candidate.value
        return (self.priority, -regret, -self.candidate.value)


class _Limited:
    """Greedy allocation within capacity, with what is left of it."""

    def __init__(self, capacity: Mapping[str, int], published: bool) -> None:
        self.free = dict(capacity)
        self.grants: dict[str, Grant] = {}
        self._published = published

    def allocate(self, entries: Iterable[_Entry]) -> list[_Entry]:
        """Whole candidates in order; the entries that got none, in the order in which they failed."""
        queue = sorted(entries, key=_Entry.key)
        left: list[_Entry] = []
        while queue:
            entry = queue.pop(0)
            candidate = entry.candidate
            if not candidate.replicas and not candidate.accelerator:
                if not self._published:
                    self.grants[entry.server.name] = _whole(entry.server.name, candidate)
                continue
            needed = candidate.replicas * candidate.units
            if self.free.get(candidate.row, 0) >= needed:
                self._take(entry.server.name, candidate, candidate.replicas)
            elif entry.index + 1 < len(entry.candidates):
                entry.index += 1
                insort_left(queue, entry, key=_Entry.key)
            else:
                left.append(entry)
        return left

    def best_effort(self, entries: Sequence[_Entry], policy: SaturationPolicy) -> None:
        """Parts of candidates for the entries that got nothing."""
        if policy is SaturationPolicy.PRIORITY_EXHAUSTIVE:
            for entry in entries:
                candidate = self._first_with_room(entry)
                if candidate is not None:
                    self._take(entry.server.name, candidate, min(self._fits(candidate), candidate.replicas))
        elif policy is SaturationPolicy.PRIORITY_ROUND_ROBIN:
            for priority in sorted({entry.priority for entry in entries}):
                self._in_turn([entry for entry in entries if entry.priority == priority])
        elif policy is SaturationPolicy.ROUND_ROBIN:
            self._in_turn(entries)

    def _in_turn(self, entries: Sequence[_Entry]) -> None:
        """One replica per visit, of the accelerator that had room at the first visit."""
        chosen: dict[str, Candidate] = {}
        granted: dict[str, int] = {}
        waiting = list(entries)
        while waiting:
            again = []
            for entry in waiting:
                name = entry.server.name
                candidate = chosen.get(name) or self._first_with_room(entry)
                if candidate is None or self._fits(candidate) < 1:
                    continue
                chosen[name] = candidate
                self.free[candidate.row] = self.free.get(candidate.row, 0) - candidate.units
                granted[name] = granted.get(name, 0) + 1
                if granted[name] < candidate.replicas:
                    again.append(entry)
            waiting = again
        for name, replicas in granted.items():
            self._grant(name, chosen[name], replicas)

    def _first_with_room(self, entry: _Entry) -> Candidate | None:
        return next((c for c in entry.candidates if c.replicas and self._fits(c) >= 1), None)

    def _fits(self, candidate: Candidate) -> int:
        if candidate.units <= 0:
            return candidate.replicas
        return self.free.get(candidate.row, 0) // candidate.units

    def _take(self, server: str, candidate: Candidate, replicas: int) -> None:
        self.free[candidate.row] = self.free.get(candidate.row, 0) - replicas * candidate.units
        self._grant(server, candidate, replicas)

    def _grant(self, server: str, candidate: Candidate, replicas: int) -> None:
        part = replicas / candidate.replicas if candidate.replicas else 1.0
        self.grants[server] = Grant(server, candidate, replicas, candidate.cost * part, candidate.value * part)


def _solution(servers: Sequence[Server], grants: dict[str, Grant], capacity: Mapping[str, int] | None) -> Solution:
    units: dict[str, int] = {}
    costs: dict[str, float] = {}
    for grant in grants.values():
        if grant.candidate.accelerator:
            row = grant.candidate.row
            units[row] = units.get(row, 0) + grant.replicas * grant.candidate.units
            costs[row] = costs.get(row, 0.0) + grant.cost
    rows = sorted({*units, *(capacity or {})})
    types = {
        r: TypeUse(units.get(r, 0), None if capacity is None else capacity.get(r, 0), costs.get(r, 0.0)) for r in rows
    }
    differences = {}
    for server in servers:
        grant_ = grants.get(server.name)
        accelerator = grant_.candidate.accelerator if grant_ else ""
        replicas, cost = (grant_.replicas, grant_.cost) if grant_ else (0, 0.0)
        if (accelerator, replicas) != (server.current.accelerator, server.current.replicas):
            differences[server.name] = Difference(
                (server.current.accelerator, accelerator),
                (server.current.replicas, replicas),
                cost - server.current.cost,
            )
    return Solution(grants, types, differences, sum(g.cost for g in grants.values()))
