"""An interrupted ``modelyard replay --out`` leaves the old report as it was, and nothing beside it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import modelyard

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [
    "replay",
    *("-f", str(ROOT / "config/samples/plan/manifests.yaml")),
    *("--trace", str(ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"), "--minutes", "2"),
]
WHOLE = ["replay.png", "report.csv", "report.json", "timeline.csv"]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an earlier replay."""
    out = tmp_path_factory.mktemp("complete") / "report"
    done = modelyard(*COMMAND, "--policy", "fixed:1", "--out", out)
    assert done.code == 0, done.err
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("writing", [False, True], ids=["while replaying", "while writing"])
def test_an_interrupt_leaves_nothing_half_written(
    complete: Path, tmp_path: Path, number: signal.Signals, writing: bool
) -> None:
    out = tmp_path / "report"
    shutil.copytree(complete, out)
    before = (out / "report.json").read_bytes()
    more = [] if writing else ["--diurnal", "240"]
    command = [sys.executable, "-m", "modelyard.cli.main", *COMMAND, "--policy", "default", "--out", str(out), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        if writing:
            while not list(tmp_path.glob(".report.*")):
                assert time.monotonic() < deadline
                assert process.poll() is None, "it was done before anything could be interrupted"
                time.sleep(0.005)
        else:
            time.sleep(4)
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "nothing is left beside it"
    assert sorted(path.name for path in out.iterdir()) == WHOLE
    assert (out / "report.json").read_bytes() == before
    assert json.loads(before)["policies"][0]["policy"] == "fixed:1"
