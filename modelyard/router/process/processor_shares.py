"""Fair shares of a router's processor time.

One thread reads requests, chooses pods and passes answers on, so work for one tenant delays all others. Work whose
amount a client or a pod chooses is therefore cut into slices, and the slices of a busy router are put in order: the
owner that used least goes first (a client and, once the route is known, its namespace), and within an owner the request
that used least. A pass of the event loop starts slices for ``PASS_SECONDS`` at most, so that a new request waits for
one pass and not for all the work before it. A slice starts at once while this pass has time left and no work waits that
would go before it.

Each request has an account, from its first line until its answer is over::

    account = shares.open(("client", "10.0.0.7"))
    async with account:              # waits for its turn
        relay.feed(chunk)            # synchronous work of a millisecond at most, never an await
    account.charge_to(("namespace", "chat"))
    account.close()

Put ``async with account`` around every piece of work that a request, an answer or a pod makes long. Do not wait for
anything inside: the time counts as used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from modelyard.fairness import StartTimeFairQueue

Owner = tuple[str, str]
"""``("client", address)``, ``("user", subject)`` or ``("namespace", name)``."""
PASS_SECONDS = 0.002
"""Work started in one pass of the event loop: a tenth of what a person notices, 40 times what a pass itself costs."""
SLICE_OVERHEAD = 50e-6
"""Seconds of receiving and sending around a slice, which its own time does not include."""
FIRST_GUESS = 0.0002
"""Seconds that the first slice of a request is expected to take."""


class Account:
    """Processor time of one request. ``async with`` it does a slice of work in its turn."""

    __slots__ = ("_began", "_expected", "_shares", "owner", "used")

    def __init__(self, shares: ProcessorShares, owner: Owner) -> None:
        self.used = 0.0
        """Seconds used."""
        self._shares, self.owner = shares, owner
        self._expected, self._began = FIRST_GUESS, 0.0
        shares.queue.join(owner)

    def charge_to(self, owner: Owner) -> None:
        """Charge this owner from now on."""
        if owner != self.owner:
            self._shares.queue.join(owner)
            self._shares.queue.leave(self.owner)
            self.owner = owner

    def charge(self, seconds: float) -> None:
        """Charge work that was done elsewhere, such as in another process."""
        self.used += seconds
        self._shares.queue.charge(self.owner, seconds)

    def close(self) -> None:
        """Close it: the request is over."""
        self._shares.queue.leave(self.owner)

    def start(self) -> bool:
        """Begin a slice if it may begin at once; ``end`` ends it."""
        shares = self._shares
        if shares.is_busy() or not shares.queue.goes_first(self.owner, self.used, PASS_SECONDS):
            return False
        self._began = shares.clock()
        return True

    def end(self) -> None:
        """Charge the slice."""
        seconds = self._shares.clock() - self._began + SLICE_OVERHEAD
        self._expected += (seconds - self._expected) / 4
        self.charge(seconds)

    async def __aenter__(self) -> None:
        if not self.start():
            await self._shares.wait(self.owner, self.used, self._expected)
            self._began = self._shares.clock()

    async def __aexit__(self, *_: object) -> None:
        self.end()


class ProcessorShares:
    """Processor time of one event loop, shared by the owners of its work.

    ``clock`` is read around each slice, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.queue: StartTimeFairQueue[tuple[float, asyncio.Future[None]]] = StartTimeFairQueue()
        """Slices that wait, each with the seconds that it is expected to take."""
        self._pass_began: float | None = None
        self._has_started = False

    def open(self, owner: Owner) -> Account:
        """Open the account of a request."""
        return Account(self, owner)

    def is_busy(self) -> bool:
        """Return true when this pass of the event loop has had its time."""
        if self._pass_began is None:
            self._begin_pass()
            return False
        return self.clock() - self._pass_began >= PASS_SECONDS

    async def wait(self, owner: Owner, used: float, expected: float) -> None:
        """Wait for the turn of a slice that is expected to take so many seconds."""
        if self._pass_began is None:
            self._begin_pass()
        while True:
            future = asyncio.get_running_loop().create_future()
            ticket = self.queue.add(owner, (expected, future), used)
            try:
                await future
            finally:
                self.queue.remove(ticket)
            if not self.is_busy() or not self._has_started:  # those before it may have taken longer than expected
                self._has_started = True
                return

    def _begin_pass(self) -> None:
        self._pass_began, self._has_started = self.clock(), False
        asyncio.get_running_loop().call_soon(self._end_pass)

    def _end_pass(self) -> None:
        """Start the slices of the next pass, after which this runs again."""
        self._pass_began = None
        expected = 0.0
        while expected < PASS_SECONDS and (work := self.queue.next()) is not None:
            if not work[1].done():  # else its request is gone
                work[1].set_result(None)
                expected += work[0]
        if expected:
            self._begin_pass()
