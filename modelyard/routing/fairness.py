"""Whose request is served next where not all can be at once: users by what they used lately, each in his own order.

Pure: the caller says what time it is, and asks for the next one. Source: kthena-routing, 11.1.

Usage fades exponentially with a time constant of ``window`` seconds and is kept as the logarithm of what it would be
at time 0. So the order of two users does not change by time passing, a heap of users stays right, and a user is one
number.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
_MOST_USERS = 100_000
NOBODY = ""
"""Requests without a user come after those of all users."""


class Fairness(NamedTuple):
    """How turns are given. ``concurrent``: most requests of a model at once, ``rate``: most that begin in a second (0:
    no such limit). ``oldest_every``: one of so many turns goes to who has waited longest, so that nobody starves."""

    window: float = 300.0
    input_weight: float = 1.0
    output_weight: float = 2.0
    token_weight: float = 1.0
    request_weight: float = 0.0
    concurrent: int = 0
    rate: float = 100.0
    oldest_every: int = 8
    most_waiting: int = 1000
    longest_wait: float = 60.0


class UserUsage:
    """What users used lately, by model; of more than 100,000 those who were served longest ago are forgotten."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self._of: OrderedDict[tuple[str, str], float] = OrderedDict()

    def add(self, model: str, user: str, tokens_in: int, tokens_out: int, now: float) -> None:
        """A request was answered. Negative numbers count as 0; nobody's usage is not kept."""
        told = self.fairness
        tokens = told.input_weight * max(0, tokens_in) + told.output_weight * max(0, tokens_out)
        cost = told.token_weight * tokens + told.request_weight
        if cost <= 0 or user == NOBODY:
            return
        more, before = math.log(cost) + now / told.window, self.level(model, user)
        high, low = max(more, before), min(more, before)
        self._of[model, user] = high + math.log1p(math.exp(low - high))
        self._of.move_to_end((model, user))
        if len(self._of) > _MOST_USERS:
            self._of.popitem(last=False)

    def level(self, model: str, user: str) -> float:
        """How much it is, as a number that compares users at any time; infinite for nobody."""
        return math.inf if user == NOBODY else self._of.get((model, user), -math.inf)


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A request that waits; ``tag`` belongs to the caller."""

    user: str
    arrived: int
    tag: T


@dataclass(slots=True)
class UserQueue(Generic[T]):
    """Who waits for one model. ``under_way`` are those whose turn has begun and not ended."""

    model: str
    usage: UserUsage
    fairness: Fairness
    under_way: int = 0
    _arrivals: int = 0
    _given: int = 0
    _next_at: float = -math.inf
    # By arrival: all, and those of each user.
    _waiting: OrderedDict[int, Ticket[T]] = field(default_factory=OrderedDict)
    _by_user: dict[str, OrderedDict[int, Ticket[T]]] = field(default_factory=dict)
    # The level of each user who waits when it was last looked at, with the arrival of his first; and stale entries.
    _heap: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def tickets(self) -> Iterable[Ticket[T]]:
        """Those that wait, in order of arrival."""
        return self._waiting.values()

    def join(self, user: str, tag: T) -> tuple[Ticket[T] | None, Ticket[T] | None]:
        """Wait: the ticket, and whom it displaced. No ticket: too many wait already, and nobody used more.

        In a full queue the youngest request of the user who used most gives way to one of a user who used less.
        """
        displaced = None
        if self.waiting >= self.fairness.most_waiting:
            most = max(self._by_user, key=self._level, default=user)
            if self._level(most) <= self._level(user):
                return None, None
            displaced = next(reversed(self._by_user[most].values()))
            self.leave(displaced)
        ticket = Ticket(user, self._arrivals, tag)
        self._arrivals += 1
        self._waiting[ticket.arrived] = ticket
        mine = self._by_user.setdefault(user, OrderedDict())
        mine[ticket.arrived] = ticket
        if len(mine) == 1:
            self._push(user)
        return ticket, displaced

    def leave(self, ticket: Ticket[T]) -> None:
        """Wait no more: its client is gone, it has waited too long, or its turn begins."""
        if self._waiting.pop(ticket.arrived, None) is None:
            return
        mine = self._by_user[ticket.user]
        first = next(iter(mine))
        del mine[ticket.arrived]
        if not mine:
            del self._by_user[ticket.user]
        elif first == ticket.arrived:
            self._push(ticket.user)

    def next(self, now: float) -> Ticket[T] | None:
        """Return the turn that begins now; ``None``: nobody waits or nobody may begin."""
        if not self._waiting or self.under_way >= (self.fairness.concurrent or math.inf) or now < self._next_at:
            return None
        if self.fairness.rate:  # turns that nobody took are not made up for
            self._next_at = now + 1 / self.fairness.rate
        self._given += 1
        oldest = self._given % self.fairness.oldest_every == 0
        ticket = next(iter(self._waiting.values())) if oldest else self._least()
        self.under_way += 1
        self.leave(ticket)
        return ticket

    def ended(self) -> None:
        """A turn is over."""
        self.under_way -= 1

    def begins_at(self, now: float) -> float | None:
        """When the rate allows the next turn, if somebody waits for that."""
        return self._next_at if self._waiting and self._next_at > now else None

    def _level(self, user: str) -> float:
        return self.usage.level(self.model, user)

    def _least(self) -> Ticket[T]:
        while True:
            level, arrived, user = self._heap[0]
            mine = self._by_user.get(user)
            if mine is None or next(iter(mine)) != arrived:
                heapq.heappop(self._heap)
            elif self._level(user) != level:
                heapq.heapreplace(self._heap, (self._level(user), arrived, user))
            else:
                return mine[arrived]

    def _push(self, user: str) -> None:
        heapq.heappush(self._heap, (self._level(user), next(iter(self._by_user[user])), user))
        if len(self._heap) > 2 * len(self._by_user) + 16:
            self._heap = [(self._level(one), next(iter(mine)), one) for one, mine in self._by_user.items()]
            heapq.heapify(self._heap)
