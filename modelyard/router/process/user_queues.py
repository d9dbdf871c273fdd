"""Requests of an event loop that wait in ``modelyard.routing.user_queue``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from modelyard.fairness import DecayingUsage, Ticket
from modelyard.routing import (
    FairnessSettings,
    NotServed,
    Principal,
    UserQueue,
    overloaded,
    queue_timeout,
    unknown_model,
)

_Waiter = asyncio.Future[None]
_AT_ONCE = contextlib.nullcontext()


class UserQueues:
    """A queue for each model, ordered by the recent use of its users."""

    def __init__(self, settings: FairnessSettings) -> None:
        self._settings = settings
        self._usage = DecayingUsage(settings.window_seconds)
        self._queues: dict[str, UserQueue[_Waiter]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def replace(self, settings: FairnessSettings) -> None:
        """Use these settings from now on; usage and waiting requests stay."""
        self._settings = settings
        self._usage.window = settings.window_seconds
        for queue in self._queues.values():
            queue.settings = settings
            self._serve(queue)

    def waiting(self, model: str) -> int:
        """Return the number of requests that wait for a model."""
        return len(self._queues.get(model, ()))

    def turn(self, model: str, principal: Principal) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context that begins when the request is served.

        Entering raises ``NotServed``: the queue is full, the wait too long, or the model is not served any more.
        """
        if not (self._settings.rate or self._settings.concurrent):
            return _AT_ONCE
        return self._turn(model, principal.subject)

    def used(self, model: str, principal: Principal, tokens_in: int, tokens_out: int) -> None:
        """Count the tokens of an answered request. Those of a request without a user are not kept."""
        if principal.subject:
            cost = self._settings.cost(tokens_in, tokens_out)
            self._usage.add((model, principal.subject), cost, asyncio.get_running_loop().time())

    def close(self, model: str) -> None:
        """Refuse the requests that wait for a model which is not served any more."""
        if (queue := self._queues.pop(model, None)) is not None:
            for ticket in list(queue.tickets):
                _refuse(queue, ticket, NotServed(unknown_model(model)))

    @contextlib.asynccontextmanager
    async def _turn(self, model: str, user: str) -> AsyncIterator[None]:
        queue = self._queues.setdefault(model, UserQueue(model, self._usage, self._settings))
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        ticket, displaced = queue.join(user, waiter)
        if displaced is not None:
            _refuse(queue, displaced, NotServed(overloaded("the queue is full")))
        self._serve(queue)
        try:
            try:
                async with asyncio.timeout(self._settings.queue_timeout_seconds):
                    await waiter
            except TimeoutError:
                raise NotServed(queue_timeout()) from None
            yield
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                queue.end()
            queue.remove(ticket)
            self._serve(queue)

    def _serve(self, queue: UserQueue[_Waiter]) -> None:
        loop, model = asyncio.get_running_loop(), queue.model
        now = loop.time()
        while (ticket := queue.next(now)) is not None:
            if ticket.value.done():  # its client left a moment ago
                queue.end()
            else:
                ticket.value.set_result(None)
        at = queue.begins_at(now)
        if at is not None and model not in self._timers:
            self._timers[model] = loop.call_at(at, self._continue, queue)

    def _continue(self, queue: UserQueue[_Waiter]) -> None:
        del self._timers[queue.model]
        self._serve(queue)


def _refuse(queue: UserQueue[_Waiter], ticket: Ticket[_Waiter], why: NotServed) -> None:
    queue.remove(ticket)
    if not ticket.value.done():
        ticket.value.set_exception(why)
