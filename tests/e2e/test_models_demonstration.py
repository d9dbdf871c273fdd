"""The demonstration of models on nodes as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_models_of_a_hub_and_a_bucket_come_onto_two_of_three_nodes(tmp_path: Path) -> None:
    """The exit code is the demonstration's own verdict on what it printed."""
    command = [sys.executable, "-m", "deployments.command", "demo", "models", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, log = process.communicate(timeout=800)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # It takes its servers along.
        said, log = process.communicate(timeout=60)
        pytest.fail(f"the demonstration did not end: {said[-4000:]}{log[-2000:]}")
    assert process.returncode == 0, said[-4000:] + log[-2000:]
    assert (said.count("✓"), said.count("✗")) == (8, 0)
    for shown in ("In_Transit", "LlamaForCausalLM", "MistralForCausalLM", "NotChosen"):
        assert shown in said
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not left, "the demonstration leaves no process behind"
