"""The gauges an HPA, KEDA or a dashboard reads, rendered from the resources themselves at every scrape.

There is no second memory: a deleted or excluded resource has no series, a changed accelerator renames the one there
is, and a restart changes nothing. Run one instance; let consumers aggregate with ``max`` all the same. Names and
meaning: WVA saturation reference, "Emitted gauges"; WVA SLO reference, "Series".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modelyard.autoscaling.fleet import Variant
from modelyard.autoscaling.live.controller_gauges import ControllerCollector
from modelyard.autoscaling.live.fleetwatch import Fleetwatch
from modelyard.autoscaling.reading import read_prediction
from modelyard.autoscaling.reading.bindings import PolicyCollector
from modelyard.cluster import Cluster
from modelyard.ports import describe_listen_error

log = logging.getLogger(__name__)


class ExporterError(Exception):
    """The exporter cannot serve. The message says what to do."""


class GaugeCollector(Collector):
    """Metrics of one controller installation: ``wva_*`` for every variant, also ``inferno_*`` for those in SLO form."""

    def __init__(self, fleet: Fleetwatch) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        instance = self._fleet.instance
        every = _Families("wva", ["variant_name", "namespace", "accelerator_type"], instance)
        slo = _Families("inferno", ["variant_name", "namespace", "accelerator_type", "variant_id"], instance)
        names = ["model_name", "variant_name", "variant_id", "namespace", "accelerator_type"]
        names += ["controller_instance"] if instance else []
        predicted = {
            name: GaugeMetricFamily(
                f"inferno_predicted_{name}_seconds", f"Mean {text} expected at the desired size", labels=names
            )
            for name, text in (("ttft", "time to first token"), ("itl", "inter-token latency"))
        }
        for variant, replicas in self._fleet.published():
            known = replicas
            if known is None and variant.slo is not None:
                known = (variant.status.get("currentAlloc") or {}).get("numReplicas")
            labels = [variant.key.name, variant.key.namespace, variant.status_accelerator or "unresolved"]
            every.add(variant, labels, known)
            if variant.slo is not None:
                slo.add(variant, [*labels, variant.slo.variant_id], known)
                name, namespace, accelerator = labels
                values = [variant.model_id, name, variant.slo.variant_id, namespace, accelerator]
                values += [instance] if instance else []
                told = read_prediction(variant.annotations)
                for what in predicted.keys() & told.keys():
                    predicted[what].add_metric(values, told[what] / 1000)
        return [*every.families, *(f for f in (*slo.families, *predicted.values()) if f.samples)]


class _Families:
    """The four families of one published form, which differ in prefix and labels only."""

    def __init__(self, prefix: str, labels: list[str], instance: str | None) -> None:
        self._own = [instance] if instance else []
        more = ["controller_instance"] if instance else []
        self._desired, self._current, self._ratio = (
            GaugeMetricFamily(f"{prefix}_{name}", text, labels=[*labels, *more])
            for name, text in (
                ("desired_replicas", "Replicas the variant should have"),
                ("current_replicas", "Replicas the workload has (status.replicas)"),
                ("desired_ratio", "Desired over current replicas; desired at zero"),
            )
        )
        counted = ["variant_name", "namespace", "direction", "reason", *more]
        self._total = CounterMetricFamily(f"{prefix}_replica_scaling", "Scaling decisions", labels=counted)
        self.families: tuple[Metric, ...] = self._desired, self._current, self._ratio, self._total

    def add(self, variant: Variant, labels: list[str], replicas: int | None) -> None:
        """``replicas`` ``None``: unknown."""
        wanted = variant.status_replicas or 0
        values = [*labels, *self._own]
        self._desired.add_metric(values, wanted)
        if replicas is not None:
            self._current.add_metric(values, replicas)
            self._ratio.add_metric(values, wanted / replicas if replicas else wanted)
        for what, times in sorted(variant.memory.scalings.items()):
            direction, _, reason = what.partition("/")
            self._total.add_metric([variant.key.name, variant.key.namespace, direction, reason, *self._own], times)


def application(fleet: Fleetwatch) -> web.Application:
    """``/metrics`` and ``/readyz`` (503 until everything has been listed once), ``/healthz`` (the process lives)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GaugeCollector(fleet))
    registry.register(PolicyCollector(fleet))
    registry.register(ControllerCollector(fleet))

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

    Raises ``ExporterError`` when the address cannot be listened on, a group with a ``ClusterError`` when refused.
    """
    fleet = Fleetwatch(cluster, **options)
    runner = web.AppRunner(application(fleet), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, OverflowError) as error:
            raise ExporterError(describe_listen_error(host, port, error)) from error
        for address in runner.addresses:
            log.info("gauges at http://%s:%d/metrics", *address[:2])
        await fleet.run()
    finally:
        await runner.cleanup()
