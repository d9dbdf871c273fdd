"""The flow ``onboard`` on nodes that run its pods, with the real program that measures: from a bucket to a service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from in_process_runs import Shift
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import State
from prefect_support import until

from deployments.demo.sources import Sources, small_model
from flows.benchmark import refit_profiles
from flows.forms import arguments
from flows.onboard import onboard
from flows.parameters import OnboardParameters
from modelyard.benchmarks.lifecycle import BenchmarkRuns
from modelyard.benchmarks.world import BENCHMARK_JOBS
from modelyard.cluster import CONFIG_MAPS, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, Cluster
from modelyard.local.stack import LocalStack
from modelyard.models.lifecycle import ModelDelivery
from modelyard.models.names import BASE_MODELS
from modelyard.models.settings import CONFIG_MAP, KEY
from modelyard.reconcile.dispatch import Acting
from modelyard.reconcile.reconciler import Registered
from modelyard.workloads.lifecycle import ServiceRollOut
from modelyard.workloads.world import INFERENCE_SERVICES, VARIANTS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SPEEDS = {"h100": ("NVIDIA-H100-SXM5-80GB", 10, 0.5, 5, 0.05), "l40s": ("NVIDIA-L40S-48GB", 25, 1, 15, 0.2)}
"""Product, and alpha, beta, gamma and delta of the simulated engine on it."""
LABEL = "test.modelyard.dev/onboarded"


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


@pytest.fixture
async def site(
    local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """A namespace with two runtimes, a bucket with a model, and the shift; what an onboarding there is given."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    cluster, space, home = local_cluster, local_namespace, f"{local_namespace}-home"
    await cluster.create(NAMESPACES, {"metadata": {"name": home}})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    for name in SPEEDS:
        await cluster.apply(runtime(name, space))
        await cluster.merge_patch(NODES, f"{name}-0", {"metadata": {"labels": {LABEL: space}}})
    bucket = {f"llama/{name}": body for name, body in small_model("llama", "LlamaForCausalLM", 1).items()}
    async with Sources({}, {"models": bucket}) as sources:
        allowed = {KEY: json.dumps({"endpoints": [sources.url.removeprefix("http://")], "cpu": "100m"})}
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": allowed}, home)
        registered = [
            Registered(ModelDelivery(BASE_MODELS, home), Acting("deliver/deliver")),
            Registered(ServiceRollOut(home), Acting("roll-out/roll-out", batch=20)),
            Registered(BenchmarkRuns(home), Acting("benchmark/benchmark", batch=10)),
        ]
        async with Shift(registered, home, namespaces=[space]) as shift:
            yield {
                "shift": shift,
                "uri": "s3://models@us-east-1/llama",
                "parameters": {"endpoint": sources.url},
                "node_selector": {LABEL: space},
                "namespace": space,
                "name": "chat",
                "ttft": 3000,
                "itl": 400,
                "rate": 2,
                "prompt_tokens": 20,
                "output_tokens": 10,
                "results": "pvc://results/onboarding",
                "levels": [1, 4],
                "minutes": 1,
                "requests": 20,
            }
            for kind in (INFERENCE_SERVICES, BASE_MODELS):
                for one in await cluster.list(kind, space):
                    await cluster.delete(kind, one["metadata"]["name"], space)

            async def gone() -> bool:
                return not (await cluster.list(BASE_MODELS, space)).items

            await until(gone, "the model is gone")
    for name in SPEEDS:
        await cluster.merge_patch(NODES, f"{name}-0", {"metadata": {"labels": {LABEL: None}}})
    await cluster.delete(NAMESPACES, home)


async def run(given: dict[str, Any], **more: Any) -> State[Any]:
    parameters = {name: value for name, value in {**given, **more}.items() if name != "shift"}
    state: State[Any] = await onboard(**arguments(OnboardParameters.model_validate(parameters)), return_state=True)
    return state


async def test_a_model_in_a_bucket_becomes_a_service_of_the_right_size(
    local_cluster: Cluster, client: PrefectClient, site: dict[str, Any]
) -> None:
    space, offered = site["namespace"], {"prices": {"H100": 10, "L40S": 1}, "timeout_seconds": 400}
    state = await run(site, **offered, check_seconds=5)
    assert state.name == "Completed", state.message
    url = f"http://chat.{space}.svc.cluster.local:8080"
    assert state.message == f"chosen: l40s, replicas: 1, for 1 an hour; it answers at {url}"
    run_id = state.state_details.flow_run_id
    assert run_id is not None
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run_id]))

    each = {f"{what} {name}" for what in ("roll out", "measure", "remove") for name in SPEEDS}
    order = f"{space}/chat-onboarding"
    once = {
        "resolve load", "start chat", f"deliver the model of {order}", f"select candidates for {order}",
        f"serve {order}", "simulate the expected load", "verify under load", "report",
    }  # fmt: skip

    async def recorded() -> bool:
        return each | once <= {one.name for one in await client.read_task_runs(task_run_filter=chosen)}

    assert await until(recorded, "the task runs are on record")
    about = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    artifacts = {one.key: str(one.data) for one in await client.read_artifacts(artifact_filter=about)}
    for said in (
        "| `h100` | `H100:1` |",
        "kind: VariantAutoscaling",
        "replica-minutes",
        "- simulated: 2",
        "- checked: 2",
    ):
        assert said in artifacts["onboarding-chat"]
    services = [one["metadata"]["name"] for one in await local_cluster.list(INFERENCE_SERVICES, space)]
    assert services == ["chat"], "the probes are removed"
    variant = await local_cluster.get(VARIANTS, "chat", space)
    found = variant["spec"]["variantProfile"]["perfParms"]
    assert float(found["decodeParms"]["alpha"]) > 0
    assert variant["spec"]["scaleTargetRef"]["name"] == "chat-engine"

    measured = [one["status"] for one in await local_cluster.list(BENCHMARK_JOBS, space)]
    again = await run(site, **offered, check_seconds=0)
    assert (again.name, again.message) == (state.name, state.message), "it goes on where it was, which is the end"
    assert [one["status"] for one in await local_cluster.list(BENCHMARK_JOBS, space)] == measured
    other = await run(site, **offered, check_seconds=0, itl=399)
    assert other.name == "Failed"
    assert "belongs to another onboarding of this name" in (other.message or "")

    drift = {"type": "ProfileDrift", "status": "True", "reason": "LatenciesDiffer", "message": "m"}
    drift["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await local_cluster.merge_patch(VARIANTS, "chat", {"status": {"conditions": [drift]}}, space, "status")
    refit = {"namespaces": [space], "controller_namespace": space, "return_state": True}
    begun: State[Any] = await refit_profiles(**refit)
    assert begun.message == f"{space}/chat: {space}/chat-probe-l40s is measured again"
    ran = measured[-1]["startTime"]

    async def measured_again() -> bool:
        status = (await local_cluster.get(BENCHMARK_JOBS, "chat-probe-l40s", space))["status"]
        return status["state"] == "Completed" and status["startTime"] != ran

    async def probe_gone() -> bool:
        return [one["metadata"]["name"] for one in await local_cluster.list(INFERENCE_SERVICES, space)] == ["chat"]

    assert await until(measured_again, "the onboarded service is measured again, on a probe of its own", timeout=300)
    assert await until(probe_gone, "its probe is removed", timeout=60)
    done: State[Any] = await refit_profiles(**refit)
    assert done.name == "Completed", done.message
    assert f"fitted to 2 runs of {space}/chat-probe-l40s" in (done.message or "")
