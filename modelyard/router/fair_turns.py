"""Turns of requests, given by ``modelyard.routing.fairness``: what waits here is tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from modelyard.routing.errors import overloaded, queue_timeout, unknown_model
from modelyard.routing.fairness import Fairness, Ticket, UserQueue, UserUsage
from modelyard.routing.seams import NotServed, Principal

_Waiter = asyncio.Future[None]
_AT_ONCE = contextlib.nullcontext()


class FairTurns:
    """The order of service where not all can be first: a queue for each model, ordered by what users used lately."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._usage = UserUsage(fairness)
        self._models: dict[str, UserQueue[_Waiter]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def replace(self, fairness: Fairness) -> None:
        """Turns are given so from now on; what was used and who waits stays."""
        self._fairness = self._usage.fairness = fairness
        for turns in self._models.values():
            turns.fairness = fairness
            self._go_on(turns)

    def waiting(self, model: str) -> int:
        """Requests of a model that wait."""
        turns = self._models.get(model)
        return turns.waiting if turns else 0

    def turn(self, model: str, principal: Principal) -> contextlib.AbstractAsyncContextManager[None]:
        """A context that begins with this request's turn. Entering raises ``NotServed``: the queue is full, it waited
        too long, or nobody serves the model any more."""
        if not (self._fairness.rate or self._fairness.concurrent):
            return _AT_ONCE
        return self._turn(model, principal.subject)

    def used(self, model: str, principal: Principal, tokens_in: int, tokens_out: int) -> None:
        """What an answered request came to."""
        self._usage.add(model, principal.subject, tokens_in, tokens_out, asyncio.get_running_loop().time())

    def close(self, model: str) -> None:
        """Nobody serves the model any more: whoever waits is refused."""
        turns = self._models.pop(model, None)
        for ticket in list(turns.tickets) if turns else ():
            assert turns is not None
            _refuse(turns, ticket, NotServed(unknown_model(model)))

    @contextlib.asynccontextmanager
    async def _turn(self, model: str, user: str) -> AsyncIterator[None]:
        turns = self._models.setdefault(model, UserQueue(model, self._usage, self._fairness))
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        ticket, displaced = turns.join(user, waiter)
        if displaced is not None:
            _refuse(turns, displaced, NotServed(overloaded("the queue is full")))
        if ticket is None:
            raise NotServed(overloaded("the queue is full"))
        self._go_on(turns)
        try:
            try:
                async with asyncio.timeout(self._fairness.longest_wait or None):
                    await waiter
            except TimeoutError:
                raise NotServed(queue_timeout()) from None
            yield
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                turns.ended()
            turns.leave(ticket)
            self._go_on(turns)

    def _go_on(self, turns: UserQueue[_Waiter]) -> None:
        loop, model = asyncio.get_running_loop(), turns.model
        now = loop.time()
        while (ticket := turns.next(now)) is not None:
            if ticket.tag.done():  # its client left a moment ago
                turns.ended()
            else:
                ticket.tag.set_result(None)
        at = turns.begins_at(now)
        if at is not None and model not in self._timers:
            self._timers[model] = loop.call_at(at, self._rang, turns)

    def _rang(self, turns: UserQueue[_Waiter]) -> None:
        del self._timers[turns.model]
        self._go_on(turns)


def _refuse(turns: UserQueue[_Waiter], ticket: Ticket[_Waiter], why: NotServed) -> None:
    turns.leave(ticket)
    if not ticket.tag.done():
        ticket.tag.set_exception(why)
