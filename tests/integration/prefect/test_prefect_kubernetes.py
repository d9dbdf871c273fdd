"""A work pool of type kubernetes on the local cluster: Prefect's own worker as our manifest has it, every run a pod.

The worker and the runs have the rights of their service accounts alone, as on a real cluster.
"""

from __future__ import annotations

import base64
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
from deployments.bootstrap import deploy
from deployments.profile import PREFECT_FILE
from deployments.server import PrefectServer
from deployments.work_pool import RunPods, create_work_pool
from modelyard.cluster import (
    LEASES,
    NAMESPACES,
    PODS,
    AlreadyExists,
    Cluster,
    NotFound,
    Object,
)
from modelyard.local.processes import ProcessIdentity
from modelyard.local.stack import LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOME, POOL, IMAGE = CONTROLLER_NAMESPACE, "pods", "modelyard:0.1.0"
RUN, DEPLOYMENT = "prefect.io/flow-run-id", "prefect.io/deployment-name"
LABEL = "test.modelyard.dev/pods"


async def fresh(cluster: Cluster, name: str) -> None:
    """Create a namespace, also while one of this name is being deleted."""

    async def created() -> bool:
        with suppress(AlreadyExists):
            await cluster.create(NAMESPACES, {"metadata": {"name": name}})
        return (await cluster.get(NAMESPACES, name))["status"]["phase"] == "Active"

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
