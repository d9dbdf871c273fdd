"""The work pool: what nobody may change about how its runs are started, and the worker that looks after them.

Prefect leaves behind what nothing ever corrects: a run that was claimed and never started stays Pending, and after an
outage every run that was missed is started. And a shift that died is replaced by an event trigger at best, which a
restart of the server can make deaf. So the worker asks once a minute, whenever one of its runs ends, and before it
starts anything after an outage. All moments are those of the server's clock.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Crashed
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from deployments.checks import UNKNOWN
from deployments.orphans import SURE_AFTER, OrphanSearch, worker_name
from deployments.parents import resume_parents
from deployments.work_pool import TEMPLATES
from flows.own_state import UNRESPONSIVE
from modelyard.ports import check_listenable, describe_listen_error

EVERY = 60.0
"""Seconds from one look at the runs to the next."""
AGAIN = 5.0
"""Seconds until the next look after one that found something, and to the next run of a shift that still lacks one."""
LONGEST = 300.0
"""Seconds to which that pause grows, twice as long each time, while what is started dies."""
STUCK_AFTER = 60.0
"""Seconds after which a run that was claimed and has not begun never will."""
OVERDUE_AFTER = 300.0
"""Seconds after the end of its shift until a running run counts as dead; the last tick of a starved machine is late."""
LATE_AFTER = 15.0
"""Seconds after which a scheduled run gives way to a newer one."""
SOON = 30.0
"""Seconds within which a scheduled run counts as being there."""
STANDING = 2
"""Runs that each shift should have: a writer and a standby."""
CLOCKS_DIFFER = 10.0
"""Seconds by which this machine's clock may differ from the server's."""
LOOK_TIMEOUT = 30.0
PAGE = 200


class Short(NamedTuple):
    """A shift that lacks runs, and their numbers: those that are there, alive or not, come before."""

    shift: DeploymentResponse
    numbers: range


class Patience:
    """When a shift may have its next runs: not before a pause, twice as long each time that it still lacks one."""

    def __init__(self) -> None:
        self._pauses: dict[UUID, tuple[datetime, float]] = {}

    def allows(self, short: Iterable[Short], now: datetime) -> list[Short]:
        """Those of the shifts that lack a run which may have one now. All others begin with the first pause again."""
        kept = {one.shift.id: self._pauses.get(one.shift.id, (now, AGAIN)) for one in short}
        # A pause that would last longer than the longest was set before the clock was set back.
        longest = now + timedelta(seconds=LONGEST)
        allowed = [one for one in short if not now < kept[one.shift.id][0] <= longest]
        for one in allowed:
            pause = kept[one.shift.id][1]
            kept[one.shift.id] = now + timedelta(seconds=pause), min(2 * pause, LONGEST)
        self._pauses = kept
        return allowed


class Amiss(NamedTuple):
    """Runs to repair: never started, past their time, lost with their worker; and shifts that lack runs."""

    stuck: list[FlowRun]
    passed: list[FlowRun]
    short: list[Short]
    orphans: Sequence[FlowRun] = ()
    """Runs that ended with their worker."""


def amiss(
    runs: Sequence[FlowRun],
    shifts: Iterable[DeploymentResponse],
    now: datetime,
    before: Container[UUID] = (),
    living: Container[UUID] = (),
    orphans: Sequence[FlowRun] = (),
) -> Amiss:
    """Return what to repair, given the unfinished runs that are in progress or due within ``SOON`` seconds.

    ``before``: the runs that were under way when this worker came. They may have died with one before it on another
    machine, which is noticed much later, so they do not count. ``living``: those whose process this worker has.
    ``orphans``: those that ended with their worker.
    """
    lost = {run.id for run in orphans}
    never, past = [run for run in stuck(runs, now, living) if run.id not in lost], passed(runs, now)
    gone = (
        lost | {run.id for run in (*never, *past)} | {run.id for run in runs if run.state and run.state.is_cancelling()}
    )
    there = Counter(run.deployment_id for run in runs if run.id not in gone)
    alive = Counter(run.deployment_id for run in runs if run.id not in gone and run.id not in before)
    short = [Short(one, range(there[one.id], there[one.id] + STANDING - alive[one.id])) for one in shifts]
    return Amiss(never, past, [one for one in short if one.numbers], orphans)


def stuck(runs: Iterable[FlowRun], now: datetime, living: Container[UUID] = ()) -> list[FlowRun]:
    """Return claimed runs that never started, and runs that could not report the end of their shift.

    A run whose process this worker still has is neither: on a busy machine it may take any time to start or to end.
    """
    return [run for run in runs if run.id not in living and run.state and now > _deadline(run, run.state)]


def _deadline(run: FlowRun, state: State[Any]) -> datetime:
    """Return the time by which a pending run should have started and a shift should have ended."""
    if state.is_pending():
        begin = max(state.timestamp, run.expected_start_time or state.timestamp)
        return begin + timedelta(seconds=STUCK_AFTER)
    if state.is_running() and (seconds := _shift(run.parameters)):
        return state.timestamp + timedelta(seconds=seconds + OVERDUE_AFTER)
    return datetime.max.replace(tzinfo=UTC)


def passed(runs: Iterable[FlowRun], now: datetime) -> list[FlowRun]:
    """Of each deployment's scheduled runs that are due all but the newest, and that too if its shift would be over.

    Never one that is a few seconds late, or that was asked for by hand.
    """
    by_deployment: defaultdict[UUID | None, list[tuple[float, int, FlowRun]]] = defaultdict(list)
    for number, run in enumerate(runs):
        if run.auto_scheduled and _waits(run) and run.expected_start_time and run.expected_start_time <= now:
            late_by = (now - run.expected_start_time).total_seconds()
            by_deployment[run.deployment_id].append((late_by, number, run))
    found = []
    for newest, *older in map(sorted, by_deployment.values()):
        found += [run for late_by, _, run in older if late_by > LATE_AFTER]
        late_by, _, run = newest
        if 0 < _shift(run.parameters) <= late_by:
            found.append(run)
    return found


def _waits(run: FlowRun) -> bool:
    return run.state is not None and run.state.name in ("Scheduled", "Late")


def _shift(parameters: dict[str, Any]) -> float:
    """Seconds of the shift; 0 for what is none."""
    seconds = parameters.get("shift_seconds")
    return seconds if isinstance(seconds, int | float) else 0


async def under_way(client: PrefectClient, pool: str) -> set[UUID]:
    """The runs of the pool that somebody has claimed and that are not known to have ended."""
    return {run.id for run in await _read_runs(client, pool, await server_time(client)) if not _waits(run)}


async def server_time(client: PrefectClient) -> datetime:
    """Return the server's time, which the states of runs and their schedules go by; this machine's where it has none.

    A machine whose clock is wrong must not take the runs of other machines for dead or late.
    """
    date = (await client.hello()).headers.get("Date", "")
    try:
        return parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:  # a proxy that does not send it
        return datetime.now(UTC)


async def put_right(
    client: PrefectClient,
    pool: str,
    now: datetime,
    patience: Patience,
    before: Container[UUID] = (),
    living: Container[UUID] = (),
    search: OrphanSearch | None = None,
) -> tuple[Amiss, list[str]]:
    """Look at the runs of the pool and put right what is amiss; what was found, and a sentence for each thing done."""
    runs = await _read_runs(client, pool, now)
    orphans = await search.find(client, pool, runs, now, living) if search is not None else ()
    found = amiss(runs, await _read_shifts(client, pool), now, before, living, orphans)
    never: State[Any] = Crashed(message="It was never started, or could not say that it has ended")
    past: State[Any] = Cancelled(message="Its moment has passed: a newer run is due")
    lost: State[Any] = Crashed(name=UNRESPONSIVE, message="Its worker has ended, and it gives no sign of life")
    asked: State[Any] = Cancelled(message="Its worker ended before it was cancelled")
    ending = [run for run in orphans if run.state and run.state.is_cancelling()]
    said = await _set(client, found.stuck, never) + await _set(client, found.passed, past)
    said += await _set(client, [run for run in orphans if run not in ending], lost) + await _set(client, ending, asked)
    said += await resume_parents(client, pool, now)
    for shift, numbers in patience.allows(found.short, now):
        for number in numbers:
            # The same key for all who look in the same moment, so that several workers start one run.
            run = await client.create_flow_run_from_deployment(
                shift.id,
                name=f"missing shift of {shift.name}",
                idempotency_key=f"missing/{shift.id}/{now.timestamp() // AGAIN}/{number}",
            )
            said.append(f"{shift.name} lacks a run: {run.name}")
    return found, said


async def _read_runs(client: PrefectClient, pool: str, now: datetime) -> list[FlowRun]:
    alive = FlowRunFilterStateType(
        any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    )
    chosen = FlowRunFilter(
        state=FlowRunFilterState(type=alive),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=now + timedelta(seconds=SOON)),
    )
    found: list[FlowRun] = []
    while True:
        page = await client.read_flow_runs(
            flow_run_filter=chosen,
            work_pool_filter=_named(pool),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            limit=PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < PAGE:
            return found


async def _read_shifts(client: PrefectClient, pool: str) -> list[DeploymentResponse]:
    """The deployments of the pool that are scheduled as shifts."""
    return [
        one
        for one in await client.read_deployments(work_pool_filter=_named(pool), limit=PAGE)
        if not one.paused and any(schedule.active for schedule in one.schedules) and _shift(one.parameters) > 0
    ]


def _named(pool: str) -> WorkPoolFilter:
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


async def _set(client: PrefectClient, runs: Sequence[FlowRun], state: State[Any]) -> list[str]:
    """Propose ``state`` for each run; refused by the server for a run that has moved on. What became of each."""
    gate = asyncio.Semaphore(4)

    async def one(run: FlowRun) -> str:
        async with gate:
            result = await client.set_flow_run_state(run.id, state.fresh_copy())
        accepted = result.state is not None and result.state.type == state.type
        return f"{run.name} ({run.id}): {f'{state.name}, {state.message}' if accepted else 'has moved on'}"

    return await asyncio.gather(*(one(run) for run in runs))


class PoolWorker(
    ProcessWorker, abc.ABC
):  # abc.ABC keeps it out of Prefect's registry, where "process" is Prefect's own
    """A process worker that puts right what is amiss in its pool, before it starts anything that is due."""

    def __init__(self, pool: str, limit: int) -> None:
        super().__init__(work_pool_name=pool, name=worker_name(), limit=limit, base_job_template=TEMPLATES["process"])
        self._pool = pool
        self._before: set[UUID] | None = None
        self._living: set[UUID] = set()
        self._patience = Patience()
        self._search = OrphanSearch()
        self._look_at = float("-inf")
        self._clock = 0.0
        """This machine's time of day at the last look, less its monotonic clock's reading."""

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """One poll."""
        if time.monotonic() >= self._look_at or abs(_clock() - self._clock) > CLOCKS_DIFFER:
            await self._look()
        return await super().get_and_submit_flow_runs()

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: Any = None
    ) -> ProcessWorkerResult:
        """One run, from its start to its end."""
        self._living.add(flow_run.id)
        try:
            return await super().run(flow_run, configuration, task_status)
        finally:
            self._living.discard(flow_run.id)
            self._look_at = float("-inf")

    async def _look(self) -> None:
        log = get_logger("pool")
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                if self._before is None:
                    self._before = await under_way(self.client, self._pool)
                now, self._clock = await server_time(self.client), _clock()
                prefetch = get_current_settings().worker.prefetch_seconds
                if abs(skew := (datetime.now(UTC) - now).total_seconds()) > CLOCKS_DIFFER:
                    log.error(
                        "This machine's clock is %.0f s %s the Prefect server's, whose time counts; set it",
                        abs(skew),
                        "ahead of" if skew > 0 else "behind",
                    )
                    prefetch -= skew
                # The worker asks for runs that are due by its own clock: one that is ahead would claim hours of shifts.
                self._prefetch_seconds = prefetch
                found, said = await put_right(
                    self.client, self._pool, now, self._patience, self._before, self._living, self._search
                )
        except Exception as error:
            # Without an answer the poll will have none either; what must not happen is that the worker ends.
            log.warning("The runs of %s cannot be looked after now: %r", self._pool, error)
            return
        for line in said:
            log.info("%s", line)
        pause = SURE_AFTER / 2 if self._search.is_watching else EVERY
        self._look_at = time.monotonic() + (AGAIN if any(found) else pause)


def _clock() -> float:
    return time.time() - time.monotonic()


def serve(pool: str, limit: int) -> None:
    """Be the worker of this pool until a signal says otherwise."""
    setup_logging()
    try:
        asyncio.run(_serve(pool, limit))
    except KeyboardInterrupt:
        pass
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 401:
            sys.exit(f"error: {UNKNOWN}")
        raise


async def _serve(pool: str, limit: int) -> None:
    say = partial(print, flush=True)
    setup_signal_handlers_worker(os.getpid(), "the worker", say)
    health = get_current_settings().worker.webserver
    healthcheck = True
    try:
        check_listenable(health.host, health.port)
    except (OSError, OverflowError) as error:
        remedy = "set PREFECT_WORKER_WEBSERVER_PORT to another one"
        say(f"warning: no health endpoint: {describe_listen_error(health.host, health.port, error, remedy)}")
        healthcheck = False
    with suppress(asyncio.CancelledError):
        await PoolWorker(pool, limit).start(with_healthcheck=healthcheck, printer=say)
