"""A whole tick over 100 and 1,000 variants of 10 pods each, against a real API server and Prometheus.

    python benchmarks/tick.py [--sizes 100,1000]

Prints, per size: seconds of the first tick (every status is written) and of a quiet one (nothing changes), number of
PromQL queries, API calls per variant (as the API server counts them), peak memory of the measuring process; and the
growth from the smallest to the largest size as a ratio against linear growth (1.0 = linear, below = better).
The reference for the quiet tick is the plain way in the same run: one GET of each VariantAutoscaling and of each
workload, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from crds import apply_crds
from fleet_fixture import Gauges, MetricSource, ready_status
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.settings import FleetSettings
from modelyard.cluster import (
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    Cluster,
    ClusterSettings,
)
from modelyard.local.binaries.obtain import ensure
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.loop.collect import VARIANTS
from modelyard.loop.settings import LoopSettings
from modelyard.loop.tick import Loop, Tick

PODS_PER_VARIANT = 10
SPACE = "fleet"
HOUR_AGO = time.time() - 3600


def container() -> dict[str, Any]:
    return {
        "name": "engine",
        "image": "example.invalid/engine:1",
        "args": ["--model", "/models/llama", "--max-num-seqs", "256", "--gpu-memory-utilization", "0.9"],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }


async def create_variant(cluster: Cluster, source: MetricSource, number: int) -> None:
    """A VariantAutoscaling with its Deployment, ReplicaSet and ten ready pods; two variants share a model."""
    name, model = f"v{number:05d}", f"model-{number // 2:05d}"
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container()], "automountServiceAccountToken": False},
    }
    spec = {"replicas": PODS_PER_VARIANT, "selector": {"matchLabels": labels}, "template": template}

    def owned_by(kind: str, uid: str) -> list[dict[str, Any]]:
        return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}]

    made = await cluster.create(DEPLOYMENTS, {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}, SPACE)
    counts = {"status": {"replicas": PODS_PER_VARIANT, "readyReplicas": PODS_PER_VARIANT}}
    await cluster.merge_patch(DEPLOYMENTS, name, counts, SPACE, subresource="status")
    owners = owned_by("Deployment", made["metadata"]["uid"])
    replica_set = await cluster.create(
        REPLICA_SETS, {"metadata": {"name": name, "namespace": SPACE, "ownerReferences": owners}, "spec": spec}, SPACE
    )
    owners = owned_by("ReplicaSet", replica_set["metadata"]["uid"])
    for index in range(PODS_PER_VARIANT):
        pod = f"{name}-{index}"
        body = {"metadata": {"name": pod, "namespace": SPACE, "labels": labels, "ownerReferences": owners}}
        await cluster.create(PODS, {**body, "spec": template["spec"]}, SPACE)
        await cluster.merge_patch(PODS, pod, ready_status(HOUR_AGO), SPACE, subresource="status")
        source.pods[SPACE, pod] = Gauges(model, kv=0.5, waiting=0.0)
    await cluster.create(
        VARIANTS,
        {
            "apiVersion": "llmd.ai/v1alpha1",
            "kind": "VariantAutoscaling",
            "metadata": {
                "name": name,
                "namespace": SPACE,
                "labels": {"inference.optimization/acceleratorName": "H100" if number % 2 else "L40S"},
            },
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "modelID": model,
                "variantCost": "10" if number % 2 else "4",
            },
        },
        SPACE,
    )


async def grow(cluster: Cluster, source: MetricSource, start: int, end: int) -> None:
    """Create variants ``start`` to ``end``, 16 at a time."""
    gate = asyncio.Semaphore(16)
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        async with gate:
            await create_variant(cluster, source, number)
        done += 1
        if done % 100 == 0:
            print(f"   {start + done} variants created", file=sys.stderr, flush=True)

    await asyncio.gather(*(one(number) for number in range(start, end)))


async def api_calls() -> float:
    """Requests the API server has answered for anything but watches."""
    kubectl = ensure(["kubectl"], print)["kubectl"]
    process = await asyncio.create_subprocess_exec(
        str(kubectl), "get", "--raw", "/metrics", stdout=asyncio.subprocess.PIPE
    )
    text = (await process.communicate())[0].decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("apiserver_request_total{") and 'verb="WATCH"' not in line and "/metrics" not in line
    )


async def measure(prometheus_url: str, quiet: int = 3) -> dict[str, Any]:
    """In a process of its own: one first tick and several quiet ones."""
    settings = LoopSettings(
        prometheus_url=prometheus_url, fleet=FleetSettings(peak_window=30, controller_namespace=SPACE)
    )
    result: dict[str, Any] = {}
    async with Loop(settings) as loop, Cluster.connect(ClusterSettings()) as counter:
        timings: list[dict[str, float]] = []
        for number in range(1 + quiet):
            before, tick, begun, cpu = await api_calls(), Tick(number), time.perf_counter(), time.process_time()
            collected = await loop.collect(tick)
            at_decide = time.perf_counter()
            loop.decide(tick)
            at_actuate = time.perf_counter()
            actuated = await loop.actuate(tick)
            await loop.report(tick)
            end = time.perf_counter()
            timings.append(
                {
                    "seconds": end - begun,
                    "collect": at_decide - begun,
                    "decide": at_actuate - at_decide,
                    "write": end - at_actuate,
                    "cpu": time.process_time() - cpu,
                    "calls": await api_calls() - before,
                    "queries": collected["queries"],
                    "writes": actuated["statusWrites"],
                }
            )
        variants = len(tick.fleet.variants) if tick.fleet else 0
        result = {
            "variants": variants,
            "pods": collected["pods"],
            "reporting": collected["reportingPods"],
            "first": timings[0],
            "quiet": min(timings[1:], key=lambda t: t["seconds"]),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        begun = time.perf_counter()
        for variant in tick.fleet.variants if tick.fleet else ():
            await counter.get(VARIANTS, variant.key.name, SPACE)
            await counter.get(DEPLOYMENTS, variant.key.name, SPACE)
        result["reference"] = time.perf_counter() - begun
    return result


def run(sizes: list[int]) -> None:
    """Grow one fleet through the sizes and measure at each."""
    print(f"cpu: {os.cpu_count()} cores; {PODS_PER_VARIANT} pods per variant; seconds of wall time")
    with tempfile.TemporaryDirectory() as folder:
        source = MetricSource()
        server = PrometheusServer(Path(folder), free_port(), source.address, interval="5s")
        components = [Component.ETCD, Component.APISERVER]
        with LocalStack(
            StackSettings(components=components), name="bench", directory=Path(folder) / "cluster"
        ) as stack:
            asyncio.run(prepare(stack))
            os.environ["KUBECONFIG"] = str(stack.kubeconfig)
            server.start()
            results = []
            made = 0
            for size in sizes:
                asyncio.run(growth(stack, source, made, size))
                made = size
                source.frozen = source.render().encode()
                time.sleep(20)
                child = subprocess.run(
                    [sys.executable, __file__, "--measure", server.url], check=True, capture_output=True, text=True
                )
                found = json.loads(child.stdout.splitlines()[-1])
                results.append(found)
                show(found)
            server.kill()
        source.close()
    small, large = results[0], results[-1]
    if small is not large:
        factor = large["variants"] / small["variants"]
        grown = large["quiet"]["seconds"] / small["quiet"]["seconds"]
        print(
            f"growth of a quiet tick from {small['variants']} to {large['variants']} variants: {grown:.2f} times, "
            f"ratio to linear {grown / factor:.2f}"
        )


async def prepare(stack: LocalStack) -> None:
    await apply_crds(stack.kubeconfig)
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": SPACE}})
        # Without a controller-manager nobody makes it, and no pod is admitted.
        await cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": SPACE}}, SPACE)


async def growth(stack: LocalStack, source: MetricSource, start: int, end: int) -> None:
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        await grow(cluster, source, start, end)


def show(found: dict[str, Any]) -> None:
    """One size's figures."""
    first, quiet, n = found["first"], found["quiet"], found["variants"]
    print(f"{n} variants, {found['pods']} pods, {found['reporting']} reporting:")
    for name, t in (("first", first), ("quiet", quiet)):
        print(
            f"  {name} tick {t['seconds']:6.2f} s (collect {t['collect']:.2f}, decide {t['decide']:.2f}, write "
            f"{t['write']:.2f}; CPU {t['cpu']:.2f}); {t['queries']:.0f} PromQL queries; "
            f"{t['calls']:.0f} API calls = {t['calls'] / n:.3f} per variant; {t['writes']:.0f} status writes"
        )
    print(
        f"  peak memory {found['peak_mib']:.0f} MiB; reference (a GET per object) {found['reference']:.2f} s: "
        f"the quiet tick is {found['reference'] / quiet['seconds']:.2f} times as fast"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="100,1000")
    options.add_argument("--measure", metavar="PROMETHEUS_URL", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(measure(given.measure))))
    else:
        if not re.fullmatch(r"\d+(,\d+)*", given.sizes):
            options.error("--sizes: numbers separated by commas, for example 100,1000")
        run([int(size) for size in given.sizes.split(",")])
