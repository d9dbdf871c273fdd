"""Runs whose worker has ended on another machine, by what Prefect's server knows of both."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import WorkerStatus
from prefect.events import Event, Resource
from prefect.states import Running
from prefect_support import until

from deployments.orphans import SURE_AFTER, OrphanSearch
from deployments.supervision import read_clock
from deployments.work_pool import create_work_pool

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POOL = "elsewhere"


@flow
def nothing() -> None:
    """Nothing: its runs are only marked."""


async def test_a_run_of_another_machine_has_ended_once_its_worker_and_it_have_been_quiet_for_long(
    client: PrefectClient,
) -> None:
    await create_work_pool(client, POOL)
    deployment = await client.create_deployment(await client.create_flow(nothing), "nothing", work_pool_name=POOL)
    dead, alive, unclaimed = [await client.create_flow_run_from_deployment(deployment) for _ in range(3)]
    for run in (dead, alive, unclaimed):
        await client.set_flow_run_state(run.id, Running(), force=True)
    for run in (dead, alive):
        await client.update_flow_run_labels(run.id, {"prefect.worker.name": "elsewhere"})
    await client.send_worker_heartbeat(POOL, "elsewhere", heartbeat_interval_seconds=600)
    # Ten minutes from now.
    now = (await read_clock(client))[0] + timedelta(minutes=10)
    heartbeat = Event(
        event="prefect.flow-run.heartbeat",
        resource=Resource({"prefect.resource.id": f"prefect.flow-run.{alive.id}"}),
        occurred=now - timedelta(seconds=30),
    )
    await client.request("POST", "/events", json=[heartbeat.model_dump(mode="json")])
    moments = [0.0]
    search = OrphanSearch(lambda: moments[-1])

    async def orphans() -> list[UUID]:
        runs = [await client.read_flow_run(run.id) for run in (dead, alive, unclaimed)]
        return list(await search.find(client, POOL, runs, now))

    async def offline() -> bool:
        (worker,) = await client.read_workers_for_work_pool(POOL)
        return worker.status is WorkerStatus.OFFLINE

    assert await orphans() == []
    moments.append(SURE_AFTER)
    assert await orphans() == [], "its worker is online"
    await client.send_worker_heartbeat(POOL, "elsewhere", heartbeat_interval_seconds=1)
    await until(offline, "Prefect takes the worker to be offline")
    assert await orphans() == [], "a server that was away has heard of nobody"
    moments.append(2 * SURE_AFTER)
    assert await orphans() == [dead.id]
    await client.send_worker_heartbeat(POOL, "elsewhere", heartbeat_interval_seconds=600)
    assert await orphans() == [], "the worker is back"
