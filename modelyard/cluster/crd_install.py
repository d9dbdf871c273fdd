"""Install CustomResourceDefinitions and wait until they are served.

Created or replaced rather than applied: API servers before CEL rules drop the schema parts they do not know on a plain
write, but refuse them in a server-side apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from modelyard.cluster.client import Cluster
from modelyard.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from modelyard.cluster.objects import Object
from modelyard.objects.kinds import CRDS

ESTABLISHED_TIMEOUT = 60.0
_ATTEMPTS = 5


async def install_crds(cluster: Cluster, manifests: Iterable[Object]) -> list[str]:
    """Make the cluster serve these definitions; their names.

    Raises ``ClusterError`` when one is refused, or not established within a minute (with the server's reason).
    """
    names = [await _put(cluster, manifest) for manifest in manifests]
    for name in names:
        await _established(cluster, name)
    return names


async def _put(cluster: Cluster, manifest: Object) -> str:
    name: str = manifest["metadata"]["name"]
    for attempt in range(_ATTEMPTS):
        try:
            current = await cluster.get(CRDS, name)
        except NotFound:
            try:
                await cluster.create(CRDS, manifest)
            except AlreadyExists:
                continue
            return name
        metadata = {
            **{key: current["metadata"][key] for key in ("labels", "annotations") if key in current["metadata"]},
            **manifest["metadata"],
            "resourceVersion": current["metadata"]["resourceVersion"],
        }
        try:
            await cluster.replace(CRDS, {**manifest, "metadata": metadata})
        except Conflict:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        return name
    raise ClusterError(f"CustomResourceDefinition {name} appears and vanishes; is somebody else installing it?")


async def _established(cluster: Cluster, name: str) -> None:
    refusal = "no condition yet"
    try:
        async with asyncio.timeout(ESTABLISHED_TIMEOUT):
            while True:
                found = await cluster.get(CRDS, name)
                for condition in (found.get("status") or {}).get("conditions") or ():
                    if condition["type"] == "Established" and condition["status"] == "True":
                        return
                    if condition["status"] == "False":
                        refusal = f"{condition['type']}: {condition.get('message') or condition.get('reason')}"
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise ClusterError(f"CustomResourceDefinition {name} is not established: {refusal}") from None
