"""The demonstration as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.timing_sensitive("it serves a real load in compressed time")
def test_the_demonstration_scales_both_ways_and_says_why(tmp_path: Path) -> None:
    """A short stretch of the trace, slower than usual: a stall counts as many times as it is faster than life. The exit
    code is the demonstration's own verdict."""
    out, pace = ["--out", str(tmp_path / "out")], ["--minutes", "4", "--compression", "7"]
    command = [sys.executable, "-m", "deployments.command", "demo", *out, *pace]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, log = process.communicate(timeout=800)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # It takes its servers along.
        said, log = process.communicate(timeout=120)
        pytest.fail(f"the demonstration did not end: {said[-4000:]}{log[-2000:]}")
    assert process.returncode == 0, said[-4000:] + log[-2000:]
    assert (said.count("✓"), said.count("✗")) == (9, 0), "eight claims of act 0, one of its service under load"
    text = " ".join(said.split())
    for shown in ("Scaled both ways", "short of capacity", "more capacity than needed", "TTFT", "replica-minutes"):
        assert shown in text
    for shown in ("measured shortly", "chosen: on-", "replica-minutes", "checked: ", "simulated: ", "a replica takes"):
        assert shown in text
    for act in (1, 2):
        assert (tmp_path / "out" / f"act-{act}.png").read_bytes().startswith(b"\x89PNG")
    assert text.count("requests sent, none failed") == 3, "an engine that goes away loses no request"
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not psutil.wait_procs(left, timeout=120)[1], "the demonstration leaves no process behind"
