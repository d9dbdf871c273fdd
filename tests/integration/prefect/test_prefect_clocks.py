"""A worker on a machine whose clock is two hours ahead of the server's, or behind: a real process under libfaketime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect_support import until

from deployments.server import PrefectServer
from deployments.supervision import read_clock
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(FAKETIME is None, reason="needs the Debian package libfaketime"),
]


@flow
def nothing() -> None:
    """Nothing: only that it runs counts."""


@pytest.mark.parametrize("offset", ["+2h", "-2h"])
async def test_a_worker_whose_clock_is_wrong_starts_what_is_due_by_the_servers(
    prefect_server: PrefectServer, client: PrefectClient, tmp_path: Path, offset: str
) -> None:
    pool = f"clock{offset}"
    await create_work_pool(client, pool)
    often = IntervalSchedule(interval=timedelta(minutes=5), anchor_date=datetime.now(UTC) + timedelta(minutes=20))
    deployment = await client.create_deployment(
        await client.create_flow(nothing),
        "nothing",
        entrypoint=f"{Path(__file__).stem}.nothing",
        work_pool_name=pool,
        schedules=[DeploymentScheduleCreate(schedule=often)],
    )
    due = await client.create_flow_run_from_deployment(deployment)

    async def planned() -> list[FlowRun]:
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
        return [run for run in await client.read_flow_runs(deployment_filter=chosen) if run.auto_scheduled]

    async def ended() -> bool:
        state = (await client.read_flow_run(due.id)).state
        return state is not None and state.is_completed()

    await until(planned, "the schedule has runs")
    extra = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    async with PrefectWorker(prefect_server.api_url, tmp_path, pool=pool, extra=extra) as worker:
        await until(ended, "the run that is due is started")
        assert "whose time counts; set it" in worker.log.read_text()
    now, _ = await read_clock(client)
    runs = await planned()
    assert all(run.state is not None and run.state.is_scheduled() for run in runs if run.expected_start_time > now)
    await client.delete_deployment(deployment)
