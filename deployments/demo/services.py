"""Services: one manifest becomes pods that answer, on one node, on two, with prefill and decode apart, and of a Model.

Applies them as a user would, asks each by its name at its ``status.url``, which is the router's, changes one for the
better and for the worse, scales it to nothing and back, and deletes all; checks what it is told on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState, FlowRunFilterStateName

from deployments.demo.stage import GPU_NODES, RECORDED, Act, DemonstrationFailed, Stage, kubectl
from modelyard.cluster import Object
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.agent.records import RecordStore
from modelyard.local.router import ADDRESS
from modelyard.objects.documents import cut
from modelyard.objects.kinds import PODS
from modelyard.traffic.replay import RequestFailed, chat_body, send
from modelyard.workloads.names import SERVICE
from modelyard.workloads.returning import DEADLINE
from modelyard.workloads.story import LATEST, READY
from modelyard.workloads.world import INFERENCE_SERVICES, MODELS

RUNTIMES, SAMPLE, SPACE = "config/runtimes/local", "config/samples/local/services.yaml", "shop"
CHAT, WIDE, SPLIT, MODEL = "chat", "wide", "split", "llama"
MADE_OF = {CHAT: ["engine"], WIDE: ["engine", "engine"], SPLIT: ["decoder", "engine", "router"]}
"""The components of the pods of each service."""
LONGEST = 600.0
"""Seconds within which each thing must come true; on an idle machine it is a few."""
TOKENS = 32
"""Of each answer."""
BETWEEN = 0.1
"""Seconds from one request to the next, while somebody keeps asking."""
ARGS = ["--model=$(MODEL_PATH)", "--served-model-name={{.Name}}", "--port=8080"]
BETTER, WORSE = [*ARGS, "--max-num-seqs=64"], [*ARGS, "--no-such-option"]
OWN = ("serviceaccount/default", "secret/default-token-", "configmap/kube-root-ca.crt", "event")
"""What every namespace has."""


T = TypeVar("T")


@dataclass
class Asking:
    """Somebody who keeps asking a service."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = f"{self.answered} requests meanwhile, one after the other, were answered"
        return said + (f", {len(self.failed)} were not: {self.failed[0]}" if self.failed else ", every one")

    @property
    def well(self) -> bool:
        """Whether there were requests, and all of them were answered."""
        return self.answered > 0 and not self.failed


class Shop:
    """The services, as they are seen by whoever uses them."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession) -> None:
        self.stage, self.show, self._session = stage, stage.show, session

    async def get(self, name: str) -> Object:
        """A service."""
        return await self.stage.cluster.get(INFERENCE_SERVICES, name, SPACE)

    async def pods(self, name: str) -> list[Object]:
        """A service's pods, without those that are going."""
        found = await self.stage.cluster.list(PODS, SPACE, label_selector=f"{SERVICE}={name}")
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    async def until(self, name: str, holds: Callable[[Object], bool]) -> Object:
        """Wait until it holds of a service; the service. Raises ``DemonstrationFailed``."""
        return await eventually(lambda: self.get(name), holds)

    async def routed(self) -> bool:
        """Whether the router takes requests."""
        try:
            async with self._session.get(f"{ADDRESS}/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def ask(self, url: str, model: str) -> tuple[str, bool]:
        """A streamed completion: what came of it, in words, and whether it is whole."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            came = await send(self._session, url, chat_body(model, 16, TOKENS))
        except (RequestFailed, aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__}: {cut(str(error), 300)}", False
        took = f"the first after {came.first - begun:.2f} s, the last after {came.last - begun:.2f} s"
        return f"{came.output_tokens} tokens of {model}, {took}", came.output_tokens == TOKENS

    @contextlib.asynccontextmanager
    async def asked(self, name: str) -> AsyncIterator[Asking]:
        """While somebody keeps asking a service."""
        asking, url = Asking(), (await self.get(name))["status"]["url"]

        async def ask() -> None:
            while True:
                words, whole = await self.ask(url, name)
                asking.answered += whole
                if not whole:
                    asking.failed.append(words)
                await asyncio.sleep(BETWEEN)

        task = asyncio.create_task(ask())
        try:
            yield asking
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def patch(self, args: list[str], deadline: str | None = None) -> None:
        """Change the engine's arguments of ``CHAT``, and how long that may take."""
        patch = {
            "metadata": {"annotations": {DEADLINE: deadline}},
            "spec": {"engine": {"runner": {"name": "engine", "args": args}}},
        }
        await self.show.run("kubectl", "-n", SPACE, "patch", "isvc", CHAT, "--type=merge", "-p", json.dumps(patch))


async def eventually(look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Look until it holds of what is seen; that. Raises ``DemonstrationFailed``."""
    deadline = time.monotonic() + LONGEST
    while not holds(seen := await look()):
        if time.monotonic() > deadline:
            raise DemonstrationFailed(f"not within {LONGEST:g} s; last seen: {seen}")
        await asyncio.sleep(0.3)
    return seen


async def play(stage: Stage) -> None:
    """From a manifest to pods, and to nothing again."""
    connector = aiohttp.TCPConnector(force_close=True, resolver=ServiceResolver(HostsFile.found()), use_dns_cache=False)
    timeout, kind = aiohttp.ClientTimeout(total=60), {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=kind) as session:
        shop = Shop(stage, session)
        for part in (made, updated, returned, scaled, deleted):
            await part(shop)


async def made(shop: Shop) -> None:
    """Three services and a Model from one manifest, and a completion of each."""
    show = shop.show
    where = str(shop.stage.stack.paths.root)
    await show.run("modelyard", "local", "router", "--name", "demo", "--dir", where)
    await show.run("kubectl", "apply", "-f", RUNTIMES)
    await show.run("kubectl", "apply", "-f", SAMPLE)
    await shop.stage.flows
    show.say("waiting for the shift of the flow reconcile, which starts the flows deliver and roll-out")
    begun = time.monotonic()
    await shop.until(CHAT, lambda obj: bool(obj.get("status")))
    await show.run("modelyard", "services", "-n", SPACE)
    for name in MADE_OF:
        await shop.until(name, is_ready)
        show.say(f"{name} is ready, {time.monotonic() - begun:.1f} s after there were flows")
    cluster = shop.stage.cluster
    await eventually(lambda: cluster.get(MODELS, MODEL, SPACE), lambda obj: told(obj, "Active")[0] == "True")
    show.say(f"the Model {MODEL} is, {time.monotonic() - begun:.1f} s after there were flows")
    await show.run("kubectl", "-n", SPACE, "get", "isvc,models.registry.volcano.sh")
    await show.run("modelyard", "services", "why", SPLIT, "-n", SPACE)
    await eventually(shop.routed, bool)
    for name, components in MADE_OF.items():
        obj, pods = await shop.get(name), await shop.pods(name)
        words, whole = await shop.ask(obj["status"]["url"], name)
        there = sorted(one["metadata"]["labels"]["component"] for one in pods)
        text = f"{name} ({', '.join(there)}) answers at {obj['status']['url']}: {words}"
        show.claim(text, whole and there == components)
    words, whole = await shop.ask(ADDRESS, MODEL)
    show.claim(f"the Model {MODEL} answers at {ADDRESS}: {words}", whole)
    await show.run("kubectl", "-n", SPACE, "get", "modelroutes,modelservers")
    nodes = sorted(one["spec"]["nodeName"] for one in await shop.pods(WIDE))
    show.claim(f"the two pods of the one engine of {WIDE} are on {' and '.join(nodes)}", nodes == GPU_NODES)


async def updated(shop: Shop) -> None:
    """Other arguments, rolled out while somebody asks."""
    (before,) = await shop.pods(CHAT)
    async with shop.asked(CHAT) as asking:
        await shop.patch(BETTER)
        obj = await shop.until(CHAT, is_ready)
        await asyncio.sleep(1)
    pods = await shop.pods(CHAT)
    revision = obj["status"]["components"]["engine"]["latestReadyRevision"]
    names = [one["metadata"]["name"] for one in pods]
    text = f"the update is rolled out: revision {revision}, pod {before['metadata']['name']} → {', '.join(names)}"
    shop.show.claim(text, revision == "2" and before["metadata"]["name"] not in names and len(names) == 1)
    shop.show.claim(str(asking), asking.well)


async def returned(shop: Shop) -> None:
    """Arguments that the engine ends with: what served before goes on, and the update is taken back."""
    show, (before,) = shop.show, await shop.pods(CHAT)
    async with shop.asked(CHAT) as asking:
        await shop.patch(WORSE, deadline="30")
        obj = await shop.until(CHAT, lambda obj: told(obj, LATEST)[1] in ("ContainerExited", "RolledBack"))
        show.claim(f"{LATEST} {': '.join(told(obj, LATEST))}", "exited with code 2" in told(obj, LATEST)[2])
        obj = await shop.until(CHAT, lambda obj: told(obj, LATEST)[1] == "RolledBack")
        pods = await eventually(lambda: shop.pods(CHAT), lambda pods: len(pods) <= 1)
    message = told(obj, LATEST)[2]
    show.claim(f"RolledBack: {cut(message, 400)}", message.startswith("generation 3 did not become ready"))
    same = [one["metadata"]["uid"] for one in pods] == [before["metadata"]["uid"]] and told(obj, READY)[0] == "True"
    show.claim(f"it stays Ready by the pod that served before: {before['metadata']['name']}", same)
    show.claim(str(asking), asking.well)
    show.claim(*await recorded(shop.stage, f"roll-out InferenceService {SPACE}/{CHAT}", "RolledBack"))
    await shop.patch(BETTER)
    await shop.until(CHAT, is_ready)
    now = [one["metadata"]["uid"] for one in await shop.pods(CHAT)]
    show.claim(
        "the change is undone, what was asked for runs, and no pod was restarted", now == [before["metadata"]["uid"]]
    )


async def scaled(shop: Shop) -> None:
    """To nothing, and back, by whoever scales its Deployment."""
    show, scale = shop.show, ("kubectl", "-n", SPACE, "scale", "deployment", f"{CHAT}-engine")
    await show.run(*scale, "--replicas=0")
    obj = await shop.until(CHAT, lambda obj: told(obj, "EngineReady")[1] == "ScaledToZero")
    await eventually(lambda: shop.pods(CHAT), lambda pods: not pods)
    waiting = asyncio.create_task(shop.ask(obj["status"]["url"], CHAT))
    await asyncio.sleep(2)
    state = obj["status"]["modelStatus"]["modelRevisionStates"]["activeModelState"]
    text = f"{told(obj, 'EngineReady')[2]}: model {state}, no pod, and a request for it waits at the router"
    show.claim(text, state == "Standby" and not waiting.done())
    await show.run(*scale, "--replicas=1")
    await shop.until(CHAT, lambda obj: told(obj, "EngineReady")[1] == "PodsReady")
    words, whole = await waiting
    show.claim(f"it is back, and the request was answered: {words}", whole)


async def deleted(shop: Shop) -> None:
    """All of them go with all they had."""
    show = shop.show
    kinds = (await show.call("kubectl", "api-resources", "--namespaced", "--verbs=list", "-o", "name")).split()
    everything = ("kubectl", "-n", SPACE, "get", ",".join(kinds), "-o", "name")

    async def there() -> list[str]:
        return [one for one in (await show.call(*everything)).split() if not one.startswith(OWN)]

    before = await there()
    await show.run("kubectl", "-n", SPACE, "delete", "isvc,models.registry.volcano.sh", "--all")
    records = RecordStore(shop.stage.stack.paths.agent)

    async def left() -> list[str]:
        return await there() + [one.name for one in records.all() if one.namespace == SPACE]

    await eventually(left, lambda left: not left)
    text = f"nothing is left: of {len(before)} objects none, of any of {len(kinds)} kinds, and no process on any node"
    show.claim(text, bool(before))


def told(obj: Object, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty while it is not told."""
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one["type"] == kind:
            return one["status"], one["reason"], one["message"]
    return "", "", ""


def is_ready(obj: Object) -> bool:
    """It answers, and what answers is what was asked for last."""
    current = (obj.get("status") or {}).get("observedGeneration") == obj["metadata"]["generation"]
    return current and all(told(obj, kind)[0] == "True" for kind in (READY, LATEST))


async def recorded(stage: Stage, name: str, why: str) -> tuple[str, bool]:
    """Whether Prefect has a run of this name that has failed, and says this word why."""
    server, failed = stage.prefect.server, FlowRunFilterState(name=FlowRunFilterStateName(any_=["Failed"]))
    chosen = FlowRunFilter(name=FlowRunFilterName(any_=[name]), state=failed)
    async with PrefectClient(server.api_url) as client:
        for _ in range(RECORDED):
            for run in await client.read_flow_runs(flow_run_filter=chosen):
                if why in str(run.state and run.state.message):
                    return f"Prefect has the run '{run.name}' as Failed: {server.ui_url}/runs/flow-run/{run.id}", True
            await asyncio.sleep(1)
    return f"Prefect has a run '{name}' that has failed because of {why}", False


def after(stage: Stage) -> list[str]:
    """What to try, where all is left running."""
    body = json.dumps({"model": SPLIT, "prompt": "Hello", "max_tokens": 8, "stream": True})
    return [
        f"{kubectl()} apply -f {SAMPLE}    # once more",
        f"{kubectl()} -n {SPACE} get isvc --watch",
        f"{Path(sys.executable).with_name('modelyard')} services why {CHAT} -n {SPACE}",
        f"curl -N {ADDRESS}/v1/completions -d '{body}'",
    ]


ACT = Act("demo-services", play, after)
