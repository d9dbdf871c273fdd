"""The main demonstration as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_process import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.timing_sensitive("it serves a real load in compressed time")
def test_a_model_is_onboarded_and_three_fleets_are_scaled_and_explained(tmp_path: Path) -> None:
    """A short stretch of the trace around its busiest minutes. The exit code is the demonstration's own verdict."""
    printed = run_demo(tmp_path, "--start", "30", "--minutes", "5")
    assert "17 checks passed" in printed
    for shown in ("Chosen: runtime on-", "Profiled in ms", "short of capacity", "Latencies are"):
        assert shown in printed
    assert (tmp_path / "out" / "traffic.png").read_bytes().startswith(b"\x89PNG")
