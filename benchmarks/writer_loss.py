"""Time from the loss of the writer to the next tick, on the machine as it is and next to busy loops.

The demonstration's fleet without traffic. The writer's process is killed again and again; the time ends when a tick has
seen an edit made after the kill. Reference: the same on the machine without the busy loops. The standby takes the Lease
once it sees, from 7.5 s on, that the process is gone; a tick takes up to 15 s more.

    python benchmarks/writer_loss.py --kills 10 --loops 2
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
from pathlib import Path
from typing import Annotated

import typer

from deployments.demo.run import running
from deployments.demo.scenario import COPIES, Form, Scenario
from deployments.soak import Audit, Soak

FAULT = "the writer is killed"


def _spin() -> None:
    while True:
        pass


async def measure(soak: Soak, kills: int, loops: int) -> tuple[list[float], float]:
    """Return the seconds to the next tick after each kill, and the load average at the end."""
    spinning = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(loops)]
    for process in spinning:
        process.start()
    before = len(soak.healed[FAULT])
    try:
        for _ in range(kills):
            await soak.suffer(FAULT)
            await asyncio.sleep(soak.chance.uniform(5, 20))  # at any moment of a tick, with or without a standby
        return soak.healed[FAULT][before:], os.getloadavg()[0]
    finally:
        for process in spinning:
            process.terminate()


async def run(kills: int, loops: int, out: Path) -> None:
    """Measure both, and print them with their ratio."""
    scenario = Scenario(copies=tuple(copy for copy in COPIES if copy.form is not Form.SLO))
    audit = Audit(out / "audit.log", {})
    async with running(scenario, out) as (stack, prefect, cluster, _):
        soak = Soak(stack, prefect, cluster, audit, random.Random(7))
        reference = 0.0
        for label, number in (("without busy loops", 0), (f"next to {loops} busy loops", loops)):
            seconds, load = await measure(soak, kills, number)
            if not seconds:
                print(f"{label}: no tick within the limit after any of {kills} kills")
                continue
            median = statistics.median(seconds)
            reference = reference or median
            print(
                f"{label}: {len(seconds)} of {kills} kills, next tick after {median:.1f} s (median), "
                f"{max(seconds):.1f} s (longest); ratio {median / reference:.1f}; load average {load:.1f}"
            )


def main(
    kills: Annotated[int, typer.Option(help="Kills of the writer in each part.")] = 10,
    loops: Annotated[int, typer.Option(help="Busy loops in the second part.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for logs and data.")] = Path("out/writer-loss"),
) -> None:
    """Measure the time from the loss of the writer to the next tick."""
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(kills, loops, out.resolve()))


if __name__ == "__main__":
    typer.run(main)
