"""A delivery's own tasks: request a model, request a check of files, and report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from prefect import get_run_logger, task

from modelyard.models.delivery import VERIFY
from modelyard.models.execution import node_outcome, read_state, received, request_model
from modelyard.objects import Key, timestamp
from modelyard.reconcile.plans import ObjectResult, StepId
from tasks.claims import claim_free
from tasks.journal import show_table
from tasks.stage import BRIEF, REPORT
from tasks.steps import RunRef, open_run


@task(name="request model", task_run_name="request {key.label} from {uri}", **BRIEF)
async def request(ref: RunRef, key: Key, uri: str, node_selector: Mapping[str, str], secret: str) -> None:
    """Create the model, or give the existing one this URI; ``secret`` is the name of its source's credentials."""
    async with open_run(ref) as run:
        await request_model(run.view.cluster, run.view.lifecycle.about, key, uri, node_selector, secret=secret)


@task(name="request verification", task_run_name="request verification of {kind}s", **BRIEF)
async def request_verification(
    ref: RunRef, kind: str, namespaces: Sequence[str], names: Sequence[str]
) -> tuple[list[Key], int]:
    """Claim the delivered models, and request a check of their files on every node.

    Returns the models that this run is to check, and the number of those that are left to other runs. A model without
    files on any node is skipped.
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


@task(name="report", task_run_name="report deliveries", **REPORT)
async def report(ref: RunRef, keys: Sequence[Key], steps: Collection[tuple[Key, StepId]]) -> list[ObjectResult]:
    """Show the nodes that the run fetched files to (``steps``); return the results of the models and of these nodes."""
    async with open_run(ref) as run:
        models = [(await read_state(run.view.cluster, run.view.lifecycle.about, key)).result(key) for key in keys]
        nodes = [
            outcome
            for key in keys
            for leg in sorted(run.view.details(key) or (), key=lambda leg: leg.node)
            if (key, StepId("fetch", leg.node)) in steps and (outcome := node_outcome(key, leg)) is not None
        ]
    name = keys[0].name if len(keys) == 1 else f"{len(keys)} models"
    await show_table("deliver-nodes", f"Nodes that received {name}", [outcome.row for outcome in nodes])
    return [*models, received(nodes)] if nodes else models
