"""Flow runs of a work pool, read page by page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

UNFINISHED = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
PAGE = 200
"""Runs that the Prefect API returns at a time."""


def in_pool(pool: str) -> WorkPoolFilter:
    """Return the filter for what belongs to a work pool."""
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


async def read_runs(
    client: PrefectClient, pool: str, types: Iterable[StateType] = UNFINISHED, before: datetime | None = None
) -> list[FlowRun]:
    """Return the runs of a pool in states of these types, those scheduled for ``before`` or without limit."""
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    chosen = FlowRunFilter(state=state, expected_start_time=FlowRunFilterExpectedStartTime(before_=before))
    runs: list[FlowRun] = []
    while True:
        page = await client.read_flow_runs(
            flow_run_filter=chosen,
            work_pool_filter=in_pool(pool),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            limit=PAGE,
            offset=len(runs),
        )
        runs += page
        if len(page) < PAGE:
            return runs
