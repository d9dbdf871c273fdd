"""Queues in which the owner that used least is served first."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

T = TypeVar("T")
OLDEST_EVERY = 8
"""Every so many pieces of an owner's work the one that waits longest is next, so that long requests go on too."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A place in a queue. ``number`` counts up in order of arrival."""

    owner: Hashable
    number: int
    rank: float
    value: T


class _OwnerQueue(Generic[T]):
    __slots__ = ("by_rank", "tickets")

    def __init__(self) -> None:
        self.tickets: OrderedDict[int, Ticket[T]] = OrderedDict()
        self.by_rank: list[tuple[float, int]] = []

    def add(self, ticket: Ticket[T]) -> None:
        self.tickets[ticket.number] = ticket
        heappush(self.by_rank, (ticket.rank, ticket.number))

    def remove(self, ticket: Ticket[T]) -> None:
        del self.tickets[ticket.number]
        if len(self.by_rank) > 2 * len(self.tickets) + 16:
            self.by_rank = [(other.rank, number) for number, other in self.tickets.items()]
            heapify(self.by_rank)

    def first(self) -> Ticket[T]:
        while (number := self.by_rank[0][1]) not in self.tickets:
            heappop(self.by_rank)
        return self.tickets[number]


class FairQueue(Generic[T]):
    """Waiting work: of the owner with the lowest level, the ticket of the lowest rank; of equals, the oldest.

    ``level_of`` gives an owner's level, which may rise while its work waits: a heap holds the owners as they were when
    last looked at, and only the first of it is looked at again.
    """

    def __init__(self, level_of: Callable[[Hashable], Any]) -> None:
        self._level_of = level_of
        self._tickets: OrderedDict[int, Ticket[T]] = OrderedDict()
        self._by_owner: dict[Hashable, _OwnerQueue[T]] = {}
        self._heap: list[tuple[Any, int, Hashable]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def tickets(self) -> Iterable[Ticket[T]]:
        """All that wait, in order of arrival."""
        return self._tickets.values()

    def add(self, owner: Hashable, value: T, rank: float = 0.0) -> Ticket[T]:
        self._number += 1
        ticket = self._tickets[self._number] = Ticket(owner, self._number, rank, value)
        if owner in self._by_owner:
            self._by_owner[owner].add(ticket)
            return ticket
        own = self._by_owner[owner] = _OwnerQueue()
        own.add(ticket)
        heappush(self._heap, (self._level_of(owner), ticket.number, owner))
        if len(self._heap) > 2 * len(self._by_owner) + 16:  # most are of owners that ceased to wait
            self._heap = [(self._level_of(name), queue.first().number, name) for name, queue in self._by_owner.items()]
            heapify(self._heap)
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Remove work, because it begins or is given up; what was removed before stays so."""
        if self._tickets.pop(ticket.number, None) is None:
            return
        own = self._by_owner[ticket.owner]
        own.remove(ticket)
        if not own.tickets:
            del self._by_owner[ticket.owner]

    def first(self) -> Ticket[T] | None:
        while self._heap:
            owner = self._heap[0][2]
            if (own := self._by_owner.get(owner)) is None:
                heappop(self._heap)
                continue
            ticket = own.first()
            if (entry := (self._level_of(owner), ticket.number, owner)) == self._heap[0]:
                return ticket
            heapreplace(self._heap, entry)
        return None

    def oldest(self, owner: Hashable = None) -> Ticket[T]:
        """Return the ticket that waits longest, of all or of an owner that waits."""
        return next(iter((self._tickets if owner is None else self._by_owner[owner].tickets).values()))

    def last(self) -> Ticket[T]:
        """Return the ticket to give up: the newest of the owner with the highest level, or of all such owners."""
        newest = (next(reversed(own.tickets.values())) for own in self._by_owner.values())
        return max(newest, key=lambda ticket: (self._level_of(ticket.owner), ticket.number))


@dataclass(slots=True)
class DecayingUsage:
    """Use by owner, which fades exponentially with a time constant of ``window`` seconds.

    It is kept as the logarithm of what it would be at time 0. So the order of two owners does not change by time
    passing, a heap of owners stays right, and an owner is one number. Of more than ``most_owners`` those that used
    something longest ago are forgotten.
    """

    window: float
    most_owners: int = 100_000
    _levels: OrderedDict[Hashable, float] = field(default_factory=OrderedDict)

    def add(self, owner: Hashable, amount: float, now: float) -> None:
        """Add use at a time; an amount of 0 or less is nothing."""
        if amount <= 0:
            return
        more, before = math.log(amount) + now / self.window, self.level(owner)
        high, low = max(more, before), min(more, before)
        self._levels[owner] = high + math.log1p(math.exp(low - high))
        self._levels.move_to_end(owner)
        if len(self._levels) > self.most_owners:
            self._levels.popitem(last=False)

    def level(self, owner: Hashable) -> float:
        """Return a number that compares the use of owners at any time."""
        return self._levels.get(owner, -math.inf)


@dataclass(slots=True)
class _Account:
    used: float
    requests: int = 0
    started: int = 0


class StartTimeFairQueue(FairQueue[T]):
    """Start-time fair queueing of measured work: an owner's level is its virtual time.

    That is the seconds it used, raised to the virtual time of the work in progress after it was idle: idleness earns
    nothing. Of owners with the same virtual time the one with fewer pieces started goes first. Within an owner the
    request that used least is next, and every ``OLDEST_EVERY`` pieces the one that waits longest.
    """

    def __init__(self) -> None:
        super().__init__(self._level)
        self.accounts: dict[Hashable, _Account] = {}
        self._now = 0.0

    def join(self, owner: Hashable) -> None:
        self.accounts.setdefault(owner, _Account(self._now)).requests += 1

    def leave(self, owner: Hashable) -> None:
        account = self.accounts[owner]
        account.requests -= 1
        if not account.requests:
            del self.accounts[owner]

    def charge(self, owner: Hashable, seconds: float) -> None:
        account = self._current(owner)
        if not len(self):
            self._now = account.used
        account.used += seconds

    def add(self, owner: Hashable, value: T, rank: float = 0.0) -> Ticket[T]:
        """Add work of an owner's request that used ``rank`` seconds."""
        self._current(owner)
        return super().add(owner, value, rank)

    def goes_first(self, owner: Hashable, used: float, tolerance: float) -> bool:
        """Return whether no work waits that would go before that of this owner's request.

        Another owner goes first only where it is more than ``tolerance`` seconds behind: work in progress is not
        charged yet.
        """
        if (first := self.first()) is None:
            return True
        if first.owner == owner:
            return used < first.rank
        return max(self.accounts[owner].used, self._now) <= self._level(first.owner)[0] + tolerance

    def next(self) -> T | None:
        if (ticket := self.first()) is None:
            return None
        if (account := self.accounts.get(ticket.owner)) is not None:
            self._now = max(self._now, account.used)
            account.started += 1
            if account.started % OLDEST_EVERY == 0:
                ticket = self.oldest(ticket.owner)
        self.remove(ticket)
        return ticket.value

    def _current(self, owner: Hashable) -> _Account:
        account = self.accounts[owner]
        if owner not in self._by_owner:
            account.used = max(account.used, self._now)
        return account

    def _level(self, owner: Hashable) -> tuple[float, int]:
        account = self.accounts.get(owner)  # none: its last request was closed while it waited
        return (account.used, account.started) if account is not None else (-math.inf, 0)
