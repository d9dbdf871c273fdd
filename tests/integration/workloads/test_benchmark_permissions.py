"""Benchmarks under the account of deployments/kubernetes: rbac-benchmarks.yaml has what they need, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Fleets
from fleet_fixture import eventually
from in_process_runs import Shift
from install_manifests import AUTOSCALER, CONTROLLER_NAMESPACE, documents, in_force, install_roles, kubeconfig_of
from needed_rights import Right, noted

from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, MEMORY, PROBE_OF, Memory
from modelyard.cluster import Cluster, Object
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import JOBS, PERSISTENT_VOLUME_CLAIMS
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.reconcile.plans.memory import render_memory
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration

TOLD = {("", "events", verb) for verb in ("create", "get", "patch")}
"""Rights of rbac.yaml, which whoever tells has."""
REFIT = {("", "configmaps", "get"), ("", "configmaps", "patch")}
"""Of the library of profiles, by the flow ``refit-profiles``."""
WHERE_OWNERS_ARE_GUARDED = {("ome.io", "benchmarkjobs/finalizers", "update")}
"""What an admission plug-in asks for that this server does not have."""


async def _measured_again(cluster: Cluster, space: str, spec: dict[str, Any]) -> None:
    """The benchmark of a service that is gone makes one, and deletes it at its end."""
    service = {"metadata": {"name": "chat"}, "spec": {"model": {"name": "llama"}, "engine": {}}}
    await cluster.create(INFERENCE_SERVICES, service, space)
    metadata = {"name": "again", "annotations": {PROBE_OF: "chat"}}
    measured = {"endpoint": {"inferenceService": {"name": "chat-probe", "namespace": space}}}
    await cluster.create(BENCHMARK_JOBS, {"metadata": metadata, "spec": spec | measured}, space)

    async def names() -> set[str]:
        return {one["metadata"]["name"] for one in (await cluster.list(INFERENCE_SERVICES, space)).items}

    async def there() -> bool:
        return "chat-probe" in await names()

    async def gone() -> bool:
        return "chat-probe" not in await names()

    await eventually(there, "there is a service to measure", seconds=180)
    ended = {"metadata": {"annotations": {MEMORY: render_memory(Memory(began=1.0, ended=2.0))}}}
    await cluster.merge_patch(BENCHMARK_JOBS, "again", ended, space)
    await eventually(gone, "the service that was measured is gone", seconds=180)


async def test_benchmarks_need_exactly_the_rights_of_the_manifest(
    fleets: Fleets,
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, space = control_plane_cluster, await fleets.space()
    await install_roles(cluster)
    for document in documents("rbac-benchmarks.yaml"):
        await cluster.apply(document)
    account = await kubeconfig_of(cluster, AUTOSCALER, control_plane.kubeconfig, tmp_path / "account")
    await in_force(account, PERSISTENT_VOLUME_CLAIMS, space)
    monkeypatch.setenv("KUBECONFIG", str(account))
    notes = noted(monkeypatch)
    notes.account = str(account)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    endpoint = {"url": f"http://chat.{space}.svc:8080", "apiFormat": "openai", "modelName": "llama"}
    spec = {
        "endpoint": {"endpoint": endpoint},
        "task": "text-to-text",
        "trafficScenarios": ["D(20,10)"],
        "numConcurrency": [1],
        "maxTimePerIteration": 1,
        "maxRequestsPerIteration": 10,
        "outputLocation": {"storageUri": "pvc://results/nightly"},
    }
    await cluster.create(BENCHMARK_JOBS, {"metadata": {"name": "nightly"}, "spec": spec}, space)
    registered = [Registered(BenchmarkRuns(CONTROLLER_NAMESPACE), Acting("benchmark/benchmark"))]
    async with Shift(registered, CONTROLLER_NAMESPACE, namespaces=[space]):
        jobs: list[Object] = []

        async def made() -> bool:
            jobs[:] = (await cluster.list(JOBS, space)).items
            # A deadline that is set before the server's controller has begun with a Job is looked at by nobody.
            return bool(jobs) and "startTime" in (jobs[0].get("status") or {})

        await eventually(made, "there is a Job for the run, which has begun", seconds=180)
        # The server's own controller fails it: of a status that another writes it keeps nothing.
        late = {"spec": {"activeDeadlineSeconds": 1}}
        await cluster.merge_patch(JOBS, jobs[0]["metadata"]["name"], late, space)

        async def gone() -> bool:
            return jobs[0]["metadata"]["uid"] not in {
                one["metadata"]["uid"] for one in (await cluster.list(JOBS, space)).items
            }

        await eventually(gone, "the Job of an attempt in vain is gone", seconds=180)
        await _measured_again(cluster, space, spec)
    assert notes.forbidden == []
    allowed: set[Right] = {
        (group, one, verb)
        for document in documents("rbac-benchmarks.yaml")
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for one in rule["resources"]
        for verb in rule["verbs"]
    }
    assert notes.needed - TOLD <= allowed
    assert allowed - WHERE_OWNERS_ARE_GUARDED - REFIT - notes.needed == set()
