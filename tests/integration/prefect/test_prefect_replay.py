"""The replay flow on a real Prefect server: its table, its progress, its files, its failures, its interrupts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.states import State
from prefect_support import until
from s3_server import BUCKET, keys, object_store

from deployments.server import PrefectServer
from flows.forms import arguments
from flows.parameters import ReplayParameters
from flows.replay import replay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]


def parameters(folder: Path | None = None, **changes: Any) -> ReplayParameters:
    return ReplayParameters.model_validate(
        {
            "manifests": [str(ROOT / "config/samples/plan/manifests.yaml")],
            "trace": str(ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"),
            "minutes": 4,
            "policies": ["default", "fixed:1", "clairvoyant"],
            "rates": [1, 2],
            "out": None if folder is None else str(folder),
            **changes,
        }
    )


async def artifacts(client: PrefectClient, state: State[Any], key: str) -> list[Any]:
    run = state.state_details.flow_run_id
    assert run is not None
    chosen = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    return await client.read_artifacts(artifact_filter=chosen)


async def test_every_policy_at_every_rate_becomes_a_row(client: PrefectClient, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    ticks: list[float] = []

    async def heart() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.05)

    beating = asyncio.create_task(heart())
    state = await replay(**arguments(parameters(folder)), return_state=True)
    beating.cancel()
    assert state.is_completed(), state.message
    assert state.message
    assert "4 replays" in state.message
    run = await client.read_flow_run(state.state_details.flow_run_id)
    assert run.name == "replay default, fixed:1, clairvoyant on azure-llm-inference-2023-conversation.csv"
    assert len(ticks) > 20, "the event loop was free meanwhile"
    (table,) = await artifacts(client, state, "replay")
    rows = json.loads(table.data)
    assert [(row["policy"], row["rate"]) for row in rows] == [
        ("default", 1.0), ("fixed:1", 1.0), ("default", 2.0), ("fixed:1", 2.0),
    ]  # fmt: skip
    assert list(rows[0])[:5] == ["policy", "rate", "cost", "within SLO %", "why"]
    assert all(row["why"].startswith("holds" if row["within SLO %"] >= 99 else "misses") for row in rows)
    assert all(row["× bound"] >= 1 for row in rows)
    assert all(0 < row["within SLO %"] <= 100 for row in rows)
    assert "TTFT 2 s" in table.description
    (where,) = await artifacts(client, state, "replay-report")
    assert folder.as_uri() in where.data
    (progress,) = await artifacts(client, state, "replay-progress")
    assert float(progress.data) == 100
    for rate in ("rate-1", "rate-2"):
        assert sorted(path.name for path in (folder / rate).iterdir()) == [
            "replay.png", "report.csv", "report.json", "timeline.csv",
        ]  # fmt: skip
    report = json.loads((folder / "rate-2/report.json").read_text())
    assert [row["policy"] for row in report["policies"]] == ["default", "fixed:1"]
    assert report["policies"][0]["cost"] == pytest.approx(rows[2]["cost"], abs=0.01)
    run = state.state_details.flow_run_id
    assert run is not None
    mine = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run]))

    async def all_named() -> bool:
        names = {task.name for task in await client.read_task_runs(task_run_filter=mine)}
        return {"replay default ×1", "replay fixed:1 ×1", "replay default ×2", "replay fixed:1 ×2"} <= names

    await until(all_named, "a task run for every policy and rate: they are recorded late")


async def test_a_requirement_that_is_not_met_fails_the_run_with_the_reason(client: PrefectClient) -> None:
    given = parameters(
        minutes=1, rates=[1], policies=["fixed:1"], require=["attainment>1"], max_cost=0.01, artifact_key="gate"
    )
    state = await replay(**arguments(given), return_state=True)
    assert state.is_failed()
    said = str(state.message)
    assert "not as required: fixed:1 at rate 1 has attainment 1, attainment>1 is needed" in said
    assert "a cost of at most 0.01 is needed" in said
    (table,) = await artifacts(client, state, "gate")
    assert "attainment" in str(table.description)
    assert state.is_final()


async def test_one_that_fails_does_not_take_the_others_along(client: PrefectClient, tmp_path: Path) -> None:
    wrong = parameters(policies=["fixed:1", "default:scale_down_delay=-5"], rates=[1])
    state = await replay(**arguments(wrong), return_state=True)
    assert state.is_failed()
    assert "default:scale_down_delay=-5 ×1: --policy default:scale_down_delay=-5: scale_down_delay" in str(
        state.message
    )
    (table,) = await artifacts(client, state, "replay")
    assert [row["policy"] for row in json.loads(table.data)] == ["fixed:1"]
    assert "scale_down_delay" in table.description


def spawned(process: psutil.Process) -> list[psutil.Process]:
    """Its processes that replay."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in process.children():
            with suppress(psutil.NoSuchProcess):
                if "multiprocessing.spawn" in " ".join(child.cmdline()):
                    found.append(child)
    return found


async def test_a_batch_that_takes_too_long_is_ended_with_its_process(client: PrefectClient) -> None:
    slow = parameters(policies=["default"], rates=[1], diurnal=24 * 20, timeout_seconds=4)
    state = await replay(**arguments(slow), return_state=True)
    assert state.is_failed()
    assert "default ×1" in str(state.message)

    async def ended() -> bool:
        return not spawned(psutil.Process())

    await until(ended, "its process is gone")


async def test_a_folder_that_holds_something_else_is_left_alone_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    state = await replay(**arguments(parameters(tmp_path, rates=[1])), return_state=True)
    assert state.is_failed()
    assert "holds something else than a report" in str(state.message)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trace", "/etc/passwd"),
        ("manifests", ["/proc/self/environ"]),
        ("out", "/tmp/reports"),
        ("out", "s3://reports/a"),
    ],
)
async def test_a_run_reads_and_writes_only_allowed_places(
    monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.chdir(ROOT)
    state = await replay(**arguments(parameters(rates=[1], **{field: value})), return_state=True)
    assert state.is_failed()
    assert f"{field}: " in str(state.message)
    assert "in the worker's environment" in str(state.message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_nothing_half_written(
    prefect_server: PrefectServer, tmp_path: Path, number: signal.Signals
) -> None:
    document = tmp_path / "parameters.json"
    out = tmp_path / "out"
    long = parameters(out, policies=["default", "published"], rates=[1], diurnal=24 * 10)
    document.write_text(long.model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.command", "run", "replay", "--parameters", f"@{document}"],
        env={**os.environ, "PREFECT_API_URL": prefect_server.api_url, "PREFECT_HOME": str(tmp_path / "home")},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    mine = psutil.Process(process.pid)
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 180
        while len(children) < 2:
            assert time.monotonic() < deadline, "no replay began"
            assert process.poll() is None
            time.sleep(0.2)
            children = spawned(mine)
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
        assert process.returncode != 0, said
        _, alive = psutil.wait_procs(children, timeout=120)
        assert not alive
    finally:
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["parameters.json"]


async def test_reports_in_a_bucket_are_linked_to(client: PrefectClient) -> None:
    small = {"policies": ["fixed:1"], "minutes": 2}
    with object_store() as store:
        state = await replay(**arguments(parameters(**small, out=f"s3://{BUCKET}/nightly")), return_state=True)
        assert state.is_completed(), state.message
        assert {key.split("/")[0] for key in keys(store, "nightly/")} == {"rate-1", "rate-2"}
        (artifact,) = await artifacts(client, state, "replay-report")
        assert f"(s3://{BUCKET}/nightly)" in artifact.data
        assert f"s3\\://{BUCKET}/nightly/rate-2" in artifact.description
        state = await replay(**arguments(parameters(**small, out="s3://missing-one/nightly")), return_state=True)
        assert state.is_failed()
        assert "bucket missing-one does not exist" in str(state.message)
