from __future__ import annotations

import pytest

from flows.shift import final_state
from modelyard.reconcile.plans.report import ShiftReport


@pytest.mark.parametrize(
    ("report", "name", "message"),
    [
        pytest.param(ShiftReport(ticks=20, changes=2), "Completed", "20 ticks, 0 failed, 2 scaled", id="all well"),
        pytest.param(
            ShiftReport(ticks=20, failed=3, failures={"collect": 2, "actuate": 1}, last_error="collect: E: no"),
            "Completed",
            "20 ticks, 3 failed, 0 scaled (actuate: 1, collect: 2); last error: collect: E: no",
            id="some failed",
        ),
        pytest.param(
            ShiftReport(ticks=2, failed=2, failures={"decide": 2}, last_error="decide: E: no"),
            "Failed",
            "Every tick failed: 2 ticks, 2 failed, 0 scaled (decide: 2); last error: decide: E: no",
            id="all failed",
        ),
        pytest.param(
            ShiftReport(ticks=5, interrupted=1, skipped=2),
            "Completed",
            "5 ticks, 0 failed, 0 scaled, 2 skipped because they were late, 1 given up because the lease was lost",
            id="interrupted",
        ),
        pytest.param(
            ShiftReport(rival="somebody"),
            "Standby",
            "Another run held the Lease for the whole shift",
            id="never the writer",
        ),
        pytest.param(
            ShiftReport(),
            "Standby",
            "Could not acquire the Lease in time; no holder renewed it",
            id="after a writer that died",
        ),
        pytest.param(
            ShiftReport(obstacle="the lease x cannot be asked for: E: down"),
            "Failed",
            "No tick completed: the lease x cannot be asked for: E: down",
            id="no cluster",
        ),
    ],
)
def test_the_final_state_tells_the_shift_in_numbers(report: ShiftReport, name: str, message: str) -> None:
    state = final_state(report)
    assert (state.name, state.message) == (name, message)
    assert state.is_completed() is (name != "Failed")
