"""A ModelRoute roll-out's own tasks: check the request, report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.artifacts import MarkdownArtifact

from modelyard.objects import Key, unformatted
from modelyard.reconcile.kernel import look
from modelyard.reconcile.plans import ObjectResult, ResultState
from modelyard.routing import MEMORY, ROLLED_OUT, ROUTES, WISH, RouteRollOut, RouteRollOuts, RouteStanding
from tasks.journal import show, show_table
from tasks.stage import BRIEF, REPORT
from tasks.steps import RunRef, open_run


@task(name="check roll-out", task_run_name="check {key}", **BRIEF)
async def check_roll_out(ref: RunRef, key: Key, requested: RouteRollOut | None) -> RouteStanding | None:
    """Check the roll-out, as ``requested`` or by the route's annotation, and show the weights of each step.

    Returns how the route stands; ``None`` where no roll-out is requested. Raises ``NotFound``.
    """
    given = {key: requested.text} if requested is not None else {}
    async with open_run(ref) as run:
        await run.view.cluster.get(ROUTES, key.name, key.namespace)
        lifecycle = RouteRollOuts(run.lifecycle(RouteRollOuts).prometheus, given=given)
        plan = (await look(run.view.cluster, lifecycle, {key.namespace}, [key])).get(key)
    standing: RouteStanding | None = plan.details if plan is not None else None
    if standing is not None:
        lines = [f"## ModelRoute {key}", "", *(f"- {unformatted(step)}" for step in standing.ladder)]
        text = "\n".join([*lines, unformatted(standing.problem)])
        await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="Weights of each step"))
    return standing


def route_marks(standing: RouteStanding, requested: RouteRollOut | None) -> dict[str, str | None]:
    """Return the annotations that request a roll-out. One that went back is tried again, others go on."""
    request: dict[str, str | None] = {WISH: requested.text} if requested is not None else {}
    return {**request, MEMORY: ""} if standing.memory.ended not in ("", ROLLED_OUT) else request


@task(name="report", task_run_name="report the roll-out of {keys[0]}", **REPORT)
async def report_routes(ref: RunRef, keys: Sequence[Key]) -> list[ObjectResult]:
    """Show the results of the steps, and return that of each route."""
    async with open_run(ref) as run:
        routes = {key: run.view.details(key) for key in keys}
    rows = [row for key, route in routes.items() if route is not None for row in route.rows(key)]
    await show_table("roll-out-steps", "Results of the roll-out's steps", rows)
    missing = "there is no such ModelRoute, or no roll-out is requested"
    return [
        route.result(key) if route is not None else ObjectResult(ResultState.GONE, f"ModelRoute {key}: {missing}")
        for key, route in routes.items()
    ]
