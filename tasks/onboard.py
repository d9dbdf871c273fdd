"""An onboarding's own tasks: expected load, start, simulation, check under load, report. Its steps are shared."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from prefect import get_run_logger, task
from prefect.artifacts import MarkdownArtifact

from modelyard.cluster import NotFound
from modelyard.objects import CONFIG_MAPS, Key
from modelyard.onboarding import OnboardRequest
from modelyard.onboarding.execution import OnboardRefused, check_service, retry_failed, simulate_load, take_over
from modelyard.onboarding.planning import (
    LoadCheck,
    Onboarding,
    class_targets,
    expected,
    markdown,
    name_of,
    onboarding_result,
    order_key,
    spent,
    table,
)
from modelyard.reconcile.kernel import Superseded
from modelyard.reconcile.plans import ObjectResult
from modelyard.traffic.traces import read_trace
from tasks.children import retry_child
from tasks.claims import reason_to_leave
from tasks.journal import show
from tasks.observe import CHILDREN
from tasks.stage import BRIEF, RETRIED, STAGE
from tasks.steps import RunRef, open_run


@task(name="resolve load", task_run_name="resolve the load of {namespace}/{model}", **RETRIED)
async def resolve_load(
    ref: RunRef, path: Path | None, service_class: str | None, namespace: str, model: str
) -> dict[str, float]:
    """Return the expected load of the trace and the target of the service class, where these are given.

    Raises ``OnboardRefused`` and ``TraceInputError``.
    """
    values: dict[str, float] = {}
    if path is not None:
        values |= expected(await asyncio.to_thread(read_trace, path))
    if service_class is not None:
        name, _, key = service_class.partition("/")
        maps: dict[Key, dict[str, str]] = {}
        async with open_run(ref) as run:
            for space in dict.fromkeys((namespace, ref.home)):
                with suppress(NotFound):
                    maps[Key(space, name)] = (await run.view.cluster.get(CONFIG_MAPS, name, space)).get("data") or {}
        targets, why = class_targets(maps, namespace, ref.home, name, key, model)
        if why:
            raise OnboardRefused(why)
        values |= targets
    return values


@task(name="start", task_run_name="start {asked.namespace}/{asked.name}", **BRIEF)
async def start(ref: RunRef, asked: OnboardRequest, attempt: int) -> Key:
    """Create the ConfigMap that stands for the onboarding, or let the run go on with the existing one; return its key.

    What failed of an existing one is tried again. ``attempt`` counts the times that the run has begun: from the second
    on, it leaves the onboarding to another run that works on it. Raises ``OnboardRefused`` and ``Superseded``.
    """
    key = order_key(asked)
    async with open_run(ref) as run:
        if attempt > 1 and (reason := await reason_to_leave(run, ref, await run.read(key))):
            raise Superseded(f"ConfigMap {key}: {reason}")
        if not await take_over(run.view.cluster, asked, ref.run):
            get_run_logger().info("ConfigMap %s exists: going on with what was begun", key)
            made = await retry_failed(run.view.cluster, asked, f"{ref.run.rpartition('/')[2]}-{attempt}")
            for kind, obj in made:
                if (obj.get("status") or {}).get("state") == "Failed":
                    run.lifecycle(Onboarding).retried.add((key, name_of(obj)))
                await retry_child(run.view.cluster, CHILDREN[kind.kind], obj)
    return key


@task(name="simulate", task_run_name="simulate the load of {key}", **STAGE)
async def simulate(ref: RunRef, key: Key, path: Path | None) -> LoadCheck:
    """Replay the expected load in the simulator; return what clients would see on all replicas."""
    async with open_run(ref) as run:
        standing = run.view.details(key)
    trace = await asyncio.to_thread(read_trace, path) if path is not None else None
    check = await asyncio.to_thread(simulate_load, standing, trace)
    get_run_logger().info("%s", check)
    return check


@task(name="verify", task_run_name="verify {key} under load", **STAGE)
async def verify(ref: RunRef, key: Key, seconds: float) -> LoadCheck:
    """Put the expected load on the service for a short time; return what its clients saw."""
    async with open_run(ref) as run:
        check = await check_service(run.view.cluster, run.view.details(key), seconds)
    get_run_logger().info("%s", check)
    return check


@task(name="report", task_run_name="report {key}", **STAGE)
async def report(ref: RunRef, key: Key, checks: list[LoadCheck]) -> ObjectResult:
    """Show the candidates, the objects, what finding out cost, and what holds under load; return the result."""
    log = get_run_logger()
    async with open_run(ref) as run:
        standing = run.view.details(key)
    if standing is not None:
        if standing.steps.verdict is not None:
            for line in table(standing.steps.verdict.assessed):
                log.info("%s", line)
            log.info("Probes took %.1f replica-minutes, which cost %.3g", *spent(standing.asked, standing.memory))
        name, text = standing.asked.name, markdown(standing, checks)
        await show(MarkdownArtifact(key=f"onboarding-{name}", markdown=text, description=f"Onboarding of {name}"))
    return onboarding_result(key, standing, checks)
