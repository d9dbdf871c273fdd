"""Reports of a shift to Prefect: one table artifact updated in place, one event per scaling.

Best effort by design: the truth is in the resources' status. Every call has a timeout, a failure is logged once, and
an unreachable Prefect API never holds up a tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import Artifact, ProgressArtifact, TableArtifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event

from modelyard.objects import cells, plain
from modelyard.reconcile.plans import Row, TickReport

CALL_TIMEOUT = 10.0
"""Seconds one call to the Prefect API may take. Generous: a busy server that is cut off does the work all the same."""
SCALED = "modelyard.variant.scaled"
"""Name of the event sent for every actual change of a workload."""
ROWS = {"plans": "Status updates", "plan": "Decisions without effect (dry run)"}
"""Titles of tables by the last word of the key (``flows.shift.table_key``)."""
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


async def write(artifact: Artifact, existing: UUID | None = None) -> UUID:
    """Create an artifact, or put it in place of an existing one; return its id."""
    async with asyncio.timeout(CALL_TIMEOUT), get_client() as client:
        if existing is None:
            return (await artifact.acreate(client=client)).id
        # Not client.update_artifact: that also sends an event with the whole artifact in it.
        body = {"data": await artifact.aformat(), "description": artifact.description}
        await client.request("PATCH", "/artifacts/{id}", path_params={"id": existing}, json=body)
        return existing


async def show(artifact: Artifact) -> None:
    """Write an artifact that a run can do without."""
    try:
        await write(artifact)
    except Exception as error:
        get_run_logger().warning("The artifact %s could not be written: %s", artifact.key, error)


async def show_table(key: str, description: str, rows: Iterable[Row]) -> None:
    """Have a table written, unless it has no rows."""
    if table := [cells(row) for row in rows]:
        await show(TableArtifact(key=key, description=description, table=table))


class DecisionTable(NamedTuple):
    """The rows of one tick, how many workloads it scaled, and how many the whole shift has scaled up to its end."""

    number: int
    rows: Sequence[Row]
    scaled: int
    total: int

    def describe(self, written: int, rows: str = "Decisions") -> str:
        """Title: ``rows``, scalings of this tick, and those since the table with the total ``written``."""
        earlier = self.total - self.scaled - written
        counts = [f"{self.scaled} scaled"] if self.scaled else []
        counts += [f"{earlier} scaled by earlier ticks"] if earlier else []
        return ": ".join(filter(None, (f"{rows} of tick {self.number}", ", ".join(counts))))


class Journal:
    """The decision table and the scaling events of one shift.

    ``every`` is the number of ticks after which an unchanged table is written again. Writing goes on beside the ticks:
    the newest table waits while an older one is under way.
    """

    def __init__(self, key: str, every: int, log: Log) -> None:
        self.key = key
        self._every = every
        self._log = log
        self._artifact: UUID | None = None
        self._writing: asyncio.Task[None] | None = None
        self._due = True
        self._last_number = 0
        self._newest: DecisionTable | None = None
        self._total = self._written = 0
        self._failing = False

    def record(self, number: int, report: TickReport) -> None:
        """Take note of a tick: send its changes as events, and have the table written if it is due."""
        for change in report.changes:
            resource = {
                "prefect.resource.id": f"modelyard.variant.{change.about}",
                "prefect.resource.name": change.about,
            }
            payload = {name: plain(value) for name, value in change.payload.items()}
            emit_event(event=SCALED, resource=resource, payload=payload)
        self._due = self._due or bool(report.changes) or number - self._last_number >= self._every
        self._total += len(report.changes)
        if not report.rows:
            return
        self._newest = DecisionTable(number, report.rows, len(report.changes), self._total)
        if self._due and (self._writing is None or self._writing.done()):
            self._due, self._last_number = False, number
            self._writing = asyncio.create_task(self._write(self._newest))

    async def close(self) -> None:
        """Wait for the write under way, then write what is still due; each has a time limit of its own."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._due and self._newest is not None:
            self._due = False
            await self._write(self._newest)

    async def _write(self, newest: DecisionTable) -> None:
        description = newest.describe(self._written, ROWS.get(self.key.rpartition("-")[2], "Decisions"))
        artifact = TableArtifact(key=self.key, description=description, table=[cells(row) for row in newest.rows])
        try:
            self._artifact = await write(artifact, self._artifact)
        except Exception as error:
            self._due = True
            if not self._failing:
                self._log.warning("The decision table cannot be written; every tick tries it again (%r)", error)
            self._failing = True
        else:
            self._written = newest.total
            if self._failing:
                self._log.info("The decision table is written again")
            self._failing = False


class ProgressBar:
    """One progress artifact over several items, best effort: moved shares are written every ``every`` seconds."""

    def __init__(self, key: str, description: str, every: float = 1.0) -> None:
        self._shares: dict[str, float] = {}
        self._key = key
        self._description = description
        self._every = every
        self._artifact: UUID | None = None
        self._written = -1.0
        self._writer: asyncio.Task[None] | None = None
        self._log = get_run_logger()

    def tell(self, name: str, share: float) -> None:
        """Take note of how far an item is (0 to 1)."""
        self._shares[name] = share

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        self._writer.cancel()
        await asyncio.wait([self._writer])
        await self._write()

    async def _follow(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(self._every)

    async def _write(self) -> None:
        percent = 100 * sum(self._shares.values()) / max(1, len(self._shares))
        if percent == self._written or not self._shares:
            return
        artifact = ProgressArtifact(key=self._key, description=self._description, progress=percent)
        try:
            self._artifact = await write(artifact, self._artifact)
            self._written = percent
        except Exception as error:
            self._log.debug("progress could not be written: %s", error)
