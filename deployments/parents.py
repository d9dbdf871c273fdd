"""Resumption of parents: flow runs that wait for child runs, and whose own process has died.

A parent is resumed as the same flow run, so that it finds its children again and the tree of runs stays whole. Its
first task takes the object over, unless another run works on it now. Failed and cancelled parents are left to people.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import AwaitingRetry

PARENTS = "parents"
"""Work queue of flows that wait for child runs."""
MOST_CRASHES = 3
"""Times that a run is resumed; after another crash it is left to people."""
RESUMED_FOR = timedelta(hours=1)
"""Time after its crash for which a run is resumed: later, people may have gone on without it."""
MOST_AT_ONCE = 50


def is_resumable(states: Iterable[State[Any]], now: datetime) -> bool:
    """Return whether to resume a run that has had these states. ``now`` is the server's time."""
    history = sorted(states, key=lambda state: state.timestamp)
    crashes = sum(state.is_crashed() for state in history)
    return history[-1].is_crashed() and crashes <= MOST_CRASHES and now - history[-1].timestamp < RESUMED_FOR


async def resume_parents(client: PrefectClient, pool: str, now: datetime) -> list[str]:
    """Resume the crashed parents of a work pool, each as the same flow run; return a sentence for each."""
    crashed = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])),
            end_time=FlowRunFilterEndTime(after_=now - RESUMED_FOR),
        ),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[PARENTS])),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=MOST_AT_ONCE,
    )
    lines = []
    for run in crashed:
        if not is_resumable(await client.read_flow_run_states(run.id), now):
            continue
        state: State[Any] = AwaitingRetry(scheduled_time=now, message="Resumed: its process had died")
        result = await client.set_flow_run_state(run.id, state)
        if result.state is not None and result.state.is_scheduled():
            lines.append(f"{run.name} ({run.id}): resumed")
    return lines
