"""The main demonstration as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_process import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.timing_sensitive("it serves a real load in compressed time")
def test_a_model_is_onboarded_and_scaled_and_explained(tmp_path: Path) -> None:
    """The busiest minutes of the trace. The exit code is the demonstration's own verdict."""
    printed = run_demo(tmp_path, "--start", "30", "--minutes", "3")
    assert "11 checks passed" in printed
    for shown in ("Chosen: runtime on-", "Profiled in ms", "a replica takes", "Latencies are"):
        assert shown in printed
    assert (tmp_path / "out" / "traffic.png").read_bytes().startswith(b"\x89PNG")
