"""Choosing an endpoint for each request: the ready one with the fewest requests outstanding.

Where the endpoints are is asked of an injected source, again and again; a request that finds none waits for one. Times
here are wall seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Endpoint(NamedTuple):
    """A pod that is ready to serve: its name, its base URL (no path), and the variant it belongs to, if any."""

    pod: str
    url: str
    variant: str = ""


EndpointSource = Callable[[], Awaitable[Sequence[Endpoint]]]
"""Returns the endpoints that are ready now."""


class Router:
    """Least-outstanding choice among the endpoints that ``source`` names, asked every ``refresh_interval`` seconds.

    An endpoint that refused a connection is left out for ``ejection_time`` seconds (``eject``): otherwise, having
    nothing outstanding, it would attract every request until the source notices. When the source fails, the endpoints
    known so far stay; ``last_error`` says why. Use within ``running()``.
    """

    def __init__(self, source: EndpointSource, *, refresh_interval: float = 0.25, ejection_time: float = 1.0) -> None:
        self._source = source
        self._refresh_interval = refresh_interval
        self._ejection_time = ejection_time
        self._endpoints: tuple[Endpoint, ...] = ()
        # By URL: what matters is the process behind it, and a pod's name may come back with another one.
        self._outstanding: dict[str, int] = {}
        self._ejected: dict[str, float] = {}
        self._turn = 0
        self._changed = asyncio.Event()
        self.waiting = 0
        self.last_error: str | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints named last."""
        return self._endpoints

    @property
    def available(self) -> bool:
        """Whether an endpoint can be had without waiting."""
        return bool(self._candidates())

    @property
    def outstanding(self) -> int:
        """Requests in progress at all endpoints."""
        return sum(self._outstanding.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Router]:
        """Keep the list of endpoints fresh while the block runs; the first list is there when it starts."""
        await self._refresh()
        task = asyncio.create_task(self._keep_fresh(), name="router-refresh")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def acquire(self, timeout: float) -> Endpoint | None:
        """Choose an endpoint, waiting up to ``timeout`` for one. Call ``release`` when the request has ended."""
        endpoint = self._choose()
        if endpoint is None:
            self.waiting += 1
            try:
                async with asyncio.timeout(timeout):
                    while endpoint is None:
                        await self._changed.wait()
                        endpoint = self._choose()
            except TimeoutError:
                return None
            finally:
                self.waiting -= 1
        self._outstanding[endpoint.url] = self._outstanding.get(endpoint.url, 0) + 1
        return endpoint

    def release(self, endpoint: Endpoint) -> None:
        """The request sent to ``endpoint`` has ended."""
        left = self._outstanding[endpoint.url] - 1
        if left:
            self._outstanding[endpoint.url] = left
        else:
            del self._outstanding[endpoint.url]

    def eject(self, endpoint: Endpoint) -> None:
        """Leave ``endpoint`` out for a while: it does not take requests."""
        self._ejected[endpoint.url] = asyncio.get_running_loop().time() + self._ejection_time

    def _candidates(self) -> list[Endpoint]:
        if not self._ejected:
            return list(self._endpoints)
        now = asyncio.get_running_loop().time()
        return [endpoint for endpoint in self._endpoints if self._ejected.get(endpoint.url, 0.0) <= now]

    def _choose(self) -> Endpoint | None:
        endpoints = self._candidates()
        if not endpoints:
            self._changed.clear()
            return None
        # Ties go round, so that idle endpoints share the load.
        self._turn += 1
        turn = self._turn % len(endpoints)
        outstanding = self._outstanding
        return min(endpoints[turn:] + endpoints[:turn], key=lambda endpoint: outstanding.get(endpoint.url, 0))

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_interval)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            self._endpoints = tuple(await self._source())
        except Exception as error:
            if self.last_error is None:
                logger.warning("the endpoint source failed, keeping %d endpoints: %r", len(self._endpoints), error)
            self.last_error = repr(error)
        else:
            self.last_error = None
        now = asyncio.get_running_loop().time()
        self._ejected = {url: until for url, until in self._ejected.items() if until > now}
        if self.available:
            self._changed.set()
