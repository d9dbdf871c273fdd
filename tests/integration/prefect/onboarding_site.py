"""Places to onboard models to, on nodes that run their pods: runtimes, the shift, and a worker for all runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import model_hub
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect_support import until

from deployments import queues
from deployments.demo.sources import small_model
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker
from flows.benchmark import benchmark
from flows.deliver import deliver
from flows.forms import arguments
from flows.onboard import onboard
from flows.parameters import OnboardParameters
from flows.reconcile import reconcile
from flows.roll_out import roll_out
from modelyard.cluster import Cluster
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

POOL = "onboarding"
SPEEDS = {"h100": ("NVIDIA-H100-SXM5-80GB", 10, 0.5, 5, 0.05), "l40s": ("NVIDIA-L40S-48GB", 25, 1, 15, 0.2)}
"""Product, and alpha, beta, gamma and delta of the simulated engine on it."""
LABEL = "test.modelyard.dev/onboarded"
MODEL = small_model("llama", "LlamaForCausalLM", 1)


def runtime(name: str, space: str) -> dict[str, Any]:
    """A runtime of the namespace, whose engine runs on one kind of node."""
    product, *speed = SPEEDS[name]
    options = [f"--{option}={value}" for option, value in zip(("alpha", "beta", "gamma", "delta"), speed, strict=True)]
    runner = {
        "name": "engine",
        "image": "modelyard.dev/simulated-engine:test",
        "args": ["--model=$(MODEL_PATH)", "--served-model-name={{.Name}}", "--port=8080", *options],
        "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1},
    }
    supported = {
        "modelFormat": {"name": "safetensors", "version": "1.0.0"},
        "modelFramework": {"name": "transformers", "version": "4.43.0"},
        "modelArchitecture": "LlamaForCausalLM",
        "autoSelect": True,
    }
    engine = {"nodeSelector": {"nvidia.com/gpu.product": product}, "runner": runner}
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "ServingRuntime",
        "metadata": {"name": name, "namespace": space},
        "spec": {"protocolVersions": ["openAI"], "supportedModelFormats": [supported], "engineConfig": engine},
    }


@dataclass
class Site:
    """A namespace with a runtime for each kind of node, a hub with models, and the runs of onboardings there."""

    cluster: Cluster
    client: PrefectClient
    space: str
    home: str
    hub: model_hub.Hub
    deployment: UUID
    released: threading.Event = field(default_factory=threading.Event)

    def request(self, name: str, **other: Any) -> dict[str, Any]:
        """The parameters of an onboarding of the model ``meta/NAME``: one candidate, few requests."""
        return {
            "uri": f"hf://meta/{name}",
            "name": name,
            "namespace": self.space,
            "node_selector": {LABEL: self.space},
            "controller_namespace": self.home,
            "ttft": 3000,
            "itl": 400,
            "rate": 2,
            "prompt_tokens": 20,
            "output_tokens": 10,
            "prices": {"L40S": 1},
            "results": "pvc://results/onboarding",
            "levels": [1, 4],
            "minutes": 1,
            "requests": 5,
            "check_seconds": 0,
            **other,
        }

    def hold(self) -> None:
        """Slow transfers from the hub down to 16 KiB a second until ``released`` is set."""
        self.released.clear()

        def hear(_: int) -> None:
            self.released.wait(1)

        self.hub.hear = hear

    async def onboard(self, name: str, **other: Any) -> UUID:
        """Start an onboarding, as a pipeline does; return its flow run."""
        parameters = arguments(OnboardParameters.model_validate(self.request(name, **other)))
        return (await self.client.create_flow_run_from_deployment(self.deployment, parameters=parameters)).id

    async def children(self, parent: UUID) -> dict[str, FlowRun]:
        """Return the flow runs that are linked to an onboarding, by their objects, as ``KIND NAMESPACE/NAME``."""
        chosen = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
        runs = await self.client.read_flow_runs(flow_run_filter=chosen)
        named = {"{} {}/{}".format(*str(run.idempotency_key).split("/")): run for run in runs}
        assert len(named) == len(runs), "one child for each object"
        return named

    async def task_runs(self, parent: UUID) -> list[TaskRun]:
        chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[parent]))
        return await self.client.read_task_runs(task_run_filter=chosen)

    async def state(self, run: UUID) -> State[Any]:
        state = (await self.client.read_flow_run(run)).state
        assert state is not None
        return state

    async def ended(self, run: UUID, timeout: float = 400) -> State[Any]:
        """Wait for the end of a flow run."""

        async def final() -> State[Any] | None:
            state = await self.state(run)
            return state if state.is_final() else None

        return await until(final, "the flow run ends", timeout)  # type: ignore[no-any-return]

    async def running_child(self, parent: UUID, kind: str = "BaseModel", starts: int = 1) -> FlowRun:
        """Wait for a child of an onboarding that has been started so often and has a process."""

        async def first() -> FlowRun | None:
            runs = [run for name, run in (await self.children(parent)).items() if name.startswith(kind)]
            is_running = [run for run in runs if run.state_type is StateType.RUNNING and run.run_count >= starts]
            return is_running[0] if is_running and processes(is_running[0].id) else None

        return await until(first, f"a run for a {kind} is under way", 240)  # type: ignore[no-any-return]

    async def retry(self, run: UUID) -> None:
        """Retry a flow run as the button of Prefect's UI does."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        answer = await self.client.request(
            "POST", "/flow_runs/{id}/set_state", path_params={"id": run}, json={"state": state, "force": False}
        )
        assert answer.json()["status"] == "ACCEPT", answer.json()

    async def cancel(self, run: UUID) -> None:
        """Cancel a flow run as the button of Prefect's UI does."""
        await self.client.set_flow_run_state(run, State(type=StateType.CANCELLING))


def processes(run: UUID) -> list[int]:
    """Return the processes of a flow run."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"PREFECT__FLOW_RUN_ID={run}".encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def kill(run: UUID, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the processes of a flow run."""
    pids = processes(run)
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@asynccontextmanager
async def onboarding_worker(
    client: PrefectClient, api_url: str, kubeconfig: Path, folder: Path, limits: dict[str, int]
) -> AsyncIterator[UUID]:
    """A worker for onboardings and their children, with these limits of its queues; the deployment ``onboard``."""
    await create_work_pool(client, POOL)
    await queues.apply(client, POOL)
    for queue in await client.read_work_queues(work_pool_name=POOL):
        if queue.name in limits:
            limit, priority = limits[queue.name], queue.priority
            await client.update_work_queue(queue.id, concurrency_limit=limit, priority=priority, is_paused=False)
    flows = {"flows.deliver": deliver, "flows.roll_out": roll_out, "flows.benchmark": benchmark}
    for module, flow in flows.items():
        await client.create_deployment(
            flow_id=await client.create_flow(flow),
            name=flow.name,
            entrypoint=f"{module}.{flow.fn.__name__}",
            work_pool_name=POOL,
        )
    deployment = await client.create_deployment(
        flow_id=await client.create_flow(onboard),
        name="onboard",
        entrypoint="flows.onboard.onboard",
        work_pool_name=POOL,
        work_queue_name="parents",
    )
    extra = {"PREFECT_WORKER_QUERY_SECONDS": "0.5", "KUBECONFIG": str(kubeconfig)}
    async with PrefectWorker(api_url, folder, pool=POOL, extra=extra):
        yield deployment


@contextmanager
def serving_hub() -> Iterator[model_hub.Hub]:
    """A hub with a model that has everything to be served."""
    with model_hub.serve() as hub:
        hub.add("meta/chat", MODEL)
        yield hub


@asynccontextmanager
async def onboarding_site(
    cluster: Cluster, client: PrefectClient, space: str, deployment: UUID, hub: model_hub.Hub
) -> AsyncIterator[Site]:
    """A namespace with runtimes, and the shift that serves it."""
    home = f"{space}-home"
    await cluster.create(NAMESPACES, {"metadata": {"name": home}})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    for name in SPEEDS:
        await cluster.apply(runtime(name, space))
        await cluster.merge_patch(NODES, f"{name}-0", {"metadata": {"labels": {LABEL: space}}})
    settings = {KEY: json.dumps({"hubEndpoint": hub.address, "cpu": "100m"})}
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": settings}, home)
    shift = asyncio.ensure_future(
        reconcile(
            interval_seconds=0.5,
            shift_seconds=1500,
            early_end_seconds=0.1,
            lease_namespace=home,
            namespaces=[space],
            return_state=True,
        )
    )
    site = Site(cluster, client, space, home, hub, deployment)
    try:
        yield site
        for kind in (INFERENCE_SERVICES, BASE_MODELS):
            for obj in await cluster.list(kind, space):
                await cluster.delete(kind, obj["metadata"]["name"], space)

        async def gone() -> bool:
            return not (await cluster.list(BASE_MODELS, space)).items

        await until(gone, "the models are gone")
    finally:
        site.released.set()
        hub.hear = lambda _: None
        shift.cancel()
        with suppress(asyncio.CancelledError):
            await shift
        for name in SPEEDS:
            await cluster.merge_patch(NODES, f"{name}-0", {"metadata": {"labels": {LABEL: None}}})
        await cluster.delete(NAMESPACES, home)
