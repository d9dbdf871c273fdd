"""Which parents are resumed after a crash."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed

from deployments.parents import MOST_STARTS, RESUMED_FOR, resumable

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
BEFORE = timedelta(minutes=1)


def parent(state: State[Any], ago: timedelta = BEFORE, starts: int = 1) -> FlowRun:
    state = state.model_copy(update={"timestamp": NOW - ago})
    return FlowRun(flow_id=uuid4(), name="onboard shop/chat", state=state, run_count=starts)


def test_a_parent_that_crashed_is_resumed_a_limited_number_of_times() -> None:
    first, last, spent = (parent(Crashed(), starts=starts) for starts in (1, MOST_STARTS - 1, MOST_STARTS))
    assert resumable([first, last, spent], NOW) == [first, last]
    assert not resumable([parent(Crashed(), RESUMED_FOR)], NOW), "people may have gone on without it"


@pytest.mark.parametrize("state", [Failed(), Cancelled(), Completed(), AwaitingRetry(scheduled_time=NOW)])
def test_no_other_parent_is_resumed(state: State[Any]) -> None:
    assert not resumable([parent(state)], NOW)
