"""A ModelRoute roll-out's own tasks: check the request, claim the route, report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect import task
from prefect.artifacts import MarkdownArtifact, TableArtifact

from modelyard.objects import Key
from modelyard.reconcile.following import take
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
        await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="The weights of each step"))
    return standing


@task(
    name="claim route",
    task_run_name="claim {key}",
    description="Let this run work on the route, and keep the requested roll-out with it.",
    timeout_seconds=120,
    **RETRIED,
)
async def claim_route(ref: RunRef, key: Key, requested: RouteRollOut | None) -> None:
    """Give the run the right to work on the route. A roll-out that went back is tried again, others go on."""
    async with open_run(ref) as run:
        cluster = run.view.cluster
        current = await cluster.get(ROUTES, key.name, key.namespace)
        standing = await _standing(run, key, requested)
        request = {WISH: requested.text} if requested is not None else {}
        again = standing is not None and standing.memory.ended not in ("", ROLLED_OUT)
        await take(cluster, current, ROUTES, ref.run, {**request, **({MEMORY: ""} if again else {})})


async def _standing(run: OpenRun, key: Key, requested: RouteRollOut | None) -> RouteStanding | None:
    assert isinstance(run.view.lifecycle, RouteRollOuts)
    given = {key: requested.text} if requested is not None else {}
    lifecycle = RouteRollOuts(run.view.lifecycle.prometheus, given=given)
    await look(run.view.cluster, lifecycle, {key.namespace}, [key])
    return lifecycle.seen.get(key)


@task(
    name="report",
    task_run_name="report",
    description="Show the table of steps, and how each route stands.",
    timeout_seconds=120,
    **STAGE,
)
async def report_routes(ref: RunRef, keys: Sequence[Key]) -> list[RouteEnd]:
    """Return how each route stands."""
    ends, rows = [], []
    async with open_run(ref) as run:
        lifecycle = run.view.lifecycle
        assert isinstance(lifecycle, RouteRollOuts)
        seen = dict(lifecycle.seen)
    for key in keys:
        if (standing := seen.get(key)) is None:
            ends.append(RouteEnd(key, "", "there is no such ModelRoute, or no roll-out is requested"))
            continue
        results = enumerate(standing.memory.said, 1)
        rows += [cells({"route": str(key), "step": number, "result": result}) for number, result in results]
        ends.append(RouteEnd(key, INVALID if standing.problem else standing.memory.ended, standing.says))
    if rows:
        await show(TableArtifact(key="roll-out-steps", description="Result of each step", table=rows))
    return ends
