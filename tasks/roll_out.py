"""A roll-out's own tasks: changes, a request to what serves, report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
from prefect import task
from prefect.artifacts import MarkdownArtifact

from modelyard.hosts import HostsFile
from modelyard.metrics.endpoints import request_status
from modelyard.objects import PODS, Key, few, listed, parse
from modelyard.reconcile.kernel import look
from modelyard.reconcile.plans import ObjectResult
from modelyard.runtimes import health_paths
from modelyard.workloads.rendering import Refused, Rendered
from modelyard.workloads.roll_out import EngineAnswer, RollOut, change_lines, component_rows, service_result
from tasks.journal import show, show_table
from tasks.stage import BRIEF, REPORT
from tasks.steps import OpenRun, RunRef, open_run

MOST_LINES = 200
"""Lines of a difference that are shown."""
ANSWER_TIMEOUT = 5.0
ANSWER_ATTEMPTS = 5
"""Requests to a service that has just become ready: what leads to its pods may follow a little later."""


@task(name="show changes", task_run_name="show the changes of {keys[0]}", **BRIEF)
async def show_changes(ref: RunRef, keys: Sequence[Key]) -> str:
    """Select runtimes, render, and show what would be written now; return it as Markdown."""
    async with open_run(ref) as run:
        lifecycle = _lifecycle(run)
        plans = await look(run.view.cluster, lifecycle, {key.namespace for key in keys}, keys)
        lines = [line for key in keys if key in plans for line in change_lines(plans[key], plans[key].details)]
    text = "\n".join(few(lines, MOST_LINES)) or "Nothing changes."
    await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="Changes of each service"))
    return text


@task(name="request models", task_run_name="ask {keys[0]} which models it serves", **BRIEF)
async def request_models(ref: RunRef, keys: Sequence[Key], attempts: int = 1) -> list[EngineAnswer]:
    """Ask each service that is ready which models it serves, at its address inside the cluster."""
    async with open_run(ref) as run:
        return await asyncio.gather(*(_answer(run, key, attempts) for key in keys))


def _lifecycle(run: OpenRun) -> RollOut:
    return run.lifecycle(RollOut)  # type: ignore[type-abstract]


async def _answer(run: OpenRun, key: Key, attempts: int) -> EngineAnswer:
    hosts = HostsFile.found()
    standing = run.view.details(key)
    if standing is None or not standing.answers or isinstance(standing.result, Refused):
        return EngineAnswer()
    if all(component.zero for component in standing.states.values()):
        return EngineAnswer(words="it is scaled to zero")
    runtime = standing.resolved.runtime
    protocols = runtime.choice.protocols if runtime is not None else ()
    if not (paths := health_paths(protocols)):
        return EngineAnswer(words=f"its pods are ready; not asked: its runtime speaks {listed(protocols)}")
    addresses = [standing.result.address] if standing.result.address else await _pods(run, key, standing.result)
    answers = await asyncio.gather(*(ask(address, hosts, attempts, paths) for address in addresses))
    return min(answers, key=lambda answer: answer.well, default=EngineAnswer())


async def _pods(run: OpenRun, key: Key, result: Rendered) -> list[str]:
    """A Model has no address: where a ready pod of each of its backends is asked."""
    found = []
    for spec in (child.body["spec"] for child in result.children if child.kind == "ModelServer"):
        selector = parse.label_selector(spec["workloadSelector"]["matchLabels"])
        pods = map(parse.pod, await run.view.cluster.list(PODS, key.namespace, selector))
        ip = next((pod.ip for pod in pods if pod.ready and pod.ip), "")
        found += [f"http://{f'[{ip}]' if ':' in ip else ip}:{spec['workloadPort']['port']}"] if ip else []
    return found


async def ask(
    address: str, hosts: HostsFile | None, attempts: int, paths: Sequence[str] = health_paths(())
) -> EngineAnswer:
    """Ask the engine at an address which models it serves, or whether it is well; the next path after each 404."""
    url, answer = hosts.located(address) if hosts is not None else address, EngineAnswer()
    async with aiohttp.ClientSession() as session:
        for attempt in range(attempts):
            await asyncio.sleep(min(attempt, 1))
            try:
                status, reason = await request_status(session, url, paths, ANSWER_TIMEOUT)
                answer = EngineAnswer(status, f"{status} {reason}", address)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                answer = EngineAnswer(0, f"{EngineAnswer().words}: {type(error).__name__}", address)
            if answer.well:
                break
    return answer


@task(name="report", task_run_name="report the roll-out of {keys[0]}", **REPORT)
async def report(ref: RunRef, keys: Sequence[Key], answers: Sequence[EngineAnswer]) -> list[ObjectResult]:
    """Show the table of components; return the result of each service."""
    rows: list[dict[str, object]] = []
    results = []
    async with open_run(ref) as run:
        lifecycle = _lifecycle(run)
        for key, answer in zip(keys, answers, strict=True):
            obj, standing = await run.read(key), run.view.details(key)
            results.append(service_result(key, obj, standing, lifecycle.well, answer))
            rows += component_rows(key, standing, answer)
    await show_table("roll-out-components", "Components of each service", rows)
    return results
