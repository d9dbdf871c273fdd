"""Choosing where a request goes among the ready ones, and keeping a list of what is ready.

``Router`` is the choice alone, for real endpoints and simulated replicas alike. ``Endpoints`` asks an injected source
again and again where the endpoints are; a request that finds none waits for one. Times here are wall seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

logger = logging.getLogger(__name__)


class Routing(StrEnum):
    """How a router chooses among the ready replicas of a model."""

    LEAST_OUTSTANDING = "least-outstanding"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


class Choosable(Protocol):
    """``outstanding``: requests sent there and not answered."""

    outstanding: int


C = TypeVar("C", bound=Choosable)


class Router:
    """The choice. ``least-outstanding`` is what inference gateways do by default; ties go round, so that idle ones
    share the load. Equal seeds choose equally."""

    def __init__(self, routing: Routing = Routing.LEAST_OUTSTANDING, seed: int = 0) -> None:
        self.routing = routing
        self._random = random.Random(seed)
        self._turn = 0

    def choose(self, ready: Sequence[C]) -> C:
        """One of those that are ready, of which there is at least one."""
        count = len(ready)
        if count == 1:
            return ready[0]
        if self.routing is Routing.RANDOM:
            return ready[self._random.randrange(count)]
        self._turn += 1
        turn = self._turn % count
        if self.routing is Routing.ROUND_ROBIN:
            return ready[turn]
        best = ready[turn]
        least = best.outstanding
        if least:
            for offset in range(turn + 1 - count, turn):
                one = ready[offset]
                if one.outstanding < least:
                    best, least = one, one.outstanding
                    if not least:
                        break
        return best


class Endpoint(NamedTuple):
    """A pod that is ready to serve: its name, its base URL (no path), and the variant it belongs to, if any."""

    pod: str
    url: str
    variant: str = ""


EndpointSource = Callable[[], Awaitable[Sequence[Endpoint]]]
"""Returns the endpoints that are ready now."""


@dataclass(slots=True, eq=False)
class _Place:
    """What is known of a URL: the process behind it matters, and a pod's name may come back with another one."""

    endpoint: Endpoint
    outstanding: int = 0
    ejected_until: float = 0.0


class Endpoints:
    """The endpoints that ``source`` names, asked every ``refresh_interval`` seconds, and the choice among them.

    One that refused a connection is left out for ``ejection_time`` seconds (``eject``): otherwise, having nothing
    outstanding, it would attract every request until the source notices. When the source fails, the endpoints known so
    far stay; ``last_error`` says why. Use within ``running()``.
    """

    def __init__(self, source: EndpointSource, *, refresh_interval: float = 0.25, ejection_time: float = 1.0) -> None:
        self._source = source
        self._refresh_interval = refresh_interval
        self._ejection_time = ejection_time
        self._router = Router()
        self._ready: list[_Place] = []
        self._known: dict[str, _Place] = {}
        self._changed = asyncio.Event()
        self.waiting = 0
        self.last_error: str | None = None

    @property
    def available(self) -> bool:
        """Whether an endpoint can be had without waiting."""
        return bool(self._candidates())

    @property
    def count(self) -> int:
        """Endpoints that the source names."""
        return len(self._ready)

    @property
    def outstanding(self) -> int:
        """Requests in progress at all endpoints."""
        return sum(place.outstanding for place in self._known.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Endpoints]:
        """Keep the list of endpoints fresh while the block runs; the first list is there when it starts."""
        await self._refresh()
        task = asyncio.create_task(self._keep_fresh(), name="endpoints-refresh")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def acquire(self, timeout: float) -> Endpoint | None:
        """Choose an endpoint, waiting up to ``timeout`` for one. Call ``release`` when the request has ended."""
        place = self._choose()
        if place is None:
            self.waiting += 1
            try:
                async with asyncio.timeout(timeout):
                    while place is None:
                        await self._changed.wait()
                        place = self._choose()
            except TimeoutError:
                return None
            finally:
                self.waiting -= 1
        place.outstanding += 1
        return place.endpoint

    def release(self, endpoint: Endpoint) -> None:
        """The request sent to ``endpoint`` has ended."""
        self._known[endpoint.url].outstanding -= 1

    def eject(self, endpoint: Endpoint) -> None:
        """Leave ``endpoint`` out for a while: it does not take requests."""
        self._known[endpoint.url].ejected_until = asyncio.get_running_loop().time() + self._ejection_time

    def _candidates(self) -> list[_Place]:
        now = asyncio.get_running_loop().time()
        return [place for place in self._ready if place.ejected_until <= now]

    def _choose(self) -> _Place | None:
        candidates = self._candidates()
        if candidates:
            return self._router.choose(candidates)
        self._changed.clear()
        return None

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_interval)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            endpoints = await self._source()
        except Exception as error:
            if self.last_error is None:
                logger.warning("the endpoint source failed, keeping %d endpoints: %r", len(self._ready), error)
            self.last_error = repr(error)
        else:
            self.last_error = None
            self._ready = []
            for endpoint in endpoints:
                place = self._known.setdefault(endpoint.url, _Place(endpoint))
                place.endpoint = endpoint
                self._ready.append(place)
            ready = {endpoint.url for endpoint in endpoints}
            self._known = {url: place for url, place in self._known.items() if url in ready or place.outstanding}
        if self.available:
            self._changed.set()
