"""Order of a model's requests where not all are served at once: users by their recent use, each user's in order.

Pure: the caller passes the time, and asks for the next request. Source: kthena-routing, 11.1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeVar

from modelyard.fairness import DecayingUsage, FairQueue, Ticket
from modelyard.routing.configuration import FairnessSettings

T = TypeVar("T")
NOBODY = ""
"""Requests without a user come after those of all users."""


class UserQueue(FairQueue[T]):
    """Requests that wait for one model. ``under_way`` is the number of those that are being served.

    ``usage`` is by (model, user).
    """

    def __init__(self, model: str, usage: DecayingUsage, settings: FairnessSettings) -> None:
        super().__init__(self.level)
        self.model, self.settings = model, settings
        self.under_way = 0
        self.usage = usage
        self._started = 0
        self._next_at = -math.inf

    def level(self, user: Hashable) -> float:
        """Return the use that decides about a user; that of requests without a user is infinite."""
        return math.inf if user == NOBODY else self.usage.level((self.model, user))

    def join(self, user: str, value: T) -> tuple[Ticket[T], Ticket[T] | None]:
        """Return the ticket, and the one that a full queue gives up: the user's who used most, maybe the same."""
        ticket = self.add(user, value)
        if len(self) <= self.settings.max_waiting:
            return ticket, None
        displaced = self.last()
        self.remove(displaced)
        return ticket, displaced

    def next(self, now: float) -> Ticket[T] | None:
        """Return the request that is served now, which ``end`` ends; ``None`` while none waits or none may begin."""
        settings = self.settings
        if not len(self) or self.under_way >= (settings.concurrent or math.inf) or now < self._next_at:
            return None
        if settings.rate:  # a start that no request took is not made up for
            self._next_at = now + 1 / settings.rate
        self._started += 1
        ticket = self.oldest() if self._started % settings.oldest_every == 0 else self.first()
        assert ticket is not None
        self.under_way += 1
        self.remove(ticket)
        return ticket

    def end(self) -> None:
        """Count the end of a request that was served."""
        self.under_way -= 1

    def begins_at(self, now: float) -> float | None:
        """Return when the rate allows the next request, if one waits for that."""
        return self._next_at if len(self) and self._next_at > now else None
