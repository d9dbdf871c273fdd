"""An interrupted ``modelyard replay --out`` leaves the old report as it was, and nothing beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [
    *(sys.executable, "-m", "modelyard.cli.main", "replay"),
    *("-f", str(ROOT / "config/samples/plan/manifests.yaml")),
    *("--trace", str(ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"), "--minutes", "2"),
]
WHOLE = ["replay.png", "report.csv", "report.json", "timeline.csv"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("writing", [False, True], ids=["while replaying", "while writing"])
def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, number: signal.Signals, writing: bool) -> None:
    out = tmp_path / "report"
    subprocess.run([*COMMAND, "--policy", "fixed:1", "--out", str(out)], check=True, capture_output=True, timeout=120)
    before = (out / "report.json").read_bytes()
    more = [] if writing else ["--diurnal", "240"]
    command = [*COMMAND, "--policy", "default", "--out", str(out), *more]
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
