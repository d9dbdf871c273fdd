"""What a reconcile tick costs that has 1,000 models on 100 nodes to look after, against a real API server.

    python benchmarks/deliveries.py [--models 1000] [--nodes 100] [--pools 10]

Every model is on all nodes of its pool, delivered long ago: reports, labels and statuses are as they should be. A tick
is measured in which nothing has moved, one after a heartbeat of every node, and one after a node's label has changed,
so that every model is planned anew. CPU seconds of this process, API calls as the server counts them (watches apart),
and the largest status and report. Reference: a GET of every model and node, which is the least that a controller does
that asks for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from crds import apply_crds

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.cluster.transport import ApiRequest
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.models.delivery import bringing, jobs, legs, names, world
from modelyard.models.delivery.lifecycle import ModelDelivery
from modelyard.models.delivery.world import Delivered, ReportEntry
from modelyard.models.storage.settings import DeliverySettings
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES, NODES
from modelyard.reconcile.kernel.carry_out import carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.reconciler import Reconciler, Registered

HOME = "modelyard"
MODELS = names.CLUSTER_BASE_MODELS
REQUESTS = re.compile(r'^apiserver_request_total\{.*resource="[^"]+".*verb="([A-Z]+)".*\} (\S+)$', re.MULTILINE)
FACTS = {"modelType": "llama", "architecture": "LlamaForCausalLM", "format": "safetensors", "parameters": 8030261248}
FACTS |= {"contextLength": 131072, "layers": 32, "heads": 32, "kvHeads": 8, "headSize": 128, "weightBytes": 16060522496}


async def calls(cluster: Cluster) -> float:
    """Requests that the API server has answered, of resources, but for watches."""
    text = (await cluster.transport.send(ApiRequest("GET", "/metrics", "read", "metrics"))).decode()
    return sum(float(count) for verb, count in REQUESTS.findall(text) if verb != "WATCH")


async def make(cluster: Cluster, models: int, nodes: int, pools: int) -> int:
    """The fleet, as it is when all is delivered; the bytes of its largest report."""
    gate = asyncio.Semaphore(16)

    async def create(kind: Any, body: dict[str, Any], namespace: str | None = None) -> Any:
        async with gate:
            return await cluster.create(kind, body, namespace)

    async def model(number: int) -> dict[str, Any]:
        storage = {"storageUri": f"hf://o/m{number}", "nodeSelector": {"pool": f"p{number % pools}"}}
        metadata = {"name": f"m{number:04}", "finalizers": [names.finalizer(MODELS)]}
        body = {"apiVersion": MODELS.api_version, "kind": MODELS.kind, "metadata": metadata}
        made: dict[str, Any] = await create(MODELS, {**body, "spec": {"storage": storage}})
        return made

    await create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    stored = [world.model(MODELS, made) for made in await asyncio.gather(*map(model, range(models)))]
    entries: list[dict[str, str]] = [{} for _ in range(pools)]
    labels: list[dict[str, str]] = [{"pool": f"p{pool}"} for pool in range(pools)]
    for number, one in enumerate(stored):
        settings = DeliverySettings()
        wish = legs.Wish(one, jobs.target(one, settings), settings, HOME)
        size = {"bytes": 16060522496, "files": 12, "seconds": 31.2, "fetched_bytes": 16060522496, "from_store": False}
        done = bringing.replace_done(
            Delivered(), wish, revision="c" * 40, manifest_sha256="a" * 64, finished=1.8e9, facts=FACTS, **size
        )
        entries[number % pools][one.entry] = ReportEntry(name=one.key.name, status=legs.READY, delivered=done).text()
        labels[number % pools][one.label] = legs.READY

    async def node(number: int) -> None:
        name, pool = f"node-{number:04}", number % pools
        await create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels[pool]}})
        await beat(cluster, name)
        metadata = {"name": name, "labels": {names.REPORT_LABEL: "true"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": entries[pool]}
        await create(CONFIG_MAPS, body, HOME)

    await asyncio.gather(*map(node, range(nodes)))
    return max(len(json.dumps(data)) for data in entries)


async def beat(cluster: Cluster, name: str) -> None:
    """A node's agent says that it is well."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition |= {"lastHeartbeatTime": now, "reason": "KubeletReady", "message": now}
    await cluster.merge_patch(NODES, name, {"status": {"conditions": [condition]}}, subresource="status")


async def measure(models: int, nodes: int, pools: int) -> None:
    async with Cluster.connect(ClusterSettings()) as cluster:
        report = await make(cluster, models, nodes, pools)
        lifecycles = [Registered(ModelDelivery(kind, HOME)) for kind in names.KINDS]
        async with Reconciler(lifecycles) as reconciler:
            begin = time.process_time()
            while plans := [plan for found in (await reconciler.look()).values() for plan in found]:
                await carry_out(reconciler.cluster, plans, Fence())
                await asyncio.sleep(1)
            print(
                f"{models} models, {nodes} nodes in {pools} pools; first statuses {time.process_time() - begin:.2f} s"
            )

            async def ticks(title: str) -> None:
                """Until all is settled again."""
                await asyncio.sleep(2)  # the watches have told it
                before, cpu, wall, count, planned = await calls(cluster), 0.0, 0.0, 0, True
                while planned:
                    begin, at = time.process_time(), time.monotonic()
                    planned = bool(await reconciler.look())
                    cpu, wall, count = cpu + time.process_time() - begin, wall + time.monotonic() - at, count + 1
                asked = await calls(cluster) - before
                print(
                    f"{title}: CPU {cpu:.3f} s, wall {wall:.3f} s in {count} ticks, {asked:.0f} API calls", flush=True
                )

            await ticks("the statuses that were written come back")
            await ticks("nothing has moved")
            await asyncio.gather(*(beat(cluster, f"node-{number:04}") for number in range(nodes)))
            await ticks("heartbeats")
            await cluster.merge_patch(NODES, "node-0000", {"metadata": {"labels": {"other": "x"}}})
            await ticks("a label of a node")
            await cluster.merge_patch(NODES, "node-0000", {"metadata": {"labels": {"other": "y"}}})
            await ticks("and again")
        begin, at = time.process_time(), time.monotonic()
        largest = 0
        for number in range(models):
            found = await cluster.get(MODELS, f"m{number:04}")
            largest = max(largest, len(json.dumps(found["status"])))
        for number in range(nodes):
            await cluster.get(NODES, f"node-{number:04}")
        print(
            f"reference, a GET of each: CPU {time.process_time() - begin:.2f} s, wall {time.monotonic() - at:.2f} s; "
            f"largest status {largest} bytes, largest report {report} bytes"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--nodes", type=int, default=100)
    options.add_argument("--pools", type=int, default=10, help="of nodes; a model is on the nodes of one")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = StackSettings(components=[Component.ETCD, Component.APISERVER])
        with LocalStack(settings, name="bench", directory=Path(folder) / "cluster") as stack:
            os.environ["KUBECONFIG"] = str(stack.kubeconfig)
            asyncio.run(apply_crds(stack.kubeconfig))
            asyncio.run(measure(given.models, given.nodes, given.pools))


if __name__ == "__main__":
    main()
