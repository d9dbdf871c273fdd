"""Work queues of the pool: which runs come first, and how many of them run at a time.

A worker starts runs by the priority of their queue, and within a queue in the order of their creation. Prefect counts
the limits over all workers of the pool.
"""

from __future__ import annotations

from typing import NamedTuple

from prefect.client.orchestration import PrefectClient

from modelyard.reconcile.run_limits import PLACES, RUNS


class Queue(NamedTuple):
    """A work queue. ``limit``: runs of it at a time (``None``: any number). ``priority``: 1 comes first."""

    name: str
    priority: int
    limit: int | None
    description: str


QUEUES = (
    Queue("shifts", 1, None, "Shifts, each with a writer and a standby: the loops that serve all namespaces."),
    Queue(RUNS, 2, PLACES, "Runs that the reconcile shift creates for objects of namespaces, in fair order."),
    Queue("manual", 3, 3, "Runs started by hand, by a schedule or from a pipeline, which may last for hours."),
    Queue("parents", 4, 2, "Runs that wait for other runs, which would otherwise have no place left."),
)


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


def _describe(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit} runs at a time"
