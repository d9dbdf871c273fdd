"""The gauges an HPA, KEDA or a dashboard reads, rendered from the resources themselves at every scrape.

There is no second memory: a deleted or excluded resource has no series, a changed accelerator renames the one there is,
and a restart changes nothing. Run one instance; let consumers aggregate with ``max`` all the same.
Called by ``modelyard exporter``. Names and meaning: WVA saturation reference, "Emitted gauges".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modelyard.autoscaling.fleet import Variant
from modelyard.cluster import Cluster
from modelyard.loop.fleetwatch import Fleetwatch

log = logging.getLogger(__name__)


class ExporterError(Exception):
    """The exporter cannot serve. The message says what to do."""


class Published(Protocol):
    """What there is to expose; a ``Fleetwatch``."""

    instance: str | None

    def published(self) -> Iterable[tuple[Variant, int | None]]:
        """Variants with their workload's current replicas (``None``: unknown)."""


class GaugeCollector(Collector):
    """The exposition of one controller installation."""

    def __init__(self, fleet: Published) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        """Gauges and the scaling counter, built from what the resources say now."""
        instance = self._fleet.instance
        names = ["variant_name", "namespace", "accelerator_type", *(["controller_instance"] if instance else [])]
        desired = GaugeMetricFamily("wva_desired_replicas", "Replicas the variant should have", labels=names)
        current = GaugeMetricFamily("wva_current_replicas", "Replicas the workload has (status.replicas)", labels=names)
        ratio = GaugeMetricFamily("wva_desired_ratio", "Desired over current replicas; desired at zero", labels=names)
        counted = ["variant_name", "namespace", "direction", "reason", *(["controller_instance"] if instance else [])]
        total = CounterMetricFamily("wva_replica_scaling", "Scaling decisions", labels=counted)
        own = [instance] if instance else []
        for variant, replicas in self._fleet.published():
            wanted = variant.status_replicas or 0
            labels = [variant.key.name, variant.key.namespace, variant.status_accelerator or "unresolved", *own]
            desired.add_metric(labels, wanted)
            if replicas is not None:
                current.add_metric(labels, replicas)
                ratio.add_metric(labels, wanted / replicas if replicas else wanted)
            for what, times in sorted(variant.memory.scalings.items()):
                direction, _, reason = what.partition("/")
                total.add_metric([variant.key.name, variant.key.namespace, direction, reason, *own], times)
        return [desired, current, ratio, total]


def application(fleet: Fleetwatch) -> web.Application:
    """``/metrics`` and ``/readyz`` (503 until everything has been listed once), ``/healthz`` (the process lives)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GaugeCollector(fleet))

    async def metrics(_: web.Request) -> web.Response:
        if not fleet.synced.is_set():
            return web.Response(status=503, text="the resources have not been listed yet\n")
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if fleet.synced.is_set() else 503)

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/readyz", ready), web.get("/healthz", health)])
    return app


async def serve(cluster: Cluster, host: str, port: int, **options: Any) -> None:
    """Serve until cancelled; ``options`` are those of ``Fleetwatch``.

    Raises ``ExporterError`` when the address cannot be listened on, and a group with a ``ClusterError`` when the
    cluster refuses us.
    """
    fleet = Fleetwatch(cluster, **options)
    runner = web.AppRunner(application(fleet), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ExporterError(
                f"cannot listen on {host}:{port}: {why}; stop what listens there, or choose another --host or --port"
            ) from error
        for address in runner.addresses:
            log.info("gauges at http://%s:%d/metrics", *address[:2])
        await fleet.run()
    finally:
        await runner.cleanup()
