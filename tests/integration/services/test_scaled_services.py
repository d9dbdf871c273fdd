"""Services whose components somebody else scales: one owner of the replicas, to zero and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from conftest import HPA, Services, conditions, is_ready
from demand_server import DEMAND, DemandServer
from fleet_fixture import quick, run_tick

from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.cluster import NotFound, Object
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.objects import ResourceType
from modelyard.objects.kinds import DEPLOYMENTS

pytestmark = pytest.mark.integration

AT_ONCE = {"stabilizationWindow": "0s"}
SOURCES, WAKE, GRACE = (f"modelyard.dev/{name}" for name in ("metric-sources", "wake-query", "scale-to-zero-grace"))


async def bind(services: Services, name: str, annotations: dict[str, str], least: int = 1) -> None:
    """A policy of ten waiting requests to a pod, and a binding of the engine to it."""
    metrics = [{"metricName": "vllm:num_requests_waiting", "targetValue": "10"}]
    policy = {"metrics": metrics, "behavior": {"scaleDown": AT_ONCE}}
    target = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{name}-engine"},
        "metricEndpoint": {"port": 8080},
    }
    scaling = {"target": target, "minReplicas": least, "maxReplicas": 4}
    await create(services, POLICIES, name, policy, {})
    await create(services, BINDINGS, name, {"policyRef": {"name": name}, "scalingConfiguration": scaling}, annotations)


async def create(
    services: Services, kind: ResourceType, name: str, spec: dict[str, Any], annotations: dict[str, str]
) -> None:
    metadata = {"name": name, "namespace": services.space, "annotations": annotations}
    await services.cluster.create(kind, {"metadata": metadata, "spec": spec})


async def models(services: Services, url: str) -> list[str]:
    """What answers there serves, once something does: addresses follow the pods."""
    resolver = ServiceResolver(HostsFile.found(services.stack.kubeconfig))
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout(120):
        while True:
            with suppress(aiohttp.ClientError, OSError):
                async with http.get(f"{url}/v1/models", raise_for_status=True) as answer:
                    return [one["id"] for one in (await answer.json())["data"]]
            await asyncio.sleep(0.1)


async def deployment(services: Services, name: str) -> Object:
    return await services.cluster.get(DEPLOYMENTS, f"{name}-engine", services.space)


async def replicas(services: Services, name: str) -> int:
    return int((await deployment(services, name))["spec"]["replicas"])


@pytest.mark.parametrize("scaler", ["binding", "variant"])
async def test_a_roll_out_leaves_the_replicas_to_whoever_scales(services: Services, scaler: str) -> None:
    cluster, space = services.cluster, services.space
    scraped = {"ome.io/enable-prometheus-scraping": "true"}
    await services.make("chat", {"minReplicas": 1, "maxReplicas": 4}, annotations=scraped)
    obj = await services.until(is_ready, "chat")
    assert await cluster.get(HPA, "chat-engine", space), "its own, while nobody else scales it"
    if scaler == "binding":
        await bind(services, "chat", {SOURCES: json.dumps({"vllm:num_requests_waiting": "vector(25)"})})
    else:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-engine"}
        (served,) = await models(services, obj["status"]["url"])
        spec = {"scaleTargetRef": target, "modelID": served}
        await create(services, VARIANTS, "chat", spec, {"modelyard.dev/min-replicas": "3"})

    async def alone() -> bool:
        try:
            await cluster.get(HPA, "chat-engine", space)
        except NotFound:
            return True
        return False

    await services.settled(alone)
    async with Controller(quick(services.stack.prometheus_url, space)) as loop:

        async def scaled() -> bool:
            await run_tick(loop)
            return await replicas(services, "chat") == 3

        await services.settled(scaled)
        obj = await services.until(lambda one: "3 of 3 pods" in conditions(one)["EngineReady"][2], "chat")
        before = await deployment(services, "chat")
        env = [{"name": "SEED", "value": "7"}]
        await services.patch("chat", {"spec": {"engine": {"runner": {"name": "ome-container", "env": env}}}})
        obj = await services.until(
            lambda one: is_ready(one) and one["status"]["components"]["engine"]["latestReadyRevision"] == "2", "chat"
        )
        assert "3 of 3 pods" in conditions(obj)["EngineReady"][2]
        after = await deployment(services, "chat")
        assert after["spec"]["replicas"] == before["spec"]["replicas"] == 3
        # One write for the update, none for replicas; Kubernetes itself counts what else is written to the spec.
        assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
        await run_tick(loop)
        assert await replicas(services, "chat") == 3


@pytest.fixture
def demand(tmp_path: Path) -> Iterator[DemandServer]:
    with DemandServer(tmp_path) as server:
        yield server


async def test_a_service_goes_to_zero_and_comes_back_for_who_waits(services: Services, demand: DemandServer) -> None:
    await bind(services, "idle", {WAKE: DEMAND, GRACE: "0s"}, least=0)
    await services.make("idle", {"minReplicas": 0})
    obj = await services.until(is_ready, "idle")
    url = obj["status"]["url"]
    async with Controller(quick(demand.server.url, services.space)) as loop:

        async def gone() -> bool:
            await run_tick(loop)
            return await replicas(services, "idle") == 0

        await services.settled(gone)
        obj = await services.until(lambda one: conditions(one)["EngineReady"][1] == "ScaledToZero", "idle")
        assert is_ready(obj), conditions(obj)
        assert obj["status"]["url"] == url
        assert obj["status"]["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Standby"
        env = [{"name": "SEED", "value": "7"}]
        await services.patch("idle", {"spec": {"engine": {"runner": {"name": "ome-container", "env": env}}}})
        await services.until(is_ready, "idle")
        assert await replicas(services, "idle") == 0, "what is rolled out at zero stays there"
        await run_tick(loop)
        assert await replicas(services, "idle") == 0
        demand.arrive(services.space)
        async with asyncio.timeout(120):
            while await replicas(services, "idle") == 0:
                assert await loop.wait_for_change(120)
                await run_tick(loop)
    await services.until(lambda one: conditions(one)["EngineReady"][1] == "PodsReady" and is_ready(one), "idle")
    assert await models(services, url)


async def test_its_own_autoscaler_is_the_servers_and_acts(services: Services) -> None:
    """What it takes from metrics is not to be had here: that there are fewer replicas than it allows needs none."""
    await services.make("chat", {"minReplicas": 1, "maxReplicas": 3})
    await services.until(is_ready, "chat")
    await services.patch("chat", {"spec": {"engine": {"minReplicas": 2}}})

    async def acted() -> bool:
        status = (await services.cluster.get(HPA, "chat-engine", services.space)).get("status") or {}
        return bool(status.get("lastScaleTime")) and status.get("desiredReplicas") == 2

    await services.settled(acted, 120)
    assert await replicas(services, "chat") == 2
    await services.until(is_ready, "chat")
