"""Supervision of a work pool: a small process next to every worker, over the public API of Prefect and Kubernetes.

Every few seconds it reads the unfinished runs of the pool and repairs what Prefect leaves behind (``pool_issues``). It
is no flow run, so that it never depends on a shift that it looks after. Several may run: a repair that another process
has made is refused by the server or has the same idempotency key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from prefect.states import AwaitingRetry

from deployments.checks import UNKNOWN
from deployments.orphans import OrphanSearch, processes_of_runs
from deployments.pool_issues import (
    PARENTS,
    RESUMED_FOR,
    SOON,
    STARTS,
    PoolIssues,
    Renewals,
    ShiftBackoff,
    find_issues,
    is_resumable,
    shift_seconds,
)
from deployments.worker import MAX_CLOCK_SKEW
from modelyard.autoscaling.configuration import FleetSettings
from modelyard.cluster import Cluster, ClusterError, ClusterSettings, Renewal, RenewalMonitor, standby_name
from modelyard.objects import Key
from tasks.flow_runs import in_pool, read_all, read_runs

INTERVAL = 5.0
"""Seconds from one pass to the next."""
RECOVERY_INTERVAL = 1.0
"""Seconds until the next pass while the Prefect server does not answer: late runs are cancelled before workers poll."""
PASS_TIMEOUT = 60.0
CLOCK_READINGS = 3
DRIFTED_PASSES = 3
"""Passes in a row, each with all readings, in which a clock must be off before the worker is ended for it."""


class Supervision:
    """Supervision of one pool. Without ``leases``, Prefect alone says which shifts live."""

    def __init__(self, client: PrefectClient, pool: str, leases: ShiftLeases | None = None) -> None:
        self._client = client
        self._pool = pool
        self._leases = leases
        self._backoff = ShiftBackoff()
        self._orphans = OrphanSearch()

    async def run_once(self, now: datetime) -> tuple[PoolIssues, list[str]]:
        """Repair the runs of the pool; return what was found, and a sentence for each repair."""
        shifts = await _read_shifts(self._client, self._pool)
        renewals = await self._leases.read(shifts) if self._leases else {}
        runs = await _read_runs(self._client, self._pool, now, renewals)
        processes = processes_of_runs()
        orphans = await self._orphans.find(self._client, self._pool, runs, now, processes)
        issues = find_issues(runs, shifts, now, renewals, orphans, processes)
        repairs = await self._set_states(issues.states)
        repairs += await self._resume_parents(now)
        for shift, lacking in self._backoff.allow(issues.missing, now):
            for number in range(lacking):
                # The same key for all who look at the same time, so that several processes create one run.
                run = await self._client.create_flow_run_from_deployment(
                    shift.id,
                    name=f"missing shift of {shift.name}",
                    idempotency_key=f"missing/{shift.id}/{now.timestamp() // STARTS.first}/{number}",
                )
                repairs.append(f"Created {run.name} ({run.id}): it lacks a writer or a standby")
        return issues, repairs

    async def _resume_parents(self, now: datetime) -> list[str]:
        crashed = [StateType.CRASHED]
        runs = await read_runs(self._client, self._pool, crashed, ended_after=now - RESUMED_FOR, queue=PARENTS)
        state: State[Any] = AwaitingRetry(scheduled_time=now, message="Resumed: its process had died")
        histories = [(run, await self._client.read_flow_run_states(run.id)) for run in runs]
        return await self._set_states(
            (run, state.fresh_copy()) for run, states in histories if is_resumable(states, now)
        )

    async def _set_states(self, states: Iterable[tuple[FlowRun, State[Any]]]) -> list[str]:
        gate = asyncio.Semaphore(4)

        async def propose(run: FlowRun, state: State[Any]) -> str:
            async with gate:
                result = await self._client.set_flow_run_state(run.id, state, force=state.is_running())
            accepted = result.state is not None and result.state.type == state.type
            answer = state.message if accepted else "refused, it has moved on"
            return f"Set {run.name} ({run.id}) to {state.name}: {answer}"

        return list(await asyncio.gather(*(propose(run, state) for run, state in states)))


class ShiftLeases(AsyncExitStack):
    """The Leases of shifts, as the cluster shows them."""

    def __init__(self) -> None:
        super().__init__()
        self._monitor = RenewalMonitor()
        self._cluster: Cluster | None = None
        self._obstacle = ""

    async def read(self, shifts: Sequence[DeploymentResponse]) -> Renewals:
        """Return who renews the Leases of each shift; no entry where that is not known."""
        names = {shift.id: lease for shift in shifts if (lease := _lease_of(shift)) is not None}
        both = [key for lease in names.values() for key in (lease, _standby_of(lease))]
        try:
            if self._cluster is None:
                self._cluster = await self.enter_async_context(Cluster.connect(ClusterSettings()))
            holders = await self._monitor.look(self._cluster, both)
        except (ClusterError, OSError) as error:
            self._report(str(error))
            return {}
        refused = self._monitor.refused
        self._report("; ".join(f"{error}; name it in the Role of rbac.yaml" for error in refused.values()))
        return {
            shift: dict(holders[key] for key in (lease, _standby_of(lease)) if key in holders)
            for shift, lease in names.items()
            if lease not in refused and _standby_of(lease) not in refused
        }

    def _report(self, obstacle: str) -> None:
        if obstacle and obstacle != self._obstacle:
            text = "Judging shifts by their states in Prefect, because Leases cannot be read: %s"
            get_logger("supervision").warning(text, obstacle)
        self._obstacle = obstacle


def _lease_of(shift: DeploymentResponse) -> Key | None:
    fields = (shift.parameter_openapi_schema or {}).get("properties") or {}
    given = {name: field["default"] for name, field in fields.items() if "default" in field} | shift.parameters
    fleet = FleetSettings.model_validate(given.get("fleet") or {})
    if fleet.dry_run or not given.get("lease_name"):
        return None
    return Key(given.get("lease_namespace") or fleet.controller_namespace, given["lease_name"])


def _standby_of(lease: Key) -> Key:
    return lease._replace(name=standby_name(lease.name))


async def _read_runs(client: PrefectClient, pool: str, now: datetime, renewals: Renewals) -> list[FlowRun]:
    """Read the unfinished runs that are in progress or due, and finished ones that still renew a Lease."""
    runs = await read_runs(client, pool, before=now + timedelta(seconds=SOON))
    fresh = {token for holders in renewals.values() for token, renewal in holders.items() if renewal is Renewal.FRESH}
    if hidden := [UUID(token) for token in fresh - {run.id.hex for run in runs} if len(token) == len(UUID(int=0).hex)]:
        named = FlowRunFilter(id=FlowRunFilterId(any_=hidden))
        runs += await client.read_flow_runs(flow_run_filter=named, work_pool_filter=in_pool(pool))
    return runs


async def _read_shifts(client: PrefectClient, pool: str) -> list[DeploymentResponse]:
    return [
        deployment
        for deployment in await read_all(client.read_deployments, work_pool_filter=in_pool(pool))
        if not deployment.paused
        and any(schedule.active for schedule in deployment.schedules)
        and shift_seconds(deployment.parameters) > 0
    ]


async def read_clock(client: PrefectClient) -> tuple[datetime, float]:
    """Return the Prefect server's time, and the seconds by which this machine's clock is certainly ahead of it.

    States of runs and schedules go by the server's time: a machine whose clock is wrong must not take the runs of other
    machines for dead or late. The time that a starved server states may be old, so a difference is looked at again.
    """
    for _ in range(CLOCK_READINGS):
        before = datetime.now(UTC)
        date = (await client.hello()).headers.get("Date", "")
        after = datetime.now(UTC)
        try:
            now = parsedate_to_datetime(date).astimezone(UTC)
        except ValueError:  # a proxy that does not send it
            return after, 0.0
        ahead, behind = (before - now).total_seconds() - 1, (after - now).total_seconds()
        skew = max(ahead, 0.0) + min(behind, 0.0)
        if abs(skew) <= MAX_CLOCK_SKEW:
            break
        await asyncio.sleep(1)
    return now, skew


def run_once(pool: str) -> float:
    """Do one pass, trying again while the server does not answer; return the seconds by which our clock is ahead.

    Exits where the server refuses the password, or has no such pool.
    """
    setup_logging()
    return asyncio.run(_run(pool, once=True))


def run(pool: str, worker: int | None = None) -> None:
    """Supervise a pool until a signal says otherwise, or until the ``worker`` ends, the parent process of this id."""
    setup_logging()
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(pool, worker))


async def _run(pool: str, worker: int | None = None, once: bool = False) -> float:
    log, obstacle, begun_ahead, drifted = get_logger("supervision"), "", None, 0
    async with get_client() as client, ShiftLeases() as leases:
        supervision = Supervision(client, pool, leases)
        while worker in (None, os.getppid()):
            pause = INTERVAL
            try:
                async with asyncio.timeout(PASS_TIMEOUT):
                    now, ahead = await read_clock(client)
                    if begun_ahead is None:
                        await _require_pool(client, pool)
                    _, repairs = await supervision.run_once(now)
            except Exception as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401:
                    sys.exit(f"error: {client.api_url} does not let us in: {UNKNOWN}")
                if repr(error) != obstacle:
                    log.warning("The runs of %s cannot be supervised now, trying again: %r", pool, error)
                obstacle, pause = repr(error), RECOVERY_INTERVAL
            else:
                obstacle = ""
                for repair in repairs:
                    log.info("%s", repair)
                if once:
                    return ahead
                begun_ahead = ahead if begun_ahead is None else begun_ahead
                drifted = drifted + 1 if abs(ahead - begun_ahead) > MAX_CLOCK_SKEW else 0
                if worker is not None and drifted >= DRIFTED_PASSES:
                    log.error(
                        "This machine's clock was set by %.0f s: ending the worker, start it again", ahead - begun_ahead
                    )
                    os.kill(worker, signal.SIGTERM)
                    break
            await asyncio.sleep(pause)
    return 0.0


async def _require_pool(client: PrefectClient, pool: str) -> None:
    try:
        await client.read_work_pool(pool)
    except ObjectNotFound:
        sys.exit(f"error: there is no work pool {pool}; `modelyard bootstrap --pool {pool}` creates it")
