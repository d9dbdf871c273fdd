"""Budgets and requests under way, shared by the replicas of a router through Redis.

Traffic does not depend on it: what Redis does not answer in time is decided by this replica alone, at once while Redis
is known to be away, and shared again from its first answer on. Source: kthena-routing, 10.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import uuid4

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from modelyard.objects import Key
from modelyard.router.process.limits import LocalLimits
from modelyard.routing import Budget, Left, OverBudget, Route, sharing

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
OnFailure = Literal["local", "allow", "deny"]
TIME_LIMIT = 0.1
"""Seconds that a request waits for Redis at most."""
_CONNECTIONS = 64
_DENIED = OverBudget("input", 1.0)


class RedisLink:
    """A Redis that is waited for ``time_limit`` seconds at most, and left alone for a while after it failed."""

    def __init__(self, address: str, url: str, time_limit: float = TIME_LIMIT) -> None:
        self.address = address
        self._time_limit = time_limit
        self._breaker = sharing.Breaker()
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=time_limit,
            socket_connect_timeout=time_limit,
            # A connection that was closed while it was idle is found out by using it.
            retry=Retry(NoBackoff(), 1),
            health_check_interval=0,
        )
        self._client = redis.Redis.from_pool(pool)
        self._script = self._client.register_script(sharing.SCRIPT)

    @property
    def up(self) -> bool:
        """Whether it answered when it was asked last."""
        return not self._breaker.failures

    async def budget(self, key: str, arguments: list[str], read: Callable[[Any], _T]) -> _T | None:
        """What the script answers, as ``read`` (it raises ``ValueError``); ``None``: nothing that it says, in time."""

        async def ask() -> _T:
            return read(await self._script(keys=[key], args=arguments))

        return await self._ask(ask)

    async def exchange(self, field: str, value: bytes, gone: list[str]) -> Mapping[bytes, bytes] | None:
        """Write one field of the requests under way, remove others, and read all."""

        async def ask() -> Mapping[bytes, bytes]:
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.hset(sharing.IN_FLIGHT, field, value)
                if gone:
                    pipe.hdel(sharing.IN_FLIGHT, *gone)
                pipe.hgetall(sharing.IN_FLIGHT)
                fields = (await pipe.execute())[-1].items()
                return {name: text for name, text in fields if isinstance(name, bytes) and isinstance(text, bytes)}

        return await self._ask(ask)

    async def leave(self, field: str) -> None:
        """Remove a field of the requests under way."""
        await self._ask(lambda: self._client.hdel(sharing.IN_FLIGHT, field))

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose(close_connection_pool=True)

    async def _ask(self, call: Callable[[], Awaitable[_T]]) -> _T | None:
        now = time.monotonic()
        if not self._breaker.asks(now):
            return None
        try:
            async with asyncio.timeout(self._time_limit):
                found = await call()
        except Exception as error:  # it may be a tenant's own, which answers anything
            if self.up:
                logger.warning("Redis at %s does not answer, this replica counts alone: %r", self.address, error)
            self._breaker.failed(time.monotonic())
            if not isinstance(error, RedisError | OSError):
                # What is still to come on its connections may belong to requests that are over.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            return None
        if not self.up:
            logger.warning("Redis at %s answers again", self.address)
        self._breaker.worked()
        return found


class RedisLimits:
    """Budgets of tokens: in Redis for routes that name one, else in the ``local`` store.

    The local store counts what Redis gave as well, so that it goes on from there, and a request needs the consent of
    both: whatever a Redis answers and however its clock leaps, a replica gives out no more than the whole budget by its
    own clock. ``servers`` gives the URL, with credentials, for an address as routes name it; one of the route's own
    namespace may be used without. ``on_failure`` is what holds for a request that Redis did not answer for.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        local: LocalLimits,
        on_failure: OnFailure = "local",
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._servers = servers
        self._local = local
        self._on_failure = on_failure
        self._time_limit = time_limit
        self._routes: dict[Key, Route] = {}
        self._shared: dict[Key, tuple[Budget, RedisLink]] = {}
        self._links: dict[tuple[str, str], RedisLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._asked: Counter[Key] = Counter()
        """Tokens taken from the local store of which Redis knows nothing yet."""
        self._marks = map("{}-{}".format, itertools.repeat(uuid4().hex), itertools.count())

    @property
    def away(self) -> list[str]:
        """Addresses that did not answer when they were asked last."""
        return sorted({address for (address, _), link in self._links.items() if not link.up})

    def replace(self, servers: Mapping[str, str], on_failure: OnFailure) -> None:
        """Other servers from now on."""
        self._servers, self._on_failure = servers, on_failure
        for route, told in self._routes.items():
            self._share(route, told)
        self._let_go()

    def configure(self, route: Key, now: Route | None) -> None:
        """Make the budget that of the route as it is now; ``None``: it is gone."""
        self._local.configure(route, now)
        if now is not None and now.names and now.budget is not None and now.redis:
            self._routes[route] = now
            self._share(route, now)
        else:
            self._routes.pop(route, None)
            self._shared.pop(route, None)
        self._let_go()

    def _share(self, route: Key, told: Route) -> None:
        assert told.budget is not None
        self._shared.pop(route, None)
        url = sharing.redis_url(route, told.redis, self._servers)
        if url is None:
            logger.warning(
                "ModelRoute %s: spec.rateLimit.global.redis.address %r is neither a Service of its namespace nor among "
                "redis.servers of this router's configuration: each replica counts alone",
                route,
                told.redis[:256],
            )
            return
        link = self._links.get((told.redis, url))
        if link is None:
            link = self._links[told.redis, url] = RedisLink(told.redis, url, self._time_limit)
        self._shared[route] = told.budget, link

    def _let_go(self) -> None:
        used = {link for _, link in self._shared.values()}
        for name in [name for name, link in self._links.items() if link not in used]:
            self._finish(self._links.pop(name).close())

    def _finish(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def admit(self, route: Key, tokens: int) -> Left | OverBudget:
        """Check all, then take ``tokens`` of input; what is left then, or which budget forbids it."""
        if route not in self._shared:
            return await self._local.admit(route, tokens)
        task = asyncio.ensure_future(self._admit(route, tokens))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._finish(self._give_back(route, tokens, task))
            raise

    async def _admit(self, route: Key, tokens: int) -> Left | OverBudget:
        local = await self._local.admit(route, tokens)
        if isinstance(local, OverBudget):
            # Asked for nothing, so that its absence is known, and its end.
            asked = await self._ask(route, 0, 0, check=False)
            return Left() if asked is None and self._on_failure == "allow" else local
        self._asked[route] += tokens
        try:
            asked = await self._ask(route, tokens, 0, check=True)
        finally:
            self._asked[route] -= tokens
            if not self._asked[route]:
                del self._asked[route]
        if asked is None and self._on_failure != "deny":
            return local
        refused, left = asked or (_DENIED, Left())
        if refused is not None:
            await self._local.settle(route, tokens, 0, 0)
            return refused
        return Left(_less(left[0], local.input), _less(left[1], local.output))

    async def _give_back(self, route: Key, tokens: int, task: asyncio.Future[Left | OverBudget]) -> None:
        """Give back what a request took whose client left meanwhile: it is not settled."""
        if isinstance(await task, Left):
            await self.settle(route, tokens, 0, 0)

    async def settle(self, route: Key, estimated: int, real: int | None, output: int) -> None:
        """After the answer: put the estimate right, and charge the output; both 0 for a request that reached no engine.

        Done to its end even where who waits for it is cancelled.
        """
        if route not in self._shared:
            return await self._local.settle(route, estimated, real, output)
        # By a task of its own: who waits for it may be cancelled.
        return await asyncio.shield(asyncio.ensure_future(self._settle(route, estimated, real, output)))

    async def _settle(self, route: Key, estimated: int, real: int | None, output: int) -> None:
        difference = 0 if real is None else real - estimated
        if route in self._shared and (difference or output):
            await self._ask(route, difference, output, check=False)
        await self._local.settle(route, estimated, real, output)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*self._closing, *(link.close() for link in self._links.values()))

    async def _ask(
        self, route: Key, tokens: int, output: int, *, check: bool
    ) -> tuple[OverBudget | None, sharing.Levels] | None:
        local = await self._local.admit(route, 0)
        if route not in self._shared:
            return None  # its limit was lifted meanwhile
        (budget, link), mark = self._shared[route], next(self._marks)
        into, out = sharing.levels(local, budget)
        left = None if into is None else into + self._asked[route], out
        script_arguments = sharing.arguments(budget, left, tokens, output, check=check, mark=mark)
        read = partial(sharing.answer, budget=budget, tokens=tokens, check=check, mark=mark)
        return await link.budget(sharing.key(route), script_arguments, read)


def _less(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else min(first, second)


class SharedLoad:
    """Tells the other replicas what this one has under way, and its caller what they have. Use within ``running()``.

    ``mine`` gives the requests under way by pod; ``heard`` is called with those of all others together.
    """

    def __init__(
        self,
        link: RedisLink,
        mine: Callable[[], Mapping[Key, int]],
        heard: Callable[[Mapping[Key, int]], None],
        interval: float = 0.1,
    ) -> None:
        self._link, self._mine, self._heard, self._interval = link, mine, heard, interval
        self._name = uuid4().hex
        self._others = sharing.OthersInFlight(self._name)
        self._ends = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Exchange counts while the block runs, then take back what was told."""
        self._ends = False
        task = asyncio.create_task(self._exchange(), name="shared-load")
        try:
            yield
        finally:
            self._ends = True  # a cancellation that comes together with a time-out may be lost in the client
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._link.leave(self._name)

    async def _exchange(self) -> None:
        gone: list[str] = []
        while not self._ends:
            told = await self._link.exchange(self._name, self._others.tell(self._mine()), gone)
            now = time.monotonic()
            if told is not None:
                gone = self._others.hear({name.decode("utf-8", "replace"): text for name, text in told.items()}, now)
            self._heard(self._others.counts(now))
            await asyncio.sleep(self._interval)
