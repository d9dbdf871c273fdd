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
from prefect.exceptions import PrefectException

from modelyard.reconcile.kernel import Plans, Reconciler
from modelyard.reconcile.plans import KnownRuns, Plan, Row, RunFate, Start, is_due, named
from tasks.flow_runs import CALL_TIMEOUT, create_run, read_deployments, read_load
from tasks.stage import STAGE, shared

LOOK_UP_TIMEOUT = 60.0
"""Seconds that all questions of a tick for runs may take together."""
ASKED_AT_ONCE = 100
CHILD_RETRIES = 2
"""Times that a parent runs a failed child again, as the same flow run."""
BY_ID = "flow-run/"
BY_HAND = re.compile(BY_ID + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How a claim names a run that somebody started by hand, which has no idempotency key of ours."""


@dataclass(eq=False)
class Pass:
    """One pass of a reconcile shift: the plans of all lifecycles, the fates of runs, and the rows of what was written.

    Its tasks share it, so that they take plain values only.
    """

    reconciler: Reconciler
    plans: Sequence[Plan] = ()
    fates: Mapping[str, RunFate] | None = None
    rows: list[Row] = field(default_factory=list)


@task(name="update statuses", task_run_name="update {objects}", timeout_seconds=60, **STAGE)
async def update_statuses(objects: str) -> None:
    """Write statuses, carry out the changes that need no run, and send Events. ``objects`` names the first of them."""
    this = shared(Pass)
    this.rows = await this.reconciler.tell(this.plans, this.fates)


class RunsUnknown(Exception):
    """Prefect's API does not say what became of the runs that objects name."""


async def look_up(reconciler: Reconciler, plans: Plans, before: KnownRuns | None = None) -> KnownRuns:
    """Read the fates of the runs that the plans' objects name and, where a run is due, the runs that have not ended.

    What ``before`` holds is not read again. No task run: there is seldom a run to start. Raises ``RunsUnknown``.
    """
    before = before or KnownRuns()
    asked = named(plan for some in plans.values() for plan in some) - before.fates.keys()
    fates, load = dict(before.fates), before.load
    try:
        async with asyncio.timeout(LOOK_UP_TIMEOUT):
            if asked:
                async with get_client() as client:
                    fates |= await read_fates(client, asked)
            work = [plan for _, some in reconciler.work(plans) for plan in some]
            if load is None and any(is_due(plan, fates, reconciler.cluster.now()) for plan in work):
                acting = (lifecycle.acting for lifecycle in reconciler.registered.values())
                names = {how.deployment for how in acting if how is not None}
                async with get_client() as client:
                    load = replace(await read_load(client, names), last_starts=reconciler.last_starts)
    except (TimeoutError, httpx.HTTPError, PrefectException) as error:
        raise RunsUnknown(repr(error)) from error
    return KnownRuns(fates, load)


@task(name="start runs", task_run_name="start runs of {objects}", timeout_seconds=120, **STAGE)
async def start_runs(objects: str, all_due: list[Start]) -> list[str]:
    """Claim the objects and create their runs, each under its idempotency key; return these keys.

    ``objects`` names the first of the objects. A claim whose run was not created counts as an attempt.
    """
    log, reconciler = get_run_logger(), shared(Pass).reconciler
    started: list[str] = []
    async with get_client() as client:
        try:
            deployments = await read_deployments(client, {one.deployment for one in all_due})
            for one in all_due:
                if one.deployment not in deployments:
                    missing = "%s is not started: there is no deployment %s; run `modelyard bootstrap`"
                    log.error(missing, one.key, one.deployment)
                    continue
                claimed = await reconciler.claim(one)
                if not claimed.claims:
                    continue
                try:
                    subjects = [subject for subject, _ in claimed.claims]
                    await create_run(client, deployments[one.deployment], claimed.key, subjects, claimed.parameters)
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
    asked = sorted(set(keys))
    fates: dict[str, RunFate] = {}
    for begin in range(0, len(asked), ASKED_AT_ONCE):
        some = asked[begin : begin + ASKED_AT_ONCE]
        ids = [UUID(key.removeprefix(BY_ID)) for key in some if BY_HAND.fullmatch(key)]
        idempotency_keys = [key for key in some if not BY_HAND.fullmatch(key)]
        filters = [FlowRunFilter(id=FlowRunFilterId(any_=ids))] if ids else []
        if idempotency_keys:
            filters.append(FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=idempotency_keys)))
        for chosen in filters:
            async with asyncio.timeout(CALL_TIMEOUT):
                runs = await client.read_flow_runs(flow_run_filter=chosen)
            fates |= {f"{BY_ID}{run.id}" if chosen.id else str(run.idempotency_key): _became(run) for run in runs}
    return fates


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
