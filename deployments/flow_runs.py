"""Flow runs of a work pool, read page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

UNFINISHED = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
PAGE = 200
"""Objects that the Prefect API returns at a time."""
T = TypeVar("T")


def in_pool(pool: str) -> WorkPoolFilter:
    """Return the filter for what belongs to a work pool."""
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


async def read_all(read: Callable[..., Awaitable[list[T]]], **filters: Any) -> list[T]:
    """Return all pages of a method of the Prefect client."""
    items: list[T] = []
    while True:
        page = await read(**filters, limit=PAGE, offset=len(items))
        items += page
        if len(page) < PAGE:
            return items


async def read_runs(
    client: PrefectClient,
    pool: str,
    types: Iterable[StateType] = UNFINISHED,
    before: datetime | None = None,
    ended_after: datetime | None = None,
    queue: str = "",
) -> list[FlowRun]:
    """Return the runs of a pool, or of one of its work queues, in states of these types and within these limits."""
    chosen = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=before),
        end_time=FlowRunFilterEndTime(after_=ended_after) if ended_after else None,
    )
    return await read_all(
        client.read_flow_runs,
        flow_run_filter=chosen,
        work_pool_filter=in_pool(pool),
        work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[queue])) if queue else None,
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
    )
