"""What engines tell of themselves, read again and again for the scorers: load, KV cache, latencies, loaded adapters."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache

import aiohttp
import orjson

from modelyard.fairness import RoundRobin
from modelyard.metrics.endpoints import Scraper, model_names, request_models
from modelyard.metrics.vocabulary import ENGINES, Family, MetricsEndpoint, Page, Scrape, Signal
from modelyard.router.process.body_reader import count_values
from modelyard.router.process.processor_shares import ProcessorShares
from modelyard.routing import EngineGauges, RoutedFleet, RoutedPod, Server, average

log = logging.getLogger(__name__)

SECONDS = 1.0
"""Limit of one page."""
PER_POD = 0.01
"""Seconds of a round for each pod: of more pods only a part has its turn, so that it takes no more of a core."""
MODELS_EVERY = 15.0
MOST_LISTS = 4096
"""Pods whose models are read in a round."""
MODELS_CONCURRENCY = 64
MOST_VALUES = 1 << 14
"""Commas and brackets of such a list: read at once, at most 3 ms of work."""
FADES_AFTER = 120.0
"""Seconds without a new request after which a latency says nothing any more."""

_GAUGES = (Signal.WAITING, Signal.RUNNING, Signal.KV_USE)
_TIMES = (Signal.TTFT, Signal.ITL)


def _families(engine: str) -> Mapping[Signal, Family]:
    return ENGINES[engine.lower()].of if engine.lower() in ENGINES else {}


@cache
def wanted(engine: str) -> tuple[str, ...]:
    """Return the metrics to read of an engine (as ``inferenceEngine`` names it); none of one without known metrics."""
    of = _families(engine)
    return tuple(name for signal in (*_GAUGES, *_TIMES) if signal in of for name in of[signal].names)


class EngineReading:
    """What was read of one pod before: the sums and counts of its histograms, and when they grew last."""

    __slots__ = ("grown", "means", "sums")

    def __init__(self) -> None:
        self.sums: dict[Signal, tuple[float, float]] = {}
        self.means: dict[Signal, float] = {}
        self.grown: dict[Signal, float] = {}

    def take(self, engine: str, page: Page, now: float) -> EngineGauges | None:
        """The gauges of a page: waiting and running summed over the series, the use of the cache their mean.

        A gauge that the page does not have is NaN; ``None``: it has none of them.
        """
        values: dict[str, list[float]] = {}
        for sample in page.samples:
            if math.isfinite(sample.value):
                values.setdefault(sample.name, []).append(sample.value)
        of = _families(engine)
        found: dict[Signal, float] = {}
        for signal in _GAUGES:
            family = of.get(signal)
            shown = next((values[name] for name in (family.names if family else ()) if name in values), [])
            if family is not None and shown:
                total = math.fsum(shown) * family.scale
                found[signal] = total / len(shown) if signal is Signal.KV_USE else total
        for signal in _TIMES:
            family = of.get(signal)
            name = next((n for n in (family.names if family else ()) if f"{n}_count" in values), None)
            if family is None or name is None:
                continue
            told = math.fsum(values.get(f"{name}_sum", ())) * family.scale, math.fsum(values[f"{name}_count"])
            before = self.sums.get(signal)
            if before is None or told[1] != before[1]:
                self.grown[signal] = now
            if now - self.grown.get(signal, now) > FADES_AFTER:
                self.means[signal] = 0.0
            else:
                self.means[signal] = average(before, told, self.means.get(signal, 0.0))
            self.sums[signal] = told
        if not found:
            return None
        return EngineGauges(
            now,
            found.get(Signal.WAITING, math.nan),
            found.get(Signal.RUNNING, math.nan),
            found.get(Signal.KV_USE, math.nan),
            self.means.get(Signal.TTFT, 0.0),
            self.means.get(Signal.ITL, 0.0),
        )


class EnginePoller:
    """Reads the pods of a fleet for ever. ``session`` is for the lists of models, ``verify`` for certificates of pods
    that are asked for their metrics by https, ``shares`` the processor's time in which lists are parsed."""

    def __init__(
        self,
        fleet: RoutedFleet,
        session: aiohttp.ClientSession,
        interval: float,
        *,
        verify: bool = True,
        shares: ProcessorShares | None = None,
    ) -> None:
        self._fleet = fleet
        self._shares = shares or ProcessorShares()
        self._session = session
        self._interval = interval
        self._scraper = Scraper(SECONDS, verify=verify)
        self._readings: dict[RoutedPod, EngineReading] = {}
        self._most_pages, self._most_lists = max(1, round(interval / PER_POD)), MOST_LISTS
        self._pages = RoundRobin[Scrape](lambda page: page)
        self._lists = RoundRobin[RoutedPod](lambda pod: pod.key)

    async def run(self) -> None:
        """Until cancelled; a defect of one round is no end of all."""
        async with self._scraper:
            await asyncio.gather(self._for_ever(self._metrics), self._for_ever(self._models))

    async def once(self) -> None:
        """Read everything once, for who only looks."""
        self._most_pages = self._most_lists = sys.maxsize
        async with self._scraper:
            await asyncio.gather(self._metrics(), self._models())

    async def _for_ever(self, once: Callable[[], Awaitable[float]]) -> None:
        while True:
            try:
                pause = await once()
            except Exception:
                log.exception("reading the engines failed")
                pause = self._interval
            await asyncio.sleep(pause)

    def _pods(self) -> list[tuple[Server, RoutedPod]]:
        return [(backend.server, pod) for backend in self._fleet.backends.values() for pod in backend.pods]

    async def _metrics(self) -> float:
        pods = self._pods()
        places: dict[Scrape, list[tuple[Server, RoutedPod]]] = {}
        for server, pod in pods:
            if not wanted(server.engine):
                continue
            endpoint = MetricsEndpoint(pod.identity, "", pod.key.name, pod.host, pod.key.namespace)
            place = Scrape(endpoint, server.port, server.metrics_path, server.scheme)
            places.setdefault(place, []).append((server, pod))
        turn = self._pages.choose(places, lambda page: page.endpoint.namespace, self._most_pages)
        pages = {place: wanted(places[place][-1][0].engine) for place in turn}
        found = await self._scraper.scrape(pages)
        now = asyncio.get_running_loop().time()
        self._readings = {pod: self._readings.get(pod) or EngineReading() for _, pod in pods}
        for place, page in found.items():
            for server, pod in places[place]:
                if isinstance(page, str):
                    pod.failed += 1
                else:
                    pod.failed = 0
                    # A page that says nothing of the load leaves it unknown, as what was read before grows old.
                    pod.gauges = self._readings[pod].take(server.engine, page, now) or pod.gauges
        return self._interval

    async def _models(self) -> float:
        gate = asyncio.Semaphore(MODELS_CONCURRENCY)

        async def read(pod: RoutedPod) -> None:
            async with gate:
                pod.models = await self._listed(pod)

        async with asyncio.TaskGroup() as group:
            pods = dict.fromkeys(pod for _, pod in self._pods())
            for pod in self._lists.choose(pods, lambda pod: pod.key.namespace, self._most_lists):
                group.create_task(read(pod))
        return MODELS_EVERY

    async def _listed(self, pod: RoutedPod) -> frozenset[str]:
        try:
            listed = await request_models(self._session, pod.url, SECONDS)
            return frozenset(model_names(await self._parsed(listed, pod.key.namespace)))
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return pod.models

    async def _parsed(self, listed: bytes, namespace: str) -> object:
        if count_values(listed) > MOST_VALUES:
            raise ValueError("the list has too many values")
        account = self._shares.open(("namespace", namespace))
        try:
            async with account:
                return orjson.loads(listed)
        finally:
            account.close()
