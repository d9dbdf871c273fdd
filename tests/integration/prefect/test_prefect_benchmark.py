"""The flows ``benchmark`` and ``re_run_benchmarks`` with a Prefect server, with the real program: as in pipelines."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from command_line import modelyard_beside
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

from deployments.demo.sources import tokenizer
from flows.benchmark import benchmark, re_run_benchmarks
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, RE_RUN, TOKENIZER
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from modelyard.reconcile.plans.plan import StepId

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
async def space(
    local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A namespace with an engine behind a Service, and a claim with a tokenizer that takes the results."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await local_cluster.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, local_namespace
    )
    words = local_stack.paths.files / "claims" / local_namespace / "results" / "words"
    words.mkdir(parents=True)
    for name, body in tokenizer().items():
        (words / name).write_bytes(body)
    container = {
        "name": "engine",
        "image": "modelyard.dev/simulated-engine:test",
        "args": ["--model=demo"],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
    }
    pod = {"metadata": {"name": "engine", "labels": {"app": "engine"}}, "spec": {"containers": [container]}}
    await local_cluster.create(PODS, pod, local_namespace)
    service = {"selector": {"app": "engine"}, "ports": [{"port": 8000}]}
    await local_cluster.create(SERVICES, {"metadata": {"name": "engine"}, "spec": service}, local_namespace)
    return local_namespace


def spec_of(space: str, concurrency: int) -> dict[str, Any]:
    endpoint = {"url": f"http://engine.{space}.svc:8000", "apiFormat": "openai", "modelName": "demo"}
    return {
        "endpoint": {"endpoint": endpoint},
        "task": "text-to-text",
        "trafficScenarios": ["D(20,10)"],
        "numConcurrency": [concurrency],
        "maxTimePerIteration": 1,
        "maxRequestsPerIteration": 10,
        "outputLocation": {"storageUri": "pvc://results/nightly"},
        "podOverride": {
            "volumes": [{"name": "words", "persistentVolumeClaim": {"claimName": "results"}}],
            "volumeMounts": [{"name": "words", "mountPath": "/words", "subPath": "words"}],
        },
    }


@pytest.mark.long
async def test_a_benchmark_that_is_killed_in_a_step_and_retried_completes(
    local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    metadata = {"name": "killed", "namespace": space, "annotations": {TOKENIZER: "/words"}}
    await local_cluster.create(BENCHMARK_JOBS, {"metadata": metadata, "spec": spec_of(space, 1)})
    given = {"namespace": space, "controller_namespace": space, "timeout_seconds": 240}
    run = await run_and_kill(client, "benchmark", ["measure"], name="killed", **given)
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    done, key = [StepId("measure", "D(20,10) × 1")], Key(space, "killed")
    await assert_repeating_changes_nothing(local_cluster, "benchmark", run, key, space, done, BENCHMARK_JOBS)


async def test_a_pipeline_waits_for_a_benchmark_and_has_it_measured_anew(
    local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    spec = spec_of(space, 2)
    metadata = {"name": "nightly", "namespace": space, "annotations": {TOKENIZER: "/words"}}
    await local_cluster.create(BENCHMARK_JOBS, {"metadata": metadata, "spec": spec})
    given: dict[str, Any] = {"namespace": space, "controller_namespace": space}
    state: State[Any] = await benchmark(name="nightly", timeout_seconds=240, **given, return_state=True)
    assert state.name == "Completed", state.message
    assert f"{space}/nightly is Completed: best: D(20,10) × 2: " in (state.message or "")
    run_id = state.state_details.flow_run_id
    assert run_id is not None
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run_id]))

    wanted = {f"claim {space}/nightly", f"measure D(20,10) × 2 for {space}/nightly", "report benchmarks"}

    async def recorded() -> bool:
        return wanted <= {one.name for one in await client.read_task_runs(task_run_filter=chosen)}

    assert await until(recorded, "the task runs are on record")
    about = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    artifacts = {one.key: str(one.data) for one in await client.read_artifacts(artifact_filter=about)}
    pictures = {"benchmark-throughput-latency", "benchmark-percentiles"}
    assert {"benchmark-runs", "benchmark-progress", *pictures} <= artifacts.keys()
    assert "D(20,10)" in artifacts["benchmark-runs"]
    for name in pictures:
        assert base64.b64decode(artifacts[name].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    shown = await modelyard_beside("benchmarks", "show", f"{space}/nightly", "-o", "json")
    assert [(run["scenario"], run["concurrency"]) for run in json.loads(shown.out)] == [("D(20,10)", 2)]
    gate = ("--fail-if", "ttft_p95>+0%")
    assert (await modelyard_beside("benchmarks", "compare", *[f"{space}/nightly"] * 2, *gate)).code == 0
    missing = await modelyard_beside("benchmarks", "show", f"{space}/missing")
    assert missing.code == 1
    assert f"{space}/missing: no file or folder, and: " in missing.err

    jobs, home = [f"{space}/nightly"], {"controller_namespace": space}
    state = await re_run_benchmarks(jobs=[*jobs, f"{space}/missing"], wait=False, **home, return_state=True)
    assert (state.name, state.message) == ("Failed", f"there is no BenchmarkJob {space}/missing")
    asked = await local_cluster.get(BENCHMARK_JOBS, "nightly", space)
    assert asked["metadata"]["annotations"][RE_RUN] == f"{state.state_details.flow_run_id}-1"
    state = await re_run_benchmarks(jobs=jobs, timeout_seconds=240, **home, return_state=True)
    assert state.name == "Completed", state.message
    assert f"{space}/nightly is Completed: best: D(20,10) × 2: " in (state.message or "")
    assert state.state_details.flow_run_id is not None
    measured = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[state.state_details.flow_run_id]))

    async def measured_again() -> bool:
        names = {run.name for run in await client.read_task_runs(task_run_filter=measured)}
        return f"measure D(20,10) × 2 for {space}/nightly" in names

    assert await until(measured_again, "the measurement is a task run of its own")

    # Nothing is a hundred times as fast as before; what is measured anew is compared with what was kept.
    gate = ["ttft_p95>0.000001", "output_rate<+10000%"]
    state = await benchmark(name="nightly", re_run=True, fail_if=gate, timeout_seconds=240, **given, return_state=True)
    assert state.name == "Failed"
    assert "D(20,10) at 2: ttft_p95 is " in (state.message or "")
    assert "D(20,10) at 2: output_rate changed by " in (state.message or "")

    wrong = {**spec, "endpoint": {"endpoint": {**spec["endpoint"]["endpoint"], "url": "http://169.254.169.254"}}}
    await local_cluster.create(BENCHMARK_JOBS, {"metadata": {**metadata, "name": "wrong"}, "spec": wrong})
    state = await benchmark(name="wrong", **given, return_state=True)
    assert state.name == "Failed"
    assert f"{space}/wrong is Failed: spec.endpoint.endpoint.url: endpoint" in (state.message or "")
