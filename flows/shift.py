"""A shift: one flow run that lets a batch lifecycle tick on time, for a few minutes, under the Kubernetes Lease.

A shift never lets it write without the Lease. It waits for it (hot standby), goes back to waiting when it loses it, and
gives it up a little early, so that the next run, already started and waiting for its moment, misses no tick.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Container, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from prefect import Task, get_run_logger
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import run_parameters
from flows.parameters import ShiftSettings
from modelyard.cluster import Lease
from modelyard.reconcile.plans import Cadence, ShiftReport, Slot, TickReport, shift_cadence
from tasks.journal import Journal

RELEASE_TIMEOUT = 5.0
"""Seconds giving up the Lease may take; after that it expires by itself."""
STANDBY_AFTER = 1.0
"""Seconds after which a shift that waits for the Lease claims to be the standby, and from one such try to the next."""
STANDBY_PATIENCE = 60.0
RETRY_PAUSE = 5.0
"""Seconds between tries when the cluster cannot be reached at all."""
CLOCKS_DIFFER = 60.0
"""Seconds by which a run's beginning may seem to be off, before this machine's clock counts as wrong."""
DEAD_AFTER = 20.0
"""Seconds after which whoever holds the Lease and was not seen to renew it has lost it."""

P = ParamSpec("P")
R = TypeVar("R")


class LeaseLost(Exception):
    """The Lease went to somebody else in the middle of a tick."""


class Turn:
    """One tick's turn: its number on the grid, until when it has time, and the stage it is at."""

    def __init__(self, number: int, until: float, may_write: Callable[[], bool]) -> None:
        self.number = number
        self.until = until
        self.stage = ""
        self._may_write = may_write

    async def run(self, task: Task[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task as the tick's next stage. Raises ``LeaseLost`` when there is nothing to run it for any more."""
        return await self.call(task.name, task, *args, **kwargs)

    async def call(self, stage: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a stage that is worth no task run. Raises ``LeaseLost`` like ``run``."""
        self.stage = stage
        if not self._may_write():
            raise LeaseLost
        return await function(*args, **kwargs)


class BatchLifecycle(Protocol):
    """What a shift runs: everything of its kinds at once, tick by tick, over connections that stay open."""

    def lease(self, name: str, namespace: str | None = None, token: str = "") -> Lease:
        """Return the Lease, not yet acquired, for this token; once asked for, nothing is written unless it is held."""

    async def tick(self, turn: Turn) -> TickReport:
        """Look, work out what should be written, write it, say why: each a task, given to ``turn.run``."""

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for somebody to change what this is responsible for."""


Opener = Callable[[], AbstractAsyncContextManager[BatchLifecycle]]
"""Makes the lifecycle that a shift opens; called again if it cannot be opened."""


class Shift:
    """One run of a lifecycle from ``late_by`` seconds after its scheduled start to its early end."""

    def __init__(
        self,
        settings: ShiftSettings,
        opener: Opener,
        *,
        table: str,
        writes: bool = True,
        late_by: float = 0.0,
        token: str = "",
    ) -> None:
        self.settings = settings
        self.report = ShiftReport()
        self._opener = opener
        self._writes = writes
        self._log = get_run_logger()
        self._late_by = late_by
        self._token = token
        self._journal = Journal(table, settings.table_every_ticks, self._log)
        self._lease: Lease | None = None
        self._said: set[str] = set()
        self._decided: Container[str] = ()
        self._woken_before = -1

    async def run(self) -> ShiftReport:
        """Tick until the shift is over. Raises nothing but cancellation: what went wrong is in the report."""
        s = self.settings
        now = time.monotonic()
        cadence = shift_cadence(
            now=now,
            late_by=self._late_by,
            interval=s.interval_seconds,
            shift=s.shift_seconds,
            early_end=s.early_end_seconds,
        )
        # A single tick has no end of its own to wait for; whoever holds the Lease ticks within one interval anyway.
        deadline = cadence.end if s.shift_seconds else now + s.interval_seconds
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._journal.close)
            lifecycle = await self._open(stack, deadline)
            if lifecycle is None:
                return self.report
            if self._writes:
                self._lease = lifecycle.lease(s.lease_name, s.lease_namespace, self._token)
                stack.push_async_callback(self._release, self._lease)
            await self._tick_until(lifecycle, cadence, deadline)
        return self.report

    def _may_write(self) -> bool:
        """Return whether this is the writer now; a dry run writes nothing, and neither waits nor keeps others out."""
        return self._lease is None or self._lease.held

    async def _tick_until(self, lifecycle: BatchLifecycle, cadence: Cadence, deadline: float) -> None:
        last = -1
        while True:
            waited = not self._may_write()
            if waited and self._lease is not None and not await self._wait_for_lease(self._lease, deadline):
                return
            is_only_one = not self.settings.shift_seconds and last < 0
            slot = Slot(0, time.monotonic()) if is_only_one else cadence.next(time.monotonic(), last)
            if slot is None:
                return
            if not waited:
                self.report.skipped += slot.number - last - 1
            woken = await self._woken(lifecycle, slot)
            # A tick for an edit is between two of the grid, and the grid stays as it is.
            last = slot.number - 1 if woken else slot.number
            until = slot.instant + (0 if woken else self.settings.interval_seconds)
            await self._tick(lifecycle, slot.number, until)

    async def _woken(self, lifecycle: BatchLifecycle, slot: Slot) -> bool:
        """Sleep until the slot; True when an edit ended it, once per interval and not in its last quarter."""
        quarter = self.settings.interval_seconds / 4
        early = slot.instant - quarter - time.monotonic()
        if slot.number != self._woken_before and early > 0:
            try:
                woken = await lifecycle.wait_for_change(early)
            except Exception as error:
                self._complain("edits are noticed at the next tick only", error)
                woken = False
            if woken:
                self._woken_before = slot.number
                return True
        await asyncio.sleep(max(0.0, slot.instant - time.monotonic()))
        return False

    async def _tick(self, lifecycle: BatchLifecycle, number: int, until: float) -> None:
        if not self._may_write():
            return
        turn, shift = Turn(number, until, self._may_write), self.report
        shift.ticks += 1
        try:
            report = await lifecycle.tick(turn)
        except Exception as error:
            stage = turn.stage or "tick"
            if isinstance(error, LeaseLost) or not self._may_write():
                shift.interrupted += 1
                self._log.warning("Tick %d: the lease was lost before %s was done; writing stops", number, stage)
            else:
                shift.failed += 1
                shift.failures[stage] = shift.failures.get(stage, 0) + 1
                shift.last_error = f"{stage}: {type(error).__name__}: {error}"
                # The traceback is in the task run's own log.
                self._log.error("Tick %d failed: %s", number, shift.last_error)
            return
        for change in report.changes:
            self._log.info("Tick %d: %s %s → %s", number, change.about, change.before, change.after)
        rows = () if self._writes else report.rows
        lines = dict.fromkeys("; ".join(f"{name} {value}" for name, value in list(row.items())[:3]) for row in rows)
        for line in lines:
            if line not in self._decided:
                self._log.info("Tick %d: %s", number, line)
        self._decided = lines
        shift.changes += len(report.changes)
        self._journal.record(number, report)

    async def _open(self, stack: AsyncExitStack, deadline: float) -> BatchLifecycle | None:
        while True:
            try:
                return await stack.enter_async_context(self._opener())
            except Exception as error:
                self._complain("the connections cannot be opened", error)
            if not await self._pause(deadline):
                return None

    async def _wait_for_lease(self, lease: Lease, deadline: float) -> bool:
        """Renew the standby's Lease as a sign of life until ours is acquired (True) or the shift is over (False)."""
        standby = asyncio.create_task(self._stand_by(lease.standby())) if self.settings.shift_seconds else None
        try:
            return await self._contend(lease, deadline)
        finally:
            if standby is not None:
                standby.cancel()
                await asyncio.gather(standby, return_exceptions=True)

    async def _stand_by(self, lease: Lease) -> None:
        await asyncio.sleep(STANDBY_AFTER)
        try:
            while True:
                with suppress(Exception):  # it is tried again, and no standby is better than no writer
                    if not lease.held:
                        await lease.acquire(STANDBY_PATIENCE)
                await asyncio.sleep(STANDBY_AFTER)
        finally:
            await self._release(lease)

    async def _contend(self, lease: Lease, deadline: float) -> bool:
        s = self.settings
        name, patience = s.lease_name, max(1.0, s.interval_seconds)
        self._log.info("Waiting for the lease %s", name)
        while True:
            left = deadline - time.monotonic()
            if not (s.shift_seconds or self.report.rival or self.report.obstacle):
                left += DEAD_AFTER  # a single tick: if the holder is dead, nobody else may tick for a while
            if left <= 0:
                return False
            try:
                # The outer limit is a safety net: acquire keeps to its own.
                async with asyncio.timeout(min(left, patience) + RETRY_PAUSE):
                    if await lease.acquire(min(left, patience)):
                        self._log.info("Holding the lease %s", name)
                        self.report.obstacle = ""
                        return True
                self.report.obstacle = ""
            except Exception as error:
                self._complain(f"the lease {name} cannot be asked for", error)
                await self._pause(deadline)
            self.report.rival = lease.rival

    async def _pause(self, deadline: float) -> bool:
        await asyncio.sleep(max(0.0, min(deadline - time.monotonic(), RETRY_PAUSE, self.settings.interval_seconds)))
        return deadline > time.monotonic()

    def _complain(self, what: str, error: Exception) -> None:
        self.report.obstacle = f"{what}: {type(error).__name__}: {error}"
        if what not in self._said:
            self._said.add(what)
            self._log.error("%s; trying again until the shift ends", self.report.obstacle)

    async def _release(self, lease: Lease) -> None:
        # Also runs while the process is being told to stop, so it must not take long.
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await lease.release()
        except Exception as error:
            self._log.warning("A lease could not be released and expires by itself (%r)", error)


def table_key(flow: str, lease_name: str, what: str) -> str:
    """The key of a shift's table: one per flow, shard and ``what``; lower case, digits and dashes only."""
    stem = lease_name.removeprefix("modelyard-").removeprefix(flow).strip("-")
    return "-".join(filter(None, [flow, re.sub(r"[^a-z0-9]+", "-", stem), what]))


async def run_shift(settings: ShiftSettings, opener: Opener, *, table: str, writes: bool = True) -> State[Any]:
    """Run a shift in this flow run; return its final state. ``table``: its key; without ``writes``: no Lease."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    late_by = seconds_late(run, datetime.now(UTC))
    if settings.is_stale(late_by):
        return Completed(name="Skipped", message=f"{late_by:.0f} s late: a newer run is scheduled")
    on_schedule, token = late_by if is_on_schedule(run) else 0.0, run.id.hex if run else ""
    shift = Shift(settings, opener, table=table, writes=writes, late_by=on_schedule, token=token)
    return final_state(await shift.run())


def shift_name(what: str) -> str:
    """What a shift's run is called: ``what`` it does, for how long, and from when."""
    seconds = run_parameters(ShiftSettings).shift_seconds
    start = flow_run.scheduled_start_time or datetime.now(UTC)
    length = f"{seconds:g} s from" if seconds else "one tick at"
    return f"{what}, {length} {start:%Y-%m-%d %H:%M:%S} UTC"


def final_state(report: ShiftReport) -> State[Any]:
    """The state a run ends in, with the shift in numbers as its message."""
    if report.ticks == 0:
        if report.obstacle:
            return Failed(message=f"No tick completed: {report.obstacle}")
        if report.rival:
            return Completed(name="Standby", message="Another run held the Lease for the whole shift")
        return Completed(name="Standby", message="Could not acquire the Lease in time; no holder renewed it")
    if report.failed == report.ticks:
        return Failed(message=f"Every tick failed: {report}")
    return Completed(message=str(report))


def seconds_late(run: FlowRun | None, now: datetime) -> float:
    """Seconds between the moment a run was meant for and ``now``; negative when it is ahead of it.

    Zero for a run somebody asked for by hand: it is meant for whenever it begins. After an outage Prefect starts every
    run it missed, oldest first; without this each would drive the fleet once. Where this machine's clock differs from
    the server's by much, the server counts: it has set the moment, and the time at which the run began.
    """
    if run is None or run.expected_start_time is None:
        return 0.0
    if not run.auto_scheduled and (run.created_by is None or run.created_by.type != "AUTOMATION"):
        return 0.0
    late = (now - run.expected_start_time).total_seconds()
    if run.state is None or not run.state.is_running():
        return late
    by_server = (run.state.timestamp - run.expected_start_time).total_seconds()
    return late if abs(late - by_server) < CLOCKS_DIFFER else by_server


def is_on_schedule(run: FlowRun | None) -> bool:
    """Whether the run's shift belongs to the schedule, and so begins and ends with it."""
    return run is not None and run.auto_scheduled
