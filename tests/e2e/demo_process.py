"""Running a demonstration in a process of its own, as a user does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


def run_demo(folder: Path, *arguments: str) -> str:
    """Run ``modelyard demo``; return its output as one line once it succeeded and left no process behind.

    The ceiling is for a machine on which everything takes several times as long as on a quiet one.
    """
    command = [sys.executable, "-m", "deployments.command", "demo", *arguments, "--out", str(folder / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed, log = process.communicate(timeout=850)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # It stops its servers.
        printed, log = process.communicate(timeout=120)
        pytest.fail(f"the demonstration did not end: {printed[-4000:]}{log[-2000:]}")
    assert process.returncode == 0, printed[-6000:] + log[-2000:]
    left = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
    assert not psutil.wait_procs(left, timeout=120)[1], "the demonstration leaves no process behind"
    return " ".join(printed.split())
