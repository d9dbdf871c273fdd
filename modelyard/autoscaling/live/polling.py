"""Ask sources of pending demand again and again, those that fail or have nothing to say less and less often.

The common part of ``modelyard.autoscaling.live.wake`` (variants) and ``modelyard.autoscaling.live.bindings.wake``
(bindings).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from modelyard.autoscaling.live.wake_sources import NothingKnown, Reader, ReadFailed, Reading
from modelyard.objects import Key

log = logging.getLogger(__name__)

INTERVAL = 1.0
SLOWEST = 30.0
"""Seconds between two questions to a source that keeps failing or has nothing to say."""
CONCURRENCY = 8


@dataclass
class Source:
    """One thing to ask, for all the objects (``keys``) that depend on it."""

    reader: Reader
    keys: set[Key] = field(default_factory=set)
    delay: float = 0.0
    next_at: float = 0.0
    said_at: float = float("-inf")
    said: Reading = field(default_factory=dict)
    error: str | None = None
    told: set[Key] = field(default_factory=set)
    """Objects whose demand a tick knows of already; it may have its reasons, and is not woken for it again."""


class Poller:
    """The sources by name, and when to ask them. ``interval`` is in seconds.

    Whoever derives from it says what there is to ask (``_want``), for a reader's question what it needs (``_about``),
    and what a tick knows already (``Source.told``).
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._sources: dict[str, Source] = {}
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._demand = asyncio.Event()

    def _about(self, source: Source) -> Mapping[Key, str]:
        """What to hand to the source's reader: its objects, each with a text the reader knows how to use."""
        return dict.fromkeys(source.keys, "")

    def _want(self, known: Mapping[str, Source], name: str, make: Callable[[], Reader], keys: set[Key]) -> None:
        """Ask this source from now on, for these objects; ``known`` are the sources there were."""
        source = known.get(name) or Source(make())
        source.keys = keys
        source.told &= keys
        self._sources[name] = source

    async def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for demand that no tick was woken for yet; whether there is some."""
        self._demand.clear()
        tasks = [asyncio.create_task(self._follow(*one)) for one in self._sources.items()]
        try:
            async with asyncio.timeout(timeout):
                await self._demand.wait()
        except TimeoutError:
            return False
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.error("a source of waiting requests broke down", exc_info=ended)
        return True

    async def _follow(self, name: str, source: Source) -> None:
        while True:
            await asyncio.sleep(max(0.0, source.next_at - asyncio.get_running_loop().time()))
            await self._ask(name, source)
            asleep = {key for key, pending in source.said.items() if pending > 0}
            if source.error is None:
                source.told &= asleep
            if asleep - source.told:
                source.told |= asleep
                self._demand.set()

    async def _ask(self, name: str, source: Source) -> None:
        clock = asyncio.get_running_loop().time
        async with self._gate:
            try:
                source.said = await source.reader.read(self._about(source))
                source.delay, error = self._interval, None
            except NothingKnown:
                source.said, source.delay, error = {}, self._slower(source), None
            except ReadFailed as failure:
                source.said, source.delay, error = {}, self._slower(source), str(failure)
            except asyncio.CancelledError:
                source.next_at = clock() + self._interval  # it was slow; a tick must not wait for it all over again
                raise
        if error is not None and error != source.error:
            log.warning("%s cannot be asked for waiting requests: %s", name, error)
        source.error = error
        source.said_at = clock()
        source.next_at = source.said_at + source.delay

    def _slower(self, source: Source) -> float:
        return min(max(2 * source.delay, self._interval), max(SLOWEST, self._interval))
