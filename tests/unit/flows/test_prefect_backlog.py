from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Pending, Running, Scheduled

from tasks.prefect_backlog import stuck, superseded

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEPLOYMENTS = [uuid4() for _ in range(3)]


def pending(age: float, state: State | None = None) -> FlowRun:
    state = (state or Pending()).model_copy(update={"timestamp": NOW - timedelta(seconds=age)})
    return FlowRun(flow_id=uuid4(), state=state)


def late(deployment: UUID, age: float, auto: bool = True) -> FlowRun:
    return FlowRun(
        flow_id=uuid4(),
        deployment_id=deployment,
        auto_scheduled=auto,
        expected_start_time=NOW - timedelta(seconds=age),
        state=Scheduled(name="Late"),
    )


def test_only_old_pending_runs_are_stuck() -> None:
    old, young = pending(301), pending(299)
    assert stuck([young, old, pending(9999, Running())], NOW, 300) == [old]


def test_of_a_backlog_the_newest_run_survives() -> None:
    first, second, newest = late(DEPLOYMENTS[0], 900), late(DEPLOYMENTS[0], 600), late(DEPLOYMENTS[0], 300)
    alone, by_hand = late(DEPLOYMENTS[1], 5000), late(DEPLOYMENTS[0], 4000, auto=False)
    assert superseded([newest, first, alone, by_hand, second]) == [first, second]


@given(st.lists(st.tuples(st.sampled_from(DEPLOYMENTS), st.integers(0, 10_000), st.booleans())))
def test_every_deployment_keeps_exactly_one_scheduled_run_and_all_by_hand(
    backlog: list[tuple[UUID, int, bool]],
) -> None:
    runs = [late(*entry) for entry in backlog]
    gone = {run.id for run in superseded(runs)}
    assert not any(run.id in gone for run in runs if not run.auto_scheduled)
    for deployment in DEPLOYMENTS:
        scheduled = [run for run in runs if run.deployment_id == deployment and run.auto_scheduled]
        kept = [run for run in scheduled if run.id not in gone]
        assert len(kept) == min(1, len(scheduled))
        assert all(kept[0].expected_start_time >= run.expected_start_time for run in scheduled)
