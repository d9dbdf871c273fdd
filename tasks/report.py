"""Stage four of a tick as a task: Kubernetes Events, and the tick's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect import task

from tasks.controller import Stages, TickSpace
from tasks.options import STAGE


class Table:
    """Where the report leaves its rows: Prefect keeps task results for the whole shift, but not this."""

    def __init__(self) -> None:
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.changes: Sequence[Mapping[str, Any]] = ()


@task(name="report", task_run_name="report-{tick.number}", timeout_seconds=60, **STAGE)
async def report(loop: Stages, tick: TickSpace, table: Table) -> dict[str, Any]:
    """Tell people what happened; the table goes to ``table``, counts are returned."""
    told = await loop.report(tick)
    table.rows, table.changes = told.get("rows", ()), told.get("changes", ())
    return {**told, "rows": len(table.rows), "changes": len(table.changes)}
