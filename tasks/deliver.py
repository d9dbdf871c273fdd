"""The steps of a delivery: what is asked for, having it done, one node's part, and what is told at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from prefect import Task, get_run_logger, task
from prefect.artifacts import TableArtifact
from prefect.client.schemas.objects import State, TaskRun

from modelyard.cluster import Unavailable
from modelyard.models.following import Ended, Following, NodeOutcome, outcome
from modelyard.models.legs import NodeStage
from modelyard.objects import Key
from modelyard.reconcile.acting import Acted, act
from tasks.journal import CALL_TIMEOUT, ProgressBar, cells
from tasks.stage import STAGE

LOOK = 5.0
"""Seconds between two looks at what a transfer says of itself."""
AGAIN = 5.0
"""Seconds after which a model whose nodes wait for their turn is looked at again."""


async def _helps(task: Task[..., object], task_run: TaskRun, state: State[object]) -> bool:
    """Whether another try may help: the cluster was away, not: a node has failed."""
    try:
        await state.aresult()
    except Unavailable:
        return True
    except Exception:
        return False
    return False


@task(
    name="resolve",
    task_run_name="resolve",
    description="Find the models, or make the one that is asked for, and let this run work on them.",
    retries=3,
    retry_delay_seconds=[1, 5, 15],
    retry_condition_fn=_helps,
    timeout_seconds=120,
    **STAGE,
)
async def resolve(following: Following, asked: Callable[[Following], Awaitable[list[Key]]]) -> list[Key]:
    """The models to deliver."""
    keys = await asked(following)
    get_run_logger().info("%s: %s", following.kind.kind, ", ".join(key.name for key in keys))
    return keys


@task(
    name="place",
    task_run_name="place",
    description="Choose the nodes, make a Job for each, a few at a time, and write down what became of it.",
    retries=3,
    retry_delay_seconds=[1, 5, 15],
    retry_condition_fn=_helps,
    **STAGE,
)
async def place(following: Following, keys: Sequence[Key], run: str, until: float | None) -> Acted:
    """Have it done. ``until`` (a monotonic clock's reading): how long to stay while nodes wait for their turn."""
    while True:
        acted = await act(following.cluster, following.lifecycle, keys, run)
        left = [key for key in keys if key in acted.settled and following.waits(key)]
        if until is None or not left or time.monotonic() + AGAIN >= until:
            return acted
        await asyncio.sleep(AGAIN)


@task(
    name="fetch",
    task_run_name="fetch {key.name} on {node}",
    description="Follow one node: its Job fetches, verifies and detects; how far it is, and how it ended.",
    retries=3,
    retry_delay_seconds=[1, 5, 15],
    retry_condition_fn=_helps,
    **STAGE,
)
async def fetch(
    following: Following, key: Key, node: str, bar: ProgressBar, placing: asyncio.Future[Acted]
) -> NodeOutcome:
    """One node's part, until it has the files. Raises ``NodeFailed``."""
    log, said = get_run_logger(), ""
    while True:
        leg = following.part(key, node)
        if leg is not None:
            if (text := f"{leg.reason}: {leg.message}") != said:
                said = text
                log.info("%s", text)
            over = (
                leg.stage in (NodeStage.READY, NodeStage.FAILED, NodeStage.GONE, NodeStage.REMOVING) and leg.job is None
            )
            if over or placing.done():
                bar.tell(f"{key} {node}", 1.0)
                return outcome(key, leg)
            share = await following.look(key, leg)
            if share is not None:
                bar.tell(f"{key} {node}", share)
        elif placing.done():
            raise asyncio.CancelledError
        await asyncio.wait([placing], timeout=LOOK if leg is None or leg.stage is not NodeStage.READY else 0.2)


@task(
    name="publish",
    task_run_name="publish",
    description="The table of nodes, and how each model stands.",
    timeout_seconds=120,
    **STAGE,
)
async def publish(following: Following, keys: Sequence[Key], nodes: Sequence[NodeOutcome]) -> list[Ended]:
    """Tell people; how each model stands."""
    ended = [await following.ended(key) for key in keys]
    if nodes:
        name = keys[0].name if len(keys) == 1 else f"{len(keys)} models"
        rows = [cells(one.row) for one in sorted(nodes, key=lambda one: (one.model, one.node))]
        artifact = TableArtifact(key="deliver-nodes", description=f"Delivery of {name}", table=rows)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await artifact.acreate()
        except Exception as error:
            get_run_logger().warning("The table could not be written: %s", error)
    return ended
