"""A tenant's pod tells of namespaces, pods and queues of others, to a real Prometheus that all tenants share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fleet_fixture import Gauges, MetricSource, eventually
from prometheus_server import PrometheusServer, free_port

from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.metrics.prometheus.signals import LastSeen, read_signals
from modelyard.metrics.vocabulary.queries import GATEWAY_QUEUE

pytestmark = pytest.mark.integration

JOBS = """
  - job_name: pods
    static_configs:
      - {{targets: ["{target}"], labels: {{namespace: victim, pod: v}}}}
      - {{targets: ["HOSTILE"], labels: {{namespace: hostile, pod: h}}}}
      - {{targets: ["ROUTER"], labels: {{namespace: routers, pod: r}}}}
  - job_name: others
    static_configs: [{{targets: ["NOBODY"]}}]
"""
"""As pods are scraped on a cluster: Prometheus itself says where a series is from."""


PEAK = 10
"""Seconds with several scrapes in them, which on a busy machine have two seconds' time each."""


def queue(labels: str, size: int) -> str:
    return f'{GATEWAY_QUEUE}{{target_model_name="m"{labels}}} {size}'


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    victim, hostile, nobody, router = (MetricSource() for _ in range(4))
    victim.pods["", ""] = Gauges("m", waiting=2, raw=[queue("", 3)])
    forged = [queue(',namespace="victim",pod="v"', 1000), queue(',exported_namespace="victim"', 1000)]
    hostile.pods["victim", "v"] = Gauges("m", kv=1, waiting=1000, running=1000, finished=1e9, raw=forged)
    nobody.pods["", ""] = Gauges("m", None, None, None, None, raw=[queue("", 5)])
    waits = [queue(',model_server="hostile/server"', 7), queue(',model_server="victim/server"', 1)]
    router.pods["", ""] = Gauges("m", None, None, None, None, raw=waits)
    jobs = JOBS.replace("ROUTER", router.address).replace("HOSTILE", hostile.address).replace("NOBODY", nobody.address)
    folder = tmp_path_factory.mktemp("prometheus")
    server = PrometheusServer(folder, free_port(), victim.address, interval="2s", jobs=jobs)
    server.start()
    async with Prometheus(PrometheusSettings(base_url=server.url)) as prometheus:

        async def all_there() -> bool:
            return len(await prometheus.query(f"count by (job, namespace) ({GATEWAY_QUEUE})", "a test")) == 4

        await eventually(all_there, "all four are scraped")
    yield server.url
    server.kill()
    for source in (victim, hostile, nobody, router):
        source.close()


@pytest.fixture
async def shared(server: str) -> AsyncIterator[Prometheus]:
    async with Prometheus(PrometheusSettings(base_url=server)) as prometheus:
        yield prometheus


async def test_what_a_pod_says_counts_for_its_own_namespace_alone(shared: Prometheus) -> None:
    signals = await read_signals(shared, peak_window=PEAK)
    assert {(pod.namespace, pod.pod): pod.waiting for pod in signals.pods} == {
        ("victim", "v"): 2,
        ("hostile", "h"): 1000,
    }
    assert signals.last_seen.keys() == {("victim", "m"), ("hostile", "m")}
    assert signals.gateway_queue == {("victim", "m"): 3, ("hostile", "m"): 2000, ("routers", "m"): 8}
    assert (signals.queued("victim", "m"), signals.queued("other", "m")) == (3, None)


async def test_gateways_for_all_are_those_that_an_administrator_named(shared: Prometheus) -> None:
    named = await read_signals(shared, peak_window=PEAK, gateways=["victim"])
    assert named.gateway_queue == {("", "m"): 3, ("hostile", "m"): 2000, ("routers", "m"): 8}
    assert named.queued("other", "m") == 3
    without = await read_signals(shared, peak_window=PEAK, gateways=[""])
    assert without.gateway_queue == {("victim", "m"): 3, ("hostile", "m"): 2000, ("", "m"): 5, ("routers", "m"): 8}
    assert without.queued("victim", "m") == 8


async def test_who_waits_in_a_router_for_a_tenant_s_server_wakes_no_other_tenant(shared: Prometheus) -> None:
    signals = await read_signals(shared, peak_window=2, gateways=["routers"])
    assert signals.gateway_queue == {("victim", "m"): 4, ("hostile", "m"): 2007}
    assert signals.queued("other", "m") is None


async def test_new_names_for_models_do_not_have_the_dearest_query_asked_every_time(shared: Prometheus) -> None:
    seen, before = LastSeen(), shared.queries
    for number in range(3):
        assert await seen.of(shared, {("hostile", f"m-{number}")}) == {}
    assert shared.queries == before + 1
