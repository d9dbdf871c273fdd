"""What the tests on the whole local cluster share: containers to run, and waiting for what becomes of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from modelyard.cluster import Cluster, Object
from modelyard.local.processes import ProcessIdentity
from modelyard.objects.kinds import DEPLOYMENTS, PODS

ENGINE = "modelyard.dev/simulated-engine:test"


class Namespace:
    """One namespace of the local cluster, and waiting for what happens in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    async def pods(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in await self.cluster.list(PODS, self.name)}

    async def until(self, wanted: Callable[[dict[str, Object]], Any], timeout: float = 120) -> dict[str, Object]:
        """Follow the pods until `wanted` holds of them, by name; returns them."""
        known: dict[str, Object] = {}
        try:
            async with asyncio.timeout(timeout), aclosing(self.cluster.watch(PODS, self.name)) as events:
                synced = False
                async for event in events:
                    if event.kind == "SYNC":
                        synced = True
                    elif event.kind == "DELETED":
                        known.pop(event.object["metadata"]["name"], None)
                    else:
                        known[event.object["metadata"]["name"]] = event.object
                    if synced and wanted(known):
                        return known
        except TimeoutError:
            seen = {name: pod.get("status") for name, pod in known.items()}
            raise AssertionError(f"not within {timeout:g} s; the pods were {seen}") from None
        raise AssertionError("the watch ended")

    async def deleted(self, name: str) -> AsyncIterator[Object]:
        """Delete a pod, and follow it until it is gone: all that it is from just before."""
        async with asyncio.timeout(120), aclosing(self.cluster.watch(PODS, self.name)) as events:
            async for event in events:
                if event.kind == "SYNC":
                    await self.cluster.delete(PODS, name, self.name)
                elif event.object["metadata"]["name"] != name:
                    continue
                elif event.kind == "DELETED":
                    break
                else:
                    yield event.object

    async def run(self, name: str, containers: list[Object], **spec: Any) -> Object:
        """Create a pod."""
        body = {
            "metadata": {"name": name, "namespace": self.name},
            "spec": {"containers": containers, "terminationGracePeriodSeconds": 5, **spec},
        }
        return await self.cluster.create(PODS, body)

    async def deploy(self, name: str, container: Object, replicas: int, **spec: Any) -> None:
        """Create a Deployment of one container."""
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 5, **spec},
        }
        body = {
            "metadata": {"name": name, "namespace": self.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
        await self.cluster.create(DEPLOYMENTS, body)


def condition(thing: Object, kind: str) -> str | None:
    """Status of a condition of a pod or Node."""
    return next((c["status"] for c in thing.get("status", {}).get("conditions", []) if c["type"] == kind), None)


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready") == "True"


def process_of(pod: Object) -> ProcessIdentity:
    """The process of a pod's only container."""
    found = ProcessIdentity.of(int(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]))
    assert found is not None
    return found


def engine(*arguments: str, gpus: int = 1) -> Object:
    """A container of the simulated engine."""
    return {
        "name": "engine",
        "image": ENGINE,
        "args": ["--model", "test/model", *arguments],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}},
    }


def shell(script: str, name: str = "main", **fields: Any) -> Object:
    """A container that runs a shell script."""
    return {"name": name, "image": "modelyard.dev/shell", "command": ["sh", "-c", script], **fields}
