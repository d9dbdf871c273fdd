"""Stage one of a tick as a task: read cluster and Prometheus."""

from __future__ import annotations

from typing import Any

from prefect import task

from tasks.controller import Stages, TickSpace
from tasks.options import STAGE


@task(name="collect", task_run_name="collect-{tick.number}", timeout_seconds=60, **STAGE)
async def collect(loop: Stages, tick: TickSpace) -> dict[str, Any]:
    """Read everything a decision rests on: a constant number of queries and lists, whatever the size of the fleet."""
    return await loop.collect(tick)
