"""The whole loop, deployed: its flow under kills and outages."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import psutil
import pytest
from prefect.client.orchestration import PrefectClient
from scaled_fleet import NAMESPACE, running

from deployments.bootstrap import deployment_names
from deployments.demo.scenario import Scenario
from deployments.stack import PrefectStack
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.cluster import Cluster
from modelyard.objects.kinds import DEPLOYMENTS, LEASES
from tasks.flow_runs import read_all

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

CONTROLLER = "workload-variant-autoscaler-system"


@pytest.fixture(scope="module")
async def deployed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[PrefectStack, Cluster]]:
    """A cluster with two variants and the flow deployed: a shift of a minute every half minute, ticking every 1.5 s."""
    before = os.environ.get("KUBECONFIG")
    out = tmp_path_factory.mktemp("deployed")
    async with running(Scenario(shift_seconds=60), out) as (_, prefect, cluster):
        yield prefect, cluster
    if before is None:
        os.environ.pop("KUBECONFIG", None)
    else:
        os.environ["KUBECONFIG"] = before


async def ask_for(cluster: Cluster, variant: str, minimum: int) -> float:
    """Change a variant's minimum; seconds until the workload has been scaled to it."""
    body = {"metadata": {"annotations": {"modelyard.dev/min-replicas": str(minimum)}}}
    await cluster.merge_patch(VARIANTS, variant, body, NAMESPACE)
    begun = time.monotonic()
    async with asyncio.timeout(150):
        while (await cluster.get(DEPLOYMENTS, variant, NAMESPACE))["spec"]["replicas"] < minimum:
            await asyncio.sleep(0.2)
    return time.monotonic() - begun


async def holder(cluster: Cluster, besides: str = "") -> str:
    """Wait for somebody else to hold the Lease, which between two shifts nobody does; who it is."""
    async with asyncio.timeout(150):
        while True:
            spec = (await cluster.get(LEASES, "modelyard-autoscale", CONTROLLER))["spec"]
            if (found := spec.get("holderIdentity") or "") not in (besides, ""):
                return str(found)
            await asyncio.sleep(0.5)


def flow_runs(prefect: PrefectStack) -> list[psutil.Process]:
    """The processes of flow runs under the worker."""
    found = []
    for process in psutil.Process(prefect.worker.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "prefect.engine" in " ".join(process.cmdline()):
                found.append(process)
    return found


async def test_a_shift_hands_over_to_the_next_scheduled_one(deployed: tuple[PrefectStack, Cluster]) -> None:
    _, cluster = deployed
    await holder(cluster, besides=await holder(cluster))
    await ask_for(cluster, "llama-l40s", 2)


async def test_every_deployment_is_there_to_be_pressed(deployed: tuple[PrefectStack, Cluster]) -> None:
    """test_prefect_buttons.py presses them."""
    prefect, _ = deployed
    async with PrefectClient(prefect.server.api_url) as client:
        assert {deployment.name for deployment in await read_all(client.read_deployments)} == deployment_names()


async def test_the_loop_keeps_deciding_while_prefect_is_down(deployed: tuple[PrefectStack, Cluster]) -> None:
    prefect, cluster = deployed
    prefect.server.kill()
    try:
        await ask_for(cluster, "llama-l40s", 3)
        assert not prefect.server.healthy(), "it was acted on without Prefect"
    finally:
        await asyncio.to_thread(prefect.server.start)


async def test_a_killed_run_is_replaced_and_the_next_one_carries_on(deployed: tuple[PrefectStack, Cluster]) -> None:
    prefect, cluster = deployed
    async with asyncio.timeout(120):
        while not (runs := flow_runs(prefect)):
            await asyncio.sleep(0.5)
    for run in runs:
        with suppress(psutil.NoSuchProcess):
            run.kill()
    await ask_for(cluster, "llama-h100", 2)
