"""What runs when: the real bootstrap, the real worker, and what becomes of a run when something is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling, Pending
from prefect_support import STAGES, Parameters, ticks_of, until
from recording_loop import FileLease, recorded

from deployments import automations, checks
from deployments.bootstrap import (
    bootstrap,
    create_work_pool,
    deploy,
    deployment_names,
    start_first_shift,
    write_with_parameters,
)
from deployments.profile import WORKER_PROFILE, environment
from deployments.server import PrefectServer
from deployments.worker import PrefectWorker
from flows.maintenance import maintenance
from tasks.prefect_backlog import cancel_late_backlog, crash_stuck_pending

pytestmark = pytest.mark.integration

SHIFT = 10


@pytest.fixture(scope="session")
async def bootstrapped(prefect_server: PrefectServer) -> list[str]:
    """What the bootstrap says, run twice over."""
    env = environment(
        WORKER_PROFILE, {"PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(prefect_server.home)}
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deployments.bootstrap", "--no-first-run"),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    again: list[str] = []
    await bootstrap(first_run=False, say=again.append)
    return [output.decode(), "\n".join(again)]


async def test_the_bootstrap_installs_everything_and_may_be_repeated(
    bootstrapped: list[str], client: PrefectClient
) -> None:
    first, second = bootstrapped
    assert "work pool modelyard: created" in first
    assert "automation modelyard-zombies: created" in first
    assert "work pool modelyard: exists (type process)" in second
    assert "automation modelyard-zombies: updated" in second
    assert second.splitlines()[-1] == "self-test: every active schedule has planned runs"
    names = sorted(automation.name for automation in await client.read_automations())
    assert names == ["modelyard-autoscale-successor", "modelyard-reconcile-successor", "modelyard-zombies"]
    assert {deployment.name for deployment in await checks.read_deployments(client)} == deployment_names()


async def test_the_self_test_notices_a_schedule_without_runs(bootstrapped: list[str], client: PrefectClient) -> None:
    deployment = await client.read_deployment_by_name("maintenance/maintenance")

    async def noticed() -> list[str] | None:
        """The problems, unless the server has planned new runs in between."""
        for run in await runs_of(client, deployment.id):
            await client.delete_flow_run(run.id)
        found = await checks.schedule_problems(client, {"maintenance", "autoscale", "nonsense"}, timeout=0)
        return found if len(found) == 2 else None

    problems = await until(noticed, "a schedule without runs is noticed")
    assert problems[0] == "the deployment nonsense does not exist"
    assert problems[1].startswith("the deployment maintenance has an active schedule, but no run was planned")


async def test_a_disabled_automation_stays_disabled_and_a_duplicate_goes(
    bootstrapped: list[str], client: PrefectClient
) -> None:
    (wanted,) = automations.load()
    (existing,) = await client.read_automations_by_name(wanted.name)
    await client.pause_automation(existing.id)
    await client.create_automation(wanted)
    assert await automations.apply(client) == ["modelyard-zombies: updated, 1 duplicates removed"]
    (left,) = await client.read_automations_by_name(wanted.name)
    await client.resume_automation(left.id)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"interval_seconds": 0}, "interval_seconds"),
        ({"fleet": {"max_step_up": 0}}, "max_step_up"),
        ({"fleet": {"max_step": 1}}, "max_step"),
        ({"shift_secconds": 60}, "shift_secconds"),
    ],
)
async def test_the_server_refuses_wrong_parameters_by_name(
    bootstrapped: list[str], client: PrefectClient, parameters: dict[str, Any], field: str
) -> None:
    deployment = await client.read_deployment_by_name("autoscale/autoscale-once")
    with pytest.raises(PrefectHTTPStatusError, match=field) as caught:
        await client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    assert caught.value.response.status_code == 409


async def runs_of(client: PrefectClient, deployment: UUID) -> list[FlowRun]:
    return await client.read_flow_runs(deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])))


@flow
async def correct(work_pool: str, claimed_before: datetime) -> tuple[int, int]:
    """The tasks of the maintenance flow, with limits too short for its parameters."""
    pending_limit = (datetime.now(UTC) - claimed_before).total_seconds()
    return await crash_stuck_pending(work_pool, pending_limit), await cancel_late_backlog(work_pool, 0)


async def test_maintenance_corrects_what_is_stuck_and_leaves_the_rest(
    bootstrapped: list[str], client: PrefectClient
) -> None:
    """A pool without a worker: claimed runs never start, scheduled ones pile up."""
    await create_work_pool(client, "nobody")
    schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(seconds=1)))
    deployment = await client.create_deployment(
        flow_id=await client.create_flow_from_name("backlog"),
        name="backlog",
        work_pool_name="nobody",
        schedules=[schedule],
    )
    stuck, by_hand = [await client.create_flow_run_from_deployment(deployment) for _ in range(2)]
    await client.set_flow_run_state(stuck.id, Pending(), force=True)

    async def late() -> bool:
        named = {run.id for run in await runs_of(client, deployment) if run.state and run.state.name == "Late"}
        return by_hand.id in named and len(named) >= 4

    await until(late, "the run by hand and three scheduled ones are late")
    await client.pause_deployment(deployment)
    fresh = await client.create_flow_run_from_deployment(deployment)
    await client.set_flow_run_state(fresh.id, Pending(), force=True)

    old, young = [(await client.read_flow_run(run.id)).state.timestamp for run in (stuck, fresh)]
    assert young - old > timedelta(seconds=1), "one is clearly older than the limit, one younger"
    crashed, cancelled = await correct("nobody", old + (young - old) / 2)

    runs = [run for run in await runs_of(client, deployment) if run.state]
    names = {run.id: run.state.name for run in runs}
    assert (names[stuck.id], names[fresh.id], names[by_hand.id]) == ("Crashed", "Pending", "Late")
    due = [run for run in runs if run.auto_scheduled and run.state.name != "Scheduled"]
    scheduled = sorted(due, key=lambda run: run.expected_start_time)
    # The newest of those late then is left; the server may have marked one more as late since.
    left = len(scheduled) - cancelled
    assert [names[run.id] for run in scheduled] == ["Cancelled"] * cancelled + ["Late"] * left
    assert crashed == 1
    assert cancelled >= 2
    assert left >= 1
    assert (await maintenance(return_state=True)).name == "NoChange", "another pool's runs"
    await client.delete_deployment(deployment)


@pytest.fixture(scope="session")
async def recording(
    bootstrapped: list[str], prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The product's deployments with the recording loop in place of the real one; where that loop writes."""
    folder = tmp_path_factory.mktemp("recording")
    file = folder / "prefect.yaml"
    parameters = {
        "interval_seconds": 1,
        "shift_seconds": SHIFT,
        "early_end_seconds": 0.5,
        "lease_name": "shared",
        "label_selector": f"record={folder / 'record.jsonl'}",
    }
    write_with_parameters(parameters, file)
    file.write_text(file.read_text().replace("flows.autoscale.autoscale", "recording_loop.autoscale"))
    async with get_client() as client:
        await deploy(client, file)
        # There is no cluster here for it.
        await client.pause_deployment((await client.read_deployment_by_name("reconcile/reconcile")).id)
    return folder / "record.jsonl"


@pytest.fixture(scope="session")
async def deployment(recording: Path) -> AsyncIterator[DeploymentResponse]:
    async with get_client() as client:
        yield await client.read_deployment_by_name("autoscale/autoscale")


@pytest.fixture(scope="session")
async def worker(
    prefect_server: PrefectServer, deployment: DeploymentResponse, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PrefectWorker]:
    """A worker, started after the first scheduled runs have gone stale."""
    async with get_client() as client:

        async def stale() -> bool:
            passed = datetime.now(UTC) - timedelta(seconds=SHIFT)
            return any(run.expected_start_time < passed for run in await runs_of(client, deployment.id))

        await until(stale, "a shift that nobody started")
    home = tmp_path_factory.mktemp("worker")
    async with PrefectWorker(prefect_server.api_url, home, extra={"PREFECT_WORKER_QUERY_SECONDS": "1"}) as worker:
        yield worker


@pytest.mark.timing_sensitive("runs are told apart by how late they started")
async def test_after_an_outage_stale_runs_are_skipped_and_the_schedule_goes_on(
    worker: PrefectWorker, deployment: DeploymentResponse, client: PrefectClient, recording: Path
) -> None:
    async def prefetched() -> FlowRun | None:
        """A shift that has ended and that the worker had ready before its moment."""
        for run in await runs_of(client, deployment.id):
            if run.state and run.state.name == "Completed":
                states = await client.read_flow_run_states(run.id)
                pending = next(state for state in states if state.type == StateType.PENDING)
                if pending.timestamp < run.expected_start_time:
                    return run
        return None

    whole = await until(prefetched, "a whole shift", timeout=120)
    # From here on the tests start runs by hand.
    await client.pause_deployment(deployment.id)
    assert "0 failed" in whole.state.message
    ended = [run for run in await runs_of(client, deployment.id) if run.state and run.state.is_completed()]
    skipped = [run for run in ended if run.state.name == "Skipped"]
    assert skipped, "the runs nobody could start"
    assert all(late_by(run) > SHIFT - 2 for run in skipped)
    assert all(late_by(run) < SHIFT for run in ended if run not in skipped)
    writers = [(entry["pid"], entry["tick"]) for entry in recorded(recording) if entry["stage"] == "actuate"]
    assert len(set(writers)) == len(writers), "no tick twice"


def late_by(run: FlowRun) -> float:
    return (run.start_time - run.expected_start_time).total_seconds()


async def start(client: PrefectClient, deployment: DeploymentResponse, parameters: Any) -> FlowRun:
    return await client.create_flow_run_from_deployment(deployment.id, parameters=parameters.model_dump(mode="json"))


async def ticking(record: Path, after: int = 0) -> dict[str, Any]:
    """Wait for the first entry of a tick past number ``after``."""

    async def entry() -> dict[str, Any] | None:
        return next((e for e in recorded(record) if e["tick"] > after and e["stage"] == "actuate"), None)

    return await until(entry, f"a tick past {after}")


async def final(client: PrefectClient, run: FlowRun, timeout: float = 60) -> FlowRun:
    async def ended() -> FlowRun | None:
        now = await client.read_flow_run(run.id)
        return now if now.state and now.state.is_final() else None

    return await until(ended, f"run {run.name} ends", timeout)


async def test_a_crashed_run_is_replaced_at_once(
    worker: PrefectWorker,
    deployment: DeploymentResponse,
    client: PrefectClient,
    parameters: Parameters,
    record: Path,
    recording: Path,
) -> None:
    known = {entry["pid"] for entry in recorded(recording)}
    run = await start(client, deployment, parameters(shift_seconds=300, interval_seconds=0.5))
    os.kill((await ticking(record))["pid"], signal.SIGKILL)
    assert (await final(client, run)).state.name == "Crashed"

    async def successor() -> FlowRun | None:
        runs = await runs_of(client, deployment.id)
        return next((r for r in runs if r.created_by and r.created_by.type == "AUTOMATION"), None)

    replacement = await until(successor, "the successor of a crashed run")
    assert replacement.parameters == deployment.parameters

    async def ticks() -> bool:
        return any(entry["pid"] not in known and entry["tick"] >= 0 for entry in recorded(recording))

    await until(ticks, "the successor ticks")


async def test_a_shift_goes_on_while_the_server_is_down(
    worker: PrefectWorker,
    deployment: DeploymentResponse,
    client: PrefectClient,
    prefect_server: PrefectServer,
    parameters: Parameters,
    record: Path,
) -> None:
    given = parameters(shift_seconds=20, interval_seconds=1, early_end_seconds=0.5, change=5)
    run = await start(client, deployment, given)
    await ticking(record, after=3)
    prefect_server.kill()
    down = max(ticks_of(record))
    await ticking(record, after=down + 2)
    assert not prefect_server.healthy(), "it ticked without a server"
    await asyncio.to_thread(prefect_server.start)
    ended = await final(client, run)
    ticks = ticks_of(record)
    assert ended.state.message.startswith(f"{len(ticks)} ticks, 0 failed, 1 scaled")
    assert all(stages == STAGES for stages in ticks.values())

    async def all_recorded() -> bool:
        found = await client.read_task_runs(
            task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id])), limit=200
        )
        return len(found) == 3 * len(ticks) and all(task.state and task.state.is_completed() for task in found)

    await until(all_recorded, "every task run of the outage is on record", timeout=90)


async def test_a_cancelled_run_gives_up_its_lease_and_is_not_replaced(
    worker: PrefectWorker,
    deployment: DeploymentResponse,
    client: PrefectClient,
    parameters: Parameters,
    record: Path,
) -> None:
    run = await start(client, deployment, parameters(shift_seconds=300, interval_seconds=0.5))
    await ticking(record)
    before = {r.id for r in await runs_of(client, deployment.id)}
    await client.set_flow_run_state(run.id, Cancelling())
    assert (await final(client, run)).state.name == "Cancelled"
    assert [entry["stage"] for entry in recorded(record)][-1] == "close"
    assert await FileLease(record.with_name("shared.lock")).acquire(0)
    assert {r.id for r in await runs_of(client, deployment.id)} == before


async def test_the_first_shift_starts_without_waiting_for_the_schedule_and_only_once(
    worker: PrefectWorker, deployment: DeploymentResponse, client: PrefectClient
) -> None:
    said = await start_first_shift(client, "autoscale")
    assert await start_first_shift(client, "autoscale") in (
        said,
        said.replace("is waiting for a worker", "is under way already"),
    )
    (run,) = [run for run in await runs_of(client, deployment.id) if said.startswith(f"{run.name} ")]

    async def running() -> bool:
        state = (await client.read_flow_run(run.id)).state
        return state is not None and state.is_running()

    await until(running, "the first shift runs")
    assert await start_first_shift(client, "autoscale") == f"{run.name} is under way already"


async def test_the_replay_deployment_runs_as_it_is(worker: PrefectWorker, client: PrefectClient) -> None:
    """Its own manifests and trace are found from where the worker runs; only less of them is asked for."""
    deployment = await client.read_deployment_by_name("replay/replay")
    less = {"minutes": 1, "policies": ["fixed"]}
    run = await client.create_flow_run_from_deployment(deployment.id, parameters=less)
    state = (await final(client, run)).state
    assert state is not None
    assert state.is_completed(), state.message


async def test_a_worker_that_a_script_put_in_the_background_can_be_stopped(
    bootstrapped: list[str], prefect_server: PrefectServer, tmp_path: Path
) -> None:
    env = {**os.environ, "PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "deployments.worker"]
    # A shell without job control starts its background jobs with SIGINT ignored.
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'trap "" INT; exec "$@"', "sh", *command),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while b"started!" not in (line := await process.stdout.readline()):
                assert line, "the worker ended"
            process.terminate()
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
