"""Notice between two ticks that somebody waits for a model at zero, so that the next tick need not wait for its time.

Only while the last tick saw variants at zero, each source is asked every second or so, once for all variants that
depend on it: the endpoint pickers of their InferencePools, the gateway queue in Prometheus, and the owners' wake
expressions. A source that fails or has nothing to say is asked less and less often. What was read is handed to the
tick, which decides; nothing here scales anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Self

import aiohttp

from modelyard.autoscaling.fleet import Fleet, Variant
from modelyard.autoscaling.live.demands import at_zero, wake_expressions
from modelyard.autoscaling.live.pickers import Pool, list_pools, pool_of
from modelyard.autoscaling.live.polling import INTERVAL, Poller, Source
from modelyard.autoscaling.live.wake_sources import ExpressionReader, GatewayReader, PickerReader
from modelyard.autoscaling.select import INSTANCE_LABEL
from modelyard.cluster import Cluster, ClusterError
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.metrics.wake import LIMIT
from modelyard.objects import Key, Workload

log = logging.getLogger(__name__)

LOOK_AGAIN = 30.0
"""Seconds after which InferencePools are looked up again."""
FRESH = 5.0
"""Seconds after which a reading is not handed to a tick any more."""
TOKEN = "EPP_METRIC_READER_BEARER_TOKEN"


class WakeWatch(Poller):
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
        super().__init__(interval)
        self._cluster = cluster
        self._prometheus = prometheus
        self._instance = instance or None
        text = os.environ.get(TOKEN, "") if token is None else token
        self._token = text.removeprefix("Bearer ").removeprefix("bearer ").strip()
        self._session: aiohttp.ClientSession
        self._models: dict[Key, str] = {}
        self._pools: tuple[Pool, ...] = ()
        self._pools_at = float("-inf")
        self._pools_in: set[str] = set()
        self._pools_error: str | None = None
        self._gateway: GatewayReader | None = None
        if isinstance(prometheus, Prometheus):
            self._gateway = GatewayReader(prometheus)

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
        late = {n: s for n, s in self._sources.items() if isinstance(s.reader, PickerReader) and s.next_at <= now}
        await asyncio.gather(*(self._ask(*one) for one in late.items()))
        return self._merge(fleet, problems, now)

    # Sources

    async def _arrange(self, variants: list[Variant], sleeping: Mapping[Key, Workload]) -> list[str]:
        """Make ``_sources`` those that these variants need; keep what is known of the ones there were."""
        self._models = {v.key: v.model_id for v in variants if v.model_id}
        known, self._sources = self._sources, {}
        if not self._models:
            return []
        await self._look_up({key.namespace for key in self._models})
        served: dict[Key, tuple[Pool, set[Key]]] = {}
        for key in self._models:
            found = pool_of(self._pools, key.namespace, sleeping[key].template_labels)
            if found is not None:
                served.setdefault(found.key, (found, set()))[1].add(key)
        for pool, keys in served.values():
            name = f"InferencePool {pool.key} (endpoint picker {pool.picker})"
            self._want(known, name, partial(PickerReader, self._cluster, self._session, pool, self._token), keys)
        if self._gateway is not None and isinstance(self._prometheus, Prometheus):
            gateway = self._gateway
            self._want(known, "gateway queue", lambda: gateway, set(self._models))
            owners: dict[str, set[Key]] = {}
            for key, text in wake_expressions(variants, self._models).items():
                owners.setdefault(text, set()).add(key)
            for text, keys in sorted(owners.items())[:LIMIT]:
                reader = partial(ExpressionReader, self._prometheus, text)
                self._want(known, f"wake expression {text}", reader, keys)
        return [] if self._pools_error is None else [f"{self._pools_error}; demand is seen in Prometheus only"]

    async def _look_up(self, namespaces: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        if namespaces <= self._pools_in and now - self._pools_at < LOOK_AGAIN:
            return
        self._pools, self._pools_in, self._pools_at, self._pools_error = (), namespaces, now, None
        try:
            self._pools = await list_pools(self._cluster, namespaces)
        except ClusterError as error:
            self._pools_error = f"InferencePools: {error}"

    def _about(self, source: Source) -> Mapping[Key, str]:
        return {key: self._models[key] for key in source.keys}

    # Handing over

    def _merge(self, fleet: Fleet, problems: list[str], now: float) -> Fleet:
        """Readings that were fresh at ``now`` into the signals: the larger of what Prometheus and the source say."""
        signals = fleet.signals
        wake = dict(signals.wake)
        queue = dict(signals.gateway_queue)
        for name, source in self._sources.items():
            if source.error and isinstance(source.reader, PickerReader):
                problems = [*problems, f"{name}: {source.error}"]
            if now - source.said_at > source.delay + FRESH:
                continue
            if isinstance(source.reader, GatewayReader):
                for model in set(self._models.values()) & source.reader.queue.keys():
                    queue[model] = max(source.reader.queue[model], queue.get(model, 0.0))
            else:
                for key in source.said.keys() & source.keys:
                    wake[key] = max(source.said[key], wake.get(key, source.said[key]))
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
