"""Observations of a cluster by the demonstration: no value scraped long ago, and nothing while Prometheus is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from fleet_fixture import ServedModel, eventually
from prometheus_server import PrometheusServer

from deployments.demo.observations import Sample, ScaledWorkload, sample
from modelyard.cluster import Cluster
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings

pytestmark = pytest.mark.integration
NAME = "llama-l40s"


async def observe(
    cluster: Cluster, url: str, namespace: str, into: list[Sample], enough: Callable[[], object], looks: list[float]
) -> None:
    """Sample until there is enough."""

    def load() -> float:
        looks.append(time.monotonic())
        return 2.0

    async with Prometheus(PrometheusSettings(base_url=url)) as prometheus:
        workload = ScaledWorkload(namespace, NAME, f"app={NAME}", NAME)
        task = asyncio.create_task(sample(cluster, prometheus, workload, lambda: 1.0, load, into, every=0.1))
        async with asyncio.timeout(120):
            while not enough():
                await asyncio.sleep(0.05)
                assert not task.done(), task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def whole(samples: list[Sample]) -> list[Sample]:
    """Return those at which all could be read: on a busy machine a scrape is late now and then."""
    return [sample for sample in samples if None not in (sample.kv, sample.waiting)]


async def test_a_value_of_long_ago_is_not_repeated_and_nothing_is_seen_without_prometheus(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy(NAME, 1)
    await served.vary(NAME)
    served.load(NAME, kv=0.25, waiting=1)  # type: ignore[arg-type]
    await served.reported()
    # An engine whose last sample is ten seconds old, which Prometheus goes on returning.
    ten_seconds_ago = int((time.time() - 10) * 1000)
    (gauges,) = (pod for key, pod in served.source.pods.items() if key[0] == served.namespace)
    labels = f'{{namespace="{served.namespace}",pod="old",model_name="llama"}}'
    gauges.raw.append(f"vllm:kv_cache_usage_perc{labels} 0.95 {ten_seconds_ago}")
    async with Prometheus(PrometheusSettings(base_url=prometheus_server.url, timeout=30)) as prometheus:

        async def returned() -> bool:
            return bool(await prometheus.query(f"vllm:kv_cache_usage_perc{labels}", "the old one"))

        await eventually(returned, "Prometheus returns the old one")

    seen: list[Sample] = []
    url, space = prometheus_server.url, served.namespace
    await observe(control_plane_cluster, url, space, seen, lambda: len(whole(seen)) > 1, [])
    for moment in whole(seen):
        assert (moment.kv, moment.waiting, moment.ready, moment.desired) == (0.25, 1.0, 1, 1)

    missed: list[Sample] = []
    looks: list[float] = []
    await observe(control_plane_cluster, "http://127.0.0.1:9", space, missed, lambda: len(looks) > 3, looks)
    assert missed == []
