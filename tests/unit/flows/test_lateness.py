from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import CreatedBy, FlowRun
from prefect.states import Running

from flows.shift import is_on_schedule, seconds_late

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run(late: float | None, *, auto: bool = False, creator: str | None = None) -> FlowRun:
    return FlowRun(
        flow_id=uuid4(),
        expected_start_time=None if late is None else NOW - timedelta(seconds=late),
        auto_scheduled=auto,
        created_by=CreatedBy(type=creator) if creator else None,
    )


@pytest.mark.parametrize(
    ("flow_run", "late", "on_schedule"),
    [
        pytest.param(None, 0, False, id="no run: called outside of Prefect"),
        pytest.param(run(None), 0, False, id="no start expected"),
        pytest.param(run(500), 0, False, id="by hand: meant for whenever it begins"),
        pytest.param(run(500, creator="DEPLOYMENT"), 0, False, id="by another flow"),
        pytest.param(run(500, auto=True), 500, True, id="scheduled, late"),
        pytest.param(run(-0.4, auto=True), -0.4, True, id="scheduled, ahead of its moment"),
        pytest.param(run(500, creator="AUTOMATION"), 500, False, id="a successor nobody could start for a while"),
    ],
)
def test_lateness(flow_run: FlowRun | None, late: float, on_schedule: bool) -> None:
    assert seconds_late(flow_run, NOW) == pytest.approx(late)
    assert is_on_schedule(flow_run) is on_schedule


@pytest.mark.parametrize("off", [7200, -7200])
@pytest.mark.parametrize("late", [0, 3, 500])
def test_a_machine_whose_clock_is_wrong_begins_its_shifts_by_the_servers(off: float, late: float) -> None:
    shift = run(0, auto=True)
    shift.state = Running(timestamp=NOW + timedelta(seconds=late))
    begun = NOW + timedelta(seconds=late + 2)
    assert seconds_late(shift, begun) == late + 2
    assert seconds_late(shift, begun + timedelta(seconds=off)) == late
