"""A work pool of type kubernetes on the local cluster: Prefect's own worker as our manifest has it, every run a pod.

The worker and the runs have the rights of their service accounts alone, as on a real cluster.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from conftest import PASSWORD
from install_manifests import CONTROLLER_NAMESPACE, documents
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling
from prefect_support import until

from deployments import queues
from deployments.bootstrap import deploy, deployment_names
from deployments.demo.sources import MISTRAL, Sources
from deployments.profile import PREFECT_FILE
from deployments.server import PrefectServer
from deployments.work_pool import RunPods, create_work_pool
from flows.forms import ADVANCED
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS
from modelyard.cluster import AlreadyExists, Cluster, NotFound, Object
from modelyard.local.processes import ProcessIdentity
from modelyard.local.stack import LocalStack
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects.kinds import CONFIG_MAPS, JOBS, LEASES, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PODS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOME, POOL, IMAGE = CONTROLLER_NAMESPACE, "pods", "modelyard:0.1.0"
RUN, DEPLOYMENT = "prefect.io/flow-run-id", "prefect.io/deployment-name"
LABEL = "test.modelyard.dev/pods"


async def fresh(cluster: Cluster, name: str) -> None:
    """Create a namespace, also while one of this name is being deleted."""

    async def created() -> bool:
        with suppress(AlreadyExists):
            await cluster.create(NAMESPACES, {"metadata": {"name": name}})
        with suppress(NotFound):  # its deletion was completed just now
            return (await cluster.get(NAMESPACES, name))["status"]["phase"] == "Active"
        return False

    await until(created, f"namespace {name}")


@pytest.fixture(scope="module")
async def deployed(
    prefect_server: PrefectServer, local_stack: LocalStack, local_cluster: Cluster, tmp_path_factory: Any
) -> AsyncIterator[dict[str, UUID]]:
    """The deployments of prefect.yaml, by name, in a pool whose worker runs in the cluster. No schedule is active."""
    cluster = local_cluster
    await fresh(cluster, HOME)
    connections = {"PREFECT_API_URL": prefect_server.api_url, "PROMETHEUS_BASE_URL": local_stack.prometheus_url}
    password = base64.b64encode(PASSWORD.encode()).decode()
    metadata = {"name": "modelyard-connections", "namespace": HOME}
    await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": connections})
    metadata = {"name": "modelyard-credentials", "namespace": HOME}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"PREFECT_API_AUTH_STRING": password}}
    await cluster.apply(secret)
    rights = ("", "-everywhere", "-models", "-services", "-benchmarks", "-onboarding")
    for document in documents(*(f"rbac{name}.yaml" for name in rights)):
        await cluster.apply(document)

    content = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))
    for deployment in content["deployments"]:
        deployment["work_pool"]["name"] = POOL
        for schedule in deployment.get("schedules", ()):
            schedule["active"] = False
    file: Path = tmp_path_factory.mktemp("deploy") / "prefect.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    async with get_client() as client:
        await create_work_pool(client, POOL, "kubernetes", RunPods(HOME, IMAGE))
        await queues.apply(client, POOL)
        await deploy(client, file)
        for document in documents("worker-kubernetes.yaml"):
            if document["kind"] == "Deployment":
                (container,) = document["spec"]["template"]["spec"]["containers"]
                container["args"] = ["--pool", POOL]
            await cluster.apply(document)
        chosen = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
        found = {one.name: one.id for one in await client.read_deployments(work_pool_filter=chosen)}
        yield found
        for one in found.values():
            await client.delete_deployment(one)
        await client.delete_work_pool(POOL)
    await cluster.delete(NAMESPACES, HOME)

    async def gone() -> bool:
        try:
            await cluster.get(NAMESPACES, HOME)
        except NotFound:
            return True
        return False

    await until(gone, f"namespace {HOME} is gone")


@pytest.fixture
async def site(
    local_cluster: Cluster, local_namespace: str, deployed: dict[str, UUID]
) -> AsyncIterator[tuple[str, Sources]]:
    """A namespace in which a model of a bucket may be onboarded on one node."""
    cluster, space = local_cluster, local_namespace
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "results"}, "spec": claim}, space)
    await cluster.merge_patch(NODES, "h100-0", {"metadata": {"labels": {LABEL: space}}})
    await cluster.apply(runtime(space))
    async with Sources() as sources:
        allowed = {KEY: json.dumps({"endpoints": [sources.url.removeprefix("http://")], "cpu": "100m"})}
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": allowed}, HOME)
        yield space, sources
    await cluster.delete(CONFIG_MAPS, CONFIG_MAP, HOME)
    await cluster.merge_patch(NODES, "h100-0", {"metadata": {"labels": {LABEL: None}}})


def runtime(space: str) -> Object:
    """A runtime of the namespace with the simulated engine."""
    runner = {
        "name": "engine",
        "image": "modelyard.dev/simulated-engine:test",
        "args": ["--model=$(MODEL_PATH)", "--served-model-name={{.Name}}", "--port=8080", "--alpha=10"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1},
    }
    supported = {
        "modelFormat": {"name": "safetensors", "version": "1.0.0"},
        "modelFramework": {"name": "transformers", "version": "4.43.0"},
        "modelArchitecture": "MistralForCausalLM",
        "autoSelect": True,
    }
    engine = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-SXM5-80GB"}, "runner": runner}
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "ServingRuntime",
        "metadata": {"name": "simulated", "namespace": space},
        "spec": {"protocolVersions": ["openAI"], "supportedModelFormats": [supported], "engineConfig": engine},
    }


class Runs:
    """The flow runs of a test, and their Jobs and pods."""

    def __init__(self, client: PrefectClient, cluster: Cluster, deployed: dict[str, UUID]) -> None:
        self.client, self.cluster, self.deployed = client, cluster, deployed

    async def start(self, deployment: str, **parameters: Any) -> UUID:
        made = await self.client.create_flow_run_from_deployment(self.deployed[deployment], parameters=parameters)
        return made.id

    async def ended(self, *runs: UUID, timeout: float = 300) -> dict[UUID, FlowRun]:
        """The runs, each in a final state."""
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=list(runs)))

        async def final() -> dict[UUID, FlowRun]:
            found = await self.client.read_flow_runs(flow_run_filter=chosen)
            return {one.id: one for one in found} if all(one.state and one.state.is_final() for one in found) else {}

        found: dict[UUID, FlowRun] = await until(final, "the runs have ended", timeout)
        return found

    async def pods(self, run: UUID) -> list[Object]:
        """The pods of a run."""
        return [one for one in await self.cluster.list(PODS, HOME) if one["metadata"]["labels"].get(RUN) == str(run)]

    async def writes(self, run: UUID, lease: str) -> Object | None:
        """The pod of a run that holds this Lease and says so in it."""
        with suppress(NotFound):
            holder = (await self.cluster.get(LEASES, lease, HOME))["spec"].get("holderIdentity") or ""
            for pod in await self.pods(run):
                if holder.startswith(f"{HOME}/{pod['metadata']['name']}_") and pod["metadata"]["uid"] in holder:
                    return pod
        return None


@pytest.fixture
def runs(client: PrefectClient, local_cluster: Cluster, deployed: dict[str, UUID]) -> Runs:
    return Runs(client, local_cluster, deployed)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_every_deployment_completes_as_a_job(
    runs: Runs, local_cluster: Cluster, site: tuple[str, Sources]
) -> None:
    """One onboarding has its model delivered, rolled out and measured by runs that the reconcile shift starts."""
    space, sources = site
    endpoint = {"url": f"http://nowhere.{space}.svc:8000", "apiFormat": "openai", "modelName": "demo"}
    spec = {
        "endpoint": {"endpoint": endpoint},
        "task": "text-to-text",
        "trafficScenarios": ["D(20,10)"],
        "numConcurrency": [2],
        "maxTimePerIteration": 1,
        "maxRequestsPerIteration": 10,
        "outputLocation": {"storageUri": "pvc://results/nightly"},
    }
    # Where the shift does not look: nobody measures it.
    await local_cluster.create(BENCHMARK_JOBS, {"metadata": {"name": "nightly", "namespace": HOME}, "spec": spec})

    shift = await runs.start("reconcile", shift_seconds=900, namespaces=[space])
    target = {"ttft": 3000, "itl": 400, "rate": 2, "prompt_tokens": 20, "output_tokens": 10}
    effort = {"levels": [1, 4], "minutes": 1, "requests": 20, "check_seconds": 0, "timeout_seconds": 400}
    storage = {"parameters": {"endpoint": sources.url}, "node_selector": {LABEL: space}}
    onboarding = {
        "uri": f"s3://models@us-east-1/{MISTRAL}",
        "results": "pvc://results/onboarding",
        "prices": {"H100": 10},
        **target,
    }
    started = [
        await runs.start("onboard", name="chat", namespace=space, **onboarding, **{ADVANCED: {**storage, **effort}}),
        await runs.start("reconcile", shift_seconds=8, namespaces=[space]),
        await runs.start("autoscale", interval_seconds=1, shift_seconds=8, namespaces=[space]),
        await runs.start("autoscale-once", namespaces=[space]),
        await runs.start("verify-models", names=["none"]),
        await runs.start("refit-profiles", namespaces=[space]),
        await runs.start("re-run-benchmarks", jobs=[f"{HOME}/nightly"], wait=False),
        await runs.start("replay", minutes=1),
    ]
    ended = await runs.ended(*started, timeout=1000)
    again = await runs.start("carry-out", lifecycle="deliver-basemodels", name="chat", namespace=space)
    ended |= await runs.ended(again)
    await runs.client.set_flow_run_state(shift, Cancelling())
    await runs.ended(shift)
    # One shift of a kind may have been the standby of the other all the while.
    failed = [f"{one.name}: {one.state}" for one in ended.values() if not (one.state and one.state.is_completed())]
    assert not failed, "\n".join(failed)

    async def all_succeeded() -> bool:
        """Those of the onboarding's children included; a pod ends some moments after its run."""
        jobs = [job for job in await local_cluster.list(JOBS, HOME) if DEPLOYMENT in job["metadata"].get("labels", {})]
        done = {job["metadata"]["labels"][DEPLOYMENT] for job in jobs if job["status"].get("succeeded") == 1}
        return done == deployment_names()

    await until(all_succeeded, "a Job of every deployment has succeeded")


async def test_the_run_of_a_killed_pod_has_crashed_and_a_cancelled_run_ends_its_pod(
    runs: Runs, local_namespace: str
) -> None:
    shift = {"interval_seconds": 1, "shift_seconds": 900, "namespaces": [local_namespace]}
    killed, cancelled = await runs.start("autoscale", **shift), await runs.start("reconcile", **shift)
    victim = await until(lambda: runs.writes(killed, "modelyard-autoscale"), "a pod holds the Lease")
    process = ProcessIdentity.of(int(victim["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]))
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: runs.writes(cancelled, "modelyard-reconcile"), "the other one holds its Lease")
    await runs.client.set_flow_run_state(cancelled, Cancelling())
    ended = await runs.ended(killed, cancelled)
    assert ended[killed].state_name == "Crashed"
    assert ended[cancelled].state_name == "Cancelled"

    async def stopped() -> bool:
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in await runs.pods(cancelled))

    await until(stopped, "the pod of the cancelled run has ended")
