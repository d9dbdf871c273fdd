"""Services behind the real router, on the local cluster: shares beside a canary, no lost request, and adapters."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from conftest import NAME, Services, conditions, forget, is_ready, is_up

from modelyard.cluster import Cluster
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.router import ADDRESS, install
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import FINE_TUNED_WEIGHTS
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from modelyard.routing.objects import ROUTES, SERVERS
from modelyard.workloads.rendering.model_routes import ROUTED
from modelyard.workloads.rendering.settings import CONFIG_MAP
from modelyard.workloads.roll_out.weight_status import WEIGHTS_READY

pytestmark = pytest.mark.integration

REQUESTS, SHARE, NEAR = 800, 0.2, 0.07
"""Drawn by weight; the canary's share of them, and how far off they may be, five deviations. By pods it were half."""
TOKENS = 20
HOME = "workload-variant-autoscaler-system"
"""Where the router is, with the settings of services that come with it."""


class Client:
    """Sends streams for one model to the router, and counts what became of them."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self.session, self.model = session, model
        self.seen: Counter[str] = Counter()

    async def once(self, tokens: int = TOKENS) -> str:
        """``whole``, or what came instead."""
        body = {"model": self.model, "prompt": "hello", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        try:
            async with self.session.post(f"{ADDRESS}/v1/completions", json=body) as answer:
                text = await answer.text()
        except aiohttp.ClientError as error:
            return repr(error)
        return "whole" if text.count("tok ") == tokens and "[DONE]" in text else f"{answer.status}: {text[-200:]}"

    async def for_ever(self) -> None:
        while True:
            self.seen[await self.once()] += 1

    async def served_by(self, pod: Any) -> int:
        """The requests that a pod's engine has answered."""
        async with self.session.get(f"http://{pod['status']['podIP']}:8080/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(int(float(one.rpartition(" ")[2])) for one in lines if one.startswith("vllm:request_success_total"))


@pytest.fixture
async def client(
    services: Services, local_stack: LocalStack, local_cluster: Cluster, home: str
) -> AsyncIterator[Client]:
    await install(local_cluster, 1, ["--poll-seconds", "0.3"])
    settings = (await local_cluster.get(CONFIG_MAPS, CONFIG_MAP, HOME))["data"]
    await local_cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": settings}, home)
    resolver = ServiceResolver(HostsFile.found(local_stack.kubeconfig))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False)) as session:
        yield Client(session, services.space)
    await local_cluster.delete(CONFIG_MAPS, CONFIG_MAP, home)


async def test_shares_are_exact_and_no_request_is_lost(services: Services, client: Client) -> None:
    async def pods() -> dict[str, Any]:
        """Those that serve, by their Deployment."""
        found = await services.cluster.list(PODS, services.space, label_selector="component=engine")
        return {one["metadata"]["name"].rsplit("-", 2)[0]: one for one in found if is_up(one)}

    def runner(*more: str) -> dict[str, Any]:
        named = f"--served-model-name={services.space}"
        return {"name": "engine", "args": ["--model=$(MODEL_PATH)", named, "--port=8080", *more]}

    annotations = {"ome.io/autoscalerClass": "external"}
    await services.make("chat", {"runner": runner()}, annotations=annotations)
    obj = await services.until(is_ready, "chat")
    assert obj["status"]["url"] == ADDRESS
    async with asyncio.timeout(120):
        while await client.once(1) != "whole":
            await asyncio.sleep(0.1)  # the router has not heard of the route yet

    change: dict[str, Any] = {"runner": runner("--max-num-seqs=64"), "canaryTrafficPercent": 20}
    await services.patch("chat", {"spec": {"engine": change}})
    await services.until_reason("chat", "LatestDeploymentReady", "Canary")
    there = await pods()
    assert there.keys() == {"chat-engine", "chat-engine-canary"}, "one pod each"
    async with asyncio.timeout(120):
        while not await client.served_by(there["chat-engine-canary"]):
            assert await client.once(1) == "whole"
    before = {name: await client.served_by(pod) for name, pod in there.items()}
    workers = [asyncio.create_task(_ask(client, REQUESTS // 8)) for _ in range(8)]
    assert [await one for one in workers] == [Counter(whole=REQUESTS // 8)] * 8
    drawn = {name: await client.served_by(pod) - before[name] for name, pod in there.items()}
    assert sum(drawn.values()) == REQUESTS
    assert abs(drawn["chat-engine-canary"] / REQUESTS - SHARE) <= NEAR, drawn
    told = (await services.get("chat"))["status"]["components"]["engine"]["traffic"]
    assert {one["revisionName"]: one["percent"] for one in told} == {"chat-engine": 80, "chat-engine-canary": 20}

    seen: list[dict[str, str]] = []

    async def follow() -> None:
        async for event in services.cluster.watch(SERVERS, services.space):
            if event.kind != "SYNC" and event.object["metadata"]["name"] == "chat-engine":
                seen.append(event.object["spec"]["workloadSelector"]["matchLabels"])

    following = asyncio.create_task(follow())
    clients = [asyncio.create_task(client.for_ever()) for _ in range(6)]
    try:
        await services.patch("chat", {"spec": {"engine": {"canaryTrafficPercent": 100}}})
        obj = await services.until(is_ready, "chat")
        assert conditions(obj)["LatestDeploymentReady"][1] == "RolledOut"

        async def alone() -> bool:
            deployments = await services.cluster.list(DEPLOYMENTS, services.space)
            return len(deployments.items) == 1 and (await pods()).keys() == {"chat-engine"}

        await services.settled(alone)
        for replicas in (3, 1):
            scale = {"spec": {"replicas": replicas}}
            await services.cluster.merge_patch(DEPLOYMENTS, "chat-engine", scale, services.space)
            selector = "component=engine"

            async def scaled(wanted: int = replicas, selector: str = selector) -> bool:
                found = await services.cluster.list(PODS, services.space, label_selector=selector)
                return len(found.items) == wanted and all(map(is_up, found))

            await services.settled(scaled)
        served = client.seen["whole"]
        async with asyncio.timeout(120):
            while client.seen["whole"] < served + 50:
                await asyncio.sleep(0.1)
    finally:
        for one in (following, *clients):
            one.cancel()
        await asyncio.gather(following, *clients, return_exceptions=True)
    assert set(client.seen) == {"whole"}, client.seen
    both = {"ome.io/inferenceservice": "chat", "component": "engine"}
    one = {**both, "app": "chat-engine"}
    assert [labels for labels, _ in itertools.groupby(seen)] == [one, both, one], (
        "the canary serves until all is rolled out"
    )

    await services.cluster.merge_patch(
        services.kind, "chat", {"metadata": {"annotations": {ROUTED: "false"}}}, services.space
    )

    async def gone() -> bool:
        return not [one for kind in (ROUTES, SERVERS) for one in await services.cluster.list(kind, services.space)]

    await services.settled(gone)


async def test_adapters_answer_under_their_own_names(services: Services, client: Client, home: str) -> None:
    space = services.space
    tone, other = (f"{name}-{space}" for name in ("tone", "other"))
    storage = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await services.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "files"}, "spec": storage}, space)
    for name, origin in ((tone, NAME), (other, "another-model")):
        folder = services.stack.paths.files / "claims" / space / "files" / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text('{"r": 64}')
        spec = {
            "baseModelRef": {"name": origin},
            "modelType": "LoRA",
            "hyperParameters": {},
            "storage": {"storageUri": f"pvc://{space}:files/{name}"},
        }
        await services.cluster.create(FINE_TUNED_WEIGHTS, {"metadata": {"name": name}, "spec": spec})

    async def serves(*names: str) -> None:
        """Wait until the pod lists these adapters, and requests for each are answered through the router."""
        obj = await services.until(is_ready, "chat")
        assert conditions(obj)[WEIGHTS_READY] == ("True", "WeightsServed", f"served: {', '.join(names)}")
        (pod,) = filter(is_up, await services.cluster.list(PODS, space, label_selector="component=engine"))
        async with client.session.get(f"http://{pod['status']['podIP']}:8080/v1/models") as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert cards.keys() == {space, *names}
        assert all(cards[name]["parent"] == space for name in names)
        for client.model in names:
            answers: list[str] = []

            async def answered(seen: list[str] = answers) -> bool:  # Before, the router has not read the route yet.
                seen.append(await client.once(1))
                return seen[-1] == "whole"

            try:
                await services.settled(answered)
            except TimeoutError:
                raise AssertionError(f"{client.model}: {Counter(answers)}") from None

    model = {"name": NAME, "fineTunedWeights": [tone]}
    runner = {"name": "engine", "args": ["--model=$(MODEL_PATH)", f"--served-model-name={space}", "--port=8080"]}
    annotations = {"ome.io/autoscalerClass": "external"}
    await services.make("chat", {"runner": runner}, annotations=annotations, model=model)
    await serves(tone)
    await services.patch("chat", {"spec": {"model": {"fineTunedWeights": [tone, other]}}})
    message = await services.until_reason("chat", "LatestDeploymentReady", "FineTunedWeightsMismatch")
    assert f"FineTunedWeight {other} was made from ClusterBaseModel another-model" in message
    served = conditions(await services.get("chat"))
    assert served["Ready"][0] == "True"
    assert served[WEIGHTS_READY][2].startswith(f"served: {tone}; not served: {other}: ")
    assert await client.once(1) == "whole", "what was served before still answers"
    await services.cluster.merge_patch(FINE_TUNED_WEIGHTS, other, {"spec": {"baseModelRef": {"name": NAME}}})
    await serves(tone, other)
    for name in (tone, other):
        await forget(services.cluster, FINE_TUNED_WEIGHTS, name)


async def _ask(client: Client, count: int) -> Counter[str]:
    return Counter([await client.once(1) for _ in range(count)])
