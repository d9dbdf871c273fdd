"""The flow ``roll_out`` on a real Prefect server and on nodes that run its pods: by hand, as from a pipeline."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from killed_steps import assert_repeating_changes_nothing, run_and_kill
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import State
from prefect_support import until

from flows.roll_out import roll_out
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.objects import Key
from modelyard.objects.kinds import PERSISTENT_VOLUME_CLAIMS
from modelyard.reconcile.plans.plan import StepId
from modelyard.workloads.rendering.render import SELECTION
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, MODELS, RUNTIMES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SIMULATED = Path(__file__).parents[3] / "config" / "runtimes" / "local" / "simulated.yaml"
MODEL = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
    "storage": {"storageUri": "vendor://acme/model/llama"},
}


@pytest.fixture
async def space(
    local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """A namespace, beside a model and the runtime for it."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    await local_cluster.create(CLUSTER_BASE_MODELS, {"metadata": {"name": "rolled-llama"}, "spec": MODEL})
    await local_cluster.apply(yaml.safe_load(SIMULATED.read_text(encoding="utf-8")))
    yield local_namespace
    await local_cluster.delete(RUNTIMES[1], "simulated")
    await local_cluster.delete(CLUSTER_BASE_MODELS, "rolled-llama")


async def run(**parameters: Any) -> State[Any]:
    state: State[Any] = await roll_out(**parameters, return_state=True)
    return state


async def test_a_pipeline_waits_for_a_model_as_well(
    local_stack: LocalStack, local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await local_cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "weights"}, "spec": claim}, space)
    (local_stack.paths.files / "claims" / space / "weights" / "llama").mkdir(parents=True)
    worker = {"type": "server", "image": "modelyard.dev/simulated-engine:test"}
    backend = {"name": "main", "type": "vLLM", "minReplicas": 1, "maxReplicas": 1, "workers": [worker]}
    for name, uri in (("chat", "pvc://weights/llama"), ("wrong", "pvc://../llama")):
        spec = {"backends": [{**backend, "modelURI": uri}]}
        await local_cluster.create(MODELS, {"metadata": {"name": name, "namespace": space}, "spec": spec})
    given = {"kind": "Model", "namespace": space, "controller_namespace": space}
    state = await run(name="chat", timeout_seconds=150, **given)
    assert state.name == "Completed", state.message
    assert re.fullmatch(rf"{space}/chat answers at http://127\.[\d.]+:8000", state.message or ""), state.message
    told = (await local_cluster.get(MODELS, "chat", space))["status"]
    assert told["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 1}]
    run_id = state.state_details.flow_run_id
    assert run_id is not None
    about = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    artifacts = {one.key: str(one.data) for one in await client.read_artifacts(artifact_filter=about)}
    assert "- ModelServer chat-main: new" in artifacts["roll-out-changes"]
    assert "1/1" in artifacts["roll-out-components"]
    assert "200 OK" in artifacts["roll-out-components"]
    wrong = await run(name="wrong", **given)
    assert wrong.name == "Failed"
    assert f"{space}/wrong is not ready: ModelAbnormal: InvalidSpec: spec.backends[0].modelURI" in (wrong.message or "")


@pytest.mark.long
async def test_a_roll_out_that_is_killed_in_a_step_and_retried_completes(
    local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    spec: dict[str, Any] = {"model": {"name": "rolled-llama"}, "engine": {}}
    metadata = {"name": "killed", "namespace": space, "annotations": {SELECTION: "none"}}
    await local_cluster.create(INFERENCE_SERVICES, {"metadata": metadata, "spec": spec})
    given = {"namespace": space, "controller_namespace": space, "timeout_seconds": 150}
    run = await run_and_kill(client, "roll-out", ["roll out"], name="killed", **given)
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    done, key = [StepId("resolve"), StepId("roll out", "engine"), StepId("become ready")], Key(space, "killed")
    await assert_repeating_changes_nothing(local_cluster, "roll-out", run, key, space, done, INFERENCE_SERVICES)


async def test_a_pipeline_waits_for_a_service_and_is_told_why_one_cannot_be(
    local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    spec: dict[str, Any] = {"model": {"name": "rolled-llama"}, "engine": {}}
    # Nobody delivers models here.
    metadata = {"name": "chat", "namespace": space, "annotations": {SELECTION: "none"}}
    await local_cluster.create(INFERENCE_SERVICES, {"metadata": metadata, "spec": spec})
    state = await run(name="chat", namespace=space, controller_namespace=space, timeout_seconds=150)
    assert state.name == "Completed", state.message
    assert state.message == f"{space}/chat answers at http://chat.{space}.svc.cluster.local:8080"
    run_id = state.state_details.flow_run_id
    assert run_id is not None
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run_id]))

    wanted = {
        f"claim {space}/chat",
        f"show the changes of {space}/chat",
        f"roll out engine of {space}/chat",
        f"ask {space}/chat which models it serves",
        f"report the roll-out of {space}/chat",
    }

    async def recorded() -> bool:
        return wanted <= {one.name for one in await client.read_task_runs(task_run_filter=chosen)}

    assert await until(recorded, "the task runs are on record")
    about = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    artifacts = {one.key: str(one.data) for one in await client.read_artifacts(artifact_filter=about)}
    assert {"roll-out-changes", "roll-out-components", "roll-out-progress"} <= artifacts.keys()
    assert "- Deployment chat-engine: new" in artifacts["roll-out-changes"]
    assert "200 OK" in artifacts["roll-out-components"]

    wrong = {"metadata": {"name": "wrong", "namespace": space}, "spec": {**spec, "runtime": {"name": "none"}}}
    await local_cluster.create(INFERENCE_SERVICES, wrong)
    state = await run(name="wrong", namespace=space, controller_namespace=space)
    assert state.name == "Failed"
    assert f"{space}/wrong is not ready: RuntimeNotFound" in (state.message or "")
    missing = await run(name="missing", namespace=space, controller_namespace=space)
    assert missing.name == "Failed"
    assert "missing" in (missing.message or "")
