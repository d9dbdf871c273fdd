"""What Prefect says of a run, as dispatch understands it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Late, Paused, Pending, Running, Scheduled

from tasks.reconcile import _became

MADE = datetime(2026, 11, 27, 16, 0, tzinfo=UTC)
CANCELLED: State[Any] = Cancelled()


@pytest.mark.parametrize(
    ("state", "queued"),
    [
        (None, True),
        (Scheduled(scheduled_time=MADE), True),
        (Late(scheduled_time=MADE), True),
        (AwaitingRetry(scheduled_time=MADE), True),
        (Pending(), True),
        (Running(), False),
        (Paused(), False),
    ],
)
def test_a_run_that_no_worker_has_begun_is_queued_since_it_was_made(state: State[Any] | None, queued: bool) -> None:
    fate = _became(FlowRun(flow_id=uuid4(), name="BaseModel shop/a", state=state, created=MADE))
    assert (fate.ended, fate.name) == (None, "BaseModel shop/a")
    assert fate.queued == (MADE.timestamp() if queued else None)


@pytest.mark.parametrize(("state", "died"), [(Completed(), False), (Crashed(), True)])
def test_a_run_that_is_over_is_not_queued(state: State[Any], died: bool) -> None:
    fate = _became(FlowRun(flow_id=uuid4(), name="x", state=state, created=MADE))
    assert (fate.ended, fate.died, fate.queued) == (state.timestamp.timestamp(), died, None)


@pytest.mark.parametrize(
    ("state", "starts", "child", "cancelled"),
    [
        (Completed(), 1, False, False),
        (Crashed(), 2, True, False),
        (Crashed(), 3, False, False),
        (CANCELLED, 1, True, True),
    ],
)
def test_a_child_that_did_not_complete_is_left_to_its_parent(
    state: State[Any], starts: int, child: bool, cancelled: bool
) -> None:
    run = FlowRun(flow_id=uuid4(), name="x", state=state, created=MADE, run_count=starts)
    assert not _became(run).child
    assert not _became(run).cancelled, "reconcile started it, and replaces it"
    fate = _became(run.model_copy(update={"parent_task_run_id": uuid4()}))
    assert (fate.child, fate.cancelled) == (child, cancelled)
