"""What the demonstration sees of a cluster: a scrape that failed, or is of long ago, is a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from fleet_fixture import ServedModel, eventually
from prometheus_server import PrometheusServer

from deployments.demo.observations import Gap, Moment, Sample, sample
from deployments.demo.scenario import Copy, Form, Scenario
from modelyard.cluster import Cluster
from modelyard.metrics.client import Prometheus, PrometheusSettings

pytestmark = pytest.mark.integration


async def looks(cluster: Cluster, url: str, namespace: str, into: list[Moment]) -> None:
    async with Prometheus(PrometheusSettings(base_url=url)) as prometheus:
        copy = Copy(Form.SATURATION, namespace, "")
        await sample(cluster, prometheus, Scenario(), copy, lambda: 1.0, lambda: 2.0, into, every=0.1)


def whole(moments: list[Moment]) -> list[Sample]:
    """Those at which all could be read: on a busy machine a scrape or an answer is late now and then."""
    return [one for one in moments if isinstance(one, Sample) and None not in (one.kv, one.waiting)]


async def until_enough(enough: Callable[[], bool], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(120):
        while not enough():
            await asyncio.sleep(0.05)
            assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_sample_of_long_ago_is_not_repeated_and_a_failed_look_is_a_gap(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama-l40s", 1)
    served.load("llama-l40s", kv=0.25, waiting=1)  # type: ignore[arg-type]
    await served.reported()
    # An engine whose last sample is ten seconds old, of which Prometheus goes on telling.
    ten_seconds_ago = int((time.time() - 10) * 1000)
    (gauges,) = (one for key, one in served.source.pods.items() if key[0] == served.namespace)
    labels = f'{{namespace="{served.namespace}",pod="old",model_name="llama"}}'
    gauges.raw.append(f"vllm:kv_cache_usage_perc{labels} 0.95 {ten_seconds_ago}")
    async with Prometheus(PrometheusSettings(base_url=prometheus_server.url, timeout=30)) as prometheus:

        async def told() -> bool:
            return bool(await prometheus.query(f"vllm:kv_cache_usage_perc{labels}", "the old one"))

        await eventually(told, "Prometheus tells of the old one")

    seen: list[Moment] = []
    await until_enough(
        lambda: len(whole(seen)) > 1,
        asyncio.create_task(looks(control_plane_cluster, prometheus_server.url, served.namespace, seen)),
    )
    for moment in whole(seen):
        assert (moment.kv, moment.waiting, moment.ready["llama-l40s"]) == (0.25, 1.0, 1)

    missed: list[Moment] = []
    await until_enough(
        lambda: len(missed) > 1,
        asyncio.create_task(looks(control_plane_cluster, "http://127.0.0.1:9", served.namespace, missed)),
    )
    assert missed == [Gap(1.0, 2.0)] * len(missed)
