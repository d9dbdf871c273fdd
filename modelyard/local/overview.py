"""What runs in a local cluster: Nodes with their GPUs and pods with their processes; collected for `status`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime

from pydantic import BaseModel, Field

from modelyard.cluster import Cluster, ClusterError, ClusterSettings, Object
from modelyard.local.agent import REFUSED, RecordStore
from modelyard.local.processes import resident_bytes
from modelyard.local.stack import LocalStack
from modelyard.local.state import ComponentPhase, Phase, StackEvent
from modelyard.objects import NODES, PODS, condition, parse

_TIMEOUT = 5.0


class ComponentRow(BaseModel):
    """One component."""

    name: str
    phase: str
    pid: int | None
    restarts: int
    address: str
    version: str
    memory_bytes: int | None
    last_exit: str = ""
    message: str = ""
    log: str


class NodeRow(BaseModel):
    """One Node."""

    name: str
    ready: bool
    product: str
    gpus: int
    gpus_allocated: int


class PodRow(BaseModel):
    """One pod."""

    namespace: str
    name: str
    phase: str
    ready: str = Field(description="ready containers of all, e.g. 1/1")
    restarts: int
    node: str
    address: str
    gpus: int
    reason: str = Field(description="why it does not run, if it does not")
    log: str = Field(description="folder of its containers' output")


class Overview(BaseModel):
    """Everything `status` shows."""

    name: str
    directory: str
    phase: str
    message: str
    healthy: bool = Field(False, description="supervisor and all components run and are ready, and so are all Nodes")
    supervisor_pid: int | None = None
    started_at: datetime | None = None
    kubeconfig: str = ""
    prometheus_url: str = ""
    components: list[ComponentRow] = Field(default_factory=list)
    nodes: list[NodeRow] = Field(default_factory=list)
    pods: list[PodRow] = Field(default_factory=list)
    events: list[StackEvent] = Field(default_factory=list)
    services: list[str] = Field(default_factory=list, description="ports of Services that do not answer, and why")
    problem: str = Field("", description="why Nodes and pods could not be read")


def collect(stack: LocalStack) -> Overview:
    """Look at an instance. Never raises: what cannot be learnt is missing and `healthy` false."""
    state = stack.state
    running = stack.running
    if state is None:
        return Overview(
            name=stack.name,
            directory=str(stack.paths.root),
            phase="absent",
            message="never started, or removed by `down`",
        )
    alive = {name: own.process.pid for name, own in state.components.items() if own.process and own.process.alive()}
    components = [
        ComponentRow(
            name=name,
            phase=own.phase if running or own.process is None or name in alive else "gone",
            pid=alive.get(name),
            restarts=own.restarts,
            address=own.address,
            version=own.version,
            memory_bytes=resident_bytes(alive[name]) if name in alive else None,
            last_exit=own.last_exit,
            message=own.message,
            log=own.log,
        )
        for name, own in state.components.items()
    ]
    message = state.message
    if not running and state.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING):
        message = "the supervisor was killed: components are no longer restarted; run `modelyard local up` again"
    overview = Overview(
        name=stack.name,
        directory=str(stack.paths.root),
        phase=state.phase if running or not message else "unsupervised",
        message=message,
        supervisor_pid=state.supervisor.pid if running else None,
        started_at=state.started_at,
        kubeconfig=state.kubeconfig,
        prometheus_url=next((row.address for row in components if row.name == "prometheus"), ""),
        components=components,
        events=state.events,
    )
    with suppress(OSError):
        overview.services = (stack.paths.root / REFUSED).read_text("utf-8").splitlines()
    if any(row.name == "apiserver" and row.pid is not None for row in components):
        try:
            overview.nodes, overview.pods = asyncio.run(_read(stack))
        except (ClusterError, TimeoutError) as error:
            overview.problem = f"nodes and pods cannot be read: {error or 'no answer'}"
    overview.healthy = (
        running
        and state.phase is Phase.RUNNING
        and all(row.phase == ComponentPhase.READY and row.pid is not None for row in components)
        and not overview.problem
        and all(node.ready for node in overview.nodes)
    )
    return overview


async def _read(stack: LocalStack) -> tuple[list[NodeRow], list[PodRow]]:
    settings = ClusterSettings(kubeconfig=stack.kubeconfig, call_timeout=_TIMEOUT, list_timeout=_TIMEOUT, retry_steps=1)
    async with asyncio.timeout(2 * _TIMEOUT), Cluster.connect(settings) as cluster:
        nodes, pods = await asyncio.gather(cluster.list(NODES), cluster.list(PODS))
    logs = {
        record.uid: str(stack.paths.logs / "pods" / f"{record.namespace}_{record.name}_{record.uid}")
        for record in RecordStore(stack.paths.agent).all()
    }
    rows = [pod_row(pod, logs.get(pod["metadata"]["uid"], "")) for pod in pods]
    taken: dict[str, int] = {}
    for row in rows:
        if row.phase not in ("Succeeded", "Failed"):
            taken[row.node] = taken.get(row.node, 0) + row.gpus
    return [node_row(node, taken.get(node["metadata"]["name"], 0)) for node in nodes], rows


def node_row(node: Object, allocated: int) -> NodeRow:
    """A Node's line, with the GPUs that pods on it hold."""
    own = parse.node(node)
    return NodeRow(
        name=own.name,
        ready=own.ready,
        product=own.labels.get("nvidia.com/gpu.product", ""),
        gpus=own.gpus.get("nvidia.com/gpu", 0),
        gpus_allocated=allocated,
    )


def pod_row(pod: Object, log: str) -> PodRow:
    """A pod's line."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    return PodRow(
        namespace=metadata["namespace"],
        name=metadata["name"],
        phase="Terminating" if metadata.get("deletionTimestamp") else status.get("phase", ""),
        ready=f"{sum(bool(c.get('ready')) for c in containers)}/{len(spec['containers'])}",
        restarts=sum(int(c.get("restartCount", 0)) for c in containers),
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        gpus=parse.pod_gpus(spec),
        reason=_reason(status),
        log=log,
    )


def _reason(status: Object) -> str:
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return ": ".join(str(part) for part in (waiting.get("reason"), waiting.get("message")) if part)
    scheduled = condition(status, "PodScheduled")
    return str(scheduled.get("message") or scheduled.get("reason") or "") if scheduled.get("status") == "False" else ""
