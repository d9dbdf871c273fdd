"""The steps of a delivery: what is asked for, having it done, one node's part, and what is told at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from prefect import get_run_logger, task
from prefect.artifacts import TableArtifact

from modelyard.models.following import Ended, Following, NodeOutcome, outcome
from modelyard.models.legs import NodeStage
from modelyard.objects import Key
from modelyard.reconcile.acting import Acted
from tasks.acting import stay
from tasks.journal import ProgressBar, cells, show
from tasks.stage import RETRIED, STAGE

LOOK = 5.0
"""Seconds between two looks at what a transfer says of itself."""


@task(
    name="resolve",
    task_run_name="resolve",
    description="Find the models, or make the one that is asked for, and let this run work on them.",
    timeout_seconds=120,
    **RETRIED,
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
    **RETRIED,
)
async def place(following: Following, keys: Sequence[Key], run: str, until: float | None) -> Acted:
    """Have it done. ``until`` (a monotonic clock's reading): how long to stay while nodes wait for their turn."""

    async def left(acted: Acted) -> bool:
        return any(key in acted.settled and following.waits(key) for key in keys)

    return await stay(following.cluster, following.lifecycle, keys, run, until, left)


@task(
    name="fetch",
    task_run_name="fetch {key.name} on {node}",
    description="Follow one node: its Job fetches, verifies and detects; how far it is, and how it ended.",
    **RETRIED,
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
        await show(artifact)
    return ended
