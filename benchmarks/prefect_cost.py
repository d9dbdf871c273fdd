"""What the loop costs Prefect: server CPU and database growth per tick, with the server profile and without it.

    python benchmarks/prefect_cost.py [--shifts 10] [--ticks 20] [--interval 0.4]

Runs shifts of the real flow (two task runs per tick that scales nothing, a decision table of 50 rows) on real
servers on SQLite, compressed in time, and scales by counts to a day at one tick per 15 seconds. The reference, measured
in the same run, is the same server with Prefect's default settings. The idle server's CPU is measured first and taken
off. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from prefect import flow
from prefect.client.schemas.objects import State

from deployments.profile import SERVER_PROFILE, WORKER_PROFILE, environment
from deployments.server import PrefectServer
from flows.autoscale import Autoscaling
from flows.forms import flat
from flows.parameters import AutoscaleParameters
from flows.shift import run_shift
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.reconcile.plans.report import Change, TickReport

TICKS_PER_DAY = 5760
TASKS = 2
IDLE = 20.0
ROWS = 50
QUIET_TASKS = "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL"


@dataclass(frozen=True)
class Cost:
    idle_cpu: float
    cpu: float
    client_cpu: float
    stored: float


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stored_bytes(home: Path) -> int:
    """Bytes of the database that hold data, with the write-ahead log folded in."""
    with closing(sqlite3.connect(home / "prefect.db", timeout=30)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        (pages,) = database.execute("pragma page_count").fetchone()
        (free,) = database.execute("pragma freelist_count").fetchone()
        (size,) = database.execute("pragma page_size").fetchone()
    return int((pages - free) * size)


def task_runs(home: Path) -> tuple[int, int]:
    """Completed task runs, and their events, on record so far."""
    with closing(sqlite3.connect(f"file:{home / 'prefect.db'}?mode=ro", uri=True, timeout=30)) as database:
        (runs,) = database.execute("select count(*) from task_run where state_type = 'COMPLETED'").fetchone()
        (events,) = database.execute("select count(*) from events where event like 'prefect.task-run.%'").fetchone()
    return int(runs), int(events)


def measure(shifts: int, ticks: int, interval: float, with_profile: bool, client: dict[str, str]) -> Cost:
    with tempfile.TemporaryDirectory(prefix="prefect-cost-") as folder:
        home = Path(folder)
        nothing = home / "nothing.env"
        nothing.touch()
        quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        with PrefectServer(home, profile=SERVER_PROFILE if with_profile else nothing, extra=quiet) as server:
            time.sleep(5)  # what a start leaves to do
            before = cpu_seconds(server.pid)
            time.sleep(IDLE)
            idle = (cpu_seconds(server.pid) - before) / IDLE
            warm, _ = drive(server, home, 1, 2, interval, client)  # connections, caches
            settle(home, warm)
            base, started, cpu = stored_bytes(home), time.monotonic(), cpu_seconds(server.pid)
            count, client_cpu = drive(server, home, shifts, ticks, interval, client)
            settle(home, warm + count)
            elapsed = time.monotonic() - started
            used = cpu_seconds(server.pid) - cpu - idle * elapsed
            grown = stored_bytes(home) - base
    return Cost(idle, used / count, client_cpu / count, grown / count)


def settle(home: Path, ticks: int) -> None:
    """Wait until the server has written everything down: it is seconds behind."""
    deadline = time.monotonic() + 300
    while task_runs(home) < (TASKS * ticks, 3 * TASKS * ticks):
        if time.monotonic() > deadline:
            sys.exit(f"the server has recorded only {task_runs(home)} of {ticks} ticks' task runs and events")
        time.sleep(0.5)
    time.sleep(6)


def drive(
    server: PrefectServer, home: Path, shifts: int, ticks: int, interval: float, client: dict[str, str]
) -> tuple[int, float]:
    """Run the shifts in a process of their own: ticks (a busy machine skips some), CPU seconds without its start."""
    more = {"PREFECT_API_URL": server.api_url, "PREFECT_HOME": str(home), "PREFECT_LOGGING_LEVEL": "INFO", **client}
    done = subprocess.run(
        [sys.executable, __file__, "--drive", f"{shifts},{ticks},{interval}"],
        env=environment(WORKER_PROFILE, more),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    ticked, cpu = done.stdout.splitlines()[-1].split()
    return int(ticked), float(cpu)


async def run_shifts(shifts: int, ticks: int, interval: float) -> None:
    class Idle(Autoscaling):
        """The real tasks over a controller that does nothing."""

        def __init__(self) -> None:
            self.ticks = 0

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def collect(self) -> Any:
            return object()

        def decide(self, fleet: Any) -> TickDecision:
            return TickDecision(time.time())

        async def actuate(self, fleet: Any, decision: Any) -> Any:
            return None

        async def report(self, decision: Any, done: Any) -> TickReport:
            rows = [{"variant": f"team/v{i}", "current": 2, "target": 2, "reason": "Steady"} for i in range(ROWS)]
            self.ticks += 1
            return TickReport(rows, [Change("team/v0", 1, 2, "Steady", "")] if self.ticks == 2 else [])

        async def wait_for_change(self, timeout: float) -> bool:
            await asyncio.sleep(timeout)
            return False

    @flow(name="autoscale")
    @flat(AutoscaleParameters)
    async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
        return await run_shift(parameters, Idle, table="autoscale-plan", writes=False)

    parameters = AutoscaleParameters.model_validate(
        {
            "interval_seconds": interval,
            "shift_seconds": interval * (ticks - 0.5),
            "early_end_seconds": 0,
        }
    )
    before, done = time.process_time(), 0
    for _ in range(shifts):
        state = await autoscale(**dict(parameters), return_state=True)
        count, _, rest = (state.message or "").partition(" ticks, ")
        if not rest.startswith("0 failed"):
            sys.exit(f"the shift failed: {state.message}")
        done += int(count)
    print(done, time.process_time() - before)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shifts", type=int, default=10)
    options.add_argument("--ticks", type=int, default=20, help="ticks per shift")
    options.add_argument("--interval", type=float, default=0.4, help="seconds from tick to tick")
    options.add_argument("--drive", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.drive:
        shifts, ticks, interval = given.drive.split(",")
        asyncio.run(run_shifts(int(shifts), int(ticks), float(interval)))
        return
    loud, quiet = {QUIET_TASKS: "NOTSET"}, {QUIET_TASKS: "WARNING"}
    runs = {
        "Prefect's defaults (reference)": (False, loud),
        "profile": (True, loud),
        "profile, task runs not logged": (True, quiet),
    }
    found: dict[str, Cost] = {}
    for name, (profile, client) in runs.items():
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        found[name] = measure(given.shifts, given.ticks, given.interval, profile, client)
    reference = next(iter(found.values()))
    print(f"{given.shifts} shifts of {given.ticks} ticks, {TASKS} task runs each; a day is {TICKS_PER_DAY} ticks\n")
    print(f"{'server':34}{'CPU ms/tick':>12}{'ratio':>7}{'CPU s/day':>11}{'kB/tick':>9}{'ratio':>7}{'MB/day':>8}"
          f"{'idle CPU s/day':>16}{'client ms/tick':>16}")  # fmt: skip
    for name, cost in found.items():
        print(
            f"{name:34}{cost.cpu * 1e3:12.1f}{cost.cpu / reference.cpu:7.2f}{cost.cpu * TICKS_PER_DAY:11.0f}"
            f"{cost.stored / 1e3:9.1f}{cost.stored / reference.stored:7.2f}{cost.stored * TICKS_PER_DAY / 1e6:8.0f}"
            f"{cost.idle_cpu * 86_400:16.0f}{cost.client_cpu * 1e3:16.1f}"
        )


if __name__ == "__main__":
    main()
