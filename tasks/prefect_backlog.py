"""Corrections to runs that Prefect left in a state nothing will ever change."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect import get_run_logger, task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled, Crashed

from tasks.stage import STAGE

TAGS = ["modelyard", "maintenance"]
PAGE = 200
"""Runs read at a time, and corrected at most in one go."""


def stuck(runs: Iterable[FlowRun], now: datetime, limit: float) -> list[FlowRun]:
    """The runs that have been Pending for more than ``limit`` seconds: whoever claimed them died before the start."""
    return [
        run
        for run in runs
        if run.state and run.state.is_pending() and now - run.state.timestamp > timedelta(seconds=limit)
    ]


def superseded(runs: Iterable[FlowRun]) -> list[FlowRun]:
    """Of the late scheduled runs of each deployment, all but the newest; never one asked for by hand."""
    by_deployment: defaultdict[UUID | None, list[tuple[datetime, int, FlowRun]]] = defaultdict(list)
    for number, run in enumerate(runs):
        if run.auto_scheduled and run.expected_start_time is not None:
            by_deployment[run.deployment_id].append((run.expected_start_time, number, run))
    return [run for group in by_deployment.values() for *_, run in sorted(group)[:-1]]


@task(
    name="crash-stuck-pending",
    task_run_name="crash runs of {work_pool} pending for {limit:.0f} s",
    description="Mark runs that were claimed and never started as Crashed.",
    tags=TAGS,
    timeout_seconds=120,
    **STAGE,
)
async def crash_stuck_pending(work_pool: str, limit: float) -> int:
    """Mark runs of the pool that are stuck in Pending as Crashed; how many."""
    async with get_client() as client:
        pending = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING]))
        runs = stuck(await _read(client, work_pool, FlowRunFilter(state=pending)), datetime.now(UTC), limit)
        return await _set(client, runs, Crashed(message=f"Pending for more than {limit:.0f} s: it was never started"))


@task(
    name="cancel-late-backlog",
    task_run_name="cancel runs of {work_pool} late for {limit:.0f} s",
    description="Cancel late runs that a newer one of their deployment supersedes.",
    tags=TAGS,
    timeout_seconds=120,
    **STAGE,
)
async def cancel_late_backlog(work_pool: str, limit: float) -> int:
    """Cancel late runs that a newer late run of the same deployment supersedes; how many."""
    async with get_client() as client:
        late = FlowRunFilter(
            state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Late"])),
            expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC) - timedelta(seconds=limit)),
        )
        runs = superseded(await _read(client, work_pool, late))
        return await _set(client, runs, Cancelled(message="Superseded: a newer run of this deployment is due as well"))


async def _read(client: PrefectClient, work_pool: str, runs: FlowRunFilter) -> list[FlowRun]:
    found: list[FlowRun] = []
    while True:
        page = await client.read_flow_runs(
            flow_run_filter=runs,
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[work_pool])),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            limit=PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < PAGE:
            return found


async def _set(client: PrefectClient, runs: Sequence[FlowRun], state: State[Any]) -> int:
    """Propose ``state`` for each run; refused by the server for a run that has moved on. How many it took."""
    gate, log = asyncio.Semaphore(4), get_run_logger()

    async def one(run: FlowRun) -> bool:
        async with gate:
            result = await client.set_flow_run_state(run.id, state.fresh_copy())
        accepted = result.state is not None and result.state.type == state.type
        log.info("%s (%s): %s", run.name, run.id, state.name if accepted else "has moved on")
        return accepted

    return sum(await asyncio.gather(*(one(run) for run in runs)))
