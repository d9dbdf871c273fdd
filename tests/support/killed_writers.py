"""Processes that roll out, onboard or measure, and kill themselves right before one of their writes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from in_process_runs import Shift

from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.cluster.transport import ApiRequest, Transport
from modelyard.objects import Key
from modelyard.onboarding.execution.start import take_over
from modelyard.onboarding.planning.lifecycle import Onboarding
from modelyard.onboarding.planning.objects import order_key
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.kernel.fence import take
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.roll_out.lifecycle import RollOut, ServiceRollOut

ROLL_OUTS: dict[str, type[RollOut]] = {one.about.kind: one for one in (ServiceRollOut, ModelRollOut)}
QUIET = 4
"""Looks without anything to write after which all is done."""


def rolling_out(home: str, kind: str = "InferenceService") -> Registered:
    """The roll-out of services, for a shift."""
    return Registered(ROLL_OUTS[kind](home), Acting("roll-out/roll-out", batch=20))


def roll_out(home: str, kind: str, space: str, at: int) -> None:
    """Roll out what is in ``space``; SIGKILL before write number ``at`` (0: never). Exits with the number of writes."""
    asyncio.run(_roll_out(home, kind, space, at))


def onboard(request: str, at: int) -> None:
    """Do what an onboarding (JSON) can do now; SIGKILL before write number ``at``. Exits with the number of writes."""
    asyncio.run(_onboard(request, at))


def measure(objects: list[str], home: str, at: int) -> None:
    """Do what can be done now for BenchmarkJobs (NAMESPACE/NAME); SIGKILL before write number ``at``."""
    asyncio.run(_measure([Key(*name.split("/")) for name in objects], home, at))


async def _measure(keys: list[Key], home: str, at: int) -> None:
    count = _counted(at)
    async with Cluster.connect(ClusterSettings()) as cluster:
        run = f"killed/{os.getpid()}"
        for key in keys:
            await take(cluster, await cluster.get(BENCHMARK_JOBS, key.name, key.namespace), BENCHMARK_JOBS, run, {})
        await act(cluster, BenchmarkRuns(home), keys, run, patience=0)
        os._exit(count())


async def _onboard(request: str, at: int) -> None:
    count = _counted(at)
    async with Cluster.connect(ClusterSettings()) as cluster:
        asked, run = OnboardRequest.model_validate_json(request), f"killed/{os.getpid()}"
        await take_over(cluster, asked, run)
        acted = await act(cluster, Onboarding(), [order_key(asked)], run, patience=0)
        os._exit(99 if acted.failed or acted.lost else count())


async def _roll_out(home: str, kind: str, space: str, at: int) -> None:
    count = _counted(at)
    async with Shift([rolling_out(home, kind)], home, 0.3, [space]) as shift:
        while shift.quiet < QUIET:
            await asyncio.sleep(0.1)
        os._exit(count())


def _counted(at: int) -> Callable[[], int]:
    """How many writes there were so far; SIGKILL before number ``at`` of this process (0: never)."""
    writes, send = 0, Transport.send

    async def counted(transport: Transport, request: ApiRequest) -> bytes:
        nonlocal writes
        if request.method != "GET":
            writes += 1
            if writes == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return await send(transport, request)

    Transport.send = counted  # type: ignore[method-assign]
    return lambda: writes
