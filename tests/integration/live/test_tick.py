"""Whole ticks on the real control plane and a real Prometheus: scaling, reasons, and every kind of bad input."""

from __future__ import annotations

import asyncio
import json

import pytest
from fleet_fixture import ServedModel, eventually, quick, run_tick
from prometheus_server import PrometheusServer

from modelyard.autoscaling.configuration.settings import Mode
from modelyard.autoscaling.fleet.kinds import SERVICES, VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE
from modelyard.cluster import Cluster, Invalid
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, HPAS, NAMESPACES, STATEFUL_SETS
from modelyard.resources import ResourceInvalid, VariantAutoscaling

pytestmark = pytest.mark.integration


async def test_a_loaded_model_grows_and_an_idle_one_shrinks(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76, waiting=1)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        assert await served.replicas("llama") == 3
        stored = await served.variant("llama")
        assert stored["status"]["desiredOptimizedAlloc"]["numReplicas"] == 3
        assert stored["status"]["desiredOptimizedAlloc"]["accelerator"] == "H100"
        assert (await served.condition("llama", "MetricsAvailable"))["reason"] == "MetricsAvailable"
        assert (await served.condition("llama", "TargetResolved"))["status"] == "True"
        ready = await served.condition("llama", "OptimizationReady")
        assert ready["status"] == "True"
        assert ready["reason"] == "SaturationOnlyMode"
        assert ready["observedGeneration"] == stored["metadata"]["generation"]

        await served.settle("llama", 3)
        served.load("llama", kv=0.05, waiting=0)
        await served.reported()

        async def smaller() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") == 2

        await eventually(smaller, "an idle model gives a replica back")


async def test_a_component_bounds_the_variant_that_scales_it(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await served.own("llama", SERVICES, {"engine": {"maxReplicas": 3}}, component="engine")
    served.load("llama", kv=0.95, waiting=9)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        assert await served.replicas("llama") == 3
        await served.settle("llama", 3)
        served.load("llama", kv=0.95, waiting=9)
        await served.reported()

        async def full() -> bool:
            await run_tick(loop)
            return any(
                one["type"] == "CapacityLimited" for one in (await served.variant("llama"))["status"]["conditions"]
            )

        await eventually(full, "the shortage is told")
        assert await served.replicas("llama") == 3
        limited = await served.condition("llama", "CapacityLimited")
        assert "spec.engine.maxReplicas of InferenceService" in limited["message"]

        await served.cluster.merge_patch(
            SERVICES, "of-llama", {"spec": {"engine": {"maxReplicas": 2}}}, served.namespace
        )

        async def lowered() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") == 2

        await eventually(lowered, "a lowered maximum takes a replica away")


async def test_a_quiet_fleet_costs_no_writes(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        await run_tick(loop)
        before = (await served.variant("llama"))["metadata"]["resourceVersion"]
        tick = await run_tick(loop)
        assert not tick.outcome.written
        assert (await served.variant("llama"))["metadata"]["resourceVersion"] == before


async def test_the_cheaper_variant_grows_and_the_dearer_one_shrinks(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    for name, cost, accelerator in (("cheap", "4", "L40S"), ("dear", "10", "H100")):
        await served.deploy(name, 2)
        await served.vary(name, cost=cost, accelerator=accelerator)
    for name in ("cheap", "dear"):
        served.load(name, kv=0.78)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        assert await served.replicas("cheap") > 2
        assert await served.replicas("dear") == 2
        await served.settle("cheap", await served.replicas("cheap"))
        for name in ("cheap", "dear"):
            served.load(name, kv=0.02)
        await served.reported()

        async def smaller() -> bool:
            await run_tick(loop)
            return await served.replicas("dear") == 1

        await eventually(smaller, "the dear variant gives a replica back first")


async def test_signal_mode_publishes_and_leaves_the_workload_alone(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.78)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace, actuation=Mode.SIGNAL)) as loop:
        await run_tick(loop)
    assert await served.replicas("llama") == 2
    status = (await served.variant("llama"))["status"]
    assert status["desiredOptimizedAlloc"]["numReplicas"] > 2
    assert status["actuation"]["applied"] is False


async def test_a_dry_run_writes_nothing(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.78)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace, dry_run=True)) as loop:
        tick = await run_tick(loop)
    assert tick.decision.records[0].target.replicas == 3
    assert await served.replicas("llama") == 2
    assert "status" not in await served.variant("llama")


async def test_a_consumers_maximum_is_respected(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.79, waiting=4)
    hpa = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llama", "namespace": served.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "minReplicas": 1,
            "maxReplicas": 2,
        },
    }
    await control_plane_cluster.create(HPAS, hpa, served.namespace)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace, actuation=Mode.SIGNAL)) as loop:
        await run_tick(loop)
    stored = await served.variant("llama")
    assert stored["status"]["desiredOptimizedAlloc"]["numReplicas"] == 2


# Bad input


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"modelID": "llama"}, "spec"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": ""}, "modelID": "llama"}, "spec.scaleTargetRef.name"),
    ],
    ids=["left out", "empty name"],
)
async def test_a_variant_without_target_is_refused_by_field(
    served: ServedModel, control_plane_cluster: Cluster, spec: dict[str, object], field: str
) -> None:
    body = {"metadata": {"name": "lost", "namespace": served.namespace}, "spec": spec}
    with pytest.raises(Invalid, match=field):
        await control_plane_cluster.create(VARIANTS, body, served.namespace)
    with pytest.raises(ResourceInvalid, match="scaleTargetRef"):
        VariantAutoscaling.parse({"apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling", **body})


async def test_a_missing_workload_is_named_and_found_when_it_comes(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.vary("llama")
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        missing = await served.condition("llama", "TargetResolved")
        assert (missing["status"], missing["reason"]) == ("False", "TargetNotFound")
        assert "llama" in missing["message"]
        await served.deploy("llama", 1)
        await served.reported()
        await run_tick(loop)
        assert (await served.condition("llama", "TargetResolved"))["status"] == "True"


async def test_a_deleted_workload_is_noticed_and_a_new_one_starts_from_its_real_count(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 3)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        await control_plane_cluster.delete(DEPLOYMENTS, "llama", served.namespace)
        await run_tick(loop)
        assert (await served.condition("llama", "TargetResolved"))["status"] == "False"
        assert (await served.condition("llama", "MetricsAvailable"))["status"] == "False"
        await eventually(lambda: _gone(served), "pods collected")
        await served.deploy("llama", 1)
        served.load("llama", kv=0.5)
        await served.reported()
        await run_tick(loop)
        assert await served.replicas("llama") == 1
        assert (await served.variant("llama"))["status"]["desiredOptimizedAlloc"]["numReplicas"] == 1


async def _gone(served: ServedModel) -> bool:
    return not await served.pods("llama")


async def test_two_variants_on_one_workload_reject_the_younger(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("first", target="llama")
    await asyncio.sleep(1.1)
    await served.vary("second", target="llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    rejected = await served.condition("second", "OptimizationReady")
    assert (rejected["status"], rejected["reason"]) == ("False", "InvalidConfiguration")
    assert "first" in rejected["message"]
    assert (await served.condition("first", "OptimizationReady"))["status"] == "True"
    assert await served.replicas("llama") == 3


async def test_an_unknown_accelerator_is_said_and_does_not_stop_scaling(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama", accelerator=None)
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        tick = await run_tick(loop)
    stored = await served.variant("llama")
    assert stored["status"]["desiredOptimizedAlloc"]["accelerator"] == "unresolved"
    assert await served.replicas("llama") == 3
    told = " ".join(n.message for one in tick.decision.decisions for n in one.notices) + json.dumps(stored["status"])
    assert "inference.optimization/acceleratorName" in told


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"default": "kvCacheThreshold: [broken"}, "default"),
        ({"default": "kvCacheThreshold: 1.7"}, "kvCacheThreshold"),
        ({"default": "kvCacheThreshold: 0.05\nkvSpareTrigger: 0.5"}, "kvSpareTrigger"),
        ({"mine": "model_id: llama\nnamespace: {namespace}\nqueueLengthThreshold: -3"}, "queueLengthThreshold"),
    ],
)
async def test_a_broken_config_map_is_named_and_nothing_scales_wrongly(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    control_plane_cluster: Cluster,
    data: dict[str, str],
    word: str,
) -> None:
    filled = {key: text.replace("{namespace}", served.namespace) for key, text in data.items()}
    body = {"metadata": {"name": "wva-saturation-scaling-config", "namespace": served.namespace}, "data": filled}
    await control_plane_cluster.create(CONFIG_MAPS, body, served.namespace)
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        tick = await run_tick(loop)
    assert await served.replicas("llama") == 2
    said = [n.message for _, n in tick.decision.notices]
    said += [n.message for one in tick.decision.decisions for n in one.notices]
    said += [c.message for one in tick.decision.decisions for c in one.conditions]
    assert any(word in text and "wva-saturation-scaling-config" in text for text in said), said


async def test_a_model_name_with_quotes_and_backslashes_is_only_a_name(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    model = 'org/"odd\\model"{x="y"}'
    await served.deploy("odd", 2, model=model)
    await served.vary("odd", model=model)
    served.load("odd", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    assert await served.replicas("odd") == 3


async def test_a_stateful_set_is_a_target_like_any_other(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    labels = {"app": "ordered"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "ordered", "namespace": served.namespace},
        "spec": {
            "serviceName": "ordered",
            "replicas": 1,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "engine", "image": "example.invalid/engine"}]},
            },
        },
    }
    await control_plane_cluster.create(STATEFUL_SETS, body, served.namespace)
    await served.vary("ordered", kind="StatefulSet")
    from fleet_fixture import Gauges, ready_status

    pods = await eventually(lambda: served.pods("ordered"), "pod made")
    from modelyard.objects.kinds import PODS

    name = pods[0]["metadata"]["name"]
    await control_plane_cluster.merge_patch(
        PODS, name, ready_status(1_700_000_000), served.namespace, subresource="status"
    )
    served.source.pods[served.namespace, name] = Gauges("llama", kv=0.79, waiting=4)
    await served.reported()

    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:

        async def bigger() -> bool:
            await run_tick(loop)
            found = await control_plane_cluster.get(STATEFUL_SETS, "ordered", served.namespace)
            return bool(found["spec"]["replicas"] > 1)

        await eventually(bigger, "the StatefulSet grows")


async def test_an_excluded_namespace_is_left_alone(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.79)
    exclusion = {"metadata": {"annotations": {"wva.llmd.ai/exclude": "true"}}}
    await control_plane_cluster.merge_patch(NAMESPACES, served.namespace, exclusion)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    assert await served.replicas("llama") == 2
    assert (await served.condition("llama", "OptimizationReady"))["reason"] == "SkippedProcessing"


async def test_an_edited_spec_is_acted_on_by_the_next_tick(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama", model="somebody-else")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        assert await served.replicas("llama") == 2
        await control_plane_cluster.merge_patch(VARIANTS, "llama", {"spec": {"modelID": "llama"}}, served.namespace)
        await run_tick(loop)
    assert await served.replicas("llama") == 3
    assert (await served.condition("llama", "OptimizationReady"))["observedGeneration"] == 2


async def test_the_state_is_kept_with_the_resource(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    kept = json.loads((await served.variant("llama"))["metadata"]["annotations"][AUTOSCALING_STATE])
    assert sum(kept["scalings"].values()) == 1


async def zero_config(served: ServedModel, cluster: Cluster, retention: str) -> None:
    data = {"default": f"enable_scale_to_zero: true\nretention_period: {retention}"}
    name = "wva-model-scale-to-zero-config"
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": served.namespace}, "data": data})


async def test_an_idle_model_goes_to_zero_and_says_so(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await zero_config(served, control_plane_cluster, "4s")
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.0, waiting=0, running=0)
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:

        async def zero() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") == 0

        await eventually(zero, "the idle model goes to zero")
        await served.settle("llama", 0)
        await run_tick(loop)
    status = (await served.variant("llama"))["status"]
    assert status["desiredOptimizedAlloc"]["numReplicas"] == 0
    assert status["desiredOptimizedAlloc"]["lastRunTime"]


async def test_a_prometheus_that_has_not_watched_long_enough_zeroes_nothing(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await zero_config(served, control_plane_cluster, "10m")
    await served.deploy("llama", 2)
    # Old enough for every grace: only the short memory of Prometheus speaks against it.
    await served.vary("llama")
    served.load("llama", kv=0.0, waiting=0, running=0)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        fleet = await loop.collect()
    assert fleet.signals.request_counts == {}, "nothing finished in ten minutes is not known after a few seconds"


async def test_a_generation_in_flight_keeps_its_replica(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await zero_config(served, control_plane_cluster, "3s")
    await served.deploy("llama", 1)
    await served.vary("llama")
    served.load("llama", kv=0.1, waiting=0, running=1)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        for _ in range(8):
            await run_tick(loop)
            await asyncio.sleep(1)
    assert await served.replicas("llama") == 1
