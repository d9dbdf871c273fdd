"""Tour of models, services and the router on one local cluster: ``make demo-tour``.

Two nodes with GPUs and one without, Prefect with every flow deployed, a small model hub and a bucket. Each chapter
applies samples and does what a user would do with kubectl, curl and ``modelyard``, waits for the documented states, and
checks the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from deployments.demo.console import DemoConsole, ask, kubectl, run_script, wait_until
from deployments.demo.scenario import CONTROLLER_NAMESPACE
from deployments.demo.sources import LLAMA, MISTRAL, Files, Sources, allowed
from deployments.stack import beside_a_cluster, write_prefect_file
from modelyard.cluster import Cluster, Object
from modelyard.local import ADDRESS, CONTROL_PLANE, Component, LocalStack, NodeGroup, StackSettings
from modelyard.local.agent import PodRecord, RecordStore
from modelyard.objects import CONFIG_MAPS, PODS, cut
from modelyard.traffic.clients import open_session
from modelyard.workloads.rendering import SERVICE
from modelyard.workloads.roll_out import DEADLINE, INFERENCE_SERVICES, LATEST, READY

GPU_NODES = ["l40s-0", "l40s-1"]
NODES = [
    # Free GPUs for one pod of eight on each node, wherever the smaller pods are.
    NodeGroup(name="l40s", count=2, product="NVIDIA-L40S-48GB", gpus=12, gpu_memory_mib=46068),
    NodeGroup(name="cpu", count=1, gpus=0),
]
SELECTOR = "nvidia.com/gpu.present=true"
RUNTIMES, SAMPLES = "config/runtimes/local", "config/samples/local"
SHOP, CHAT = "shop", "chat"
"""Namespace of the services and name of one of them; the router's sample has its own namespace ``chat``."""
COMPONENTS = {CHAT: ["engine"], "wide": ["engine", "engine"], "split": ["decoder", "engine", "router"]}
"""Pods of each service by component."""
ARGUMENTS = ["--model=$(MODEL_PATH)", "--served-model-name={{.Name}}", "--port=8080"]
GOOD, BAD = [*ARGUMENTS, "--max-num-seqs=64"], [*ARGUMENTS, "--no-such-option"]
SMALL, LARGE = "meta-llama/Llama-3.2-3B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"
DRAWS, SHARE, NEAR = 300, 0.25, 0.12
"""Weighted requests, the large server's share, and the tolerance: almost five standard deviations."""
CLIENTS, TOKENS = 16, 120
"""Concurrent streams while an engine is killed, and tokens of each answer."""
LONG_PROMPT = "word " * 1200
"""Three quarters of the route's token budget for a minute."""


@dataclass
class Tour:
    """The cluster of the tour, and requests to its router."""

    console: DemoConsole
    stack: LocalStack
    cluster: Cluster
    sources: Sources
    session: aiohttp.ClientSession

    @property
    def records(self) -> list[PodRecord]:
        return list(RecordStore(self.stack.paths.agent).all())

    async def kubectl(self, *words: str, namespace: str = SHOP) -> None:
        await self.console.run("kubectl", "-n", namespace, *words)

    async def wait(self, states: Sequence[str], *objects: str, namespace: str = SHOP) -> None:
        """Wait until objects have these conditions, or values as ``PATH=VALUE``, in their current generation."""
        for state in states:
            wanted = f"jsonpath={state}" if "=" in state else f"condition={state}"
            await self.kubectl("wait", *objects, f"--for={wanted}", "--timeout=600s", namespace=namespace)

    async def reason(self, condition: str, reason: str) -> None:
        await self.wait([f'{{.status.conditions[?(@.type=="{condition}")].reason}}={reason}'], f"isvc/{CHAT}")

    async def pods(self, name: str = CHAT) -> list[Object]:
        """Return the pods of a service that are not terminating."""
        pods = await self.cluster.list(PODS, SHOP, label_selector=f"{SERVICE}={name}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def only_pod(self) -> str:
        """Wait until the service ``CHAT`` has a single pod; return its name."""
        (pod,) = await wait_until(f"{CHAT} has a single pod", self.pods, lambda pods: len(pods) == 1)
        return str(pod["metadata"]["name"])

    async def complete(self, model: str, tokens: int = 32) -> str:
        """Stream a completion through the router; return an error, or "" when it is complete."""
        return await ask(self.session, ADDRESS, model, 16, tokens)

    async def post(self, model: str, prompt: str = "hello", **headers: str) -> tuple[int, Any]:
        """Send a completion of one token to the router; return status and body."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1}
        async with (
            asyncio.timeout(120),
            self.session.post(f"{ADDRESS}/v1/completions", json=body, headers=headers) as sent,
        ):
            return sent.status, await sent.json()

    async def answering(self, count: int, model: str, **headers: str) -> Counter[str]:
        """Send requests; count the answers by the engine's model, or by status."""
        answers = [await self.post(model, **headers) for _ in range(count)]
        return Counter(body.get("model") if status == 200 else f"HTTP {status}" for status, body in answers)

    def check_answer(self, subject: str, error: str, also: bool = True) -> None:
        self.console.check(f"{subject} answers{error and ': ' + error}", also and not error)

    @contextlib.asynccontextmanager
    async def clients(self, model: str, count: int = 1, tokens: int = 32) -> AsyncIterator[list[str]]:
        """Keep sending requests from so many clients; yields the outcomes so far, "" for a complete answer."""
        outcomes: list[str] = []

        async def ask() -> None:
            while True:
                outcomes.append(await self.complete(model, tokens))
                await asyncio.sleep(0.1)

        tasks = [asyncio.create_task(ask()) for _ in range(count)]
        try:
            yield outcomes
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def change(self, arguments: list[str], deadline: str | None = None) -> None:
        runner = {"name": "engine", "args": arguments}
        patch = {"metadata": {"annotations": {DEADLINE: deadline}}, "spec": {"engine": {"runner": runner}}}
        await self.kubectl("patch", "isvc", CHAT, "--type=merge", "-p", json.dumps(patch))


async def models(tour: Tour) -> None:
    """Deliver one model from a hub and one from a bucket onto two of three nodes."""
    console, add = tour.console, ("modelyard", "models", "add")
    console.heading("Chapter 1: deliver models to nodes")
    await console.run(*add, f"hf://demo/{LLAMA}", "--node-selector", SELECTOR)
    endpoint = ("--parameter", f"endpoint={tour.sources.url}")
    await console.run(*add, f"s3://models/{MISTRAL}", "--node-selector", SELECTOR, *endpoint)
    console.say("The flow reconcile starts the flow deliver, which copies the files to the selected nodes.")
    await tour.wait(["AllNodesReady", "MetadataDetected"], "clusterbasemodel", LLAMA, MISTRAL)
    await console.run("kubectl", "get", "clusterbasemodels")
    await console.run("modelyard", "models", "why", LLAMA)
    for name, files in ((LLAMA, tour.sources.llama), (MISTRAL, tour.sources.mistral)):
        on_disk = {node: files_on(tour.stack, node, name) for node in (*GPU_NODES, "cpu-0")}
        only_there = all(on_disk[node] == files for node in GPU_NODES) and not on_disk["cpu-0"]
        console.check(
            f"The {len(files)} files of {name} are on {' and '.join(GPU_NODES)}, and on no other node", only_there
        )


def files_on(stack: LocalStack, node: str, model: str) -> Files:
    """Return the files of a model on a node's disk."""
    folder = stack.paths.files / "nodes" / node / "mnt/models/_cluster" / model
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def services(tour: Tour) -> None:
    """Create the services of the sample."""
    console = tour.console
    console.heading("Chapter 2: create services")
    where = ("--name", "demo", "--dir", str(tour.stack.paths.root))
    await console.run("modelyard", "local", "router", "--replicas", "2", *where)
    await console.run("kubectl", "apply", "-f", RUNTIMES, "-f", f"{SAMPLES}/services.yaml")
    console.say("The flow reconcile starts the flow roll-out for each service.")
    await tour.wait([READY, LATEST], "isvc", "--all")
    await tour.wait(["Active"], "models.registry.volcano.sh", "--all")
    await tour.kubectl("get", "isvc,models.registry.volcano.sh")
    await wait_until("the router serves", partial(tour.complete, CHAT), lambda error: not error)
    for name, components in COMPONENTS.items():
        running = sorted(pod["metadata"]["labels"]["component"] for pod in await tour.pods(name))
        tour.check_answer(f"Service {name} ({', '.join(running)})", await tour.complete(name), running == components)
    tour.check_answer("Kthena Model llama", await tour.complete("llama"))
    nodes = sorted(pod["spec"]["nodeName"] for pod in await tour.pods("wide"))
    console.check(f"The engine of service wide spans two nodes: {' and '.join(nodes)}", nodes == GPU_NODES)


async def updates(tour: Tour) -> None:
    """Update a service, and let a bad update be rolled back."""
    console = tour.console
    console.heading("Chapter 3: update a service under load; a bad update is rolled back")
    names = [await tour.only_pod()]
    async with tour.clients(CHAT) as outcomes:
        await tour.change(GOOD)
        await tour.wait([LATEST, READY], f"isvc/{CHAT}")
        names.append(await tour.only_pod())
        await tour.change(BAD, deadline="30")
        await tour.reason(LATEST, "RolledBack")
        status = (await tour.cluster.get(INFERENCE_SERVICES, CHAT, SHOP))["status"]
        names.append(await tour.only_pod())
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    console.check(f"The good update replaced pod {names[0]} by {names[1]}", names[0] != names[1])
    same = names[1] == names[2] and conditions[READY]["status"] == "True"
    console.check(f"The bad update was rolled back; pod {names[2]} kept serving", same)
    reason = conditions[LATEST]["message"]
    console.check(f"The status explains it: {cut(reason, 300)}", "exited with code 2" in reason)
    failed, count = list(filter(None, outcomes)), len(outcomes)
    lost = f"{len(failed)} of {count} requests failed: {failed[0]}" if failed else f"All {count} requests were answered"
    console.check(f"{lost} during both updates", bool(outcomes) and not failed)


async def scaling(tour: Tour) -> None:
    """Scale a service to zero and back, then delete everything."""
    console, scale = tour.console, ("scale", "deployment", f"{CHAT}-engine")
    console.heading("Chapter 4: scale a service to zero and back, then delete everything")
    await tour.change(GOOD)
    await tour.wait([LATEST, READY], f"isvc/{CHAT}")
    await tour.kubectl(*scale, "--replicas=0")
    await tour.reason("EngineReady", "ScaledToZero")
    await tour.kubectl("wait", "pod", "-l", f"{SERVICE}={CHAT}", "--for=delete", "--timeout=600s")
    waiting = asyncio.create_task(tour.complete(CHAT))
    await asyncio.sleep(2)
    console.check("At zero replicas a request waits at the router", not waiting.done())
    await tour.kubectl(*scale, "--replicas=1")
    error = await waiting
    console.check(f"With one replica the waiting request is answered{error and ': ' + error}", not error)
    await tour.kubectl("delete", "isvc,models.registry.volcano.sh", "--all")
    await tour.kubectl("wait", "pod", "--all", "--for=delete", "--timeout=600s")

    async def processes() -> list[str]:
        return [record.name for record in tour.records if record.namespace == SHOP]

    left = await wait_until("all processes end", processes, lambda left: not left)
    console.check("Nothing is left: no pod, no process", not left)


async def router(tour: Tour) -> None:
    """Route by weight, header and adapter."""
    console = tour.console
    console.heading("Chapter 5: route requests")
    await console.run("kubectl", "apply", "-f", f"{SAMPLES}/router.yaml")
    console.say("Two ModelServers share the model name chat: small with weight 75, large with weight 25.")
    await tour.wait(["Available"], "deployment", "--all", namespace=CHAT)
    for model, header in (("sql", {}), ("chat", {"tier": "gold"})):
        ask = partial(tour.post, model, **header)
        await wait_until(f"the router serves {model}", ask, lambda answer: answer[0] == 200)
    await console.run("modelyard", "route", "explain", "-m", "chat", "-H", "tier: gold")
    seen = await tour.answering(DRAWS, "chat")
    near = abs(seen[LARGE] / DRAWS - SHARE) <= NEAR and seen[SMALL] + seen[LARGE] == DRAWS
    console.check(f"By weight: {seen[SMALL]} of {DRAWS} requests went to small, {seen[LARGE]} to large", near)
    seen = await tour.answering(20, "chat", tier="gold")
    console.check(f"By header: {seen[LARGE]} of 20 requests with `tier: gold` went to large", seen[LARGE] == 20)
    seen = await tour.answering(20, "sql")
    console.check(f"By adapter: sql answered {seen['sql']} of 20 requests", seen["sql"] == 20)


async def failures(tour: Tour) -> None:
    """Kill an engine under load, and exceed a budget."""
    console = tour.console
    victim = (await tour.cluster.list(PODS, CHAT, label_selector="app=large")).items[0]
    name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
    console.say(f"{CLIENTS} clients stream from sql while pod {name} is killed.")
    async with tour.clients("sql", CLIENTS, TOKENS) as outcomes:

        async def count() -> int:
            return len(outcomes)

        streaming = partial(open_streams, tour, victim)
        await wait_until(f"{name} streams", streaming, lambda streams: streams >= CLIENTS // 4)
        for process in (each for record in tour.records if record.uid == uid for each in record.processes()):
            os.kill(process.pid, signal.SIGKILL)
        killed_at = len(outcomes)
        await tour.wait(["{.status.containerStatuses[0].restartCount}=1"], f"pod/{name}", namespace=CHAT)
        await wait_until("later requests have ended", count, lambda ended: ended >= killed_at + 4 * CLIENTS)
    broken = [error for error in outcomes if error.startswith("stream")]
    failed = [error for error in outcomes if error and error not in broken]
    console.check(
        f"A killed engine lost only its own open streams: {len(broken)} of {len(outcomes)}", 0 < len(broken) <= CLIENTS
    )
    console.check(f"No other request failed{': ' + failed[0] if failed else ''}", not failed)

    sent, (status, body) = 1, await tour.post("chat", LONG_PROMPT)
    while status == 200 and sent < 6:  # Each of the two router replicas grants a budget of its own.
        sent, (status, body) = sent + 1, await tour.post("chat", LONG_PROMPT)
    error = body.get("error") or {}
    limited = status == 429 and error.get("code") == "rate_limit_exceeded" and sent > 1
    console.check(
        f"By budget: prompt {sent} of 1,200 words within a minute got HTTP {status}: {error.get('message')}", limited
    )
    await tour.wait(["Accepted"], "modelroute", "--all", namespace=CHAT)
    await tour.kubectl("get", "modelroutes,modelservers", namespace=CHAT)


async def open_streams(tour: Tour, pod: Object) -> float:
    """Return the requests that an engine is answering, by its metrics page."""
    async with tour.session.get(f"http://{pod['status']['podIP']}:8000/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))


@contextlib.asynccontextmanager
async def tour_script(out: Path, console: DemoConsole) -> AsyncIterator[Sequence[str]]:
    """Start everything and go through the chapters."""
    settings = StackSettings(components=[*CONTROL_PLANE, Component.AGENT], nodes=NODES)
    async with (
        Sources() as sources,
        beside_a_cluster(out, settings, [CONTROLLER_NAMESPACE], console.say) as (stack, prefect, cluster),
    ):
        await cluster.create(CONFIG_MAPS, allowed(sources))
        shift = {"interval_seconds": 2, "shift_seconds": 1800}
        write_prefect_file(out / "prefect.yaml", "reconcile", shift, every=900, after=15)
        await prefect.start()
        async with open_session(connect_anew=True) as session:
            tour = Tour(console, stack, cluster, sources, session)
            for chapter in (models, services, updates, scaling, router, failures):
                await chapter(tour)
        yield [
            f"export KUBECONFIG={stack.kubeconfig} CURL_HOME={stack.paths.root}",
            f"{kubectl()} describe clusterbasemodel {LLAMA}",
            f"{kubectl()} apply -f {SAMPLES}/services.yaml && {kubectl()} -n {SHOP} get isvc --watch",
            f"""curl -N {ADDRESS}/v1/completions -d '{{"model": "chat", "prompt": "Hello", "max_tokens": 8}}'""",
            f"{kubectl()} -n {CHAT} scale deployment small --replicas 0    # Requests go to large; none fails.",
            f"open {prefect.server.ui_url}",
        ]


def main(out: Path, *, keep: bool) -> int:
    """Run the tour; return the exit code."""
    return run_script(partial(tour_script, out.resolve()), out.resolve(), "demo-tour", keep=keep)
