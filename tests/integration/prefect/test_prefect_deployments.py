"""What runs when: the real bootstrap, the real worker, and what becomes of a run when something is killed."""

from __future__ import annotations

import asyncio
import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
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
from prefect.states import Cancelling, Pending, Running, Scheduled
from prefect.workers.process import ProcessWorker
from prefect_support import STAGES, Parameters, ticks_of, until
from recording_loop import FileLease, recorded

from deployments import automations, checks, queues
from deployments.bootstrap import bootstrap, deploy, deployment_names, write_with_parameters
from deployments.pool_issues import CLAIMED_WITHIN, LATE_AFTER, STARTS, UNRESPONSIVE, PoolIssues
from deployments.profile import WORKER_PROFILE, environment
from deployments.server import PrefectServer
from deployments.supervision import Supervision
from deployments.work_pool import TEMPLATES, OpenWorkPool, create_work_pool
from deployments.worker import POOL, PrefectWorker
from tasks.flow_runs import read_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHIFT = 20
"""Seconds: on a busy machine a run takes more than ten to begin."""


@pytest.fixture(scope="session")
async def bootstrapped(prefect_server: PrefectServer) -> list[str]:
    """What the bootstrap says, run twice over."""
    env = environment(
        WORKER_PROFILE, {"PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(prefect_server.home)}
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deployments.command", "bootstrap"),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    again: list[str] = []
    await bootstrap(say=again.append)
    return [output.decode(), "\n".join(again)]


async def test_the_bootstrap_installs_everything_and_may_be_repeated(
    bootstrapped: list[str], client: PrefectClient
) -> None:
    first, second = bootstrapped
    assert "work pool modelyard: created (type process)" in first
    assert "automation modelyard-zombies: created" in first
    assert "work queue runs: created, 5 runs at a time" in first
    assert "work pool modelyard: exists (type process)" in second
    assert "automation modelyard-zombies: updated" in second
    assert second.splitlines()[-1] == "self-test: every active schedule has planned runs"
    names = sorted(automation.name for automation in await client.read_automations())
    assert names == ["modelyard-zombies"]
    assert {deployment.name for deployment in await read_all(client.read_deployments)} == deployment_names()


async def test_the_self_test_notices_a_schedule_without_runs(bootstrapped: list[str], client: PrefectClient) -> None:
    deployment = await client.read_deployment_by_name("reconcile/reconcile")

    async def noticed() -> list[str] | None:
        """The problems, unless the server has planned new runs in between."""
        for run in await runs_of(client, deployment.id):
            await client.delete_flow_run(run.id)
        found = await checks.schedule_problems(client, {"reconcile", "autoscale", "nonsense"}, timeout=0)
        return found if len(found) == 2 else None

    problems = await until(noticed, "a schedule without runs is noticed")
    assert problems[0] == "the deployment nonsense does not exist"
    assert problems[1].startswith("the deployment reconcile has an active schedule, but no run was planned")


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


async def test_the_ui_works_on_any_port(prefect_server: PrefectServer) -> None:
    """What it is told to ask is where it came from, and that answers."""
    assert prefect_server.port != 4200
    async with httpx.AsyncClient(base_url=prefect_server.ui_url, follow_redirects=True, timeout=60) as browser:
        asked = (await browser.get("/ui-settings")).json()["api_url"]
        assert (await browser.get(f"{asked}/health")).json() is True
        assert '<script type="module"' in (await browser.get("/")).text


@pytest.mark.parametrize("password", [None, "modelyard:guessed"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/deployments/{deployment}/create_flow_run", {"job_variables": {"command": "id"}}),
        ("POST", "/deployments/filter", {}),
        ("POST", "/flow_runs/", {"work_pool_name": "modelyard", "job_variables": {"command": "id"}}),
        ("PATCH", "/work_pools/modelyard", {"base_job_template": {}}),
        ("POST", "/work_pools/modelyard/get_scheduled_flow_runs", {}),
        ("GET", "/admin/settings", None),
    ],
)
async def test_a_stranger_gets_nowhere(
    bootstrapped: list[str],
    client: PrefectClient,
    prefect_server: PrefectServer,
    method: str,
    path: str,
    body: Any,
    password: str | None,
) -> None:
    deployment = await client.read_deployment_by_name("autoscale/autoscale-once")
    auth = httpx.BasicAuth(*password.split(":")) if password else None
    async with httpx.AsyncClient(auth=auth, timeout=60) as stranger:
        asked = f"{prefect_server.api_url}{path.format(deployment=deployment.id)}"
        answer = await stranger.request(method, asked, json=body)
        assert answer.status_code == 401
        assert (await stranger.get(f"{prefect_server.api_url}/health")).status_code == 200, "for probes"


async def test_who_has_no_password_is_told_so(bootstrapped: list[str], prefect_server: PrefectServer) -> None:
    async with PrefectClient(prefect_server.api_url) as stranger:
        (problem,) = await checks.authentication_problems(stranger)
    assert "PREFECT_API_AUTH_STRING" in problem


async def test_a_server_of_another_machine_that_lets_anybody_in_is_refused(tmp_path: Path) -> None:
    """All addresses of this machine stand for another one: it is not known to be reached from here only."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Welcoming) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        async with PrefectClient(f"http://0.0.0.0:{port}/api") as client:
            (problem,) = await checks.authentication_problems(client)
            assert "lets anybody in" in problem
            assert await checks.authentication_problems(client, open_allowed=True) == []
        async with PrefectClient(f"http://127.0.0.1:{port}/api") as client:
            assert await checks.authentication_problems(client) == []
        server.shutdown()


class Welcoming(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'"3.8"')

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    "said", [{"command": "id"}, {"env": {"LD_PRELOAD": "x"}}, {"env.PYTHONPATH": "/tmp"}, {"working_dir": "/tmp"}]
)
async def test_a_run_that_brings_a_command_or_an_environment_is_refused(
    bootstrapped: list[str], client: PrefectClient, said: dict[str, Any]
) -> None:
    deployment = await client.read_deployment_by_name("autoscale/autoscale-once")
    with pytest.raises(PrefectHTTPStatusError, match="Validation failed") as caught:
        await client.create_flow_run_from_deployment(deployment.id, job_variables=said)
    assert caught.value.response.status_code == 422


@pytest.fixture
async def nobody(client: PrefectClient) -> AsyncIterator[UUID]:
    """A deployment of shifts, every five seconds, in a pool without a worker: scheduled runs pile up."""
    await create_work_pool(client, "nobody")
    schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(seconds=5)))
    deployment = await client.create_deployment(
        flow_id=await client.create_flow_from_name("backlog"),
        name="backlog",
        work_pool_name="nobody",
        schedules=[schedule],
        parameters={"shift_seconds": 600},
    )
    yield deployment
    await client.pause_deployment(deployment)
    for run in await runs_of(client, deployment):
        await client.delete_flow_run(run.id)
    await client.delete_deployment(deployment)


async def test_what_is_stuck_or_late_is_put_right_and_the_rest_is_left(
    bootstrapped: list[str], client: PrefectClient, nobody: UUID
) -> None:
    stuck, by_hand = [await client.create_flow_run_from_deployment(nobody) for _ in range(2)]
    await client.set_flow_run_state(stuck.id, Pending(), force=True)

    async def planned() -> bool:
        """So many that some will be late and some on time in three minutes."""
        return sum(run.auto_scheduled for run in await runs_of(client, nobody)) > 20

    await until(planned, "runs are planned")
    fresh = await client.create_flow_run_from_deployment(nobody)
    await client.set_flow_run_state(fresh.id, Pending(), force=True)
    old, young = [(await client.read_flow_run(run.id)).state.timestamp for run in (stuck, fresh)]
    # Later: one has been pending for too long, the other not yet.
    now = old + (young - old) / 2 + timedelta(seconds=CLAIMED_WITHIN)

    assert await Supervision(client, "nobody else").run_once(now) == (PoolIssues([], []), [])
    _, repairs = await Supervision(client, "nobody").run_once(now)

    names = {run.id: run.state.name for run in await runs_of(client, nobody) if run.state}
    assert (names[stuck.id], names[fresh.id]) == (UNRESPONSIVE, "Pending")
    assert names[by_hand.id] in ("Scheduled", "Late")
    scheduled = [run for run in await runs_of(client, nobody) if run.auto_scheduled]
    late = {run.id for run in scheduled if run.expected_start_time < now - timedelta(seconds=LATE_AFTER)}
    assert len(late) > 5
    assert {run.id for run in scheduled if names[run.id] == "Cancelled"} == late
    assert len(repairs) == len(late) + 1, "each is counts"


async def test_a_shift_without_runs_gets_a_writer_and_a_standby(
    bootstrapped: list[str], client: PrefectClient, nobody: UUID
) -> None:
    async def by_hand() -> list[FlowRun]:
        return [run for run in await runs_of(client, nobody) if not run.auto_scheduled]

    await client.pause_deployment(nobody)
    for run in await runs_of(client, nobody):
        await client.delete_flow_run(run.id)
    now = datetime.now(UTC)
    supervision = Supervision(client, "nobody")

    async def started(now: datetime, supervision: Supervision) -> int:
        _, repairs = await supervision.run_once(now)
        assert all(line.startswith("Created missing shift of backlog") for line in repairs)
        return len(repairs)

    assert await started(now, supervision) == 0, "nobody wants it to run"
    schedules = await client.read_deployment_schedules(nobody)
    rarely = IntervalSchedule(interval=timedelta(days=1), anchor_date=now - timedelta(hours=1))
    await client.update_deployment_schedule(nobody, schedules[0].id, schedule=rarely)
    await client.resume_deployment(nobody)
    # Those of two workers look at the same time.
    counts = await asyncio.gather(*(started(now, each) for each in (supervision, Supervision(client, "nobody"))))
    assert max(counts) == 2
    assert len(await by_hand()) == 2
    assert await started(now + timedelta(seconds=STARTS.first), supervision) == 0
    assert len(await by_hand()) == 2


async def test_an_older_pool_is_closed_too(client: PrefectClient) -> None:
    await create_work_pool(client, "older")
    before = ProcessWorker.get_default_base_job_template()
    await client.update_work_pool("older", WorkPoolUpdate(base_job_template=before))
    assert (await client.read_work_pool("older")).base_job_template == before
    assert await create_work_pool(client, "older") == "exists (type process)"
    assert (await client.read_work_pool("older")).base_job_template == TEMPLATES["process"]


async def test_a_pool_of_another_type_that_takes_variables_is_refused(client: PrefectClient) -> None:
    given = ProcessWorker.get_default_base_job_template()
    await client.create_work_pool(WorkPoolCreate(name="open", type="docker", base_job_template=given))
    with pytest.raises(OpenWorkPool, match="the work pool open"):
        await create_work_pool(client, "open")
    assert (await client.read_work_pool("open")).base_job_template == given, "it is the operator's"
    await client.update_work_pool("open", WorkPoolUpdate(base_job_template=TEMPLATES["process"]))
    assert await create_work_pool(client, "open") == "exists (type docker)"


async def test_an_older_pool_gets_the_queues_and_a_limit_that_somebody_set_stays(client: PrefectClient) -> None:
    await create_work_pool(client, "older")
    await client.create_work_queue("runs", work_pool_name="older")  # as Prefect does for a run in an absent queue
    await client.create_work_queue("parents", concurrency_limit=7, is_paused=True, work_pool_name="older")
    assert await queues.apply(client, "older") == [
        "shifts: created, no limit",
        "runs: updated, 5 runs at a time",
        "parents: updated, 7 runs at a time, paused",
    ]
    assert (await queues.apply(client, "older"))[0] == "shifts: updated, no limit", "it may be repeated"
    stored = {queue.name: queue for queue in await client.read_work_queues("older")}
    assert [queue.name for queue in sorted(stored.values(), key=lambda queue: queue.priority)] == [
        "shifts", "runs", "parents", "default",
    ]  # fmt: skip
    assert {name: queue.concurrency_limit for name, queue in stored.items()} == {
        "shifts": None, "runs": 5, "parents": 7, "default": None,
    }  # fmt: skip
    assert stored["parents"].is_paused


async def test_scheduled_runs_of_former_queues_are_moved_by_the_upgrade(client: PrefectClient) -> None:
    pool = "former"
    await create_work_pool(client, pool)
    for name in ("manual", "runs"):
        await client.create_work_queue(name, work_pool_name=pool)
    deployment, other = [
        await client.create_deployment(
            flow_id=await client.create_flow_from_name("moving"),
            name=name,
            work_pool_name=pool,
            work_queue_name="manual",
            parameters={"name": "chat"},
        )
        for name in ("moving", "other")
    ]
    later = datetime.now(UTC) + timedelta(hours=3)
    waiting = await client.create_flow_run_from_deployment(
        deployment, state=Scheduled(scheduled_time=later), tags=["by-hand"]
    )
    given = {"parameters": {"name": "code"}, "idempotency_key": "BenchmarkJob/shop/code/0/1"}
    keyed = await client.create_flow_run_from_deployment(deployment, work_queue_name="default", **given)
    await client.create_flow_run_from_deployment(other)
    running = await client.create_flow_run_from_deployment(deployment)
    await client.set_flow_run_state(running.id, Running(), force=True)
    await client.update_deployment(deployment, DeploymentUpdate(work_pool_name=pool, work_queue_name="runs"))

    assert sorted(await queues.move_runs(client, pool)) == [
        "default: 1 scheduled runs moved to the queues of their deployments",
        "manual: 1 scheduled runs moved to the queues of their deployments",
    ]
    moved = {run.name: run for run in await runs_of(client, deployment)}
    assert moved.keys() == {waiting.name, keyed.name, running.name}
    assert {run.work_queue_name for run in moved.values() if run.id != running.id} == {"runs"}
    assert moved[waiting.name].expected_start_time == waiting.expected_start_time
    assert (moved[waiting.name].parameters, moved[waiting.name].tags) == ({"name": "chat"}, ["by-hand"])
    assert (moved[keyed.name].parameters, moved[keyed.name].idempotency_key) == tuple(given.values())
    assert [run.work_queue_name for run in await runs_of(client, other)] == ["manual"], "that of its deployment"
    assert await queues.move_runs(client, pool) == [], "the former queue is kept while runs are in it"

    await client.delete_deployment(other)
    for run in await runs_of(client, deployment):
        await client.delete_flow_run(run.id)
    assert await queues.move_runs(client, pool) == ["manual: deleted"]
    assert {queue.name for queue in await client.read_work_queues(pool)} == {"default", "runs"}


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
    """A worker, started after the first scheduled runs have been late for long."""
    async with get_client() as client:

        async def stale() -> bool:
            passed = datetime.now(UTC) - timedelta(seconds=LATE_AFTER + SHIFT / 2)
            return any(run.expected_start_time < passed for run in await runs_of(client, deployment.id))

        await until(stale, "shifts that nobody started")
    home = tmp_path_factory.mktemp("worker")
    async with PrefectWorker(prefect_server.api_url, home, extra={"PREFECT_WORKER_QUERY_SECONDS": "1"}) as worker:
        yield worker


@pytest.mark.timing_sensitive("runs are told apart by how late they started")
async def test_after_an_outage_what_is_past_is_dropped_and_the_schedule_goes_on(
    worker: PrefectWorker, deployment: DeploymentResponse, client: PrefectClient, recording: Path
) -> None:
    begun = datetime.now(UTC)

    async def scheduled() -> FlowRun | None:
        """A shift that has ended, of those that were not due yet when the worker came."""
        for run in await runs_of(client, deployment.id):
            if run.state and run.state.name == "Completed" and run.auto_scheduled and run.expected_start_time > begun:
                return run
        return None

    whole = await until(scheduled, "a whole shift", timeout=200)
    # From here on the tests start runs by hand.
    await client.pause_deployment(deployment.id)
    assert "0 failed" in whole.state.message
    runs = [run for run in await runs_of(client, deployment.id) if run.state]
    cancelled = [run for run in runs if run.state.is_cancelled()]
    assert cancelled, "the runs nobody could start"
    for run in cancelled:
        states = {state.type for state in await client.read_flow_run_states(run.id)}
        assert states == {StateType.SCHEDULED, StateType.CANCELLED}, "it cost no process to drop it"
    ended = [run for run in runs if run.state.is_completed()]
    skipped = [run for run in ended if run.state.name == "Skipped"]
    # Not late enough to be dropped, and the shift was over when they began: how many depends on the moment.
    # On a busy machine they have begun some seconds before they look at the clock.
    assert all(late_by(run) > SHIFT / 2 for run in skipped)
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


async def final(client: PrefectClient, run: FlowRun, timeout: float = 240) -> FlowRun:
    async def ended() -> FlowRun | None:
        now = await client.read_flow_run(run.id)
        return now if now.state and now.state.is_final() else None

    return await until(ended, f"run {run.name} ends", timeout)


@pytest.fixture(scope="session")
async def standing(
    worker: PrefectWorker, deployment: DeploymentResponse, tmp_path_factory: pytest.TempPathFactory
) -> tuple[UUID, Path]:
    """A deployment of long shifts, scheduled hours from now, with a writer and a standby; where they write."""
    record = tmp_path_factory.mktemp("standing") / "record.jsonl"
    given = {**deployment.parameters, "lease_name": "standing", "label_selector": f"record={record}"}
    rarely = IntervalSchedule(interval=timedelta(days=1), anchor_date=datetime.now(UTC) - timedelta(hours=1))
    async with get_client() as client:
        await client.pause_deployment(deployment.id)  # its shifts every five seconds have been seen by now
        identity = await client.create_deployment(
            flow_id=deployment.flow_id,
            name="standing",
            entrypoint="recording_loop.autoscale",
            work_pool_name=POOL,
            parameters={**given, "shift_seconds": 600},
            schedules=[DeploymentScheduleCreate(schedule=rarely)],
            paused=True,
        )
        for number in (1, 2):
            await client.create_flow_run_from_deployment(identity)
            await reached(record, "open", number)
        await reached(record, "collect", 1)
        # Only now: or the worker might find that a run is missing.
        await client.resume_deployment(identity)
    return identity, record


def pids(record: Path, stage: str) -> list[int]:
    """The processes that got to this stage, in the order in which they first did."""
    return list(dict.fromkeys(entry["pid"] for entry in recorded(record) if entry["stage"] == stage))


async def reached(record: Path, stage: str, count: int) -> list[int]:
    """Wait until ``count`` processes got to this stage."""

    async def there() -> list[int] | None:
        found = pids(record, stage)
        return found if len(found) >= count else None

    return await until(there, f"{count} processes at {stage}", timeout=120)


async def test_shifts_go_on_while_the_server_is_down_and_a_writer_killed_after_it_is_followed_and_replaced(
    deployment: DeploymentResponse,
    client: PrefectClient,
    prefect_server: PrefectServer,
    parameters: Parameters,
    record: Path,
    standing: tuple[UUID, Path],
) -> None:
    """No event tells a server that has just started of the death of a run that it did not see begin."""
    given = parameters(shift_seconds=45, interval_seconds=1, early_end_seconds=0.5, change=5)
    run = await start(client, deployment, given)
    await ticking(record, after=3)
    prefect_server.kill()
    try:
        down = max(ticks_of(record))
        await ticking(record, after=down + 2)
        assert not prefect_server.healthy(), "it ticked without a server"
    finally:
        await asyncio.to_thread(prefect_server.start)

    identity, pair = standing
    (writer,) = pids(pair, "collect")
    os.kill(writer, signal.SIGKILL)
    await reached(pair, "collect", 2)  # the standby ticks
    await reached(pair, "open", 3)  # and has a standby of its own
    creators = [one.created_by.type for one in await runs_of(client, identity) if one.created_by]
    assert "AUTOMATION" not in creators

    ended = await final(client, run)
    ticks = ticks_of(record)
    assert ended.state.message.startswith(f"{len(ticks)} ticks, 0 failed, 1 scaled")
    assert all(stages == STAGES for stages in ticks.values())

    async def all_recorded() -> bool:
        found = await client.read_task_runs(
            task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id])), limit=200
        )
        return len(found) == 3 * len(ticks) and all(task.state and task.state.is_completed() for task in found)

    await until(all_recorded, "every task run of the outage is on record")


@pytest.fixture
async def unnoticed(client: PrefectClient) -> AsyncIterator[None]:
    """Prefect does not notice that runs have died, for as long as the test lasts."""
    (zombies,) = await client.read_automations_by_name("modelyard-zombies")
    await client.pause_automation(zombies.id)
    yield
    await client.resume_automation(zombies.id)


async def test_a_worker_that_comes_back_marks_the_dead_and_brings_writer_and_standby(
    worker: PrefectWorker, client: PrefectClient, standing: tuple[UUID, Path], unnoticed: None
) -> None:
    """The machine dies, the worker comes back, and its first writer dies soon after: a tick follows each time."""
    identity, pair = standing

    async def running() -> set[UUID]:
        return {run.id for run in await runs_of(client, identity) if run.state and run.state.name == "Running"}

    async def standing_by() -> bool:
        return len(await running()) >= 2

    # One whose signs of life were lost with the server may count as dead: the worker brings another.
    await until(standing_by, "a writer and a standby say they run")
    opened, wrote = pids(pair, "open"), pids(pair, "collect")
    worker.kill()
    try:
        dead = await running()
    finally:
        await asyncio.to_thread(worker.start)
    assert len(dead) >= 2
    writer = (await reached(pair, "collect", len(wrote) + 1))[-1]
    standby = set(await reached(pair, "open", len(opened) + 2)) - {*opened, writer}
    assert writer not in opened
    assert standby, "nobody asked for it"
    with suppress(ProcessLookupError):  # on a slow machine its shift may be over
        os.kill(writer, signal.SIGKILL)
    newest = (await reached(pair, "collect", len(wrote) + 2))[-1]
    assert newest in standby
    assert not dead & await running(), "they died with the worker"
    await client.pause_deployment(identity)
    for pid in {*standby, *pids(pair, "open")} - {*opened, writer}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_command_that_got_past_the_check_is_not_run(
    worker: PrefectWorker,
    deployment: DeploymentResponse,
    client: PrefectClient,
    parameters: Parameters,
    record: Path,
    tmp_path: Path,
) -> None:
    """The server does not look at the job variables of runs that are created beside the deployment's own route."""
    stolen = tmp_path / "stolen"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(stolen)!r}, 'w').close()")
    attack = {
        "flow_id": str(deployment.flow_id),
        "deployment_id": str(deployment.id),
        "work_pool_name": POOL,
        "parameters": parameters(shift_seconds=0).model_dump(mode="json"),
        "state": {"type": "SCHEDULED"},
        "job_variables": {"command": f"touch {stolen}", "env": {"PYTHONPATH": str(tmp_path)}, "working_dir": "/"},
    }
    answer = await client.request("POST", "/flow_runs/", json=attack)
    run = await final(client, await client.read_flow_run(UUID(answer.json()["id"])))
    assert run.job_variables == attack["job_variables"]
    assert run.state.message == "1 ticks, 0 failed, 0 scaled"
    assert ticks_of(record) == {0: STAGES}
    assert not stolen.exists()


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

    async def closed() -> bool:
        return recorded(record)[-1]["stage"] == "close"

    await until(closed, "it has closed its connections")
    assert await FileLease(record.with_name("shared.lock")).acquire(120)
    assert {r.id for r in await runs_of(client, deployment.id)} == before


async def test_a_worker_that_a_script_put_in_the_background_can_be_stopped(
    bootstrapped: list[str], prefect_server: PrefectServer, tmp_path: Path
) -> None:
    env = {**os.environ, "PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "deployments.command", "worker"]
    # A shell without job control starts its background jobs with SIGINT ignored.
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'trap "" INT; exec "$@"', "sh", *command),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(200):
            while b"started!" not in (line := await process.stdout.readline()):
                assert line, "the worker ended"
            process.terminate()
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
