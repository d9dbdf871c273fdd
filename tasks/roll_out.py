"""The steps of a roll-out: what is asked for, what would change, having it done, a real answer, and what is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from prefect import Task, get_run_logger, task
from prefect.artifacts import MarkdownArtifact, TableArtifact
from prefect.client.schemas.objects import State, TaskRun

from modelyard.cluster import Cluster, NotFound, Unavailable
from modelyard.objects import Key
from modelyard.objects.documents import few
from modelyard.reconcile.acting import Acted, act, look
from modelyard.reconcile.following import Followed, take
from modelyard.reconcile.plan import Plan
from modelyard.workloads.lifecycle import ServiceRollOut
from modelyard.workloads.story import Standing
from modelyard.workloads.world import INFERENCE_SERVICES
from tasks.journal import CALL_TIMEOUT, ProgressBar, cells
from tasks.stage import STAGE

AGAIN = 5.0
"""Seconds after which a service that waits for something else is looked at again."""
MOST_LINES = 200
"""Lines of a difference that are shown."""
ANSWER_TIMEOUT = 5.0


async def _helps(task: Task[..., object], task_run: TaskRun, state: State[object]) -> bool:
    """Whether another try may help: the cluster was away."""
    try:
        await state.aresult()
    except Unavailable:
        return True
    except Exception:
        return False
    return False


RETRIED: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [1, 5, 15],
    "retry_condition_fn": _helps,
    **STAGE,
}


@dataclass(eq=False)
class RollingOut:
    """Services as a run follows them. ``home`` is the controller's namespace."""

    cluster: Cluster
    home: str
    seen: Followed[Standing] = field(default_factory=Followed)
    lifecycle: ServiceRollOut = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at."""
        self.lifecycle = ServiceRollOut(self.home, seen=self.seen)


@dataclass(frozen=True, slots=True)
class ServiceEnd:
    """How a service stands at the end of a run; ``final``: waiting longer will not mend it."""

    key: Key
    state: str
    reason: str = ""
    message: str = ""
    url: str = ""
    final: bool = False

    @property
    def ready(self) -> bool:
        """It answers, and as it was asked for."""
        return self.state == "Ready"


@task(
    name="resolve",
    description="Find the services, and let this run work on them.",
    timeout_seconds=120,
    **RETRIED,
)
async def resolve(rolling: RollingOut, keys: Sequence[Key], run: str, by_hand: bool) -> list[Key]:
    """The services to roll out. By hand the run takes them over."""
    for key in keys if by_hand else ():
        current = await rolling.cluster.get(INFERENCE_SERVICES, key.name, key.namespace)
        await take(rolling.cluster, current, INFERENCE_SERVICES, run, {})
    return list(keys)


@task(
    name="compare",
    description="Select runtimes, render, and show what changes.",
    timeout_seconds=120,
    **RETRIED,
)
async def compare(rolling: RollingOut, keys: Sequence[Key]) -> str:
    """What would be written now, as the markdown of the artifact."""
    plans = await look(rolling.cluster, rolling.lifecycle, {key.namespace for key in keys})
    lines = [line for key in keys if key in plans for line in _changes(plans[key], rolling.seen.get(key))]
    text = "\n".join(few(lines, MOST_LINES)) or "Nothing changes."
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            await MarkdownArtifact(key="roll-out-changes", markdown=text, description="What changes").acreate()
    except Exception as error:
        get_run_logger().warning("The changes could not be written: %s", error)
    return text


def _changes(plan: Plan, here: Standing | None) -> list[str]:
    if here is None:
        return []
    found = [f"## {plan.subject.key}", ""]
    if here.problem is not None:
        return [*found, f"refused: {here.problem}", ""]
    runtime = here.resolved.runtime
    found += [f"runtime: {runtime.kind} {runtime.choice.name}", ""] if runtime is not None else []
    found += [f"- {line}" for line in here.differences(plan)]
    return [*found, ""]


@task(
    name="apply",
    description="Apply what differs, take away what is not asked for any more, and wait for the pods.",
    **RETRIED,
)
async def apply(rolling: RollingOut, keys: Sequence[Key], run: str, until: float | None, bar: ProgressBar) -> Acted:
    """Have it done. ``until`` (a monotonic clock's reading): how long to stay for what may still become ready."""
    watching = asyncio.create_task(_watch(rolling, keys, bar))
    try:
        while True:
            acted = await act(rolling.cluster, rolling.lifecycle, keys, run)
            ends = [await ended(rolling, key) for key in keys if key in acted.settled]
            left = [one for one in ends if not one.ready and not one.final and one.state != "Gone"]
            if until is None or not left or time.monotonic() + AGAIN >= until:
                return acted
            await asyncio.sleep(AGAIN)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(rolling: RollingOut, keys: Sequence[Key], bar: ProgressBar) -> None:
    """Tell how many pods are ready of those wanted."""
    log, said = get_run_logger(), dict[Key, str]()
    while True:
        for key in keys:
            here = rolling.seen.get(key)
            if here is None or not here.states:
                continue
            states = here.states.values()
            wanted, ready = sum(one.wanted for one in states), sum(one.ready_pods for one in states)
            done = all(one.rolled_out for one in states)
            bar.tell(str(key), 1.0 if done else min(0.99, ready / max(1, wanted)))
            text = "; ".join(one.message for one in states)
            if said.get(key) != text:
                said[key] = text
                log.info("%s: %s", key, text)
        await rolling.seen.moved(AGAIN)


@task(
    name="answer",
    description="Ask the service which models it serves, at its address inside the cluster.",
    timeout_seconds=60,
    **STAGE,
)
async def answer(rolling: RollingOut, keys: Sequence[Key]) -> dict[Key, str]:
    """What each service that is ready answered, or why it cannot be asked from here; it decides nothing."""
    said = {}
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for key in keys:
            here = rolling.seen.get(key)
            address = getattr(here.result, "address", "") if here is not None and here.answers else ""
            if address:
                try:
                    async with client.stream("GET", f"{address}/v1/models") as response:
                        said[key] = f"{response.status_code} {response.reason_phrase}"
                except httpx.HTTPError as error:
                    said[key] = f"not to be asked from here: {type(error).__name__}"
    return said


@task(name="publish", description="The table of components, and how each service stands.", timeout_seconds=120, **STAGE)
async def publish(rolling: RollingOut, keys: Sequence[Key], answers: dict[Key, str]) -> list[ServiceEnd]:
    """Tell people; how each service stands."""
    ends = [await ended(rolling, key) for key in keys]
    rows = []
    for end in ends:
        here = rolling.seen.get(end.key)
        for state in here.states.values() if here is not None else ():
            row = {"service": str(end.key), "component": state.kind, "pods": f"{state.ready_pods}/{state.wanted}"}
            rows.append(row | {"reason": state.reason, "message": state.message, "answer": answers.get(end.key, "")})
    if rows:
        artifact = TableArtifact(
            key="roll-out-components", description="Components", table=[cells(one) for one in rows]
        )
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await artifact.acreate()
        except Exception as error:
            get_run_logger().warning("The table could not be written: %s", error)
    return ends


async def ended(rolling: RollingOut, key: Key) -> ServiceEnd:
    """How the service stands now, as its status has it."""
    try:
        obj = await rolling.cluster.get(INFERENCE_SERVICES, key.name, key.namespace)
    except NotFound:
        return ServiceEnd(key, "Gone")
    status, here = obj.get("status") or {}, rolling.seen.get(key)
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    current = status.get("observedGeneration") == obj["metadata"]["generation"]
    bad = next(
        (
            one
            for name in ("LatestDeploymentReady", "Ready")
            if (one := conditions.get(name)) and one.get("status") != "True"
        ),
        None,
    )
    url = str(status.get("url") or "")
    if current and "Ready" in conditions and bad is None:
        return ServiceEnd(key, "Ready", url=url)
    said = bad or {}
    final = current and here is not None and here.stuck
    return ServiceEnd(key, "NotReady", said.get("reason", ""), said.get("message", ""), url, final)
