"""What a router's configuration file decides, put together, and replaced while it runs: who may ask, the budgets in
Redis, turns, and how pods are chosen. What is good takes effect as a whole, what is not is told and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from modelyard.objects import Key
from modelyard.router.process.authentication import TokenAdmission
from modelyard.router.process.limits import LocalLimits
from modelyard.router.process.redis_sharing import RedisLimits, RedisLink, SharedLoad
from modelyard.router.process.user_queues import UserQueues
from modelyard.routing import Configuration, RouterConfiguration, read_configuration

logger = logging.getLogger(__name__)


class ConfigurationFile:
    """A file, such as a mounted ConfigMap. ``value`` is that of the last good reading.

    Raises ``ValueError`` or ``OSError`` at the start, where there is nothing to go on with.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = path.read_text(encoding="utf-8")
        self.value = read_configuration(self._text)
        self.problem = ""
        """Why the file as it is now is not in effect."""

    def look(self, apply: Callable[[RouterConfiguration], None]) -> None:
        """Read the file if it has changed, and ``apply`` what it says; it raises what it does not accept."""
        try:
            text = self._path.read_text(encoding="utf-8")
            if text == self._text:
                return
            self._text = text
            value = read_configuration(text)
            apply(value)
        except (OSError, ValueError) as error:
            if self.problem != str(error):
                logger.warning("%s is not used, what was read before goes on: %s", self._path, error)
            self.problem = str(error)
        else:
            self.value, self.problem = value, ""
            logger.info("%s was read again and is in effect", self._path)


class Configured:
    """The parts of a router that its configuration decides. ``local`` has the budgets that no Redis has.

    ``chosen`` is called with the way to choose pods whenever it changes.
    """

    def __init__(
        self, file: ConfigurationFile | None, local: LocalLimits, chosen: Callable[[Configuration], None]
    ) -> None:
        self._file = file
        self._chosen = chosen
        self.value = file.value if file else RouterConfiguration()
        self.admission = TokenAdmission(self.value.auth)
        self.user_queues = UserQueues(self.value.fairness)
        self.limits = RedisLimits(self.value.redis.servers, local, self.value.redis.on_failure)
        chosen(self.value.scheduler)

    def apply(self, value: RouterConfiguration) -> None:
        """Let it be so from now on. Raises ``OSError``, and nothing is changed."""
        if value.auth != self.value.auth:
            self.admission.replace(value.auth)
        self.user_queues.replace(value.fairness)
        self.limits.replace(value.redis.servers, value.redis.on_failure)
        self.value = value
        self._chosen(value.scheduler)

    @contextlib.asynccontextmanager
    async def running(
        self,
        mine: Callable[[], Mapping[Key, int]],
        heard: Callable[[Mapping[Key, int]], None],
        interval: float = 2.0,
    ) -> AsyncIterator[Configured]:
        """Follow the file every ``interval`` seconds, keep keys fresh, and share what is under way: ``mine`` and, told
        to ``heard``, that of the other replicas, through the Redis that was configured at the start."""
        address = self.value.redis.in_flight
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.limits.close)
            await stack.enter_async_context(self.admission.running())
            if address:
                link = RedisLink(address, self.value.redis.servers.get(address, f"redis://{address}"))
                stack.push_async_callback(link.close)
                await stack.enter_async_context(SharedLoad(link, mine, heard).running())
            following = asyncio.create_task(self._follow(interval), name="configuration")
            try:
                yield self
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, interval: float) -> None:
        while self._file is not None:
            await asyncio.sleep(interval)
            self._file.look(self.apply)
