"""The Nodes of the local cluster, registered with their GPUs and kept alive by leases; loopback addresses for all.

Linux answers on all of 127.0.0.0/8, so every pod can have an address of its own that real clients reach, and many pods
can listen on one port. The price: Kubernetes accepts no loopback address in Endpoints, so nobody makes them here; the
agent itself knows which pods are behind a Service (`modelyard.local.agent.services`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import platform
from contextlib import suppress
from datetime import UTC, datetime

from modelyard import __version__
from modelyard.cluster import AlreadyExists, Cluster, ClusterError, NotFound, Object
from modelyard.local.agent.status import timestamp
from modelyard.local.paths import LocalClusterError
from modelyard.local.settings import NodeGroup
from modelyard.local.state import now
from modelyard.objects import LEASES, NODES

logger = logging.getLogger(__name__)

LOCAL_NODE = "modelyard.dev/local-node"
LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Addresses:
    """Pod addresses of one prefix: `127.20` gives 127.20.1.1 to 127.20.127.254. A freed one is reused last."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._taken: set[str] = set()
        self._next = itertools.cycle(
            f"{prefix}.{third}.{fourth}" for third in range(1, 128) for fourth in range(1, 255)
        )

    def node(self, index: int) -> str:
        """Address of the Node with this index, counted from 0."""
        if not 0 <= index < 254:
            raise LocalClusterError(f"node number {index}: a local cluster has at most 254 nodes")
        return f"{self._prefix}.0.{index + 1}"

    def take(self) -> str:
        """A free pod address. Raises `LocalClusterError`: all 32,258 are in use."""
        for _ in range(127 * 254):
            address = next(self._next)
            if address not in self._taken:
                self._taken.add(address)
                return address
        raise LocalClusterError(f"all pod addresses in {self._prefix}.0.0/17 are in use; delete pods")

    def claim(self, address: str) -> bool:
        """Take this very address; False when it is another's or not of this prefix."""
        if address in self._taken or not address.startswith(f"{self._prefix}."):
            return False
        self._taken.add(address)
        return True

    def free(self, address: str) -> None:
        self._taken.discard(address)


def node_manifest(group: NodeGroup, index: int) -> Object:
    """A Node object without status."""
    name = f"{group.name}-{index}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "modelyard.dev/node-group": group.name,
        LOCAL_NODE: "true",
    }
    if group.gpus:
        labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(group.gpus)}
        if group.product:
            labels["nvidia.com/gpu.product"] = group.product
        if group.gpu_memory_mib:
            labels["nvidia.com/gpu.memory"] = str(group.gpu_memory_mib)
    return {"metadata": {"name": name, "labels": {**labels, **group.labels}}}


def node_status(group: NodeGroup, index: int, address: str, port: int, previous: Object, moment: datetime) -> Object:
    """Status of a healthy Node; transition times are kept from `previous` while a condition's status is the same."""
    capacity = {"cpu": group.cpu, "memory": group.memory, "pods": str(group.pods), "ephemeral-storage": "1Ti"}
    if group.gpus:
        capacity["nvidia.com/gpu"] = str(group.gpus)
    old = {entry["type"]: entry for entry in previous.get("conditions") or []}

    def condition(kind: str, status: str, reason: str, message: str) -> Object:
        last = old.get(kind) or {}
        changed = last.get("lastTransitionTime") if last.get("status") == status else None
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": timestamp(moment),
            "lastTransitionTime": changed or timestamp(moment),
        }

    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": f"{group.name}-{index}"},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "the agent has sufficient memory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "the agent has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "the agent has sufficient process ids"),
            condition("Ready", "True", "KubeletReady", "the node agent is running"),
        ],
        "nodeInfo": {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "bootID": "",
            "containerRuntimeVersion": f"process://{__version__}",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": f"v{__version__}",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "Modelyard local cluster",
            "systemUUID": "",
        },
    }


class NodeKeeper:
    """Registers the Nodes and renews their leases."""

    def __init__(
        self, cluster: Cluster, groups: list[NodeGroup], addresses: dict[str, str], port: int, heartbeat: float
    ) -> None:
        """`addresses` are the Nodes' by name, `port` gives logs, `heartbeat` the seconds between lease renewals."""
        self._cluster = cluster
        self._port = port
        self._groups = {f"{group.name}-{index}": (group, index) for group in groups for index in range(group.count)}
        self._addresses = addresses
        self._heartbeat = heartbeat

    async def register(self) -> None:
        """Create or update every Node and its lease, and remove other Nodes of ours. Raises `ClusterError`."""
        for name in self._groups:
            await self._register(name)
            await self._renew(name)
        for node in await self._cluster.list(NODES, label_selector=f"{LOCAL_NODE}=true"):
            name = node["metadata"]["name"]
            if name not in self._groups:
                logger.info("removing node %s, which this configuration does not have", name)
                await self._cluster.delete(NODES, name)

    async def run(self) -> None:
        """Renew leases without end; a Node deleted by hand is registered anew, as after a kubelet's restart."""
        while True:
            await asyncio.sleep(self._heartbeat)
            for name in self._groups:
                try:
                    await self._renew(name)
                    await self._report(name)
                except ClusterError as error:
                    logger.warning("heartbeat of node %s failed: %s", name, error)

    async def _register(self, name: str) -> None:
        group, index = self._groups[name]
        manifest = node_manifest(group, index)
        with suppress(AlreadyExists):
            await self._cluster.create(NODES, manifest)
        await self._cluster.merge_patch(NODES, name, {"metadata": {"labels": manifest["metadata"]["labels"]}})
        await self._report(name)

    async def _report(self, name: str) -> None:
        group, index = self._groups[name]
        try:
            node = await self._cluster.get(NODES, name)
        except NotFound:
            await self._register(name)
            return
        previous = node.get("status") or {}
        status = node_status(group, index, self._addresses[name], self._port, previous, now())
        if _settled(previous, status):
            return
        await self._cluster.merge_patch(NODES, name, {"status": status}, subresource="status")

    async def _renew(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._cluster.merge_patch(LEASES, name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            body: Object = {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": spec}
            with suppress(AlreadyExists):
                await self._cluster.create(LEASES, body, LEASE_NAMESPACE)


def _settled(previous: Object, wanted: Object) -> bool:
    """Whether the Node says all this already, heartbeat times apart (the lease is the heartbeat)."""

    def timeless(status: Object) -> Object:
        keys = ("type", "status", "reason")
        conditions = sorted([entry.get(key) for key in keys] for entry in status.get("conditions") or [])
        lasting = ("capacity", "allocatable", "addresses", "daemonEndpoints")
        return {"conditions": conditions, **{key: status.get(key) for key in lasting}}

    return timeless(previous) == timeless(wanted)
