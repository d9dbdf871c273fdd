"""A delivery's own tasks: find or make the model, and report how it ended. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from prefect import get_run_logger, task
from prefect.artifacts import TableArtifact

from modelyard.models.following import Ended, Following, NodeOutcome, node_outcome
from modelyard.models.lifecycle import ModelDelivery
from modelyard.objects import Key
from modelyard.reconcile.plan import StepId
from tasks.journal import cells, show
from tasks.stage import RETRIED, STAGE
from tasks.steps import RunRef, open_run


@task(
    name="claim model",
    task_run_name="claim {key.name}",
    description="Find the model, or make the one that is asked for, and let this run work on it.",
    timeout_seconds=120,
    **RETRIED,
)
async def claim_model(
    ref: RunRef, key: Key, uri: str | None, node_selector: Mapping[str, str], secret: str, attempt: int
) -> None:
    """Give the run the right to work on the model; with a ``uri`` make it or give it this URI.

    What failed before is tried again at once. Raises ``NoSuchModel``.
    """
    async with open_run(ref) as run:
        following = Following(run.view.cluster, run.view.lifecycle.about)
        if uri is not None:
            await following.order(key, uri, node_selector, secret=secret)
        await following.take(key, ref.run, attempt)
        get_run_logger().info("%s %s is claimed", following.kind.kind, key.name)


@task(
    name="report",
    task_run_name="report",
    description="Show the nodes that received files, and how each model stands.",
    timeout_seconds=120,
    **STAGE,
)
async def report(
    ref: RunRef, keys: Sequence[Key], steps: Collection[tuple[Key, StepId]]
) -> tuple[list[Ended], list[NodeOutcome]]:
    """Return how each model stands, and what became of the nodes that the run worked on (``steps``)."""
    async with open_run(ref) as run:
        lifecycle = run.view.lifecycle
        assert isinstance(lifecycle, ModelDelivery)
        ended = [await Following(run.view.cluster, lifecycle.about).ended(key) for key in keys]
        nodes = [
            outcome
            for key in keys
            for leg in sorted(lifecycle.seen.get(key, ()), key=lambda leg: leg.node)
            if (key, StepId("fetch", leg.node)) in steps and (outcome := node_outcome(key, leg)) is not None
        ]
    if nodes:
        name = keys[0].name if len(keys) == 1 else f"{len(keys)} models"
        rows = [cells(outcome.row) for outcome in nodes]
        await show(TableArtifact(key="deliver-nodes", description=f"Delivery of {name}", table=rows))
    return ended, nodes
