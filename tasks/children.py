"""Child flow runs: what a step's object needs done is a run of its lifecycle's deployment, linked to the step's task.

The object carries the child's claim from the moment it is created, so that ``reconcile`` leaves it to this run, and
whoever repeats the step finds the same child again. A child that failed is retried as the same run.

``arun_deployment`` is not used: it numbers the task runs that stand for children from 0 in every process, so that
children of a resumed parent would share those of earlier ones, and one that is cut off leaves a task run that stays
Pending for ever. Here both the task run and the flow run are created under the child's own key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from prefect import get_run_logger, task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterIdempotencyKey,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterName,
)
from prefect.client.schemas.objects import Constant, FlowRun, FlowRunResult, Parameter, State, TaskRunResult
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run, task_run
from prefect.states import AwaitingRetry, Pending

from modelyard.backoff import Backoff
from modelyard.cluster import Cluster
from modelyard.objects import ResourceType
from modelyard.reconcile.plans import CLAIM, Claim, RunAdmission, Subject, child_claim, is_own_key
from tasks.flow_runs import CALL_TIMEOUT, create_run, read_load
from tasks.reconcile import CHILD_RETRIES

EVERY = 2.0
"""Seconds between two looks at a child's state."""
RETRIES = Backoff(10.0, factor=3.0)
"""Delays until a child that failed is retried; one that crashed is retried at once."""
MOST_CHILDREN = CHILD_RETRIES + 2
"""Children of one parent for one object: whoever deletes it, or changes its claim, makes another one necessary."""
TOO_MANY = (
    f"{MOST_CHILDREN} flow runs were started for it, and each time it was deleted or its annotation {CLAIM} changed;"
    " find out who does so, then start the onboarding again"
)

_starting = asyncio.Lock()
"""Held from the look at the unfinished runs until another one is created."""


@dataclass(frozen=True, slots=True)
class ChildKind:
    """Kind of objects that child runs work on: their deployment, and its parameters apart from the object."""

    deployment: str
    kind: ResourceType
    parameters: Mapping[str, Any] = field(default_factory=dict)


class ChildState(NamedTuple):
    """State of a child run: live, failed for good (``problem``), or ``waiting`` for a turn before it is started."""

    is_live: bool = True
    problem: str = ""
    waiting: str = ""


@task(name="child run")
def child_run() -> None:
    """Stand for a child flow run in the graph of its parent: only the task's key is used."""


async def follow_child(child: ChildKind, obj: Mapping[str, Any], home: str) -> ChildState:
    """Start the run that an object's claim names, unless it exists; retry it ``CHILD_RETRIES`` times if it failed."""
    subject = Subject.of(child.kind, obj)
    key = _child_key(subject)
    if not key:  # a run of several objects, which reconcile started
        return ChildState(is_live=False)
    async with asyncio.timeout(3 * CALL_TIMEOUT), get_client() as client:
        run = await _read(client, key)
        if run is None:
            async with _starting:
                return await _start(client, child, subject, key, home)
        state = run.state
        if state is None or not state.is_final():
            return ChildState()
        if state.is_cancelled():
            return ChildState(False, f"flow run {run.name!r} was cancelled")
        # Where the object itself has failed, its status says why.
        if state.is_completed() or (obj.get("status") or {}).get("state") == "Failed":
            return ChildState(is_live=False)
        if run.run_count > CHILD_RETRIES:
            ended = f"{state.type.value.lower()} {run.run_count} times: {state.message}"
            return ChildState(False, f"flow run {run.name!r} {ended}")
        pause = 0.0 if state.is_crashed() else RETRIES.delay(run.run_count)
        get_run_logger().warning("Retrying flow run %s in %.0f s: %s", run.name, pause, state.message)
        await _retry(client, run, pause)
        return ChildState()


async def retry_child(cluster: Cluster, child: ChildKind, obj: Mapping[str, Any]) -> None:
    """Retry the run that an object's claim names, if it ended other than Completed.

    A run of another parent is replaced instead: Prefect cancels it once that parent is cancelled.
    """
    subject = Subject.of(child.kind, obj)
    key, has_failed = _child_key(subject), (obj.get("status") or {}).get("state") == "Failed"
    if not (key or has_failed):
        return
    if key:
        async with asyncio.timeout(3 * CALL_TIMEOUT), get_client() as client:
            run = await _read(client, key)
            if run is None or await _is_left(client, run, has_failed):
                return
    claim = str(child_claim(obj, cluster.now()))
    body = {"metadata": {"uid": subject.uid, "annotations": {CLAIM: claim}}}
    await cluster.merge_patch(child.kind, subject.key.name, body, subject.key.namespace)


async def _is_left(client: PrefectClient, run: FlowRun, has_failed: bool) -> bool:
    state, parent = run.state, await _parent(client, run)
    if state is None or (state.is_completed() and not has_failed):
        return True
    if parent is not None and str(parent.id) == flow_run.id:
        if state.is_final():
            await _retry(client, run)
        return True
    return not state.is_final() and not (
        parent is not None and parent.state is not None and parent.state.is_cancelled()
    )


def _child_key(subject: Subject) -> str:
    """Return the idempotency key of the object's child run; empty where a run works on it together with others."""
    claim = Claim.read(subject.claim)
    return claim.run if claim is not None and is_own_key(claim.run, subject.ref) else ""


async def _read(client: PrefectClient, key: str) -> FlowRun | None:
    chosen = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    return next(iter(await client.read_flow_runs(flow_run_filter=chosen, limit=1)), None)


async def _parent(client: PrefectClient, run: FlowRun) -> FlowRun | None:
    if run.parent_task_run_id is None:
        return None
    parent = (await client.read_task_run(run.parent_task_run_id)).flow_run_id
    return await client.read_flow_run(parent) if parent is not None else None


async def _retry(client: PrefectClient, run: FlowRun, pause: float = 0.0) -> None:
    state: State[Any] = AwaitingRetry(
        scheduled_time=datetime.now(UTC) + timedelta(seconds=pause), message="Retried by its parent"
    )
    await client.set_flow_run_state(run.id, state)


async def _start(client: PrefectClient, child: ChildKind, subject: Subject, key: str, home: str) -> ChildState:
    """Create the task run that stands for the child, and the child; each is created once, however often this runs.

    Neither is created while the namespace has no turn, or after ``MOST_CHILDREN`` for the object.
    """
    try:
        deployment = await client.read_deployment_by_name(child.deployment)
    except ObjectNotFound:
        return ChildState(problem=f"deployment {child.deployment} not found; run `modelyard bootstrap`")
    name = str(subject.ref)
    if await _other_children(client, name, key) >= MOST_CHILDREN:
        return ChildState(problem=TOO_MANY)
    admission = RunAdmission(await read_load(client, [child.deployment]))
    if reason := admission.reason_to_wait(subject.key.namespace):
        return ChildState(waiting=reason)
    parents: dict[str, list[TaskRunResult | FlowRunResult | Parameter | Constant]]
    parents = {"__parents__": [TaskRunResult(id=UUID(task_run.id))]}
    stands_for = await client.create_task_run(
        child_run, UUID(flow_run.id), key, name=name, state=Pending(), task_inputs=parents
    )
    given = {**child.parameters, "controller_namespace": home}
    await create_run(client, deployment, key, [subject], given, stands_for.id)
    return ChildState()


async def _other_children(client: PrefectClient, name: str, key: str) -> int:
    chosen = TaskRunFilter(
        flow_run_id=TaskRunFilterFlowRunId(any_=[UUID(flow_run.id)]), name=TaskRunFilterName(any_=[name])
    )
    runs = await client.read_task_runs(task_run_filter=chosen, limit=MOST_CHILDREN + 1)
    return min(MOST_CHILDREN, sum(run.dynamic_key != key for run in runs))
