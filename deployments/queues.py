"""Work queues of the pool: which runs come first, and how many of them run at a time.

A worker starts runs by the priority of their queue, and within a queue in the order of their scheduled time. Prefect
counts the limits over all workers of the pool.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse

from modelyard.reconcile.plans import PLACES, RUNS
from tasks.flow_runs import read_all, read_runs


class Queue(NamedTuple):
    """A work queue. ``limit``: runs of it at a time (``None``: any number). ``priority``: 1 comes first."""

    name: str
    priority: int
    limit: int | None
    description: str


QUEUES = (
    Queue("shifts", 1, None, "Shifts, each with a writer and a standby: the loops that serve all namespaces."),
    Queue(RUNS, 2, PLACES, "Runs of lifecycles, created by reconcile in fair order, by a schedule or by a user."),
    Queue("parents", 3, 3, "Runs that wait for other runs, which would otherwise have no place left."),
)
FORMER = "manual"
"""A queue of earlier versions, for runs that a user or a schedule created."""


async def apply(client: PrefectClient, pool: str) -> list[str]:
    """Create or update the work queues of the pool; return a sentence for each.

    A limit that somebody set stays. A queue without one gets ours: that of a pool from before the queues, or one that
    ``prefect deploy`` created.
    """
    existing = {queue.name: queue for queue in await client.read_work_queues(work_pool_name=pool)}
    done = []
    for queue in QUEUES:
        stored = existing.get(queue.name)
        if stored is None:
            await client.create_work_queue(queue.name, queue.description, None, queue.limit, queue.priority, pool)
            done.append(f"{queue.name}: created, {_describe(queue.limit)}")
            continue
        limit = queue.limit if stored.concurrency_limit is None else stored.concurrency_limit
        await client.update_work_queue(
            stored.id,
            description=queue.description,
            priority=queue.priority,
            concurrency_limit=limit,
            is_paused=stored.is_paused,
        )
        done.append(f"{queue.name}: updated, {_describe(limit)}{', paused' if stored.is_paused else ''}")
    if (default := existing.get("default")) is not None:  # Prefect's own, for deployments that name no queue
        await client.update_work_queue(default.id, priority=len(QUEUES) + 1)
    return done


async def move_runs(client: PrefectClient, pool: str) -> list[str]:
    """Move scheduled runs into the queues of their deployments, and delete the former queue; what was done.

    Prefect cannot change the queue of a run. So it is created again, with the same parameters and for the same time.
    """
    deployments = {each.id: each for each in await read_all(client.read_deployments) if each.work_pool_name == pool}
    moved: Counter[str] = Counter()
    for run in await read_runs(client, pool, [StateType.SCHEDULED]):
        deployment = deployments.get(run.deployment_id) if run.deployment_id else None
        if deployment is not None and run.work_queue_name != deployment.work_queue_name:
            await _move(client, run, deployment)
            moved[str(run.work_queue_name)] += 1
    done = [
        f"{queue}: {count} scheduled runs moved to the queues of their deployments" for queue, count in moved.items()
    ]
    kept = {run.work_queue_name for run in await read_runs(client, pool)}
    kept |= {deployment.work_queue_name for deployment in deployments.values()}
    for queue in await client.read_work_queues(work_pool_name=pool):
        if queue.name == FORMER and FORMER not in kept:
            await client.delete_work_queue_by_id(queue.id)
            done.append(f"{FORMER}: deleted")
    return done


async def _move(client: PrefectClient, run: FlowRun, deployment: DeploymentResponse) -> None:
    # Prefect returns the existing run of a key. The shift creates one again that is lost between the two calls.
    if run.idempotency_key:
        await client.delete_flow_run(run.id)
    await client.create_flow_run_from_deployment(
        deployment.id,
        name=run.name,
        parameters=run.parameters,
        tags=run.tags,
        state=run.state.fresh_copy() if run.state else None,
        idempotency_key=run.idempotency_key or f"moved/{run.id}",
        parent_task_run_id=run.parent_task_run_id,
    )
    if not run.idempotency_key:
        await client.delete_flow_run(run.id)


def _describe(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit} runs at a time"
