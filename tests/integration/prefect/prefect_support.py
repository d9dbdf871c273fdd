"""Helpers of the tests in this folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from recording_loop import recorded

from flows.parameters import AutoscaleParameters

Parameters = Callable[..., AutoscaleParameters]
STAGES = ["collect", "decide", "actuate"]


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout: float = 120) -> Any:
    """The first true value of ``condition``; fails, naming ``what``, when there is none within ``timeout`` seconds.

    Ask ever more rarely: every question costs the server and this process CPU that other tests need.
    """
    begun, pause = time.monotonic(), 0.1
    while not (value := await condition()):
        assert time.monotonic() < begun + timeout, f"{what}: not within {timeout} s"
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, 0.6)
    return value


def ticks_of(record: Path) -> dict[int, list[str]]:
    """Stages that ran, by tick, in order."""
    ticks: dict[int, list[str]] = {}
    for entry in recorded(record):
        if entry["tick"] >= 0:
            ticks.setdefault(entry["tick"], []).append(entry["stage"])
    return ticks
