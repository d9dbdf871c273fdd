"""Routers as pods of the local cluster, before engines that come and go: only what a killed one has is lost."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from cluster_helpers import ENGINE, Namespace, is_ready, process_of
from fleet_fixture import VARIANTS, quick, run_tick

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.wake import ask_gateway
from modelyard.cluster import Cluster
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.router import ADDRESS, install
from modelyard.local.stack import LocalStack
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.monitoring import rules as monitoring
from modelyard.objects.kinds import DEPLOYMENTS, PODS
from modelyard.routing.objects import ROUTES, SERVERS

pytestmark = pytest.mark.integration

HOME = "workload-variant-autoscaler-system"


class Client:
    """Sends streams to the routers, and counts what became of them."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self.session, self.model = session, model
        self.seen: Counter[str] = Counter()
        self.over = asyncio.Event()

    async def once(self, tokens: int = 20) -> str:
        """One stream: ``whole``, ``broken`` (some of it came), or the error."""
        body = {"model": self.model, "prompt": "hello", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        begun = False
        try:
            async with self.session.post(f"{ADDRESS}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    return f"{answer.status}: {await answer.text()}"
                begun = True
                text = (await answer.read()).decode()
        except aiohttp.ClientError as error:
            return "broken" if begun else repr(error)
        return "whole" if text.count("tok ") == tokens and "[DONE]" in text else text[-200:]

    async def for_ever(self) -> None:
        while not self.over.is_set():
            self.seen[await self.once()] += 1


@pytest.fixture
async def client(local_stack: LocalStack, local_cluster: Cluster, local_namespace: str) -> AsyncIterator[Client]:
    await install(local_cluster, 2, ["--poll-seconds", "0.3"])
    there = Namespace(local_cluster, HOME)
    await there.until(lambda pods: sum(map(is_ready, pods.values())) >= 2, 120)
    spec = {"model": "m", "inferenceEngine": "vLLM", "workloadPort": {"port": 8000}}
    server = {"metadata": {"name": "m"}, "spec": {**spec, "workloadSelector": {"matchLabels": {"app": "m"}}}}
    await local_cluster.create(SERVERS, server, local_namespace)
    rules = [{"targetModels": [{"modelServerName": "m"}]}]
    route = {"metadata": {"name": "m"}, "spec": {"modelName": local_namespace, "rules": rules}}
    await local_cluster.create(ROUTES, route, local_namespace)
    resolver = ServiceResolver(HostsFile.found(local_stack.kubeconfig))
    connector = aiohttp.TCPConnector(limit=0, resolver=resolver, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, local_namespace)


def container() -> dict[str, Any]:
    return {
        "name": "engine",
        "image": ENGINE,
        "args": ["--model=m", "--alpha=10"],
        "ports": [{"containerPort": 8000, "name": "http"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
    }


async def test_pods_come_and_go_under_streaming_load(
    client: Client, local_cluster: Cluster, local_namespace: str
) -> None:
    engines = Namespace(local_cluster, local_namespace)
    await engines.deploy("m", container(), 3)
    await engines.until(lambda pods: sum(map(is_ready, pods.values())) == 3)
    async with asyncio.timeout(120):
        while await client.once() != "whole":
            await asyncio.sleep(0.1)
    clients = [asyncio.create_task(client.for_ever()) for _ in range(8)]
    try:
        scale = {"spec": {"replicas": 1}}
        await local_cluster.merge_patch(DEPLOYMENTS, "m", scale, local_namespace)
        await engines.until(lambda pods: len(pods) == 1)
        await local_cluster.merge_patch(DEPLOYMENTS, "m", {"spec": {"replicas": 3}}, local_namespace)
        await engines.until(lambda pods: sum(map(is_ready, pods.values())) == 3)
        # A router leaves too.
        routers = await Namespace(local_cluster, HOME).pods()
        await local_cluster.delete(PODS, min(routers), HOME)
        await Namespace(local_cluster, HOME).until(
            lambda pods: min(routers) not in pods and sum(map(is_ready, pods.values())) >= 2, 120
        )
        assert set(client.seen) == {"whole"}, client.seen
        # And one engine is killed, as by its node: what it was answering breaks off, and nothing else.
        found = await engines.pods()
        process_of(next(iter(found.values()))).send(signal.SIGKILL)
        before = client.seen["whole"]
        async with asyncio.timeout(120):
            while client.seen["whole"] < before + 40:
                await asyncio.sleep(0.1)
    finally:
        client.over.set()
        await asyncio.gather(*clients)
    assert set(client.seen) <= {"whole", "broken"}, client.seen
    assert client.seen["broken"] <= len(clients)


async def test_requests_for_a_model_at_zero_are_seen_and_then_answered(
    client: Client, local_stack: LocalStack, local_cluster: Cluster, local_namespace: str
) -> None:
    engines = Namespace(local_cluster, local_namespace)
    await engines.deploy("m", container(), 0)
    scaled = asyncio.Event()

    async def ask() -> str:
        while True:
            found = await client.once()
            if found == "whole" or scaled.is_set():
                return found
            await asyncio.sleep(0.1)  # that router has not heard of the route yet

    asked = [asyncio.create_task(ask()) for _ in range(2)]
    async with Prometheus(PrometheusSettings(base_url=local_stack.prometheus_url)) as prometheus, asyncio.timeout(120):
        while True:
            told = await ask_gateway(prometheus, [HOME])
            if isinstance(told, dict) and told.get((local_namespace, "m"), 0) >= 2:
                break
            await asyncio.sleep(0.2)
    scaled.set()
    await local_cluster.merge_patch(DEPLOYMENTS, "m", {"spec": {"replicas": 1}}, local_namespace)
    assert [await one for one in asked] == ["whole", "whole"]


async def test_the_requests_of_a_model_at_zero_wake_it_and_are_answered(
    client: Client,
    local_stack: LocalStack,
    local_cluster: Cluster,
    local_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    engines = Namespace(local_cluster, local_namespace)
    model = f"org/{local_namespace}"  # by which the queue of the routers is known to be this variant's
    await local_cluster.merge_patch(SERVERS, "m", {"spec": {"model": model}}, local_namespace)
    await engines.deploy("m", {**container(), "args": [f"--model={model}", "--alpha=10"]}, 0)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "m"}
    spec = {"scaleTargetRef": reference, "modelID": model, "variantCost": "10.0"}
    labels = {"inference.optimization/acceleratorName": "H100"}
    await local_cluster.create(VARIANTS, {"metadata": {"name": "m", "labels": labels}, "spec": spec}, local_namespace)

    async def ask() -> str:
        while (found := await client.once()).startswith("404"):
            await asyncio.sleep(0.1)  # that router has not heard of the route yet
        return found

    async def keep_scaling() -> None:
        settings = quick(local_stack.prometheus_url, local_namespace, gateway_namespaces=[HOME])
        async with Controller(settings) as loop:
            while True:
                await run_tick(loop)
                await loop.wait_for_change(2)

    scaling = asyncio.create_task(keep_scaling())
    try:
        asked = [asyncio.create_task(ask()) for _ in range(8)]
        answered = asyncio.gather(*asked)
        await asyncio.wait([scaling, answered], return_when=asyncio.FIRST_COMPLETED, timeout=120)
        assert not scaling.done(), scaling.exception()
        assert [one.result() if one.done() else "not answered" for one in asked] == ["whole"] * 8
        (variant,) = await local_cluster.list(VARIANTS, local_namespace)
        found = {one["type"]: one["reason"] for one in variant["status"]["conditions"]}
        assert "ScaleFromZero" in found, found
        # What arrived is there for policies of the namespace, by the rules that ship.
        rules = {one["record"]: one["expr"] for one in monitoring.routed()}
        async with (
            Prometheus(PrometheusSettings(base_url=local_stack.prometheus_url)) as prometheus,
            asyncio.timeout(120),
        ):
            for name in ("modelyard:router_requests:rate1m", "modelyard:router_tokens:rate1m"):
                while not any(
                    one.labels["namespace"] == local_namespace and one.labels["model_route"] == "m" and one.value
                    for one in await prometheus.query(rules[name], name)
                ):
                    assert await ask() == "whole"
    finally:
        scaling.cancel()
        await asyncio.gather(scaling, return_exceptions=True)
