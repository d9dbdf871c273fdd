"""What services cost: their rendering, a quiet look at many, many made at once, and how soon one is acted on.

    python benchmarks/services.py [--services 1000] [--at-once 100]

On a real API server and etcd, without controllers: the Deployments' statuses are written here as theirs would be, no
pod runs. The loop is that of the reconcile shift with its runs in this process: their start by Prefect comes on top.

Prints, of the pure rendering: seconds of CPU and µs a service, beside writing the same children as JSON once. Of
services made at once: seconds until every child is there, API calls per service as the server counts them, and writes
of children per service beside the least there can be, the number of children. From a service's creation to its first
child, and from its last pod's readiness to ``Ready``: the median. Of a look at all of them: CPU and wall seconds and
API calls when nothing has moved, when controllers have told what they always tell, and when a Deployment has changed,
beside one GET of every service and of four of its children, the least that a controller does that asks for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from crds import apply_crds
from in_process_runs import Shift

from modelyard.cluster import Cluster, ClusterSettings, Object
from modelyard.cluster.transport import ApiRequest, Transport
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.objects import Namespace
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from modelyard.reconcile.kernel.reconciler import Reconciler, Registered
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.dispatch import Acting, Start
from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.rendering.files import served
from modelyard.workloads.rendering.render import render
from modelyard.workloads.rendering.settings import ServingSettings
from modelyard.workloads.rendering.values import Abilities, Rendered
from modelyard.workloads.roll_out.lifecycle import ServiceRollOut
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, RUNTIMES, RUNTIMES_WANTED, child_kinds, service

HOME, SPACES, ROUNDS = "modelyard", 20, 11
REQUESTS = re.compile(r'^apiserver_request_total\{.*verb="([A-Z]+)".*\} (\S+)$', re.MULTILINE)
FORMAT = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
}
STORAGE = {"storageUri": "vendor://acme/model/llama"}
MODEL = {"metadata": {"name": "llama"}, "spec": {**FORMAT, "modelParameterSize": "8B", "storage": STORAGE}}
RUNNER = {
    "name": "engine",
    "image": "vllm/vllm-openai:v0.11.0",
    "args": ["--model=$(MODEL_PATH)", "--port=8080"],
    "ports": [{"name": "http", "containerPort": 8080}],
    "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": 8, "memory": "48Gi"}},
    "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 10},
}
RUNTIME = {
    "metadata": {"name": "vllm"},
    "spec": {"supportedModelFormats": [{**FORMAT, "autoSelect": True}], "engineConfig": {"runner": RUNNER}},
}
SERVED = ("autoscaling/v2beta2/HorizontalPodAutoscaler", "policy/v1beta1/PodDisruptionBudget")


def manifest(name: str, space: str) -> Object:
    """A service as people write one."""
    env = [{"name": "NAME", "value": name}]
    spec = {"model": {"name": "llama"}, "engine": {"maxReplicas": 4, "runner": {"name": "engine", "env": env}}}
    return {
        "apiVersion": INFERENCE_SERVICES.api_version,
        "kind": INFERENCE_SERVICES.kind,
        "metadata": {"name": name, "namespace": space},
        "spec": spec,
    }


def rendering(count: int) -> None:
    """The pure part."""
    model = served(CLUSTER_BASE_MODELS, {"apiVersion": CLUSTER_BASE_MODELS.api_version, **MODEL})
    runtime = RUNTIMES_WANTED[1].parse({"apiVersion": RUNTIMES[1].api_version, **RUNTIME})
    assert runtime is not None
    found = [service(manifest(f"s{number}", "shop")).resource for number in range(count)]
    settings, _ = ServingSettings.read({})
    abilities = Abilities(frozenset(SERVED), settings, {"shop": Namespace("shop", {}, {})})
    begin = time.process_time()
    results = [render(one, model, runtime.resource, abilities) for one in found if one is not None]
    taken = time.process_time() - begin
    assert len(results) == count
    children = [child.body for one in results if isinstance(one, Rendered) for child in one.children]
    begin = time.process_time()
    size = sum(len(json.dumps(child)) for child in children)
    least = time.process_time() - begin
    print(
        f"rendering: {count} services, {len(children)} children: CPU {taken:.2f} s, {taken / count * 1e6:.0f} µs a"
        f" service; reference, their {size / 1e6:.1f} MB as JSON: {least:.3f} s, ratio {taken / least:.0f}"
    )


class Writes:
    """How often children are written by this process."""

    def __init__(self) -> None:
        self.children = 0
        send = Transport.send

        async def noted(transport: Transport, request: ApiRequest) -> bytes:
            _, _, place = request.path.partition("/namespaces/")
            if request.method != "GET" and place and not re.search(r"/(events|inferenceservices)\b", place):
                self.children += 1
            return await send(transport, request)

        Transport.send = noted  # type: ignore[method-assign,assignment]


async def calls(cluster: Cluster) -> float:
    """Requests that the API server has answered, but for watches and this one."""
    text = (await cluster.transport.send(ApiRequest("GET", "/metrics", "read", "metrics"))).decode()
    return sum(float(count) for verb, count in REQUESTS.findall(text) if verb != "WATCH")


async def each(things: Any, work: Callable[[Any], Awaitable[object]], at_a_time: int = 16) -> None:
    """The work for each of these, some at a time."""
    gate = asyncio.Semaphore(at_a_time)

    async def one(thing: Any) -> None:
        async with gate:
            await work(thing)

    await asyncio.gather(*map(one, things))


async def eventually(holds: Callable[[], Awaitable[bool]], pause: float = 0.02) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(900):
        while True:
            if await holds():
                return
            await asyncio.sleep(pause)


class Bench:
    """Services ``s0``, ``s1`` ... over the namespaces."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.count, self.writes = cluster, 0, Writes()

    def registered(self) -> list[Registered]:
        return [Registered(ServiceRollOut(HOME), Acting("roll-out/roll-out", batch=20))]

    async def prepare(self) -> None:
        spaces = (HOME, *(f"n{number}" for number in range(SPACES)))
        await each(spaces, lambda name: self.cluster.create(NAMESPACES, {"metadata": {"name": name}}))
        await self.cluster.create(CLUSTER_BASE_MODELS, MODEL)
        await self.cluster.create(RUNTIMES[1], RUNTIME)
        self.kinds = child_kinds(frozenset(ServedKind(*one.rsplit("/", 1)) for one in SERVED))

    async def make(self, count: int) -> list[tuple[str, str]]:
        """More of them; their names and namespaces."""
        made = [(f"s{number}", f"n{number % SPACES}") for number in range(self.count, self.count + count)]
        self.count += count
        await each(made, lambda one: self.cluster.create(INFERENCE_SERVICES, manifest(*one)))
        return made

    async def children(self) -> int:
        found = [await self.cluster.list(kind, None) for kind in self.kinds]
        return sum(bool(one["metadata"].get("ownerReferences")) for some in found for one in some)

    async def up(self, one: tuple[str, str]) -> None:
        """What a Deployment's controller says when all its pods are ready."""
        name, space = f"{one[0]}-engine", one[1]
        numbers = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
        body = {"status": {"observedGeneration": 1, **numbers}}
        await self.cluster.merge_patch(DEPLOYMENTS, name, body, space, subresource="status")

    async def ready(self) -> int:
        found = await self.cluster.list(INFERENCE_SERVICES, None)
        return sum(_ready(one) for one in found)

    async def at_once(self, count: int) -> None:
        """Until all children are there, and until all services are told to be ready once their pods are."""
        before, asked, written = await self.children(), await calls(self.cluster), self.writes.children
        begin, cpu = time.monotonic(), time.process_time()
        made = await self.make(count)
        created, least = time.monotonic() - begin, 0

        async def applied() -> bool:
            nonlocal least
            least = await self.children() - before
            return least >= 6 * count

        await eventually(applied, 0.5)
        wall, cpu = time.monotonic() - begin, time.process_time() - cpu
        done = self.writes.children - written
        await each(made, self.up)

        async def told() -> bool:
            return await self.ready() == self.count

        at = time.monotonic()
        await eventually(told, 0.5)
        asked = await calls(self.cluster) - asked
        ready = time.monotonic() - at
        print(
            f"{count} at once: all {least} children after {wall:.1f} s (created in {created:.1f} s; CPU {cpu:.1f} s);"
            f" {done / count:.2f} writes of children per service, the least is {least / count:.0f};"
            f" all ready {ready:.1f} s after their pods were; {asked / count:.0f} API calls per service",
            flush=True,
        )

    async def reaction(self) -> None:
        """One at a time."""
        first, ready = [], []
        for _ in range(ROUNDS):
            before = await self.children()
            begin = time.monotonic()
            ((name, space),) = await self.make(1)

            async def child(name: str = name, space: str = space) -> bool:
                mine = f"ome.io/inferenceservice={name}"
                return bool((await self.cluster.list(CONFIG_MAPS, space, label_selector=mine)).items)

            await eventually(child)
            first.append(time.monotonic() - begin)

            async def applied(before: int = before) -> bool:
                return await self.children() >= before + 6

            await eventually(applied, 0.2)
            await self.up((name, space))
            begin = time.monotonic()

            async def told(name: str = name, space: str = space) -> bool:
                return _ready(await self.cluster.get(INFERENCE_SERVICES, name, space))

            await eventually(told)
            ready.append(time.monotonic() - begin)
        print(
            f"one of {self.count}: first child {statistics.median(first):.2f} s after its creation (worst"
            f" {max(first):.2f}), Ready {statistics.median(ready):.2f} s after its pod was (worst {max(ready):.2f});"
            f" median of {ROUNDS}",
            flush=True,
        )

    async def looks(self) -> None:
        """Looks at all of them."""
        async with Reconciler(self.registered()) as reconciler:

            async def settled() -> bool:
                return not any((await reconciler.look()).values())

            await eventually(settled)

            async def look(title: str) -> None:
                await asyncio.sleep(2)  # the watches have told it
                asked, cpu, wall, count, planned = await calls(self.cluster), 0.0, 0.0, 0, True
                while planned:
                    begin, at = time.process_time(), time.monotonic()
                    planned = any((await reconciler.look()).values())
                    cpu, wall, count = cpu + time.process_time() - begin, wall + time.monotonic() - at, count + 1
                asked = await calls(self.cluster) - asked
                print(
                    f"look, {title}: CPU {cpu:.3f} s, wall {wall:.3f} s in {count}, {asked:.0f} API calls", flush=True
                )

            await look("nothing has moved")
            status: Object = {
                "status": {"currentReplicas": 1, "desiredReplicas": 1, "currentMetrics": None, "conditions": []}
            }
            for number in range(min(100, self.count)):
                name, space = f"s{number}-engine", f"n{number % SPACES}"
                hpa = self.kind("HorizontalPodAutoscaler")
                await self.cluster.merge_patch(hpa, name, status, space, subresource="status")
            await look("autoscalers have told their state")
            await self.cluster.merge_patch(DEPLOYMENTS, "s0-engine", {"metadata": {"labels": {"x": "y"}}}, "n0")
            await look("a Deployment has changed")
            await self.cluster.merge_patch(RUNTIMES[1], "vllm", {"metadata": {"annotations": {"x": "y"}}})
            await look("the runtime has changed")
        begin, cpu = time.monotonic(), time.process_time()
        for number in range(self.count):
            space = f"n{number % SPACES}"
            await self.cluster.get(INFERENCE_SERVICES, f"s{number}", space)
            for kind in ("Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service"):
                await self.cluster.get(self.kind(kind), f"s{number}-engine", space)
        wall, cpu = time.monotonic() - begin, time.process_time() - cpu
        print(f"reference, {5 * self.count} GETs: CPU {cpu:.2f} s, wall {wall:.2f} s")

    def kind(self, kind: str) -> Any:
        return next(one for one in self.kinds if one.kind == kind)


def _ready(obj: Object) -> bool:
    found = (obj.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found)


class Runs(Shift):
    """Each run with connections of its own, as processes have them: one pool is not enough for the watches of all."""

    def _start(self, name: str, start: Start, reconciler: Reconciler) -> None:
        keys = [subject.key for subject, _ in start.claims]

        async def run() -> None:
            async with Cluster.connect(ClusterSettings()) as own:
                await act(own, reconciler.registered[name].lifecycle, keys, start.key)

        if keys:
            self.runs[start.key] = asyncio.create_task(run())


async def measure(count: int, at_once: list[int]) -> None:
    async with Cluster.connect(ClusterSettings()) as cluster:
        bench = Bench(cluster)
        await bench.prepare()
        async with Runs(bench.registered(), HOME):
            for some in at_once:
                await bench.at_once(some)
            await bench.reaction()
            if bench.count < count:
                await bench.at_once(count - bench.count)
        await bench.looks()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--services", type=int, default=1000)
    options.add_argument("--at-once", default="100,500", help="how many to make at a time, by commas")
    given = options.parse_args()
    rendering(given.services)
    with tempfile.TemporaryDirectory() as folder:
        settings = StackSettings(components=[Component.ETCD, Component.APISERVER])
        with LocalStack(settings, name="bench", directory=Path(folder) / "cluster") as stack:
            os.environ["KUBECONFIG"] = str(stack.kubeconfig)
            asyncio.run(apply_crds(stack.kubeconfig))
            asyncio.run(measure(given.services, [int(one) for one in given.at_once.split(",") if one]))


if __name__ == "__main__":
    main()
