"""A ModelRoute roll-out's own tasks: check the request, report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect import task
from prefect.artifacts import MarkdownArtifact, TableArtifact

from modelyard.objects import Key
from modelyard.reconcile.run_view import look
from modelyard.routing.objects import ROUTES
from modelyard.routing.rolling import MEMORY, ROLLED_OUT, WISH, RouteRollOut
from modelyard.routing.route_roll_out import INVALID, RouteRollOuts, RouteStanding
from tasks.journal import cells, show, unformatted
from tasks.stage import RETRIED, STAGE
from tasks.steps import OpenRun, RunRef, open_run


@dataclass(frozen=True, slots=True)
class RouteEnd:
    """How a route's roll-out stands at the end of a run: what its condition says."""

    key: Key
    reason: str
    message: str


@task(
    name="check roll-out",
    task_run_name="check {key}",
    description="Check the requested roll-out, and show the weights of each step.",
    timeout_seconds=120,
    **RETRIED,
)
async def check_roll_out(ref: RunRef, key: Key, requested: RouteRollOut | None) -> RouteStanding | None:
    """Return how the route stands and what its steps would be, as ``requested`` or by its annotation.

    ``None``: neither is there. Raises ``NotFound``.
    """
    async with open_run(ref) as run:
        await run.view.cluster.get(ROUTES, key.name, key.namespace)
        standing = await _standing(run, key, requested)
    if standing is not None:
        lines = [f"## ModelRoute {key}", "", *(f"- {unformatted(step)}" for step in standing.ladder)]
        text = "\n".join([*lines, unformatted(standing.problem)])
        await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="Weights of each step"))
    return standing


def route_marks(standing: RouteStanding, requested: RouteRollOut | None) -> dict[str, str | None]:
    """Return the annotations that request a roll-out. One that went back is tried again, others go on."""
    request: dict[str, str | None] = {WISH: requested.text} if requested is not None else {}
    return {**request, MEMORY: ""} if standing.memory.ended not in ("", ROLLED_OUT) else request


async def _standing(run: OpenRun, key: Key, requested: RouteRollOut | None) -> RouteStanding | None:
    assert isinstance(run.view.lifecycle, RouteRollOuts)
    given = {key: requested.text} if requested is not None else {}
    lifecycle = RouteRollOuts(run.view.lifecycle.prometheus, given=given)
    plan = (await look(run.view.cluster, lifecycle, {key.namespace}, [key])).get(key)
    return plan.details if plan is not None else None


@task(
    name="report",
    task_run_name="report the roll-out of {keys[0]}",
    description="Show the table of steps, and how each route stands.",
    timeout_seconds=120,
    **STAGE,
)
async def report_routes(ref: RunRef, keys: Sequence[Key]) -> list[RouteEnd]:
    """Return how each route stands."""
    ends, rows = [], []
    async with open_run(ref) as run:
        standings: dict[Key, RouteStanding | None] = {key: run.view.details(key) for key in keys}
    for key, standing in standings.items():
        if standing is None:
            ends.append(RouteEnd(key, "", "there is no such ModelRoute, or no roll-out is requested"))
            continue
        results = enumerate(standing.memory.said, 1)
        rows += [cells({"route": str(key), "step": number, "result": result}) for number, result in results]
        ends.append(RouteEnd(key, INVALID if standing.problem else standing.memory.ended, standing.says))
    if rows:
        await show(TableArtifact(key="roll-out-steps", description="Results of the roll-out's steps", table=rows))
    return ends
