"""Creates the objects of a large fleet: what is scaled, its workloads and their ready pods. Used by ``tick.py``.

Ten pods to an object. A mixed fleet has, of every twenty objects, ten VariantAutoscalings in saturation form, six in
SLO form (two to a model), three AutoscalingPolicyBindings in scaling mode and one in optimizer mode with two targets.
Loads are chosen so that every object is content with its replicas: a tick in which nothing changes can be measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleet_fixture import ready_status

from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.cluster import Cluster
from modelyard.objects.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    ResourceType,
)
from tick_fleet.engines import Engine, pod_address

SPACE = "fleet"
PODS_PER_OBJECT = 10
HASH = "5d8c7b9f4"
POLICY = "queue"
QUEUE_PER_REPLICA = 10.0
PROFILES = {
    "H100": {"decodeParms": {"alpha": "7.5", "beta": "0.05"}, "prefillParms": {"gamma": "12", "delta": "0.002"}},
    "L40S": {"decodeParms": {"alpha": "19", "beta": "0.18"}, "prefillParms": {"gamma": "40", "delta": "0.006"}},
}
LATENCIES = {"H100": (0.02135, 0.00796), "L40S": (0.1178, 0.02356)}
"""Seconds of TTFT and ITL that these profiles predict at the load there is: nothing to learn from."""
CLASSES = ("premium.yaml", "standard.yaml")


@dataclass(frozen=True, slots=True)
class Planned:
    """One object of a fleet: its form, its workloads with the pods of each, and the engines' state."""

    number: int
    form: str
    """saturation, slo, scaling or optimizer"""
    model: str
    accelerator: str
    engine: Engine

    @property
    def name(self) -> str:
        return f"{self.form[:2]}{self.number:05d}"

    @property
    def kind(self) -> ResourceType:
        return BINDINGS if self.form in ("scaling", "optimizer") else VARIANTS

    @property
    def workloads(self) -> dict[str, int]:
        """Pods by name of the Deployment."""
        if self.form == "optimizer":
            return {f"{self.name}-{part}": PODS_PER_OBJECT // 2 for part in "ab"}
        return {self.name: PODS_PER_OBJECT}

    def pods(self) -> Iterator[tuple[str, str, str]]:
        """(workload, pod, address) of each."""
        index = 0
        for workload, count in self.workloads.items():
            for number in range(count):
                yield workload, f"{workload}-{HASH}-{number:05d}", pod_address(self.number * PODS_PER_OBJECT + index)
                index += 1


def planned(fleet: str, start: int, end: int) -> list[Planned]:
    """Objects ``start`` to ``end`` of a fleet, ``saturation`` or ``mixed``."""
    found = []
    for number in range(start, end):
        form = "saturation"
        if fleet == "mixed" and (place := number % 20) >= 10:
            form = "slo" if place < 16 else "scaling" if place < 19 else "optimizer"
        model = f"model-{number // 2:05d}" if form in ("saturation", "slo") else f"model-of-{number:05d}"
        accelerator = "H100" if number % 2 else "L40S"
        engine = Engine(waiting=QUEUE_PER_REPLICA)
        if form == "saturation":
            # Just enough for ten replicas: what can be spared would be taken.
            engine = Engine(kv=0.68)
        if form == "slo":
            ttft, itl = LATENCIES[accelerator]
            engine = Engine(kv=0.68, per_second=4.0, ttft=ttft, itl=itl)
        found.append(Planned(number, form, model, accelerator, engine))
    return found


async def prepare(cluster: Cluster, last: int) -> None:
    """Namespace, configuration and policy. ``last``: the largest number of objects there will be."""
    await cluster.create(NAMESPACES, {"metadata": {"name": SPACE}})
    # Without a controller-manager nobody makes it, and no pod is admitted.
    await cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": SPACE}}, SPACE)
    models = sorted({one.model for one in planned("mixed", 0, last) if one.form == "slo"})
    classes = {}
    for place, key in enumerate(CLASSES):
        rows = "".join(
            f"- {{model: {m}, slo-tpot: 30, slo-ttft: 500}}\n" for m in models if int(m[6:]) % len(CLASSES) == place
        )
        classes[key] = f"name: {key.partition('.')[0]}\npriority: {1 + 9 * place}\ndata:\n{rows}"
    maps = {
        "service-classes-config": classes,
        "accelerator-unit-costs": {"H100": '{"cost": "100"}', "L40S": '{"cost": "32"}'},
    }
    for name, data in maps.items():
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": SPACE}, "data": data}, SPACE)
    metrics = [{"metricName": "vllm:num_requests_waiting", "targetValue": str(QUEUE_PER_REPLICA)}]
    body = {"metadata": {"name": POLICY, "namespace": SPACE}, "spec": {"metrics": metrics}}
    await cluster.create(POLICIES, body, SPACE)


async def grow(cluster: Cluster, objects: list[Planned], metrics_port: int) -> None:
    """Create these objects, 16 at a time."""
    gate = asyncio.Semaphore(16)
    done = 0

    async def one(planned: Planned) -> None:
        nonlocal done
        async with gate:
            await _create(cluster, planned, metrics_port)
        done += 1
        if done % 100 == 0:
            print(f"   {done} of {len(objects)} objects created", file=sys.stderr, flush=True)

    await asyncio.gather(*(one(planned) for planned in objects))


async def _create(cluster: Cluster, planned: Planned, metrics_port: int) -> None:
    owners: dict[str, list[dict[str, Any]]] = {}
    for workload, replicas in planned.workloads.items():
        owners[workload] = await _workload(cluster, workload, replicas)
    since = time.time() - 3600
    for workload, pod, address in planned.pods():
        labels = {"app": workload, "pod-template-hash": HASH}
        body = {"metadata": {"name": pod, "namespace": SPACE, "labels": labels, "ownerReferences": owners[workload]}}
        await cluster.create(PODS, {**body, "spec": _pod_spec()}, SPACE)
        await cluster.merge_patch(PODS, pod, ready_status(since, address), SPACE, subresource="status")
    metadata: dict[str, Any] = {"name": planned.name, "namespace": SPACE}
    if planned.form == "saturation":
        metadata["labels"] = {"inference.optimization/acceleratorName": planned.accelerator}
    if planned.form == "slo":
        metadata["annotations"] = {"modelyard.dev/min-replicas": str(PODS_PER_OBJECT)}
    kind = planned.kind
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    await cluster.create(kind, {**body, "spec": _spec(planned, metrics_port)}, SPACE)


def _spec(planned: Planned, metrics_port: int) -> dict[str, Any]:
    if planned.form == "saturation":
        return {
            "scaleTargetRef": _reference(planned.name),
            "modelID": planned.model,
            "variantCost": "10" if planned.accelerator == "H100" else "4",
        }
    if planned.form == "slo":
        return {
            "modelID": planned.model,
            "variantID": f"{planned.model}-{planned.accelerator}-1",
            "accelerator": planned.accelerator,
            "acceleratorCount": 1,
            "sloClassRef": {
                "name": "service-classes-config",
                "key": CLASSES[int(planned.model[6:]) % len(CLASSES)],
            },
            "variantProfile": {"maxBatchSize": 96, "perfParms": PROFILES[planned.accelerator]},
        }

    def target(workload: str) -> dict[str, Any]:
        return {"targetRef": _reference(workload), "metricEndpoint": {"uri": "/metrics", "port": metrics_port}}

    if planned.form == "scaling":
        bounds = {"minReplicas": 1, "maxReplicas": 2 * PODS_PER_OBJECT}
        return {"policyRef": {"name": POLICY}, "scalingConfiguration": {"target": target(planned.name), **bounds}}
    bounds = {"minReplicas": PODS_PER_OBJECT // 2, "maxReplicas": PODS_PER_OBJECT}
    params = [{"target": target(w), "cost": 10 * n, **bounds} for n, w in enumerate(planned.workloads, start=1)]
    return {"policyRef": {"name": POLICY}, "optimizerConfiguration": {"params": params}}


def _reference(workload: str) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload}


def _pod_spec() -> dict[str, Any]:
    container = {
        "name": "engine",
        "image": "example.invalid/engine:1",
        "args": ["--model", "/models/llama", "--max-num-seqs", "256", "--gpu-memory-utilization", "0.9"],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"containers": [container], "automountServiceAccountToken": False}


async def _workload(cluster: Cluster, name: str, replicas: int) -> list[dict[str, Any]]:
    """A Deployment with its ReplicaSet; the owner reference of its pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec()}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    made = await cluster.create(DEPLOYMENTS, {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}, SPACE)
    counts = {"status": {"replicas": replicas, "readyReplicas": replicas}}
    await cluster.merge_patch(DEPLOYMENTS, name, counts, SPACE, subresource="status")
    metadata = {"name": f"{name}-{HASH}", "namespace": SPACE, "ownerReferences": [_owner("Deployment", made)]}
    replica_set = await cluster.create(REPLICA_SETS, {"metadata": metadata, "spec": spec}, SPACE)
    return [_owner("ReplicaSet", replica_set)]


def _owner(kind: str, stored: dict[str, Any]) -> dict[str, Any]:
    metadata = stored["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
