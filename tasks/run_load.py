"""Flow runs of the lifecycles in Prefect: the unfinished ones, the limit of their work queue, and new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkQueueFilter,
    WorkQueueFilterId,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkQueue
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from modelyard.objects.documents import first_of
from modelyard.reconcile.plan import Subject
from modelyard.reconcile.run_limits import PLACES, RUNS, ActiveRun, RunLimits, RunLoad

CALL_TIMEOUT = 5.0
"""Seconds that one call of the Prefect API may take."""
PAGE = 200
"""Runs that the Prefect API returns at a time."""

_NOT_ENDED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
)


async def read_load(client: PrefectClient, deployments: Iterable[str]) -> RunLoad:
    """Return the unfinished runs in the work queue ``RUNS`` of the pools of these deployments (``FLOW/NAME``).

    Planned runs of a schedule take no places yet. The places are the concurrency limit of the queue.
    """
    declared = await read_deployments(client, deployments)
    names = {deployment.id: name for name, deployment in declared.items()}
    pools = {deployment.work_pool_name for deployment in declared.values() if deployment.work_pool_name}
    queues = [queue for pool in sorted(pools) if (queue := await _read_queue(client, pool)) is not None]
    bounds = [queue.concurrency_limit for queue in queues if queue.concurrency_limit is not None]
    limits = RunLimits(sum(bounds) if bounds else PLACES)
    runs: list[FlowRun] = []
    while queues and len(runs) < max(PAGE, limits.total):
        async with asyncio.timeout(CALL_TIMEOUT):
            page = await client.read_flow_runs(
                flow_run_filter=FlowRunFilter(state=_NOT_ENDED),
                work_queue_filter=WorkQueueFilter(id=WorkQueueFilterId(any_=[queue.id for queue in queues])),
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
                limit=PAGE,
                offset=len(runs),
            )
        runs += page
        if len(page) < PAGE:
            break
    return RunLoad([active_run(run, names) for run in runs if not is_planned(run)], limits)


def active_run(run: FlowRun, deployments: Mapping[UUID, str]) -> ActiveRun:
    """Return what a run counts for: its deployment, and the namespaces of the objects that its parameters name.

    One that a user created names one object, by ``namespace`` and ``name``.
    """
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


async def _read_queue(client: PrefectClient, pool: str) -> WorkQueue | None:
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            return await client.read_work_queue_by_name(RUNS, work_pool_name=pool)
    except ObjectNotFound:
        return None
