"""Unfinished flow runs of the lifecycles, and the concurrency limit of their work queues, read from Prefect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkQueueFilter,
    WorkQueueFilterId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from modelyard.reconcile.run_limits import PLACES, ActiveRun, RunLimits, RunLoad

CALL_TIMEOUT = 5.0
"""Seconds that one call of the Prefect API may take."""
PAGE = 200
"""Runs that the Prefect API returns at a time."""

_NOT_ENDED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
)


async def read_load(client: PrefectClient, deployments: Iterable[str]) -> RunLoad:
    """Return the runs that share the places of these deployments (``FLOW/NAME``) and have not ended.

    The places are the concurrency limit of the deployments' work queues; all runs of the queues count, by whom ever
    they were created. Queues without a limit are shared with other work: only runs of these deployments count then.
    """
    declared = await read_deployments(client, deployments)
    names = {deployment.id: name for name, deployment in declared.items()}
    queues = {deployment.work_queue_id for deployment in declared.values()}
    bounds = [await _read_limit(client, queue) for queue in queues]
    bounded = [bound for bound in bounds if bound is not None]
    shared = not bounds or len(bounded) < len(bounds)
    limits = RunLimits(PLACES if shared else sum(bounded))
    of_queue = WorkQueueFilter(id=WorkQueueFilterId(any_=[queue for queue in queues if queue is not None]))
    of_deployment = DeploymentFilter(id=DeploymentFilterId(any_=[*names]))
    runs: list[FlowRun] = []
    while names and len(runs) < max(PAGE, limits.total):
        async with asyncio.timeout(CALL_TIMEOUT):
            page = await client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    state=_NOT_ENDED,
                    expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
                ),
                deployment_filter=of_deployment if shared else None,
                work_queue_filter=None if shared else of_queue,
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
                limit=PAGE,
                offset=len(runs),
            )
        runs += page
        if len(page) < PAGE:
            break
    return RunLoad([active_run(run, names) for run in runs], limits)


def active_run(run: FlowRun, deployments: Mapping[UUID, str]) -> ActiveRun:
    """Return what a run counts for: its deployment, and the namespaces of the objects that its parameters name."""
    deployment = deployments.get(run.deployment_id, "") if run.deployment_id else ""
    objects, namespace = run.parameters.get("objects"), run.parameters.get("namespace")
    if isinstance(objects, list) and objects:
        namespaces = frozenset(str(name).rpartition("/")[0] for name in objects)
    else:
        namespaces = frozenset([namespace] if isinstance(namespace, str) else [])
    return ActiveRun(deployment, namespaces, queued=run.state is None or run.state.is_scheduled())


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


async def _read_limit(client: PrefectClient, queue: UUID | None) -> int | None:
    if queue is None:
        return None
    async with asyncio.timeout(CALL_TIMEOUT):
        return (await client.read_work_queue(queue)).concurrency_limit
