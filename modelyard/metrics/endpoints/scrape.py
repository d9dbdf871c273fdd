"""Read the metrics endpoints of pods, all at once and each on its own.

A pod that hangs, answers garbage, closes the connection or sends without end is *missing*, with the reason; it can
neither hold up nor spoil another. What failed in the last tick, or was slow, waits in a queue of its own, and every
namespace has its share of the places, so that a thousand hanging pods cannot use up the time of the healthy ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from modelyard.fairness import by_owner, divide, interleave
from modelyard.metrics.vocabulary import Page, Scrape, parse

if TYPE_CHECKING:
    import aiohttp

SCRAPE_SECONDS = 3.0
"""Limit of one scrape, connecting included."""
TOTAL_SECONDS = 9.0
"""Limit of all scrapes of a tick together; pods not reached by then are missing."""
MAX_BODY = 2 * 2**20
"""Bytes of a page beyond which the pod counts as missing: a vLLM page has a few hundred thousand."""
CONCURRENCY = 128
SUSPECTS = 64
"""How many of those that failed last time are scraped at once, beside ``CONCURRENCY`` others."""
SHARE = 16
"""Places that a namespace may have of those, however many namespaces there are."""
MOST_PAGES = 4
"""Different pages of one pod; who asks for more than its metrics need is not served."""
SLOW = 0.05
"""CPU seconds for a page from which on its pod is a suspect: an ordinary one takes a thousandth."""
SLUGGISH = 1.0
"""Seconds until the answer is complete from which on its pod is a suspect."""


class Scraper:
    """The connection pool of one loop, and who failed or was slow last time. ``async with Scraper() as scraper``.

    ``seconds`` and ``total`` are the limits of one scrape and of all of a tick, ``max_body`` is in bytes. ``verify``:
    certificates of pods that are asked by https must be good for their addresses.
    """

    def __init__(
        self,
        seconds: float = SCRAPE_SECONDS,
        total: float = TOTAL_SECONDS,
        max_body: int = MAX_BODY,
        *,
        verify: bool = True,
    ) -> None:
        self.seconds, self.total, self.max_body, self.verify = seconds, total, max_body, verify
        self._session: aiohttp.ClientSession | None = None
        self._suspects: set[str] = set()
        self._parsers: dict[bool, ThreadPoolExecutor] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; a later scrape opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        for parser in self._parsers.values():
            parser.shutdown(wait=False, cancel_futures=True)
        self._parsers = {}

    async def scrape(
        self,
        wanted: Mapping[Scrape, Iterable[str]],
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> dict[Scrape, Page | str]:
        """The wanted families of each page, or why it could not be read. ``headers`` are sent to all of these.

        Pages have the time of ``clock`` (epoch seconds).
        """
        results: dict[Scrape, Page | str] = {}
        # One thread each: several would only fight over the interpreter, with the loop as well.
        self._parsers = self._parsers or {suspect: ThreadPoolExecutor(1, "pages") for suspect in (True, False)}
        chosen, over = interleave(wanted, lambda scrape: scrape.endpoint.uid, MOST_PAGES)
        why = f"not read: more than {MOST_PAGES} different pages of this pod are asked for"
        beyond: dict[Scrape, Page | str] = dict.fromkeys(over, why)
        lanes = by_owner(chosen, lambda scrape: (scrape.endpoint.uid in self._suspects, scrape.endpoint.namespace))
        places = {True: SUSPECTS, False: CONCURRENCY}
        gates = {suspect: asyncio.Semaphore(limit) for suspect, limit in places.items()}
        busy: set[Scrape] = set()

        async def read(lane: Iterator[Scrape], suspect: bool) -> None:
            for scrape in lane:
                async with gates[suspect]:
                    parser = self._parsers[suspect]
                    results[scrape] = await self._page(scrape, wanted[scrape], headers, parser, busy, clock)

        readers: list[tuple[tuple[bool, str], Iterator[Scrape]]] = []
        for suspect, limit in places.items():
            wanted_places = {lane: len(pages) for lane, pages in lanes.items() if lane[0] is suspect}
            for lane, share in divide(limit, wanted_places).items():
                pages = iter(lanes[lane])
                readers += [(lane, pages)] * min(wanted_places[lane], max(SHARE, share))
        ordered, _ = interleave(readers, lambda reader: reader[0])
        tasks = [asyncio.create_task(read(pages, lane[0])) for lane, pages in ordered]
        if not tasks:
            return results
        try:
            await asyncio.wait(tasks, timeout=self.total)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        late = f"not reached within the {self.total:g} s for all pods of a tick"
        failed = {scrape.endpoint.uid for scrape, page in results.items() if isinstance(page, str)}
        for scrape in wanted.keys() - results.keys() - beyond.keys():
            results[scrape] = late
            failed |= self._suspects & {scrape.endpoint.uid}
        self._suspects = failed | {scrape.endpoint.uid for scrape in busy.copy()}  # a parser may be at it still
        return results | beyond

    async def _page(
        self,
        scrape: Scrape,
        names: Iterable[str],
        headers: Mapping[str, str] | None,
        parser: ThreadPoolExecutor,
        busy: set[Scrape],
        clock: Callable[[], float],
    ) -> Page | str:
        """One page, which is in ``busy`` while others may wait for it, and after it if they did long."""
        if not scrape.endpoint.ip:
            return "the pod has no address"

        def read(body: bytes, at: float) -> Page:
            busy.add(scrape)
            begun = time.thread_time()
            page = parse(body, names, at)
            if prompt and time.thread_time() - begun < SLOW:
                busy.discard(scrape)
            return page

        loop = asyncio.get_running_loop()
        busy.add(scrape)
        asked = loop.time()
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._get(scrape.url, headers)
            if prompt := loop.time() - asked < SLUGGISH:
                busy.discard(scrape)
            return await loop.run_in_executor(parser, read, body, clock())
        except TimeoutError:
            return f"GET {scrape.url}: no complete answer within {self.seconds:g} s"
        except Exception as error:  # one pod's page is never another's
            return f"GET {scrape.url}: {str(error) or type(error).__name__}"

    async def _get(self, url: str, headers: Mapping[str, str] | None) -> bytes:
        import aiohttp  # in a loop it is there already, for its cluster; a plan of files needs none of it

        from modelyard.metrics.endpoints.bounded_connection import BoundedConnector
        from modelyard.metrics.endpoints.engine_api import request_page

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=BoundedConnector(limit=CONCURRENCY + SUSPECTS, ssl=self.verify),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(),  # the limits are this class's own
            )
        return await request_page(self._session, url, self.max_body, headers)
