"""The flow ``onboard`` on nodes that run its pods, with the real program that measures: from a bucket to a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from onboarding_site import SPEEDS, Site, onboarding_site, onboarding_worker, serving_hub
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State
from prefect_support import until

from deployments.server import PrefectServer
from flows.benchmark import refit_profiles
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, VARIANTS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


@pytest.fixture
async def site(
    prefect_server: PrefectServer,
    local_stack: LocalStack,
    local_cluster: Cluster,
    local_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Site]:
    """A namespace with two runtimes, a hub with a model, the shift, and a worker."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    folder, url = local_stack.kubeconfig, prefect_server.api_url
    with serving_hub() as hub:
        async with (
            get_client() as client,
            onboarding_worker(client, url, folder, tmp_path, {}) as deployment,
            onboarding_site(local_cluster, client, local_namespace, deployment, hub) as place,
        ):
            yield place


def tree_of(children: dict[str, FlowRun]) -> dict[str, str]:
    return {name: run.state_name or "" for name, run in children.items()}


async def test_a_model_in_a_bucket_becomes_a_service_of_the_right_size(
    local_cluster: Cluster, client: PrefectClient, site: Site
) -> None:
    space, offered = site.space, {"prices": {"H100": 10, "L40S": 1}, "requests": 20, "timeout_seconds": 900}
    run_id = await site.onboard("chat", **offered, check_seconds=5)
    state = await site.ended(run_id, 900)
    assert state.name == "Completed", state.message
    url = f"http://chat.{space}.svc.cluster.local:8080"
    assert state.message == f"chosen: l40s, replicas: 1, for 1 an hour; it answers at {url}"

    probes = [f"{kind} {space}/chat-probe-{name}" for kind in ("InferenceService", "BenchmarkJob") for name in SPEEDS]
    tree = {f"BaseModel {space}/chat", f"InferenceService {space}/chat", *probes}
    children = await site.children(run_id)
    assert tree_of(children) == dict.fromkeys(tree, "Completed")

    each = {f"{what} {name}" for what in ("roll out", "measure", "remove") for name in SPEEDS}
    order = f"{space}/chat-onboarding"
    once = {
        f"resolve the load of {space}/chat", f"start {space}/chat",
        f"deliver the model of {order}", f"select candidates for {order}",
        f"serve {order}", f"simulate the load of {order}", f"verify {order} under load", f"report {order}",
    }  # fmt: skip

    async def recorded() -> bool:
        runs = await site.task_runs(run_id)
        return each | once | tree <= {task_run.name for task_run in runs if task_run.state_name == "Completed"}

    assert await until(recorded, "the task runs are on record")
    runs = await site.task_runs(run_id)
    assert {task_run.state_name for task_run in runs} == {"Completed"}, "no task run is left Pending"
    steps = {task_run.id: task_run.name for task_run in runs}
    linked = {
        task_run.name: [steps[step.id] for step in task_run.task_inputs["__parents__"]]
        for task_run in runs
        if task_run.name in tree
    }
    assert linked[f"BaseModel {space}/chat"] == [f"deliver the model of {order}"]
    assert linked[f"BenchmarkJob {space}/chat-probe-l40s"] == ["measure l40s"]
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
    again_id = await site.onboard("chat", **offered)
    again = await site.ended(again_id)
    assert (again.name, again.message) == (state.name, state.message), "it goes on where it was, which is the end"
    assert not await site.children(again_id)
    assert [one["status"] for one in await local_cluster.list(BENCHMARK_JOBS, space)] == measured
    other = await site.ended(await site.onboard("chat", **offered, itl=399))
    assert other.name == "Failed"
    assert "belongs to another onboarding of this name" in (other.message or "")

    drift = {"type": "ProfileDrift", "status": "True", "reason": "LatenciesDiffer", "message": "m"}
    drift["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await local_cluster.merge_patch(VARIANTS, "chat", {"status": {"conditions": [drift]}}, space, "status")
    refit = {"namespaces": [space], "controller_namespace": space, "return_state": True}
    fitted: State[Any] = await refit_profiles(**refit)
    assert fitted.message == f"{space}/chat: fitted to 2 runs of {space}/chat-probe-l40s"
    again_at = (await local_cluster.get(BENCHMARK_JOBS, "chat-probe-l40s", space))["status"]["startTime"]
    assert again_at not in {status["startTime"] for status in measured}, "it is measured again, on a probe of its own"

    async def probe_gone() -> bool:
        return [one["metadata"]["name"] for one in await local_cluster.list(INFERENCE_SERVICES, space)] == ["chat"]

    assert await until(probe_gone, "its probe is removed", timeout=60)
