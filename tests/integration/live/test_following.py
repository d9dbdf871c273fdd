"""Ticks of a controller that follows the cluster: what they read is true, and costs no lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_fixture import ServedModel, eventually, quick, run_tick
from noted_lists import Lists
from prometheus_server import PrometheusServer
from tcp_proxy import TcpProxy

from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.cluster import Cluster, ClusterError
from modelyard.local.stack import LocalStack
from modelyard.objects import WorkloadId
from modelyard.objects.kinds import DEPLOYMENTS, PODS

pytestmark = pytest.mark.integration


async def test_its_own_writes_are_seen_in_the_next_tick_without_a_list(
    served: ServedModel, prometheus_server: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    workload = WorkloadId(served.namespace, "apps", "Deployment", "llama")
    lists = Lists(monkeypatch)
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        first = await loop.collect()
        assert first.workloads[workload].spec_replicas == 2
        await loop.wait_for_change(0)
        lists.take()
        ticked = await run_tick(loop)
        assert list(ticked.outcome.scaled.values()) == [(2, 3)]
        following = await loop.collect()
        assert lists.take() == []
    assert following.workloads[workload].spec_replicas == 3
    (variant,) = following.variants
    assert variant.status_replicas == 3
    assert variant.memory.scalings, "and what was remembered of it"


async def test_it_sees_what_a_lister_sees(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await served.reported()
    settings = quick(prometheus_server.url, served.namespace)
    async with Controller(settings) as loop:
        await loop.collect()
        await loop.wait_for_change(0)
        await served.vary("other", target="llama")
        assert await loop.wait_for_change(120)
        await control_plane_cluster.write_scale(DEPLOYMENTS, "llama", served.namespace, 4)
        await served.settle("llama", 4)
        await control_plane_cluster.delete(VARIANTS, "other", served.namespace)
        assert await loop.wait_for_change(120)

        async def same() -> bool:
            seen = await loop.collect()
            async with Controller(settings) as lister:
                listed = await lister.collect()
            return len(listed.pods) == 4 and (
                (seen.variants, seen.workloads, seen.pods, seen.owners, seen.namespaces, seen.config_maps)
                == (
                    listed.variants,
                    listed.workloads,
                    listed.pods,
                    listed.owners,
                    listed.namespaces,
                    listed.config_maps,
                )
            )

        await eventually(same, "both see the same")


async def test_our_status_and_memory_wake_nobody(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await loop.collect()
        await loop.wait_for_change(0)
        ticked = await run_tick(loop)
        assert ticked.outcome.scaled
        await loop.collect()  # it has seen its own writes
        assert not await loop.wait_for_change(0.5)


async def test_under_a_new_lease_everything_is_listed(
    served: ServedModel, prometheus_server: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await served.reported()
    lists = Lists(monkeypatch)
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await loop.collect()
        await loop.wait_for_change(0)
        lease = loop.lease("autoscale", served.namespace)
        for _ in range(2):
            assert await lease.acquire(timeout=120)
            lists.take()
            await loop.collect()
            listed = lists.take()
            assert VARIANTS.path(served.namespace) in listed
            assert DEPLOYMENTS.path(served.namespace) in listed
            assert PODS.path(served.namespace) in listed
            await loop.collect()
            assert lists.take() == []
            await lease.release()


async def test_without_the_api_server_no_tick_decides_and_then_it_goes_on(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    control_plane: LocalStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await served.reported()
    async with TcpProxy(control_plane.server) as proxy:
        monkeypatch.setenv("KUBECONFIG", str(proxy.kubeconfig(control_plane.kubeconfig, tmp_path)))
        async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
            await loop.collect()
            await loop.wait_for_change(0)
            await loop.collect()
            await proxy.go_away()

            async def refused() -> bool:
                try:
                    await loop.collect()
                except (ClusterError, ExceptionGroup):
                    return True
                return False

            await eventually(refused, "the tick fails as soon as the cut is noticed")
            await served.cluster.merge_patch(VARIANTS, "llama", {"spec": {"variantCost": "77"}}, served.namespace)
            await proxy.come_back()
            fleet = await loop.collect()
            assert [variant.cost for variant in fleet.variants] == [77.0]
