"""Flow runs in Prefect: those of a work pool, page by page, what the lifecycles' runs take up, and new ones."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

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
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from modelyard.objects import first_of
from modelyard.reconcile.plans import PLACES, RUNS, ActiveRun, RunLimits, RunLoad, Subject

CALL_TIMEOUT = 5.0
"""Seconds that one call of the Prefect API may take."""
PAGE = 200
"""Objects that the Prefect API returns at a time."""
UNFINISHED = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
T = TypeVar("T")


def in_pool(pool: str) -> WorkPoolFilter:
    """Return the filter for what belongs to a work pool."""
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


async def read_all(read: Callable[..., Awaitable[list[T]]], most: float = math.inf, **filters: Any) -> list[T]:
    """Return all pages of a method of the Prefect client, up to the one that makes ``most`` items."""
    items: list[T] = []
    while True:
        page = await read(**filters, limit=PAGE, offset=len(items))
        items += page
        if len(page) < PAGE or len(items) >= most:
            return items


async def read_runs(
    client: PrefectClient,
    pool: str,
    types: Iterable[StateType] = UNFINISHED,
    before: datetime | None = None,
    ended_after: datetime | None = None,
    queue: str = "",
    most: float = math.inf,
) -> list[FlowRun]:
    """Return the runs of a pool, or of one of its work queues, in states of these types and within these limits."""
    chosen = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=before),
        end_time=FlowRunFilterEndTime(after_=ended_after) if ended_after else None,
    )
    return await read_all(
        client.read_flow_runs,
        most,
        flow_run_filter=chosen,
        work_pool_filter=in_pool(pool),
        work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[queue])) if queue else None,
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
    )


async def read_load(client: PrefectClient, deployments: Iterable[str]) -> RunLoad:
    """Return the unfinished runs in the work queue ``RUNS`` of the pools of these deployments (``FLOW/NAME``).

    Planned runs of a schedule take no places yet. The places are the concurrency limit of the queue.
    """
    declared = await read_deployments(client, deployments)
    names = {deployment.id: name for name, deployment in declared.items()}
    pools = sorted({deployment.work_pool_name for deployment in declared.values() if deployment.work_pool_name})
    bounds = [bound for pool in pools if (bound := await _queue_limit(client, pool)) is not None]
    limits = RunLimits(sum(bounds) if bounds else PLACES)
    runs: list[FlowRun] = []
    for pool in pools:
        async with asyncio.timeout(CALL_TIMEOUT):
            runs += await read_runs(client, pool, queue=RUNS, most=max(PAGE, limits.total))
    return RunLoad([active_run(run, names) for run in runs if not is_planned(run)], limits)


def active_run(run: FlowRun, deployments: Mapping[UUID, str]) -> ActiveRun:
    """Return the run's deployment and its objects' namespaces; by hand it names one by ``namespace`` and ``name``."""
    deployment = deployments.get(run.deployment_id, "") if run.deployment_id else ""
    objects = run.parameters.get("objects")
    if not isinstance(objects, list):
        objects = [f"{namespace}/"] if (namespace := run.parameters.get("namespace")) else []
    namespaces = frozenset(str(name).rpartition("/")[0] for name in objects)
    return ActiveRun(deployment, namespaces, queued=run.state is None or run.state.is_scheduled())


def is_planned(run: FlowRun) -> bool:
    """Return whether a schedule has planned the run for later."""
    return run.auto_scheduled and run.state is not None and run.state.name == "Scheduled"


async def read_deployments(client: PrefectClient, names: Iterable[str]) -> dict[str, DeploymentResponse]:
    """Return the deployments of these names (``FLOW/NAME``) that exist."""
    existing = {}
    for name in sorted(names):
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                existing[name] = await client.read_deployment_by_name(name)
        except ObjectNotFound:
            continue
    return existing


async def create_run(
    client: PrefectClient,
    deployment: DeploymentResponse,
    key: str,
    subjects: Sequence[Subject],
    parameters: Mapping[str, Any],
    parent: UUID | None = None,
) -> None:
    """Create the run that works on these objects under its idempotency key; an existing one is left as it is."""
    objects = [f"{subject.key.namespace}/{subject.key.name}" for subject in subjects]
    async with asyncio.timeout(CALL_TIMEOUT):
        await client.create_flow_run_from_deployment(
            deployment.id,
            parameters={**parameters, "name": subjects[0].key.name, "run": key, "objects": objects},
            idempotency_key=key,
            parent_task_run_id=parent,
            name=first_of([str(subject.ref) for subject in subjects]),
            work_queue_name=RUNS if deployment.work_pool_name else None,
        )


async def _queue_limit(client: PrefectClient, pool: str) -> int | None:
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            return (await client.read_work_queue_by_name(RUNS, work_pool_name=pool)).concurrency_limit
    except ObjectNotFound:
        return None
