"""One shift of the autoscaling loop: hold the Lease, tick on time, survive failures, hand over.

A shift never writes without the Lease. It waits for it (hot standby), goes back to waiting when it loses it, and gives
it up a little early, so that the next run, already started and waiting for its moment, misses no tick.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field

from flows.parameters import AutoscaleParameters
from modelyard.autoscaling.live.settings import LoopSettings
from modelyard.reconcile.cadence import Cadence, Slot, shift_cadence
from tasks.actuate import actuate
from tasks.collect import collect
from tasks.controller import LeaseHandle, Stages, TickSpace
from tasks.decide import decide
from tasks.journal import Journal
from tasks.report import Table, report

RELEASE_TIMEOUT = 5.0
"""Seconds giving up the Lease may take; after that it expires by itself."""
RETRY_PAUSE = 5.0
"""Seconds between tries when the cluster cannot be reached at all."""

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


LoopType = Callable[[LoopSettings], AbstractAsyncContextManager[Stages]]
"""Makes a loop, to be opened for one shift: ``modelyard.autoscaling.live.tick.Loop``."""
TickType = Callable[[int], TickSpace]
"""Makes the workspace of a tick from its number: ``modelyard.autoscaling.live.tick.Tick``."""


@dataclass
class Outcome:
    """What became of a shift. ``interrupted`` ticks lost the Lease half-way; ``skipped`` instants were missed."""

    ticks: int = 0
    failed: int = 0
    interrupted: int = 0
    skipped: int = 0
    changes: int = 0
    last_error: str = ""
    obstacle: str = ""
    """Why the shift could not even begin to tick, if so."""
    failures: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.ticks} ticks, {self.failed} failed, {self.changes} scaled"
        if self.skipped:
            text += f", {self.skipped} skipped because they were late"
        if self.interrupted:
            text += f", {self.interrupted} given up because the lease was lost"
        if self.failures:
            text += " (" + ", ".join(f"{stage}: {count}" for stage, count in sorted(self.failures.items())) + ")"
        if self.last_error:
            text += f"; last error: {self.last_error}"
        return text


class NoLease:
    """For a dry run, which writes nothing and so must neither wait for a writer nor keep one out."""

    held = True

    async def acquire(self, timeout: float) -> bool:
        """Granted."""
        return True

    async def release(self) -> None:
        """Nothing to give up."""


class LeaseLost(Exception):
    """The Lease went to somebody else in the middle of a tick."""


class Shift:
    """One run of the loop from ``late_by`` seconds after its scheduled start to its early end."""

    def __init__(
        self,
        parameters: AutoscaleParameters,
        *,
        open_loop: Callable[[], AbstractAsyncContextManager[Stages]],
        new_tick: TickType,
        log: Log,
        late_by: float = 0.0,
    ) -> None:
        self.parameters = parameters
        self.outcome = Outcome()
        self._open_loop = open_loop
        self._new_tick = new_tick
        self._log = log
        self._late_by = late_by
        dry_run = parameters.loop.fleet.dry_run
        self._journal = Journal(artifact_key(parameters.lease_name, dry_run), parameters.table_every_ticks, log)
        self._lease: LeaseHandle = NoLease()
        self._said: set[str] = set()
        self._woken_before = -1

    async def run(self) -> Outcome:
        """Tick until the shift is over. Raises nothing but cancellation: what went wrong is in the outcome."""
        p = self.parameters
        now = time.monotonic()
        cadence = shift_cadence(
            now=now,
            late_by=self._late_by,
            interval=p.interval_seconds,
            shift=p.shift_seconds,
            early_end=p.early_end_seconds,
        )
        # A single tick has no end of its own to wait for; whoever holds the Lease ticks within one interval anyway.
        deadline = cadence.end if p.shift_seconds else now + p.interval_seconds
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._journal.close)
            loop = await self._open(stack, deadline)
            if loop is None:
                return self.outcome
            if not p.loop.fleet.dry_run:
                self._lease = loop.lease(p.lease_name, p.lease_namespace)
            stack.push_async_callback(self._release)
            await self._tick_until(loop, cadence, deadline)
        return self.outcome

    async def _tick_until(self, loop: Stages, cadence: Cadence, deadline: float) -> None:
        last = -1
        while True:
            waited = not self._lease.held
            if waited and not await self._wait_for_lease(deadline):
                return
            if not self.parameters.shift_seconds and last < 0:
                slot: Slot | None = Slot(0, time.monotonic())
            else:
                slot = cadence.next(time.monotonic(), last)
            if slot is None:
                return
            if not waited:
                self.outcome.skipped += slot.number - last - 1
            if await self._woken(loop, slot):
                # Between two ticks of the grid, and the grid stays as it is.
                last = slot.number - 1
                if self._lease.held:
                    await self._tick(loop, slot.number)
                continue
            last = slot.number
            if self._lease.held:
                await self._tick(loop, slot.number)

    async def _woken(self, loop: Stages, slot: Slot) -> bool:
        """Sleep until the slot's instant; True when an edit ended the sleep early.

        An edit wakes the loop once per interval at most, and not in the last quarter before a tick that is due anyway.
        """
        quarter = self.parameters.interval_seconds / 4
        early = slot.instant - quarter - time.monotonic()
        if slot.number != self._woken_before and early > 0:
            try:
                woken = await loop.wait_for_change(early)
            except Exception as error:
                self._complain("edits are noticed at the next tick only", error)
                woken = False
            if woken:
                self._woken_before = slot.number
                return True
        await asyncio.sleep(max(0.0, slot.instant - time.monotonic()))
        return False

    async def _tick(self, loop: Stages, number: int) -> None:
        """One tick; what it raises is logged and counted, and the next tick is the retry."""
        tick, table = self._new_tick(number), Table()
        stages: list[tuple[str, bool, Callable[[], Awaitable[object]]]] = [
            ("collect", False, lambda: collect(loop, tick)),
            ("decide", False, lambda: decide(loop, tick)),
            ("actuate", True, lambda: actuate(loop, tick)),
            ("report", True, lambda: report(loop, tick, table)),
        ]
        self.outcome.ticks += 1
        for name, writes, stage in stages:
            try:
                if writes and not self._lease.held:
                    raise LeaseLost
                await stage()
            except Exception as error:
                if isinstance(error, LeaseLost) or not self._lease.held:
                    self.outcome.interrupted += 1
                    self._log.warning("Tick %d: the lease was lost before %s was done; writing stops", number, name)
                else:
                    self.outcome.failed += 1
                    self.outcome.failures[name] = self.outcome.failures.get(name, 0) + 1
                    self.outcome.last_error = f"{name}: {type(error).__name__}: {error}"
                    # The traceback is in the task run's own log.
                    self._log.error("Tick %d failed: %s", number, self.outcome.last_error)
                return
        for change in table.changes:
            self._log.info("Tick %d: %s %s → %s", number, change.get("variant"), change.get("from"), change.get("to"))
        self.outcome.changes += len(table.changes)
        self._journal.record(number, table.rows, table.changes)

    async def _open(self, stack: AsyncExitStack, deadline: float) -> Stages | None:
        """The open loop; tried again until the deadline, since a cluster that is down now may be up in a moment."""
        while True:
            try:
                return await stack.enter_async_context(self._open_loop())
            except Exception as error:
                self._complain("the loop's connections cannot be opened", error)
            if not await self._pause(deadline):
                return None

    async def _wait_for_lease(self, deadline: float) -> bool:
        """Hot standby: True once the Lease is ours, False when the shift is over first."""
        name, patience = self.parameters.lease_name, max(1.0, self.parameters.interval_seconds)
        self._log.info("Waiting for the lease %s", name)
        while (left := deadline - time.monotonic()) > 0:
            try:
                # The outer limit is a safety net: acquire keeps to its own.
                async with asyncio.timeout(min(left, patience) + RETRY_PAUSE):
                    if await self._lease.acquire(min(left, patience)):
                        self._log.info("Holding the lease %s", name)
                        self.outcome.obstacle = ""
                        return True
            except Exception as error:
                self._complain(f"the lease {name} cannot be asked for", error)
                await self._pause(deadline)
        return False

    async def _pause(self, deadline: float) -> bool:
        """Sleep before another try; False when there is no time for one."""
        left = deadline - time.monotonic()
        await asyncio.sleep(max(0.0, min(left, RETRY_PAUSE, self.parameters.interval_seconds)))
        return deadline > time.monotonic()

    def _complain(self, what: str, error: Exception) -> None:
        """Log an obstacle, each kind once per shift, and keep it for the final state."""
        self.outcome.obstacle = f"{what}: {type(error).__name__}: {error}"
        if what not in self._said:
            self._said.add(what)
            self._log.error("%s; trying again until the shift ends", self.outcome.obstacle)

    async def _release(self) -> None:
        # Also runs while the process is being told to stop, so it must not take long.
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._lease.release()
        except Exception as error:
            self._log.warning(
                "The lease %s could not be given up (%s: %s); it expires by itself",
                self.parameters.lease_name,
                type(error).__name__,
                error,
            )


def artifact_key(lease_name: str, dry_run: bool) -> str:
    """The key of a shift's decision table: one per shard, dry runs apart; lower case, digits and dashes only."""
    stem = lease_name.removeprefix("modelyard-").removeprefix("autoscale").strip("-")
    return "-".join(filter(None, ["autoscale", re.sub(r"[^a-z0-9]+", "-", stem), "plan" if dry_run else "decisions"]))
