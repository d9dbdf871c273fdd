"""Models on the whole local cluster: its nodes run the Jobs, on folders that stand for their disks."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import model_hub
import pytest
from in_process_runs import Shift
from s3_server import object_store

from modelyard.cluster import Cluster, NotFound, Object, Unavailable
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.lifecycle import ModelDelivery
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS, KINDS
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects import ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES, NODES
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting

L40S = {"modelyard.dev/node-group": "l40s"}


def ready(status: dict[str, Any]) -> bool:
    """It is Ready on every node that is to have it."""
    return any(one["type"] == "AllNodesReady" and one["status"] == "True" for one in status.get("conditions") or ())


class Models:
    """Models, the nodes they go to, and the shift that delivers them. ``space`` is a tenant's namespace."""

    def __init__(self, cluster: Cluster, home: str, stack: LocalStack, shift: Shift) -> None:
        self.cluster = cluster
        self.home = home
        self.stack = stack
        self.shift = shift
        self.made: list[tuple[ResourceType, str, str]] = []

    async def make(
        self, name: str, uri: str, kind: ResourceType = CLUSTER_BASE_MODELS, namespace: str = "", **storage: Any
    ) -> Object:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        self.made.append((kind, name, namespace))
        return await self.cluster.create(
            kind, {"metadata": metadata, "spec": {"storage": {"storageUri": uri, **storage}}}
        )

    async def get(self, name: str, kind: ResourceType = CLUSTER_BASE_MODELS, namespace: str = "") -> Object:
        return await self.cluster.get(kind, name, namespace or None)

    async def until(
        self,
        holds: Callable[[Object], Any],
        name: str,
        kind: ResourceType = CLUSTER_BASE_MODELS,
        namespace: str = "",
        timeout: float = 150,
    ) -> Object:
        """Wait until it holds of the model, however long the API server is away meanwhile; the model."""
        obj: Object = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    with suppress(Unavailable):
                        obj = await self.get(name, kind, namespace)
                    if holds(obj.get("status") or {}):
                        return obj
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"not within {timeout:g} s; the status is {obj.get('status')}") from None

    async def filled(self, name: str, kind: ResourceType = CLUSTER_BASE_MODELS, namespace: str = "") -> Object:
        """Wait until the model is ready and its spec says what it is; the model."""
        await self.until(ready, name, kind, namespace)
        async with asyncio.timeout(120):
            while "modelType" not in (obj := await self.get(name, kind, namespace))["spec"]:
                await asyncio.sleep(0.2)
        return obj

    async def gone(self, name: str, kind: ResourceType = CLUSTER_BASE_MODELS, namespace: str = "") -> None:
        obj: Object = {}
        try:
            async with asyncio.timeout(150):
                while True:
                    obj = await self.get(name, kind, namespace)
                    await asyncio.sleep(0.2)
        except NotFound:
            return
        except TimeoutError:
            raise AssertionError(f"{name} is still there: {obj.get('status')}") from None

    async def reported(self, node: str, entry: str) -> dict[str, Any]:
        """Wait until a node's report says that a model is ready, which is after the status; what it says of it."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(120):
                while found.get("status") != "Ready":
                    data = (await self.cluster.get(CONFIG_MAPS, node, self.home))["data"]
                    found = json.loads(data.get(entry, "{}"))
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the report of {node} says {found} of {entry}") from None
        return found

    async def cleared(self, kind: ResourceType, prefix: str = "") -> None:
        """Wait until nothing of this kind and beginning is left at the controller: what a Job leaves goes after it."""
        left = [""]
        try:
            async with asyncio.timeout(120):
                while left:
                    found = [one["metadata"]["name"] for one in await self.cluster.list(kind, self.home)]
                    left = [name for name in found if name.startswith(prefix)]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{kind.plural} are left: {left}") from None

    def disk(self, node: str) -> Path:
        """The models root of a node."""
        return self.stack.paths.files / "nodes" / node / "mnt" / "models"

    async def labelled(self, key: str, expected: dict[str, str]) -> None:
        """Wait until these are the nodes with a label, and what it says: nodes are marked after the status is told."""
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(120):
                while True:
                    nodes = [node["metadata"] for node in await self.cluster.list(NODES)]
                    found = {node["name"]: node["labels"][key] for node in nodes if key in node["labels"]}
                    if found == expected:
                        return
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{key} is {found}, not {expected}") from None


@pytest.fixture(scope="session")
def hub() -> Iterator[model_hub.Hub]:
    """A model hub, which the settings of the controller's namespace name."""
    with model_hub.serve() as served:
        yield served


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """A client of an object store that speaks S3."""
    with object_store() as client:
        yield client


@pytest.fixture(scope="session")
async def home(local_cluster: Cluster, hub: model_hub.Hub, s3: Any) -> AsyncIterator[str]:
    """A controller's namespace with its settings."""
    name = f"modelyard-{uuid.uuid4().hex[:6]}"
    await local_cluster.create(NAMESPACES, {"metadata": {"name": name}})
    text = {
        "hubEndpoint": hub.address,
        "endpoints": [s3.meta.endpoint_url.removeprefix("http://")],
        "cpu": "100m",
        "memory": "128Mi",
    }
    body = {"metadata": {"name": CONFIG_MAP, "namespace": name}, "data": {KEY: json.dumps(text)}}
    await local_cluster.create(CONFIG_MAPS, body)
    yield name
    await local_cluster.delete(NAMESPACES, name)


@pytest.fixture
async def models(
    local_stack: LocalStack, local_cluster: Cluster, home: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Models]:
    """The shift is running; what a test makes is deleted after it."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    registered = [Registered(ModelDelivery(kind, home), Acting("deliver/deliver")) for kind in KINDS]
    async with Shift(registered, home) as shift:
        found = Models(local_cluster, home, local_stack, shift)
        yield found
        for kind, name, namespace in found.made:
            await local_cluster.delete(kind, name, namespace or None)
        for kind, name, namespace in found.made:
            await found.gone(name, kind, namespace)
    assert not [
        one
        for one in await local_cluster.list(CONFIG_MAPS, home)
        if one.get("data") and "models.ome/basemodel-status" in one["metadata"].get("labels", {})
    ]
