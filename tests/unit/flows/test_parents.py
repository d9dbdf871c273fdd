"""Selection of parents that are resumed after a crash."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed, Running

from deployments.pool_issues import MOST_CRASHES, RESUMED_FOR, is_resumable

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def at(state: State[Any], ago: timedelta) -> State[Any]:
    return state.model_copy(update={"timestamp": NOW - ago})


def crashed(times: int, ago: timedelta = timedelta(minutes=1)) -> list[State[Any]]:
    """The states of a run that crashed so often, the last time so long ago."""
    crashes = [at(Crashed(), ago + timedelta(minutes=2 * number)) for number in range(times)]
    return crashes + [at(Running(), ago + timedelta(minutes=2 * number + 1)) for number in range(times)]


def test_a_parent_that_crashed_is_resumed_a_limited_number_of_times() -> None:
    assert is_resumable(crashed(1), NOW)
    assert is_resumable(crashed(MOST_CRASHES), NOW)
    assert not is_resumable(crashed(MOST_CRASHES + 1), NOW)
    assert not is_resumable(crashed(1, RESUMED_FOR), NOW), "people may have gone on without it"


@pytest.mark.parametrize("state", [Failed(), Cancelled(), Completed(), AwaitingRetry(scheduled_time=NOW)])
def test_no_other_parent_is_resumed(state: State[Any]) -> None:
    assert not is_resumable([at(state, timedelta(0)), *crashed(1)], NOW)
