"""Notice between two ticks that somebody waits for a model at zero, so that the next tick need not wait for its time.

Used by ``modelyard.loop.tick`` beside ``changes``. Only while the last tick saw variants at zero, each source is asked
every second or so, once for all variants that depend on it: the endpoint pickers of their InferencePools, the gateway
queue in Prometheus, and the owners' wake expressions. A source that fails or has nothing to say is asked less and less
often. What was read is handed to the tick, which decides; nothing here scales anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from modelyard.autoscaling.fleet import Fleet, Key, Variant, Workload
from modelyard.autoscaling.select import INSTANCE_LABEL
from modelyard.cluster import Cluster, ClusterError
from modelyard.loop.demands import at_zero, wake_expressions
from modelyard.loop.pickers import PickerError, Pool, addresses, list_pools, pool_of, scrape
from modelyard.prometheus.client import Prometheus, PrometheusError
from modelyard.prometheus.queries import GATEWAY_QUEUE, FleetQueries
from modelyard.prometheus.signals import gateway_queue
from modelyard.prometheus.wake import LIMIT, read_expressions

log = logging.getLogger(__name__)

INTERVAL = 1.0
SLOWEST = 30.0
"""Seconds between two questions to a source that keeps failing or has nothing to say."""
LOOK_AGAIN = 30.0
"""Seconds after which InferencePools and picker addresses are looked up again."""
FRESH = 5.0
"""Seconds after which a reading is not handed to a tick any more."""
CONCURRENCY = 8
TOKEN = "EPP_METRIC_READER_BEARER_TOKEN"

Reading = Mapping[Key, float]
"""Pending demand by variant."""


class _Failed(Exception):
    """A source that could not be read; the message says why."""


class _Nothing(Exception):
    """A source that knows nothing of any of the models."""


@dataclass
class _Source:
    """One thing to ask, for all the variants that depend on it."""

    name: str
    read: Callable[[], Awaitable[Reading]]
    picker: bool = False
    keys: set[Key] = field(default_factory=set)
    delay: float = 0.0
    next_at: float = 0.0
    said_at: float = float("-inf")
    said: Reading = field(default_factory=dict)
    error: str | None = None
    told: set[Key] = field(default_factory=set)
    """Variants for whose demand a wait was ended already: the tick knows, and may have its reasons."""


class WakeWatch:
    """``async with WakeWatch(cluster, prometheus) as wakes``; then ``complete`` in every tick and ``wait`` between.

    ``instance`` selects variants as ``FleetSettings.controller_instance`` does; ``interval`` is in seconds; ``token``
    authenticates at the pickers (default: the environment variable ``EPP_METRIC_READER_BEARER_TOKEN``).
    """

    def __init__(
        self,
        cluster: Cluster,
        prometheus: Prometheus | PrometheusError,
        *,
        instance: str | None = None,
        interval: float = INTERVAL,
        token: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._prometheus = prometheus
        self._instance = instance or None
        self._interval = interval
        text = os.environ.get(TOKEN, "") if token is None else token
        self._token = text.removeprefix("Bearer ").removeprefix("bearer ").strip()
        self._session: aiohttp.ClientSession
        self._sources: dict[str, _Source] = {}
        self._models: dict[Key, str] = {}
        self._pools: tuple[Pool, ...] = ()
        self._pools_at = float("-inf")
        self._pools_in: set[str] = set()
        self._pools_error: str | None = None
        self._urls: dict[Key, tuple[float, tuple[str, ...]]] = {}
        self._gateway: dict[str, float] = {}
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._demand = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def complete(self, fleet: Fleet) -> Fleet:
        """The fleet with what the sources said since the last tick in its signals; from now on watch what it shows.

        Endpoint pickers that nobody asked meanwhile (the first tick, a run of one tick) are asked now. Costs nothing
        while no variant is at zero. Never raises for a source's sake: it is named in ``partial_errors``.
        """
        sleeping = at_zero(fleet.variants, fleet.workloads)
        variants = [v for v in fleet.variants if v.key in sleeping and v.labels.get(INSTANCE_LABEL) == self._instance]
        now = asyncio.get_running_loop().time()
        problems = await self._arrange(variants, sleeping)
        late = [s for s in self._sources.values() if s.picker and s.next_at <= now]
        await asyncio.gather(*(self._ask(source) for source in late))
        return self._merge(fleet, problems, now)

    async def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for demand that no tick was woken for yet; whether there is some."""
        self._demand.clear()
        tasks = [asyncio.create_task(self._follow(source)) for source in self._sources.values()]
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

    # Sources

    async def _arrange(self, variants: list[Variant], sleeping: Mapping[Key, Workload]) -> list[str]:
        """Make ``_sources`` those that these variants need; keep what is known of the ones there were."""
        self._models = {v.key: v.model_id for v in variants if v.model_id}
        wanted: dict[str, _Source] = {}
        problems: list[str] = []

        def want(source: _Source, keys: set[Key]) -> None:
            one = wanted.setdefault(source.name, self._sources.get(source.name, source))
            one.read = source.read
            one.keys = keys
            one.told &= keys

        if self._models:
            await self._look_up({key.namespace for key in self._models})
            if self._pools_error:
                problems.append(f"{self._pools_error}; demand for models at zero is seen in Prometheus only")
            served: dict[Key, tuple[Pool, set[Key]]] = {}
            for key in self._models:
                found = pool_of(self._pools, key.namespace, sleeping[key].template_labels)
                if found is not None:
                    served.setdefault(found.key, (found, set()))[1].add(key)
            for one, keys in served.values():
                want(_Source(f"InferencePool {one.key}", self._picker_reader(one), picker=True), keys)
        if self._models and not isinstance(self._prometheus, PrometheusError):
            want(_Source("gateway queue", self._gateway_reader(self._prometheus)), set(self._models))
            owners: dict[str, set[Key]] = {}
            for key, text in wake_expressions(variants, self._models).items():
                owners.setdefault(text, set()).add(key)
            for text, keys in sorted(owners.items())[:LIMIT]:
                want(_Source(f"wake expression {text}", self._expression_reader(self._prometheus, text, keys)), keys)
        self._sources = wanted
        return problems

    async def _look_up(self, namespaces: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        if namespaces <= self._pools_in and now - self._pools_at < LOOK_AGAIN:
            return
        self._pools, self._pools_in, self._pools_at, self._pools_error = (), namespaces, now, None
        try:
            self._pools = await list_pools(self._cluster, namespaces)
        except ClusterError as error:
            self._pools_error = f"InferencePools: {error}"

    def _picker_reader(self, of: Pool) -> Callable[[], Awaitable[Reading]]:
        async def read() -> Reading:
            keys = self._sources[f"InferencePool {of.key}"].keys
            now = asyncio.get_running_loop().time()
            at, urls = self._urls.get(of.key, (float("-inf"), ()))
            try:
                if now - at >= LOOK_AGAIN or not urls:
                    urls = await addresses(self._cluster, of)
                    self._urls[of.key] = (now, urls)
            except PickerError as error:
                raise _Failed(str(error)) from error
            if not urls:
                raise _Nothing
            pages = await asyncio.gather(
                *(scrape(self._session, url, self._token) for url in urls), return_exceptions=True
            )
            total: dict[str, float] = {}
            failures: list[str] = []
            for page in pages:
                if isinstance(page, PickerError):
                    failures.append(str(page))
                elif isinstance(page, BaseException):
                    raise page
                else:
                    for model, queue in page.items():
                        total[model] = total.get(model, 0.0) + queue
            if len(failures) == len(urls):
                self._urls.pop(of.key, None)
                raise _Failed("; ".join(failures))
            return {key: total.get(self._models[key], 0.0) for key in keys if key in self._models}

        return read

    def _gateway_reader(self, prometheus: Prometheus) -> Callable[[], Awaitable[Reading]]:
        text = FleetQueries.build(60).gateway_queue

        async def read() -> Reading:
            try:
                samples = await prometheus.query(text, GATEWAY_QUEUE)
            except PrometheusError as error:
                raise _Failed(str(error)) from error
            if not samples:
                raise _Nothing
            self._gateway = gateway_queue(samples)
            return {key: self._gateway.get(model, 0.0) for key, model in self._models.items()}

        return read

    def _expression_reader(self, prometheus: Prometheus, text: str, keys: set[Key]) -> Callable[[], Awaitable[Reading]]:
        async def read() -> Reading:
            found, problems = await read_expressions(prometheus, dict.fromkeys(keys, text))
            if problems:
                raise _Failed(problems[0])
            return found

        return read

    # Asking

    async def _follow(self, source: _Source) -> None:
        while True:
            await asyncio.sleep(max(0.0, source.next_at - asyncio.get_running_loop().time()))
            await self._ask(source)
            asleep = {key for key, pending in source.said.items() if pending > 0}
            source.told &= asleep
            if asleep - source.told:
                source.told |= asleep
                self._demand.set()

    async def _ask(self, source: _Source) -> None:
        clock = asyncio.get_running_loop().time
        async with self._gate:
            try:
                source.said = await source.read()
                source.delay, error = self._interval, None
            except _Nothing:
                source.said, source.delay, error = {}, self._slower(source), None
            except _Failed as failure:
                source.said, source.delay, error = {}, self._slower(source), str(failure)
            except asyncio.CancelledError:
                source.next_at = clock() + self._interval  # it was slow; a tick must not wait for it all over again
                raise
        if error is not None and error != source.error:
            log.warning("%s cannot be asked for waiting requests: %s", source.name, error)
        source.error = error
        source.said_at = clock()
        source.next_at = source.said_at + source.delay

    def _slower(self, source: _Source) -> float:
        return min(max(2 * source.delay, self._interval), max(SLOWEST, self._interval))

    # Handing over

    def _merge(self, fleet: Fleet, problems: list[str], now: float) -> Fleet:
        """Readings that were fresh at ``now`` into the signals: the larger of what Prometheus and the source say."""
        signals = fleet.signals
        wake = dict(signals.wake)
        queue = dict(signals.gateway_queue)
        problems = [*problems, *(f"{s.name}: {s.error}" for s in self._sources.values() if s.picker and s.error)]
        for source in self._sources.values():
            if now - source.said_at > source.delay + FRESH:
                continue
            if source.name == "gateway queue":
                models = {self._models[key] for key in source.said if key in self._models}
                queue.update({m: max(q, queue.get(m, 0.0)) for m, q in self._gateway.items() if m in models and q > 0})
                continue
            for key, pending in source.said.items():
                if key in self._models:
                    wake[key] = max(pending, wake.get(key, pending))
        known = {key for key, model in self._models.items() if wake.get(key, 0) > 0 or queue.get(model, 0) > 0}
        for source in self._sources.values():
            source.told |= known & source.keys  # the tick has it now
        if wake == signals.wake and queue == signals.gateway_queue and not problems:
            return fleet
        merged = dataclasses.replace(
            signals, wake=wake, gateway_queue=queue, partial_errors=(*signals.partial_errors, *problems)
        )
        return dataclasses.replace(fleet, signals=merged)


async def first_of(*waits: Coroutine[Any, Any, bool]) -> bool:
    """Whether any of several waits came to something; the others are given up as soon as one does."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
