"""The demonstrations of models on nodes, of services and of the router, one after the other on one cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_models_come_onto_nodes_services_live_as_they_are_told_and_requests_are_routed(tmp_path: Path) -> None:
    """The exit code is the demonstrations' own verdict on what they printed."""
    command = [sys.executable, "-m", "deployments.command", "demo", "services", "--with-models", "--with-router"]
    out = ["--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, *out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, log = process.communicate(timeout=800)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # It takes its servers along.
        said, log = process.communicate(timeout=120)
        pytest.fail(f"the demonstration did not end: {said[-4000:]}{log[-2000:]}")
    assert process.returncode == 0, said[-4000:] + log[-2000:]
    assert (said.count("✓"), said.count("✗")) == (8 + 16 + 11, 0)
    for shown in ("In_Transit", "LlamaForCausalLM", "MistralForCausalLM", "NotChosen"):
        assert shown in said
    for shown in (
        "simulated-two-nodes",
        "simulated-prefill-decode",
        "RolledBack",
        "--no-such-option",
        "scaled to zero",
    ):
        assert shown in said
    for shown in ("takes it (header tier is 'gold')", "each of the killed pod's own", "rate limit exceeded"):
        assert shown in said
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not psutil.wait_procs(left, timeout=120)[1], "the demonstration leaves no process behind"
