"""Shifts in this process, on a real Prefect server: ticks, failures, the lease, what Prefect gets to see."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import prefect
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import State
from prefect_support import STAGES, Parameters, ticks_of, until
from recording_controller import autoscale
from recording_loop import FileLease, recorded

from deployments.profile import WORKER_PROFILE, environment, free_port
from deployments.server import PrefectServer
from flows.parameters import AutoscaleParameters

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def shift(parameters: AutoscaleParameters) -> State:
    return await autoscale(**dict(parameters), return_state=True)


async def shift_of_ticks(parameters: Parameters, record: Path, count: int, **given: Any) -> tuple[State, int]:
    """A shift that got to at least so many ticks, and its seconds: on a busy machine it takes more of them."""
    for seconds in (5, 20, 80):
        record.unlink(missing_ok=True)
        state = await shift(parameters(shift_seconds=seconds, **given))
        if len(ticks_of(record)) >= count:
            return state, seconds
    raise AssertionError(f"not {count} ticks: {state.message}")


async def test_a_shift_ticks_on_its_grid_and_tells_it_in_numbers(parameters: Parameters, record: Path) -> None:
    state, seconds = await shift_of_ticks(parameters, record, 2)
    assert state.name == "Completed"
    ticks = ticks_of(record)
    assert (state.message or "").startswith(f"{len(ticks)} ticks, 0 failed, 0 scaled")
    assert all(stages == STAGES for stages in ticks.values())
    assert list(ticks) == sorted(ticks)
    assert set(ticks) <= set(range(4 * seconds))
    entries = recorded(record)
    assert [entries[0]["stage"], entries[-1]["stage"]] == ["open", "close"]
    assert all(entry["held"] for entry in entries if entry["tick"] >= 0)


@pytest.mark.timing_sensitive("a tick and that for an edit must be over within sixty seconds")
async def test_an_edit_is_acted_on_before_the_next_tick_is_due(parameters: Parameters, record: Path) -> None:
    numbers: list[int] = []
    for interval in (8, 40):
        record.unlink(missing_ok=True)
        await shift(parameters(interval_seconds=interval, shift_seconds=1.75 * interval, edit=0))
        numbers = [entry["tick"] for entry in recorded(record) if entry["stage"] == "collect"]
        if len(numbers) > 2:
            break  # else a tick takes longer than that on this machine
    assert numbers == [0, 1, 1], "a tick of the grid, one for the edit, and the next of the grid all the same"


async def test_prefect_does_not_look_into_what_the_stages_hand_on(parameters: Parameters, record: Path) -> None:
    await shift(parameters(shift_seconds=0))
    stages = [entry for entry in recorded(record) if entry["tick"] >= 0]
    assert [entry["stage"] for entry in stages] == STAGES
    assert [entry["touched"] for entry in stages] == [[], [], []]
    assert len({entry["loop"] for entry in stages}) == 1


async def test_one_tick_and_done(parameters: Parameters, record: Path) -> None:
    state = await shift(parameters(shift_seconds=0))
    assert state.message == "1 ticks, 0 failed, 0 scaled"
    assert ticks_of(record) == {0: STAGES}


async def test_collect_is_tried_again_while_the_next_tick_is_not_due(parameters: Parameters, record: Path) -> None:
    state = await shift(parameters(shift_seconds=0, interval_seconds=60, fail="collect@0"))
    assert state.message == "1 ticks, 0 failed, 0 scaled"
    assert ticks_of(record) == {0: ["collect", *STAGES]}


@pytest.mark.parametrize(("stage", "ran"), [("collect", STAGES[:1]), ("decide", STAGES[:2]), ("actuate", STAGES)])
async def test_a_failing_tick_is_counted_and_the_next_one_goes_on(
    parameters: Parameters, record: Path, stage: str, ran: list[str]
) -> None:
    state, _ = await shift_of_ticks(parameters, record, 3, fail=f"{stage}@1")
    assert state.name == "Completed"
    first, second, *others = ticks_of(record).values()
    assert (first, second) == (STAGES, ran)
    assert all(stages == STAGES for stages in others)
    assert (state.message or "").startswith(f"{2 + len(others)} ticks, 1 failed, 0 scaled")
    assert (state.message or "").endswith(f"({stage}: 1); last error: {stage}: RuntimeError: {stage} was told to fail")


async def test_a_shift_fails_when_every_tick_failed(parameters: Parameters) -> None:
    state = await shift(parameters(shift_seconds=2, fail="decide"))
    assert state.name == "Failed"
    assert (state.message or "").startswith("Every tick failed: ")
    assert "decide was told to fail" in (state.message or "")


async def test_an_unreachable_cluster_is_retried_until_the_shift_ends(parameters: Parameters, record: Path) -> None:
    state = await shift(parameters(shift_seconds=0.8, closed=1))
    assert state.name == "Failed"
    assert state.message == (
        "No tick completed: the connections cannot be opened: ConnectionError: the cluster cannot be reached"
    )
    assert not recorded(record)


@pytest.mark.timing_sensitive("the distance of ticks is measured")
async def test_a_slow_tick_skips_instants_and_never_bunches(parameters: Parameters, record: Path) -> None:
    state = await shift(parameters(shift_seconds=6, slow="collect@0.4"))
    numbers = list(ticks_of(record))
    assert numbers == sorted(numbers)
    assert len(numbers) < 24
    assert "skipped because they were late" in (state.message or "")
    starts = [entry["at"] for entry in recorded(record) if entry["stage"] == "collect"]
    assert all(later - earlier > 0.12 for earlier, later in pairwise(starts))


async def test_two_shifts_have_one_writer_and_a_hot_standby(parameters: Parameters, record: Path) -> None:
    first = asyncio.create_task(shift(parameters(shift_seconds=5)))

    async def first_ticks() -> bool:
        return bool(ticks_of(record))

    await until(first_ticks, "the first shift ticks")
    second = asyncio.create_task(shift(parameters(shift_seconds=10)))
    states = await asyncio.gather(first, second)
    assert [state.name for state in states] == ["Completed", "Completed"]
    writers = [entry["loop"] for entry in recorded(record) if entry["tick"] >= 0]
    handover = writers.index(next(loop for loop in writers if loop != writers[0]))
    assert set(writers[handover:]).isdisjoint(writers[:handover])
    assert all(entry["held"] for entry in recorded(record) if entry["stage"] == "actuate")


async def test_a_shift_that_never_gets_the_lease_ends_as_standby(parameters: Parameters, record: Path) -> None:
    other = FileLease(record.with_name("shared.lock"))
    assert await other.acquire(0)
    states = await asyncio.gather(shift(parameters(shift_seconds=1)), shift(parameters(shift_seconds=0)))
    assert [state.name for state in states] == ["Standby", "Standby"]
    assert all(state.is_completed() for state in states)
    assert not ticks_of(record)
    await other.release()


async def test_a_standby_that_could_once_not_ask_for_the_lease_has_not_failed(
    parameters: Parameters, record: Path
) -> None:
    other = FileLease(record.with_name("shared.lock"))
    assert await other.acquire(0)
    state = await shift(parameters(shift_seconds=4, refuse=1))
    assert (state.name, state.message) == (
        "Standby",
        "Another run held the Lease for the whole shift",
    )
    await other.release()


async def test_a_dry_run_logs_a_decision_once_while_it_stays_the_same(
    parameters: Parameters, record: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("prefect.flow_runs")
    logger.addHandler(caplog.handler)
    try:
        await shift_of_ticks(parameters, record, 3, fleet={"dry_run": True}, steady=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert len(set(re.findall(r"Tick (\d+): variant ns/v0; replicas 0; reason Recorded", caplog.text))) == 1


async def test_a_dry_run_neither_waits_for_the_writer_nor_keeps_it_out_and_tells_what_it_decided(
    parameters: Parameters, record: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = FileLease(record.with_name("shared.lock"))
    assert await other.acquire(0)
    logger = logging.getLogger("prefect.flow_runs")
    logger.addHandler(caplog.handler)
    try:
        state = await shift(parameters(shift_seconds=0, fleet={"dry_run": True}))
    finally:
        logger.removeHandler(caplog.handler)
    assert re.search(r"Tick \d+: variant ns/v0; replicas \d+; reason Recorded", caplog.text)
    assert state.name == "Completed"
    assert ticks_of(record) == {0: STAGES}
    await other.release()


@pytest.mark.parametrize(("during", "ran"), [("decide", STAGES[:2]), ("actuate", STAGES)])
async def test_a_shift_that_loses_the_lease_stops_writing_at_once(
    parameters: Parameters, record: Path, during: str, ran: list[str]
) -> None:
    state, _ = await shift_of_ticks(parameters, record, 3, revoke=f"{during}@1")
    ticks = list(ticks_of(record).values())
    assert ticks[:2] == [STAGES, ran]
    assert ticks[-1] == STAGES, "it goes back to waiting, and on when it has the lease again"
    assert "1 given up because the lease was lost" in (state.message or "")
    assert "0 failed" in (state.message or "")


async def test_a_locked_database_costs_the_loop_nothing(
    parameters: Parameters, record: Path, prefect_server: PrefectServer
) -> None:
    """SQLite has one write lock; whoever holds it keeps the server from recording anything."""
    running = asyncio.create_task(shift(parameters(shift_seconds=15)))

    async def ticked(count: int) -> bool:
        return len(ticks_of(record)) >= count

    await until(lambda: ticked(1), "the first tick")
    database = prefect_server.home / "prefect.db"
    with closing(sqlite3.connect(database, timeout=30)) as other, closing(sqlite3.connect(database, timeout=0)) as late:
        other.execute("BEGIN IMMEDIATE")
        before = len(ticks_of(record))
        await until(lambda: ticked(before + 4), "ticks while the database is locked")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            late.execute("BEGIN IMMEDIATE")
        other.rollback()
    state = await running
    assert state.name == "Completed"
    assert "0 failed" in (state.message or "")


async def test_the_table_is_one_artifact_per_shift_updated_in_place(
    parameters: Parameters, record: Path, prefect_server: PrefectServer, client: PrefectClient
) -> None:
    name = f"artifacts-{uuid.uuid4().hex[:8]}"
    given = {"lease_name": f"modelyard-autoscale-{name}", "table_every_ticks": 100, "change": 2, "rows": 3}
    state, _ = await shift_of_ticks(parameters, record, 3, **given)
    named = ArtifactFilter(key=ArtifactFilterKey(any_=[f"autoscale-{name}-decisions"]))
    found = await client.read_artifacts(artifact_filter=named)
    versions = [artifact for artifact in found if artifact.flow_run_id == state.state_details.flow_run_id]
    assert len(versions) == 1
    described = re.fullmatch(r"Decisions of tick (\d+): 1 scaled", versions[0].description or "")
    assert described
    assert [row["replicas"] for row in json.loads(str(versions[0].data))] == [int(described[1])] * 3
    run = f"prefect.flow-run.{state.state_details.flow_run_id}"
    scaled = await events(client, "modelyard.variant.scaled", run)
    assert [event["resource"]["prefect.resource.id"] for event in scaled] == ["modelyard.variant.ns/v0"]
    assert scaled[0]["payload"] == {"variant": "ns/v0", "from": 1, "to": 2, "reason": "Recorded", "message": "told to"}
    # That event would carry the whole table. Other flows' artifacts have theirs.
    updates = await events(client, "prefect.artifact.updated")
    assert not [event for event in updates if run in [r["prefect.resource.id"] for r in event["related"]]]


async def events(client: PrefectClient, name: str, related: str = "") -> list[dict]:
    """The server's events of this name; waits for one ``related`` to a resource: they are stored seconds late."""

    async def found() -> list[dict]:
        answer = await client.request("POST", "/events/filter", json={"filter": {"event": {"name": [name]}}})
        listed = answer.json()["events"]
        return [e for e in listed if not related or related in [r["prefect.resource.id"] for r in e["related"]]]

    return await until(found, f"an event {name}") if related else await found()


async def test_a_tick_is_two_task_runs_and_three_where_a_workload_changes(
    parameters: Parameters, client: PrefectClient, record: Path
) -> None:
    state, _ = await shift_of_ticks(parameters, record, 2, change=1)
    run = await client.read_flow_run(state.state_details.flow_run_id)
    ticks = len(ticks_of(record))

    async def recorded() -> Counter[str]:
        found = await client.read_task_runs(
            task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]))
        )
        stages = Counter(task.name.partition(" at ")[0] for task in found)
        return stages if stages.total() > 2 * ticks else Counter()

    assert await until(recorded, "the task runs are on record") == {"collect": ticks, "decide": ticks, "actuate": 1}

    async def logged() -> list[str]:
        lines = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
        messages = [line.message for line in lines]
        return messages if any(text.startswith("Finished in state Completed('") for text in messages) else []

    messages = await until(logged, "the run's end is logged")
    assert "ns/v0 1 -> 2: told to" in messages, "the change and its reason"
    assert "Finished in state Completed()" not in messages, "several a minute would say nothing"
    assert (await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))))[0].state


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_shift_told_to_stop_gives_up_its_lease(
    parameters: Parameters, record: Path, prefect_server: PrefectServer, sign: signal.Signals
) -> None:
    given = parameters(shift_seconds=60, slow="actuate@30")
    program = (
        f"import asyncio, recording_loop;asyncio.run(recording_loop.autoscale(**{given.model_dump(mode='json')!r}))"
    )
    home = {"PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(prefect_server.home)}
    env = environment(WORKER_PROFILE, home)
    process = subprocess.Popen([sys.executable, "-c", program], env=env, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not any(entry["stage"] == "actuate" for entry in recorded(record)):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sign)
        assert process.wait(timeout=120) != 0
    finally:
        process.kill()
        process.wait()
    stages = [entry["stage"] for entry in recorded(record)]
    assert stages == ["open", "collect", "decide", "actuate", "close"]
    assert recorded(record)[-1]["held"] is False


@pytest.mark.parametrize(
    ("url", "problem"),
    [("", "PREFECT_API_URL is not set"), ("http://127.0.0.1:9/api", "nothing answers at http://127.0.0.1:9/api")],
)
def test_the_foreground_run_says_what_to_do_without_a_server(tmp_path: Path, url: str, problem: str) -> None:
    env = environment(WORKER_PROFILE, {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": url})
    done = subprocess.run(
        [sys.executable, "-m", "deployments.command", "autoscale", "--once"],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no Prefect server: {problem}")
    assert "`modelyard server`" in done.stderr


def test_a_server_in_the_background_answers_when_its_command_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deployments.command", "server", "--background", "--port", str(free_port())]
    asked = 'eval "$("$@")"; echo "$PREFECT_API_URL" "$PREFECT_API_AUTH_STRING"'
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
    env["MODELYARD_HOME"] = str(tmp_path)
    done = subprocess.run(["bash", "-c", asked, "-", *command], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "prefect" / "prefect.db").is_file(), "not among what this user has of other servers"
    process = int(done.stderr.rpartition("`kill ")[2].partition("`")[0])
    try:
        url, _, password = done.stdout.strip().partition(" ")
        user, _, word = password.partition(":")
        assert httpx.get(f"{url}/admin/version", auth=(user, word), timeout=60).json() == prefect.__version__
        assert httpx.get(f"{url}/admin/version", timeout=60).status_code == 401
        assert "The UI asks for a password" in done.stderr, "seen also where `eval` takes the output"
        again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        assert (again.returncode, again.stdout) == (1, "")
        assert re.search(rf"answers at .* \(process {process}\), or choose another --port$", again.stderr.strip())
        use = again.stderr.partition("use it by `")[2].partition("`")[0]
        other = ["bash", "-c", f'{use} && echo "$PREFECT_API_URL" "$PREFECT_API_AUTH_STRING"']
        assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == done.stdout
    finally:
        os.kill(process, signal.SIGTERM)


@pytest.fixture
def unreachable_cluster(tmp_path: Path, prefect_server: PrefectServer) -> dict[str, str]:
    """Environment of a command whose Prefect server answers and whose API server does not."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        "clusters: [{name: x, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {}}]\n"
    )
    more = {"PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig)}
    return environment(WORKER_PROFILE, more)


async def test_the_foreground_run_is_one_run_of_the_real_flow(
    unreachable_cluster: dict[str, str], client: PrefectClient
) -> None:
    # The flow itself, its parameters and its final state are what is tried here.
    command = [sys.executable, "-m", "deployments.command", "autoscale", "--once", "--interval", "2"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "--namespace", "mine"],
        env=unreachable_cluster,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Failed: No tick completed: ")
    named = FlowRunFilter(name=FlowRunFilterName(like_="autoscale mine, one tick at 20"))
    assert len(await client.read_flow_runs(flow_run_filter=named)) == 1


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_foreground_run_with_its_documented_code_and_no_traceback(
    unreachable_cluster: dict[str, str], sign: signal.Signals, code: int
) -> None:
    kubeconfig = Path(unreachable_cluster["KUBECONFIG"])
    command = [sys.executable, "-m", "deployments.command", "autoscale", "--shift", "300", "--dry-run"]
    # An API server that accepts and never answers: the run is idle in its event loop when the signal arrives.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}"))
        process = subprocess.Popen(command, env=unreachable_cluster, stderr=subprocess.PIPE, text=True)
        try:
            connection, _ = silent.accept()
            assert connection.recv(4096)
            process.send_signal(sign)
            rest = process.communicate(timeout=120)[1]
        finally:
            process.kill()
            process.wait()
            connection.close()
    status = process.returncode
    assert (status if status >= 0 else 128 - status) == code, rest  # as a shell reports the death by a signal
    assert "KeyboardInterrupt" not in rest
    assert "TerminationSignal" not in rest
