"""A delivery's own tasks: request a model, request a check of files, and report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prefect import get_run_logger, task
from prefect.artifacts import TableArtifact

from modelyard.models.requests import ModelState, read_state, request_model
from modelyard.models.transfers import NodeOutcome, node_outcome
from modelyard.models.world import VERIFY
from modelyard.objects import Key
from modelyard.reconcile.plan import StepId
from modelyard.reconcile.status import timestamp
from tasks.claims import claim_free
from tasks.journal import cells, show
from tasks.stage import RETRIED, STAGE
from tasks.steps import RunRef, open_run


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """The state of each model, in the order of the run's objects, and the nodes that received files."""

    models: list[ModelState]
    nodes: list[NodeOutcome]


@task(
    name="request model",
    task_run_name="request {key.name} from {uri}",
    description="Create the model, or give the existing one this URI.",
    timeout_seconds=120,
    **RETRIED,
)
async def request(ref: RunRef, key: Key, uri: str, node_selector: Mapping[str, str], secret: str) -> None:
    """Apply the model with its storage; ``secret`` is the name of its source's credentials."""
    async with open_run(ref) as run:
        await request_model(run.view.cluster, run.view.lifecycle.about, key, uri, node_selector, secret=secret)


@task(
    name="request verification",
    task_run_name="request verification of {kind}s",
    description="Claim the delivered models, and request a check of their files on every node.",
    timeout_seconds=300,
    **RETRIED,
)
async def request_verification(
    ref: RunRef, kind: str, namespaces: Sequence[str], names: Sequence[str]
) -> tuple[list[Key], int]:
    """Return the models that this run is to check, and the number of those that are left to other runs.

    A model without files on any node is skipped.
    """
    async with open_run(ref) as run:
        cluster, spaces, wanted = run.view.cluster, set(namespaces), set(names)
        mark = {VERIFY: timestamp(cluster.now())}
        chosen = [
            (obj, mark)
            for obj in await cluster.list(run.view.lifecycle.about)
            if (not spaces or obj["metadata"].get("namespace", "") in spaces)
            and (not wanted or obj["metadata"]["name"] in wanted)
            and (obj.get("status") or {}).get("nodesReady")
        ]
        claimed = await claim_free(run, ref, chosen)
    get_run_logger().info("Verifying %d of %d %ss with files on nodes", len(claimed), len(chosen), kind)
    return claimed, len(chosen) - len(claimed)


@task(
    name="report",
    task_run_name="report deliveries",
    description="Show the nodes that received files, and the state of each model.",
    timeout_seconds=120,
    **STAGE,
)
async def report(ref: RunRef, keys: Sequence[Key], steps: Collection[tuple[Key, StepId]]) -> DeliveryReport:
    """Return the state of each model, and what became of the nodes that the run fetched files to (``steps``)."""
    async with open_run(ref) as run:
        models = [await read_state(run.view.cluster, run.view.lifecycle.about, key) for key in keys]
        nodes = [
            outcome
            for key in keys
            for leg in sorted(run.view.details(key) or (), key=lambda leg: leg.node)
            if (key, StepId("fetch", leg.node)) in steps and (outcome := node_outcome(key, leg)) is not None
        ]
    if nodes:
        name = keys[0].name if len(keys) == 1 else f"{len(keys)} models"
        rows = [cells(outcome.row) for outcome in nodes]
        await show(TableArtifact(key="deliver-nodes", description=f"Nodes that received {name}", table=rows))
    return DeliveryReport(models, nodes)
