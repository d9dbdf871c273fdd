"""The flow ``deliver`` on a real Prefect server and on nodes that run its Jobs: by hand, and started by reconcile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import model_hub
import pytest
from killed_steps import assert_repeating_changes_nothing, run_and_kill
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import State
from prefect_support import until

from deployments.server import PrefectServer
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker
from flows.deliver import deliver, verify_models
from flows.reconcile import reconcile
from modelyard.cluster import Cluster, NotFound
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.models.delivery.world import VERIFY
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES
from modelyard.objects.parse import timestamp
from modelyard.reconcile.plans.plan import StepId

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOME = "workload-variant-autoscaler-system"
A100 = {"kubernetes.io/hostname": "a100-0"}
L40S = {"modelyard.dev/node-group": "l40s"}


@pytest.fixture(scope="module")
def hub() -> Iterator[model_hub.Hub]:
    with model_hub.serve() as served:
        served.add("meta/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x" * 5000})
        served.add("big/model", {"config.json": b"{}", "model.safetensors": b"x" * 2_000_000})
        yield served


@pytest.fixture(scope="module")
async def cluster(local_stack: LocalStack, local_cluster: Cluster, hub: model_hub.Hub) -> AsyncIterator[Cluster]:
    """The cluster with the controller's namespace and its settings."""
    await local_cluster.create(NAMESPACES, {"metadata": {"name": HOME}})
    text = json.dumps({"hubEndpoint": hub.address, "cpu": "100m", "memory": "128Mi"})
    await local_cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP, "namespace": HOME}, "data": {KEY: text}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
        yield local_cluster
    await local_cluster.delete(NAMESPACES, HOME)


async def run(**parameters: Any) -> State[Any]:
    state: State[Any] = await deliver(**parameters, return_state=True)
    return state


async def tasks(client: PrefectClient, state: State[Any]) -> dict[str, str]:
    """The task runs of a flow run, and how they ended."""
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[state.state_details.flow_run_id]))

    async def recorded() -> dict[str, str]:
        found = await client.read_task_runs(task_run_filter=chosen)
        ended = {one.name: one.state_name or "" for one in found if one.state and one.state.is_final()}
        return ended if len(ended) == len(found) and "report deliveries" in ended else {}

    return await until(recorded, "the task runs are on record")


async def test_a_uri_and_a_name_are_enough(cluster: Cluster, client: PrefectClient) -> None:
    state = await run(name="by-hand", uri="hf://meta/llama", node_selector=L40S)
    assert state.name == "Completed", state.message
    assert "2 nodes" in (state.message or "")
    found = await tasks(client, state)
    assert {"claim by-hand", "fetch by-hand to l40s-0", "fetch by-hand to l40s-1"} <= found.keys()
    assert set(found.values()) == {"Completed"}
    run_name = (await client.read_flow_run(state.state_details.flow_run_id)).name  # type: ignore[arg-type]
    assert run_name == "deliver ClusterBaseModel by-hand"
    again = await run(name="by-hand")
    assert again.name == "Completed", again.message
    verified = await verify_models(names=["by-hand", "missing"], return_state=True)
    assert verified.message == "1 model checked"
    found = await tasks(client, verified)
    assert {"verify by-hand on l40s-0", "verify by-hand on l40s-1"} <= found.keys()
    assert set(found.values()) == {"Completed"}
    assert (await run(name="by-hand")).name == "Completed"


async def test_a_delivery_that_is_killed_in_a_step_and_retried_completes(
    cluster: Cluster, client: PrefectClient
) -> None:
    async def carried_out(killed: list[str], done: list[StepId], **more: Any) -> None:
        state = await run_and_kill(client, "deliver", killed, name="killed", **more)
        assert state.state is not None
        assert state.state.is_completed(), state.state.message
        assert state.run_count == len(killed) + 1
        lifecycle, key = "deliver-clusterbasemodels", Key("", "killed")
        await assert_repeating_changes_nothing(cluster, lifecycle, state, key, HOME, done, CLUSTER_BASE_MODELS)

    fetch = StepId("fetch", "a100-0")
    await carried_out(["fetch"], [fetch], uri="hf://meta/llama", node_selector=A100)
    mark = {"metadata": {"annotations": {VERIFY: timestamp(cluster.now() + 2)}}}
    await cluster.merge_patch(CLUSTER_BASE_MODELS, "killed", mark)
    await carried_out(["verify"], [fetch, StepId("verify", "a100-0")])
    moved = {"nodeSelector": {"kubernetes.io/hostname": "l40s-0"}}
    await cluster.merge_patch(CLUSTER_BASE_MODELS, "killed", {"spec": {"storage": moved}})
    await carried_out(["remove"], [StepId("remove", "a100-0"), StepId("fetch", "l40s-0")])
    status = (await cluster.get(CLUSTER_BASE_MODELS, "killed"))["status"]
    assert (status["state"], status["nodesReady"]) == ("Ready", ["l40s-0"])


async def test_a_failure_is_told_in_the_state(cluster: Cluster) -> None:
    state = await run(name="wrong", uri="hf://nobody/nothing", node_selector=A100)
    assert state.name == "Failed"
    assert "wrong is not ready: NotFound" in (state.message or "")
    nothing = await run(name="nowhere", uri="hf://meta/llama", node_selector={"no": "node"})
    assert nothing.name == "Failed"
    assert "NoMatchingNodes" in (nothing.message or "")
    missing = await run(name="never-made")
    assert missing.name == "Failed"
    assert "never-made" in (missing.message or "")


@pytest.fixture
async def worker(
    prefect_server: PrefectServer, local_stack: LocalStack, tmp_path: Path
) -> AsyncIterator[PrefectWorker]:
    """A worker with the deployment of the flow."""
    async with get_client() as client:
        await create_work_pool(client, "models")
        await client.create_deployment(
            flow_id=await client.create_flow(deliver),
            name="deliver",
            entrypoint="flows.deliver.deliver",
            work_pool_name="models",
        )
    extra = {"PREFECT_WORKER_QUERY_SECONDS": "0.5", "KUBECONFIG": str(local_stack.kubeconfig)}
    async with PrefectWorker(prefect_server.api_url, tmp_path, pool="models", extra=extra) as found:
        yield found


async def test_reconcile_starts_runs_and_one_that_is_killed_is_replaced(
    cluster: Cluster, client: PrefectClient, hub: model_hub.Hub, worker: PrefectWorker
) -> None:
    # Every piece of 16 KiB takes its time until the run is killed.
    dead = threading.Event()

    def hear(_: int) -> None:
        dead.wait(0.3)

    hub.hear = hear
    spec = {"storage": {"storageUri": "hf://big/model", "nodeSelector": A100}}
    await cluster.create(CLUSTER_BASE_MODELS, {"metadata": {"name": "big"}, "spec": spec})
    looking = reconcile(interval_seconds=0.5, shift_seconds=300, early_end_seconds=0.1, return_state=True)
    shift = asyncio.ensure_future(looking)
    try:

        async def active() -> bool:
            status = (await cluster.get(CLUSTER_BASE_MODELS, "big")).get("status") or {}
            return bool((status.get("delivery") or {}).get("active"))

        async def killed() -> bool:
            """A process that works on it was there, and is killed. Other tests have runs of their own."""
            chosen = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Running"])))
            running = await client.read_flow_runs(flow_run_filter=chosen)
            runs = {str(one.id) for one in running if "/big" in one.parameters.get("objects", ())}
            for path in Path("/proc").glob("[0-9]*/environ"):
                with suppress(OSError):
                    said = dict(one.split(b"=", 1) for one in path.read_bytes().split(b"\0") if b"=" in one)
                    if said.get(b"PREFECT__FLOW_RUN_ID", b"").decode() in runs and await active():
                        os.kill(int(path.parent.name), signal.SIGKILL)
                        return True
            return False

        await until(killed, "a run works on it")
        dead.set()

        async def ready() -> bool:
            return (await cluster.get(CLUSTER_BASE_MODELS, "big"))["status"]["state"] == "Ready"

        await until(ready, "the model is ready all the same", timeout=180)
        await cluster.delete(CLUSTER_BASE_MODELS, "big")

        async def gone() -> bool:
            try:
                await cluster.get(CLUSTER_BASE_MODELS, "big")
            except NotFound:
                return True
            return False

        await until(gone, "it is gone, and its files", timeout=120)
    finally:
        dead.set()
        shift.cancel()
        with suppress(asyncio.CancelledError):
            await shift
