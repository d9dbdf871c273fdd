"""The tasks of the flow ``replay``: read traffic and fleet, replay one policy at one rate, write the reports.

A batch runs in a process of its own, so that the event loop stays free and a time limit or a cancelled run ends it at
once. Retries would be pointless: a replay is pure.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from prefect import task
from prefect.tasks import exponential_backoff

from modelyard.replay.backtest import Batch, BatchResult, Scenario, replay as replay_here, write_report
from tasks.journal import ProgressBar
from tasks.stage import STAGE, shared

TAGS = ["modelyard", "replay"]
OFTEN = 0.5
"""Seconds between two reports of progress."""
LISTEN = 0.05
"""Seconds between two looks at what a process says."""
END = 5.0
"""Seconds to wait for a process that has been killed, which takes none."""


class BatchFailed(RuntimeError):
    """A batch that came to nothing; the message says which, and why."""


@dataclass(eq=False)
class Comparison:
    """The traffic and fleet that all replays of a run share, the batches by name, and their results so far."""

    scenario: Scenario
    source: str
    batches: Mapping[str, Batch]
    progress: ProgressBar
    results: dict[str, BatchResult] = field(default_factory=dict)


def _work(batch: Batch, pipe: Connection) -> None:
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


@task(name="replay", task_run_name="replay {batch}", tags=TAGS, **STAGE)
async def replay_batch(batch: str) -> None:
    """Replay one policy at one rate in a process of its own, and keep its result. Raises ``BatchFailed``."""
    run = shared(Comparison)
    # Not forked: the process that runs flows has threads.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(run.batches[batch], sender), daemon=True, name=f"replay {batch}")
    process.start()
    sender.close()
    try:
        while batch not in run.results:
            # No thread that listens: one would outlive an interrupt and hold up the end of the whole process.
            while not receiver.poll():  # noqa: ASYNC110
                await asyncio.sleep(LISTEN)
            try:
                received = receiver.recv()
            except EOFError:
                process.join(END)
                raise BatchFailed(f"{batch}: its process ended with code {process.exitcode}") from None
            if isinstance(received, str):
                raise BatchFailed(f"{batch}: {received}")
            if isinstance(received, BatchResult):
                run.results[batch] = received
            run.progress.tell(batch, 1.0 if isinstance(received, BatchResult) else received)
    finally:
        process.kill()
        process.join(END)
        receiver.close()


@task(
    name="write report",
    task_run_name="write the report to {out}",
    tags=TAGS,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    **STAGE,
)
async def write_reports(out: str, rate: float) -> None:
    """Write report and plots of the replays at this rate as ``modelyard replay --out`` does, whole or not at all.

    Nothing is written where there are none.
    """
    run = shared(Comparison)
    done = [run.results[name] for name in run.batches if name in run.results]
    results = [result for result in done if result.summary.rate == rate]
    if results:
        lines = [(result.summary.policy, result.line) for result in results]
        summaries = [result.summary for result in results]
        context = run.scenario.context(run.source, run.scenario.at_rate(rate))
        await asyncio.to_thread(write_report, out, lines, summaries, run.scenario.slo, context)
