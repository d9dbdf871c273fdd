"""The SLO form on a real API server: what a tick reads of it, what of its status is accepted, what is exposed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from decisions import make_record
from fleet_fixture import Gauges, ServedModel, eventually, quick, run_tick, steadily
from prometheus_server import PrometheusServer

from modelyard.autoscaling.decisions.decision import CurrentAllocation, VariantDecision
from modelyard.autoscaling.fleet.fleet import Fleet, Variant
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.fleetwatch import Fleetwatch
from modelyard.autoscaling.plans.variant_plans import status_of, variant_plan
from modelyard.cluster import Cluster
from modelyard.objects import Key, TargetRef, WorkloadId
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.plans.status import patch

pytestmark = pytest.mark.integration

SPEC: dict[str, Any] = {
    "modelID": "llama",
    "variantID": "org/llama-H100-2",
    "accelerator": "H100",
    "acceleratorCount": 2,
    "sloClassRef": {"name": "my-classes", "key": "premium"},
    "variantProfile": {
        "maxBatchSize": 64,
        "perfParms": {
            "decodeParms": {"alpha": "6.958", "beta": "0.042"},
            "prefillParms": {"gamma": "5.2", "delta": "0.1"},
        },
    },
}


async def sized(served: ServedModel, name: str = "llama") -> None:
    await served.cluster.create(
        VARIANTS,
        {
            "apiVersion": "llmd.ai/v1alpha1",
            "kind": "VariantAutoscaling",
            "metadata": {"name": name, "namespace": served.namespace},
            "spec": SPEC,
        },
        served.namespace,
    )


async def collected(served: ServedModel, url: str) -> Fleet:
    settings = quick(url, served.namespace, load_window=3, controller_namespace="nowhere")
    async with Controller(settings) as loop:
        return await loop.collect()


async def test_a_tick_reads_workload_class_load_and_performance(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 1)
    await sized(served)
    for name in ("my-classes", "unrelated"):
        body = {"metadata": {"name": name, "namespace": served.namespace}, "data": {"premium": "name: Premium"}}
        await served.cluster.create(CONFIG_MAPS, body, served.namespace)
    (pod,) = [pod for namespace, pod in served.source.pods if namespace == served.namespace]
    served.source.pods[served.namespace, pod] = Gauges(
        "llama",
        finished=steadily(4),
        waiting=steadily(2),
        more={
            "vllm:request_prompt_tokens_sum": steadily(400),
            "vllm:request_prompt_tokens_count": steadily(4),
        },
    )
    deadline = time.monotonic() + 60
    while True:
        fleet = await collected(served, prometheus_server.url)
        load = fleet.signals.loads.get((served.namespace, "llama"))
        known = load is not None and load.arrivals == pytest.approx(6, rel=0.2) and len(load.history) > 1
        if known and fleet.signals.performance:
            break
        assert time.monotonic() < deadline, load
    (variant,) = fleet.variants
    assert variant.target == TargetRef("apps/v1", "Deployment", "llama")
    assert WorkloadId(served.namespace, "apps", "Deployment", "llama") in fleet.workloads
    assert set(fleet.config_maps) == {Key(served.namespace, "my-classes")}
    (performance,) = fleet.signals.performance
    assert performance.pod == pod
    assert performance.prompt_tokens == pytest.approx(100, rel=0.05)
    assert not fleet.signals.partial_errors


async def test_its_status_is_accepted_compared_and_taken_back(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 1)
    await sized(served)
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        tick = await run_tick(loop)
    now = time.time()
    (found,) = tick.decision.variants
    allocation = CurrentAllocation(SPEC["variantID"], "H100", 1, 64, 80.0)

    def told(**fields: Any) -> VariantDecision:
        made = make_record(found.subject, replicas=3, accelerator="H100", **fields)
        return found._replace(records=(made,))

    decision = told(form="slo", variant_id=SPEC["variantID"], allocation=allocation)

    def due(decision: VariantDecision, variant: Variant) -> bool:
        return variant_plan(decision, variant, tick.fleet.workloads, now, 300).status is not None

    async def write(status: dict[str, Any]) -> dict[str, Any]:
        body = {"status": status}
        stored = await control_plane_cluster.merge_patch(VARIANTS, "llama", body, served.namespace, "status")
        return dict(stored["status"])

    status = await write(patch(status_of(decision, now), {}, now))
    assert status["currentAlloc"] == {
        "variantID": SPEC["variantID"],
        "accelerator": "H100",
        "numReplicas": 1,
        "maxBatch": 64,
        "variantCost": "80.00",
    }
    assert status["desiredOptimizedAlloc"]["variantID"] == SPEC["variantID"]
    (variant,) = (await collected(served, prometheus_server.url)).variants
    assert not due(decision, variant)
    assert due(told(variant_id=SPEC["variantID"]), variant)
    status = await write(patch(status_of(told(), now), {}, now))
    assert status["currentAlloc"] == {"numReplicas": 2}
    assert "variantID" not in status["desiredOptimizedAlloc"]
    assert status["desiredOptimizedAlloc"]["numReplicas"] == 3


async def test_the_exporter_follows_a_workload_that_is_not_named(
    served: ServedModel, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await sized(served)
    allocation = {"lastRunTime": "2026-01-01T00:00:00Z", "accelerator": "H100", "numReplicas": 3, "variantID": "v"}
    status = {"status": {"desiredOptimizedAlloc": allocation}}
    await control_plane_cluster.merge_patch(VARIANTS, "llama", status, served.namespace, subresource="status")
    watch = Fleetwatch(control_plane_cluster, watch_namespace=served.namespace)
    task = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.synced.wait(), 120)
        async with asyncio.timeout(120):
            while [(v.key.name, n) for v, n in watch.published()] != [("llama", 2)]:
                await asyncio.sleep(0.1)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_whole_tick_sizes_writes_and_scales(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 1)
    await sized(served)
    classes = "name: Premium\npriority: 1\ndata:\n- {model: llama, slo-tpot: 24, slo-ttft: 500}\n"
    for name, data in (("my-classes", {"premium": classes}), ("accelerator-unit-costs", {"H100": '{"cost": "40"}'})):
        body = {"metadata": {"name": name, "namespace": served.namespace}, "data": data}
        await served.cluster.create(CONFIG_MAPS, body, served.namespace)
    (pod,) = [pod for namespace, pod in served.source.pods if namespace == served.namespace]
    served.source.pods[served.namespace, pod] = Gauges(
        "llama",
        finished=steadily(60),
        more={
            f"vllm:request_{what}_tokens_{part}": steadily(60 * mean)
            for what in ("prompt", "generation")
            for part, mean in (("sum", 128), ("count", 1))
        },
    )
    settings = quick(prometheus_server.url, served.namespace, load_window=3)
    async with Controller(settings) as loop:

        async def grown() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") > 1

        await eventually(grown, "more replicas")
        stored = await served.variant("llama")
        replicas = await served.replicas("llama")
        status = stored["status"]
        assert status["desiredOptimizedAlloc"]["numReplicas"] == replicas
        assert status["desiredOptimizedAlloc"]["variantID"] == SPEC["variantID"]
        assert status["currentAlloc"]["numReplicas"] >= 1
        assert status["currentAlloc"]["maxBatch"] == 64
        assert status["currentAlloc"]["accelerator"] == "H100"
        assert (await served.condition("llama", "SLOFeasible"))["status"] == "True"
        assert (await served.condition("llama", "ProfileValid"))["status"] == "True"


async def test_without_a_profile_the_speed_is_learnt_and_a_target_kept(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    """Cache and queue are far from full, but tokens come as late as they may; saturation alone keeps one replica."""
    await served.deploy("llama", 1)
    await served.vary("llama")
    await served.settle("llama", 1)
    (pod,) = [pod for namespace, pod in served.source.pods if namespace == served.namespace]
    means = {
        "request_prompt_tokens": 1000, "request_generation_tokens": 200, "time_to_first_token_seconds": 0.3,
    }  # fmt: skip
    more = {
        f"vllm:{what}_{part}": steadily(6 * mean)
        for what, each in means.items()
        for part, mean in (("sum", each), ("count", 1))
    }
    gaps = {"sum": 6 * 199 * 0.055, "count": 6 * 199}
    more |= {f"vllm:inter_token_latency_seconds_{part}": steadily(rate) for part, rate in gaps.items()}
    served.source.pods[served.namespace, pod] = Gauges("llama", running=60.0, finished=steadily(6), more=more)
    settings = quick(prometheus_server.url, served.namespace, load_window=3, target_itl=60, startup_default=2)
    async with Controller(settings) as loop:

        async def grown() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") > 1

        await eventually(grown, "more replicas", 180)
    profile, optimized = [await served.condition("llama", kind) for kind in ("ProfileValid", "OptimizationReady")]
    assert (profile["reason"], optimized["reason"]) == ("ProfileLearnt", "OptimizationSucceeded")
    assert "would have held" in optimized["message"]
