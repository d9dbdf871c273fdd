"""Resumption of parents: flow runs that wait for child runs, and whose own process has died.

A parent is resumed as the same flow run, so that it finds its children again and the tree of runs stays whole. Its
first task takes the object over, unless another run works on it now. Failed and cancelled parents are left to people.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry

from deployments.flow_runs import read_runs

PARENTS = "parents"
"""Work queue of flows that wait for child runs."""
MOST_CRASHES = 3
"""Times that a run is resumed; after another crash it is left to people."""
RESUMED_FOR = timedelta(hours=1)
"""Time after its crash for which a run is resumed: later, people may have gone on without it."""


def is_resumable(states: Iterable[State[Any]], now: datetime) -> bool:
    """Return whether to resume a run that has had these states. ``now`` is the server's time."""
    history = sorted(states, key=lambda state: state.timestamp)
    crashes = sum(state.is_crashed() for state in history)
    return history[-1].is_crashed() and crashes <= MOST_CRASHES and now - history[-1].timestamp < RESUMED_FOR


async def crashed_parents(client: PrefectClient, pool: str, now: datetime) -> list[tuple[FlowRun, State[Any]]]:
    """Return the parents of a work pool to resume, each with the state that resumes it."""
    crashed = await read_runs(client, pool, [StateType.CRASHED], ended_after=now - RESUMED_FOR, queue=PARENTS)
    return [
        (run, AwaitingRetry(scheduled_time=now, message="Resumed: its process had died"))
        for run in crashed
        if is_resumable(await client.read_flow_run_states(run.id), now)
    ]
