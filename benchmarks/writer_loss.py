"""Time from the loss of the writer to the next tick, on the machine as it is and next to busy loops.

The fleet of the soak without traffic. The writer's process is killed again and again; the time ends when a tick has
seen an edit made after the kill. Reference: the same on the machine without the busy loops. A standby takes the Lease
two seconds after the process has ended, and the edit wakes it. Where there is none (the writer before was killed a
moment ago), the worker starts a process first, which takes four to five seconds of a processor, most of them for
Prefect's imports.

    python benchmarks/writer_loss.py --kills 8 --loops 2
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from deployments.demo.scenario import CONTROLLER_NAMESPACE, Scenario
from modelyard.cluster import Cluster, ClusterError
from modelyard.objects.kinds import LEASES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "soak"))

from soak import LEASE, Audit, Soak, running

FAULT = "the writer is killed"
HEADING = """
| the writer is killed | kills | Lease taken after, s: median | longest | next tick after, s: median | longest | load |
| --- | --- | --- | --- | --- | --- | --- |"""


class Losses(NamedTuple):
    """Seconds from each kill to the next tick, and to the next holder of the Lease. ``load``: average at the end."""

    ticks: list[float]
    leases: list[float]
    load: float

    def row(self, label: str, kills: int) -> str:
        """Return the row of the table."""
        if not self.ticks:
            return f"| {label} | 0 of {kills} | no tick within the limit | | | | {self.load:.1f} |"
        count = f"{len(self.ticks)}" if len(self.ticks) == kills else f"{len(self.ticks)} of {kills}"
        seconds = (f"{statistics.median(times):.1f} | {max(times):.1f}" for times in (self.leases, self.ticks))
        return f"| {label} | {count} | {' | '.join(seconds)} | {self.load:.1f} |"


def _spin() -> None:
    while True:
        pass


async def holder(cluster: Cluster) -> str:
    """Return who holds the Lease; empty while nobody does, or nobody can say."""
    with suppress(ClusterError):
        lease = await cluster.get(LEASES, LEASE, CONTROLLER_NAMESPACE)
        return str(lease["spec"].get("holderIdentity") or "")
    return ""


async def taken(cluster: Cluster, before: str) -> float:
    """Wait until another than ``before`` holds the Lease; return the seconds."""
    begun = time.monotonic()
    while True:
        if await holder(cluster) not in ("", before):
            return time.monotonic() - begun
        await asyncio.sleep(0.1)


async def measure(soak: Soak, kills: int, loops: int) -> Losses:
    """Kill the writer so often, next to so many busy loops."""
    spinning = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(loops)]
    for process in spinning:
        process.start()
    before, leases = len(soak.healed[FAULT]), []
    try:
        for _ in range(kills):
            await asyncio.sleep(soak.chance.uniform(5, 20))  # at any moment of a tick, with or without a standby
            following = asyncio.create_task(taken(soak.cluster, await holder(soak.cluster)))
            healed = len(soak.healed[FAULT])
            await soak.suffer(FAULT)
            if len(soak.healed[FAULT]) > healed:
                leases.append(await following)
            following.cancel()
        return Losses(soak.healed[FAULT][before:], leases, os.getloadavg()[0])
    finally:
        for process in spinning:
            process.terminate()


async def run(kills: int, loops: int, out: Path) -> None:
    """Measure both, and print a table."""
    scenario = Scenario()
    audit = Audit(out / "audit.log", {})
    async with running(scenario, out) as (stack, prefect, cluster):
        soak = Soak(stack, prefect, cluster, audit, random.Random(7))
        quiet = await measure(soak, kills, 0)
        busy = await measure(soak, kills, loops)
    print(HEADING)
    print(quiet.row("without busy loops", kills))
    print(busy.row(f"next to {loops} busy loops", kills))
    if quiet.ticks and busy.ticks:
        ratio = statistics.median(busy.ticks) / statistics.median(quiet.ticks)
        print(f"\nRatio of the medians: {ratio:.1f}")


def main(
    kills: Annotated[int, typer.Option(help="Kills of the writer in each part.")] = 8,
    loops: Annotated[int, typer.Option(help="Busy loops in the second part.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for logs and data.")] = Path("out/writer-loss"),
) -> None:
    """Measure the time from the loss of the writer to the next tick."""
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(kills, loops, out.resolve()))


if __name__ == "__main__":
    typer.run(main)
