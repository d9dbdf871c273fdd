"""An interrupted ``modelyard replay --out`` leaves the old report as it was, and nothing beside it."""

from __future__ import annotations

import json
import os
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


def halted_while_writing(process: subprocess.Popen[bytes], folder: Path, before: bytes) -> bool:
    """Whether it could be stopped in the middle of it: on a busy machine it may be done before that."""
    deadline = time.monotonic() + 120
    while process.poll() is None and not list(folder.glob(".report.*")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return bool(list(folder.glob(".report.*"))) and index(folder / "report") == before


def index(report: Path) -> bytes:
    file = report / "report.json"
    return file.read_bytes() if file.exists() else b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("writing", [False, True], ids=["while replaying", "while writing"])
def test_an_interrupt_leaves_nothing_half_written(
    complete: Path, tmp_path: Path, number: signal.Signals, writing: bool
) -> None:
    out, before = tmp_path / "report", index(complete)
    more = [] if writing else ["--diurnal", "240"]
    command = [sys.executable, "-m", "modelyard.cli.main", *COMMAND, "--policy", "default", "--out", str(out), *more]
    for _ in range(10):
        for left in tmp_path.iterdir():
            shutil.rmtree(left)
        shutil.copytree(complete, out)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            if not writing:
                time.sleep(4)
            elif not halted_while_writing(process, tmp_path, before):
                continue
            assert process.poll() is None
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=120)
            break
        finally:
            process.kill()
            process.wait()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "nothing is left beside it"
    assert sorted(path.name for path in out.iterdir()) == WHOLE
    assert index(out) == before
    assert json.loads(before)["policies"][0]["policy"] == "fixed:1"
