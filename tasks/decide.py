"""Stage two of a tick as a task: decide for every variant."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task

from tasks.controller import Stages, TickSpace
from tasks.options import STAGE


@task(name="decide", task_run_name="decide-{tick.number}", timeout_seconds=30, **STAGE)
async def decide(loop: Stages, tick: TickSpace) -> dict[str, Any]:
    """Decide in a thread, so that a large fleet's arithmetic does not hold up the renewal of the Lease."""
    return await asyncio.to_thread(loop.decide, tick)
