"""The two tasks of a reconcile tick that has something to do: update statuses and start runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import httpx
from prefect import get_run_logger, task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectException

from modelyard.reconcile.dispatch import (
    Acting,
    Dispatch,
    RunFate,
    Start,
    awaited_run,
    dispatch,
    is_due,
    named,
    with_awaited_run,
)
from modelyard.reconcile.plan import Plan
from modelyard.reconcile.reconciler import Reconciler
from modelyard.reconcile.report import Row
from modelyard.reconcile.run_limits import RUNS, RunLoad
from tasks.run_load import CALL_TIMEOUT, read_deployments, read_load
from tasks.stage import STAGE, shared

LOOK_UP_TIMEOUT = 60.0
"""Seconds that all questions of a tick for runs may take together."""
ASKED_AT_ONCE = 100
CHILD_RETRIES = 2
"""Times that a parent runs a failed child again, as the same flow run."""
BY_ID = "flow-run/"
BY_HAND = re.compile(BY_ID + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How a claim names a run that somebody started by hand, which has no idempotency key of ours."""

Plans = Mapping[str, Sequence[Plan]]
"""Plans by the name of their lifecycle."""


@dataclass(eq=False)
class Pass:
    """One pass of a reconcile shift: the plans of all lifecycles, the fates of runs, and the rows of what was written.

    Its tasks share it, so that they take plain values only.
    """

    reconciler: Reconciler
    plans: Sequence[Plan] = ()
    fates: Mapping[str, RunFate] | None = None
    rows: list[Row] = field(default_factory=list)


@task(
    name="update statuses",
    task_run_name="update {objects}",
    description="Write statuses, carry out the changes that need no run, and send Events.",
    timeout_seconds=60,
    **STAGE,
)
async def update_statuses(objects: str) -> None:
    """Write what changed; of a plan that needs a run only its status. ``objects`` names the first of them."""
    this = shared(Pass)
    this.rows = await this.reconciler.tell(this.plans, this.fates)


class RunsUnknown(Exception):
    """Prefect's API does not say what became of the runs that objects name."""


@dataclass(frozen=True)
class Runs:
    """Fates of the runs that objects name, and the runs that have not ended (``None``: no run has to be started)."""

    fates: Mapping[str, RunFate] = field(default_factory=dict)
    load: RunLoad | None = None


async def look_up(reconciler: Reconciler, plans: Plans, before: Runs | None = None) -> Runs:
    """Read the fates of the runs that the plans' objects name and, where a run is due, the runs that have not ended.

    What ``before`` holds is not read again. This is no task run: there is seldom a run to start. Raises
    ``RunsUnknown``.
    """
    before = before or Runs()
    asked = named(plan for some in plans.values() for plan in some) - before.fates.keys()
    fates, load = dict(before.fates), before.load
    try:
        async with asyncio.timeout(LOOK_UP_TIMEOUT):
            if asked:
                async with get_client() as client:
                    fates |= await read_fates(client, asked)
            work = _work(reconciler, plans)
            if load is None and any(is_due(plan, fates, reconciler.cluster.now()) for _, some in work for plan in some):
                acting = (lifecycle.acting for lifecycle in reconciler.registered.values())
                names = {how.deployment for how in acting if how is not None}
                async with get_client() as client:
                    load = replace(await read_load(client, names), last_starts=reconciler.last_starts)
    except (TimeoutError, httpx.HTTPError, PrefectException) as error:
        raise RunsUnknown(repr(error)) from error
    return Runs(fates, load)


def awaiting(reconciler: Reconciler, plans: Plans, runs: Runs) -> dict[str, list[Plan]]:
    """Return the plans with the flow runs, or the turns, that they wait for in their statuses."""
    now = reconciler.cluster.now()
    waiting = due(reconciler, plans, runs).waiting

    def each(some: Sequence[Plan], acting: Acting | None) -> list[Plan]:
        if acting is None:
            return list(some)
        texts = (waiting.get(plan.subject.ref) or awaited_run(plan, acting, runs.fates, now) for plan in some)
        return [with_awaited_run(plan, text, now) for plan, text in zip(some, texts, strict=True)]

    return {name: each(some, reconciler.registered[name].acting) for name, some in plans.items()}


def due(reconciler: Reconciler, plans: Plans, runs: Runs) -> Dispatch:
    """Choose the runs to start, for all lifecycles together, by what became of those that objects name."""
    if runs.load is None:
        return Dispatch()
    return dispatch(_work(reconciler, plans), runs.fates, reconciler.cluster.now(), runs.load)


def _work(reconciler: Reconciler, plans: Plans) -> list[tuple[Acting, Sequence[Plan]]]:
    acting = ((reconciler.registered[name].acting, some) for name, some in plans.items())
    return [(how, some) for how, some in acting if how is not None]


@task(
    name="start runs",
    task_run_name="start runs of {objects}",
    description="Start flow runs for pending work, each under its idempotency key; replace those that died.",
    timeout_seconds=120,
    **STAGE,
)
async def start_runs(objects: str, all_due: list[Start]) -> list[str]:
    """Claim the objects and create the runs; return the idempotency keys. ``objects`` names the first of them.

    A claim whose run was not created counts as an attempt.
    """
    log, reconciler = get_run_logger(), shared(Pass).reconciler
    started: list[str] = []
    async with get_client() as client:
        try:
            deployments = await read_deployments(client, {one.deployment for one in all_due})
            for one in all_due:
                if one.deployment not in deployments:
                    log.error("%s is not started: there is no deployment %s", one.key, one.deployment)
                    continue
                claimed = await reconciler.claim(one)
                if not claimed.claims:
                    continue
                try:
                    await _create(client, claimed, deployments[one.deployment])
                except (httpx.HTTPStatusError, PrefectException) as error:
                    log.error("%s is not started: %s", claimed.key, error)
                    continue
                started.append(claimed.key)
                log.info("Started %s for %d objects: %s", one.deployment, len(claimed.claims), claimed.key)
        except (TimeoutError, httpx.HTTPError, PrefectException) as error:
            log.warning("Not everything that is due is started, the next tick tries again (%r)", error)
    return started


async def read_fates(client: PrefectClient, keys: Iterable[str]) -> dict[str, RunFate]:
    """Return the fates of the runs with these idempotency keys, or named by their ids (``BY_ID``)."""
    keys = set(keys)
    ids = {key: UUID(key.removeprefix(BY_ID)) for key in keys if BY_HAND.fullmatch(key)}
    found: dict[str, RunFate] = {}
    for begin in range(0, len(ids), ASKED_AT_ONCE):
        some = FlowRunFilter(id=FlowRunFilterId(any_=list(ids.values())[begin : begin + ASKED_AT_ONCE]))
        async with asyncio.timeout(CALL_TIMEOUT):
            found |= {f"{BY_ID}{run.id}": _became(run) for run in await client.read_flow_runs(flow_run_filter=some)}
    asked = sorted(keys - ids.keys())
    for begin in range(0, len(asked), ASKED_AT_ONCE):
        chosen = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=asked[begin : begin + ASKED_AT_ONCE]))
        async with asyncio.timeout(CALL_TIMEOUT):
            runs = await client.read_flow_runs(flow_run_filter=chosen)
        found |= {run.idempotency_key: _became(run) for run in runs if run.idempotency_key}
    return found


def _became(run: FlowRun) -> RunFate:
    state = run.state
    if state is None or not state.is_final():
        waits = state is None or state.is_scheduled() or state.is_pending()
        return RunFate(None, queued=run.created.timestamp() if waits and run.created else None, name=run.name)
    child = run.parent_task_run_id is not None
    return RunFate(
        state.timestamp.timestamp(),
        died=state.is_crashed(),
        name=run.name,
        child=child and not state.is_completed() and run.run_count <= CHILD_RETRIES,
        cancelled=child and state.is_cancelled(),
    )


async def _create(client: PrefectClient, start: Start, deployment: DeploymentResponse) -> None:
    """Create the run; one of this key that is there already is left as it is."""
    async with asyncio.timeout(CALL_TIMEOUT):
        await client.create_flow_run_from_deployment(
            deployment.id,
            work_queue_name=RUNS if deployment.work_pool_name else None,
            parameters={
                **start.parameters,
                "name": start.claims[0][0].key.name,
                "run": start.key,
                "objects": [f"{s.key.namespace}/{s.key.name}" for s, _ in start.claims],
            },
            idempotency_key=start.key,
            name=f"{start.claims[0][0].ref}" + (f" and {len(start.claims) - 1} more" if len(start.claims) > 1 else ""),
        )
