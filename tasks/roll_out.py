"""A roll-out's own tasks: changes, a request to what serves, report. Its steps are in ``tasks.steps``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import httpx
from prefect import task
from prefect.artifacts import MarkdownArtifact, TableArtifact

from modelyard.cluster import PODS, NotFound
from modelyard.hosts import HostsFile
from modelyard.objects import Key, parse
from modelyard.objects.documents import few, listed
from modelyard.reconcile.plan import Plan
from modelyard.reconcile.run_view import look
from modelyard.runtimes.protocols import health_paths
from modelyard.workloads.lifecycle import RollOut
from modelyard.workloads.rollout_state import Standing
from modelyard.workloads.values import Refused, Rendered
from tasks.journal import cells, show, unformatted
from tasks.stage import RETRIED, STAGE
from tasks.steps import OpenRun, RunRef, open_run

MOST_LINES = 200
"""Lines of a difference that are shown."""
ANSWER_TIMEOUT = 5.0
ANSWER_ATTEMPTS = 5
"""Requests to a service that has just become ready: what leads to its pods may follow a little later."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What a service said when it was asked which models it serves: the HTTP status, 0 where nothing was heard."""

    status: int = 0
    words: str = "its pods are ready; not asked from here"
    address: str = ""

    @property
    def well(self) -> bool:
        """Whether an engine answers."""
        return self.status == 200

    @property
    def wrong(self) -> bool:
        """Whether what answers serves no models."""
        return self.status == 404 or self.status >= 500


@dataclass(frozen=True, slots=True)
class ServiceEnd:
    """How a service stands at the end of a run; ``final``: waiting longer will not mend it."""

    key: Key
    state: str
    reason: str = ""
    message: str = ""
    final: bool = False
    answer: EngineAnswer = field(default_factory=EngineAnswer)

    @property
    def ready(self) -> bool:
        """Its pods are, and all is as it was asked for."""
        return self.state == "Ready"


@task(
    name="show changes",
    task_run_name="show the changes of {keys[0]}",
    description="Select runtimes, render, and show what changes.",
    timeout_seconds=120,
    **RETRIED,
)
async def show_changes(ref: RunRef, keys: Sequence[Key]) -> str:
    """Return what would be written now, as the markdown of the artifact."""
    async with open_run(ref) as run:
        plans = await look(run.view.cluster, run.view.lifecycle, {key.namespace for key in keys}, keys)
        lines = [line for key in keys if key in plans for line in _changes(plans[key], plans[key].details)]
    text = "\n".join(few(lines, MOST_LINES)) or "Nothing changes."
    await show(MarkdownArtifact(key="roll-out-changes", markdown=text, description="Changes of each service"))
    return text


def _changes(plan: Plan, here: Standing | None) -> list[str]:
    if here is None:
        return []
    found = [f"## {plan.subject.key}", ""]
    if here.problem is not None:
        return [*found, f"refused: {unformatted(str(here.problem))}", ""]
    runtime = here.resolved.runtime
    found += [f"runtime: {runtime.kind} {runtime.choice.name}", ""] if runtime is not None else []
    found += [f"- {unformatted(line)}" for line in here.differences(plan)]
    return [*found, ""]


@task(
    name="request models",
    task_run_name="ask {keys[0]} which models it serves",
    description="Ask the service which models it serves, at its address inside the cluster.",
    timeout_seconds=120,
    **RETRIED,
)
async def request_models(ref: RunRef, keys: Sequence[Key], attempts: int = 1) -> dict[Key, EngineAnswer]:
    """Return what each service that is ready answered, or why it could not be reached from here."""
    async with open_run(ref) as run:
        answers = await asyncio.gather(*(_answer(run, key, attempts) for key in keys))
    return dict(zip(keys, answers, strict=True))


async def _answer(run: OpenRun, key: Key, attempts: int) -> EngineAnswer:
    hosts = HostsFile.found()
    here: Standing | None = run.view.details(key)
    if here is None or not here.answers or isinstance(here.result, Refused):
        return EngineAnswer()
    if all(one.zero for one in here.states.values()):
        return EngineAnswer(words="it is scaled to zero")
    runtime = here.resolved.runtime
    protocols = runtime.choice.protocols if runtime is not None else ()
    if not (paths := health_paths(protocols)):
        return EngineAnswer(words=f"its pods are ready; not asked: its runtime speaks {listed(protocols)}")
    addresses = [here.result.address] if here.result.address else await _pods(run, key, here.result)
    answers = await asyncio.gather(*(ask(address, hosts, attempts, paths) for address in addresses))
    return min(answers, key=lambda answer: answer.well, default=EngineAnswer())


async def _pods(run: OpenRun, key: Key, result: Rendered) -> list[str]:
    """A Model has no address: where a ready pod of each of its backends is asked."""
    found = []
    for spec in (one.body["spec"] for one in result.children if one.kind == "ModelServer"):
        selector = parse.label_selector(spec["workloadSelector"]["matchLabels"])
        pods = map(parse.pod, await run.view.cluster.list(PODS, key.namespace, selector))
        ip = next((one.ip for one in pods if one.ready and one.ip), "")
        found += [f"http://{f'[{ip}]' if ':' in ip else ip}:{spec['workloadPort']['port']}"] if ip else []
    return found


async def ask(
    address: str, hosts: HostsFile | None, attempts: int, paths: Sequence[str] = health_paths(())
) -> EngineAnswer:
    """Ask the engine at an address which models it serves, or whether it is well; the next path after each 404."""
    url, answer = hosts.located(address) if hosts is not None else address, EngineAnswer()
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for attempt in range(attempts):
            await asyncio.sleep(min(attempt, 1))
            for path in paths:
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT), client.stream("GET", url + path) as response:
                        said = f"{response.status_code} {response.reason_phrase}"
                        answer = EngineAnswer(response.status_code, said, address)
                except (TimeoutError, httpx.HTTPError) as error:
                    answer = EngineAnswer(0, f"{EngineAnswer().words}: {type(error).__name__}", address)
                if answer.status != 404:
                    break
            if answer.well:
                break
    return answer


@task(
    name="report",
    task_run_name="report the roll-out of {keys[0]}",
    description="Show the table of components, and how each service stands.",
    timeout_seconds=120,
    **STAGE,
)
async def report(ref: RunRef, keys: Sequence[Key], answers: dict[Key, EngineAnswer]) -> list[ServiceEnd]:
    """Return how each service stands."""
    rows = []
    async with open_run(ref) as run:
        ends = [replace(await _ended(run, key), answer=answers.get(key, EngineAnswer())) for key in keys]
        for end in ends:
            here: Standing | None = run.view.details(end.key)
            for state in here.states.values() if here is not None else ():
                row = {"service": str(end.key), "component": state.kind, "pods": f"{state.ready_pods}/{state.wanted}"}
                rows.append(row | {"reason": state.reason, "message": state.message, "answer": end.answer.words})
    if rows:
        table = [cells(row) for row in rows]
        await show(TableArtifact(key="roll-out-components", description="Components of each service", table=table))
    return ends


async def _ended(run: OpenRun, key: Key) -> ServiceEnd:
    """Return how the service stands now by its status."""
    lifecycle = run.view.lifecycle
    assert isinstance(lifecycle, RollOut)
    try:
        obj = await run.view.cluster.get(lifecycle.about, key.name, key.namespace)
    except NotFound:
        return ServiceEnd(key, "Gone")
    status = obj.get("status") or {}
    here: Standing | None = run.view.details(key)
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    current = status.get("observedGeneration") == obj["metadata"]["generation"]
    states = [(conditions.get(name) or {}, wanted) for name, wanted in lifecycle.well.items()]
    bad = next((condition for condition, wanted in states if condition and condition.get("status") != wanted), None)
    behind = here is not None and not all(component.rolled_out for component in here.states.values())
    if current and lifecycle.well.keys() <= conditions.keys() and bad is None and not behind:
        return ServiceEnd(key, "Ready")
    final = current and here is not None and here.stuck
    reason, message = (bad or {}).get("reason", ""), (bad or {}).get("message", "")
    return ServiceEnd(key, "NotReady", reason, message, final)
