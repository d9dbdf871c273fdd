"""The tasks of the flow ``replay``: read traffic and fleet, replay one policy at one rate, write the reports.

A batch runs in a process of its own, so that the event loop stays free and a time limit or a cancelled run ends it at
once. Retries would be pointless: a replay is pure.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from prefect import task

from modelyard.replay.compare import Batch, BatchResult
from modelyard.replay.compare import replay as replay_here
from modelyard.replay.output import write_report
from modelyard.traffic.latency import SLO
from tasks.stage import STAGE

TAGS = ["modelyard", "replay"]
OFTEN = 0.5
"""Seconds between two reports of progress."""
LISTEN = 0.05
"""Seconds between two looks at what a process says."""
END = 5.0
"""Seconds to wait for a process that has been killed, which takes none."""


class BatchFailed(RuntimeError):
    """A batch that came to nothing; the message says which, and why."""


class Hearing:
    """Told the share of a batch that is done. A class, so that Prefect does not look into it."""

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        self.tell = tell


def _work(batch: Batch, pipe: Connection) -> None:
    """In the child: tell progress, then the result or the error's text."""
    told = 0.0

    def progress(share: float) -> None:
        nonlocal told
        if time.monotonic() - told >= OFTEN:
            told = time.monotonic()
            pipe.send(share)

    try:
        pipe.send(replay_here(batch, progress))
    except ValueError as error:  # of our own: policies and traces that do not fit
        pipe.send(str(error))
    except (BrokenPipeError, KeyboardInterrupt):
        return


@task(
    name="replay-batch",
    task_run_name="replay {batch.name}",
    description="Replay one policy at one rate, in a process of its own.",
    tags=TAGS,
    **STAGE,
)
async def replay_batch(batch: Batch, hearing: Hearing) -> BatchResult:
    """Replay it in a process. Raises ``BatchFailed``."""
    # Not forked: the process that runs flows has threads.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(batch, sender), daemon=True, name=f"replay {batch.name}")
    process.start()
    sender.close()
    try:
        while True:
            # No thread that listens: one would outlive an interrupt and hold up the end of the whole process.
            while not receiver.poll():  # noqa: ASYNC110
                await asyncio.sleep(LISTEN)
            try:
                said = receiver.recv()
            except EOFError:
                process.join(END)
                raise BatchFailed(f"{batch.name}: its process ended with code {process.exitcode}") from None
            if isinstance(said, BatchResult):
                hearing.tell(batch.name, 1.0)
                return said
            if isinstance(said, str):
                raise BatchFailed(f"{batch.name}: {said}")
            hearing.tell(batch.name, said)
    finally:
        process.kill()
        process.join(END)
        receiver.close()


@task(
    name="write-report",
    task_run_name="write {out}",
    description="Write a folder, or to a bucket, the report and the plots, whole or not at all.",
    tags=TAGS,
    retries=2,
    retry_delay_seconds=2,
    **STAGE,
)
async def write_reports(out: str, results: list[BatchResult], slo: SLO, context: dict[str, Any]) -> None:
    """Write a report as ``modelyard replay --out`` does."""
    lines = [(result.summary.policy, result.line) for result in results]
    await asyncio.to_thread(write_report, out, lines, [result.summary for result in results], slo, context)
