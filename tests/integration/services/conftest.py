"""Services on the whole local cluster: nodes run the simulated engine, the shift makes and mends what it takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process_runs import Shift

from modelyard.cluster import Cluster, NotFound, Object
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.lifecycle import ModelDelivery
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS, KINDS
from modelyard.objects import ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, SERVICES
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.roll_out.lifecycle import ServiceRollOut
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, MODELS, RUNTIMES

HPA = ResourceType("autoscaling", "v2beta2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True)
PDB = ResourceType("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets", True)
SIMULATED = Path(__file__).parents[3] / "config" / "runtimes" / "local" / "simulated.yaml"
NAME = "served-llama"
MODEL = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
    "modelParameterSize": "8B",
    "storage": {"storageUri": "vendor://acme/model/llama", "nodeSelector": {"kubernetes.io/hostname": "a100-0"}},
}
"""Of a model that the nodes have without anything being fetched."""


def conditions(obj: Object) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message by type."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in found}


def is_ready(obj: Object) -> bool:
    """It answers, and what answers is what was asked for last."""
    said = conditions(obj)
    current = (obj.get("status") or {}).get("observedGeneration") == obj["metadata"]["generation"]
    return current and all(said.get(one, ("",))[0] == "True" for one in ("Ready", "LatestDeploymentReady"))


def is_up(pod: Object) -> bool:
    """A pod is ready, and not on its way out."""
    found = pod["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in found)
    return ready and "deletionTimestamp" not in pod["metadata"]


class Services:
    """Services of one namespace, ``space``, and the shift that rolls them out."""

    kind = INFERENCE_SERVICES
    label = "ome.io/inferenceservice"
    made: tuple[ResourceType, ...] = (CONFIG_MAPS, DEPLOYMENTS, SERVICES, PODS, HPA, PDB)

    def __init__(self, cluster: Cluster, stack: LocalStack, shift: Shift, space: str) -> None:
        self.cluster, self.stack, self.shift, self.space = cluster, stack, shift, space

    async def make(self, name: str, engine: dict[str, Any] | None = None, **more: Any) -> Object:
        """A service with the model ``NAME``; ``more`` is of its spec, ``annotations`` and ``space`` are its own."""
        space, annotations = more.pop("space", self.space), more.pop("annotations", {})
        spec = {"model": {"name": NAME}, "engine": engine or {}, **more}
        metadata = {"name": name, "namespace": space, "annotations": annotations}
        return await self.cluster.create(INFERENCE_SERVICES, {"metadata": metadata, "spec": spec})

    async def get(self, name: str, space: str = "") -> Object:
        return await self.cluster.get(self.kind, name, space or self.space)

    async def patch(self, name: str, patch: dict[str, Any]) -> Object:
        return await self.cluster.merge_patch(self.kind, name, patch, self.space)

    async def until(self, holds: Callable[[Object], Any], name: str, space: str = "", timeout: float = 120) -> Object:
        """Wait until it holds of the service; the service."""
        obj: Object = {}
        try:
            async with asyncio.timeout(timeout):
                while not holds(obj := await self.get(name, space)):
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{name}: not within {timeout:g} s; its status is {obj.get('status')}") from None
        return obj

    async def until_reason(self, name: str, kind: str, reason: str, space: str = "") -> str:
        """Wait until a condition has this reason; its message."""

        def has_it(obj: Object) -> bool:
            return conditions(obj).get(kind, ("", ""))[1] == reason

        return conditions(await self.until(has_it, name, space))[kind][2]

    async def children(self, name: str) -> list[str]:
        """What is there for a service, by kind and name."""
        selector = f"{self.label}={name}"
        found = [
            f"{kind.kind} {one['metadata']['name']}"
            for kind in self.made
            for one in await self.cluster.list(kind, self.space, label_selector=selector)
        ]
        return sorted(found)

    async def settled(self, expected: Callable[[], Any], timeout: float = 120) -> None:
        """Wait until this (a coroutine function) gives something true."""
        async with asyncio.timeout(timeout):
            while not await expected():
                await asyncio.sleep(0.2)


async def forget(cluster: Cluster, kind: ResourceType, name: str, space: str | None = None) -> None:
    """Delete a model at once: to one that is being deleted nobody can add a finalizer any more."""
    await cluster.delete(kind, name, space)
    with suppress(NotFound):
        await cluster.merge_patch(kind, name, {"metadata": {"finalizers": None}}, space)


@pytest.fixture(scope="module")
async def home(local_cluster: Cluster) -> AsyncIterator[str]:
    """The controller's namespace, with the model and the runtime that all services use."""
    name = f"modelyard-{uuid.uuid4().hex[:6]}"
    await local_cluster.create(NAMESPACES, {"metadata": {"name": name}})
    await local_cluster.create(CLUSTER_BASE_MODELS, {"metadata": {"name": NAME}, "spec": MODEL})
    await local_cluster.apply(yaml.safe_load(SIMULATED.read_text(encoding="utf-8")))
    yield name
    await local_cluster.delete(RUNTIMES[1], "simulated")
    await forget(local_cluster, CLUSTER_BASE_MODELS, NAME)
    await local_cluster.delete(NAMESPACES, name)


@pytest.fixture
async def services(
    local_stack: LocalStack, local_cluster: Cluster, home: str, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Services]:
    """The shift is running; what a test makes is deleted after it."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    registered = [Registered(ModelDelivery(kind, home), Acting("deliver/deliver")) for kind in KINDS]
    rolled_out = (ServiceRollOut(home), ModelRollOut(home))
    registered += [Registered(one, Acting("roll-out/roll-out", batch=20)) for one in rolled_out]
    async with Shift(registered, home) as shift:
        yield Services(local_cluster, local_stack, shift, local_namespace)
        for kind in (INFERENCE_SERVICES, MODELS):
            for one in await local_cluster.list(kind, local_namespace):
                await local_cluster.delete(kind, one["metadata"]["name"], local_namespace)
