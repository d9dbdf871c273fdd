"""Stage three of a tick as a task: write what was decided."""

from __future__ import annotations

from typing import Any

from prefect import task

from tasks.controller import Stages, TickSpace
from tasks.options import STAGE


@task(name="actuate", task_run_name="actuate-{tick.number}", timeout_seconds=60, **STAGE)
async def actuate(loop: Stages, tick: TickSpace) -> dict[str, Any]:
    """Write intent to status, then move the workloads that are ours to move."""
    return await loop.actuate(tick)
