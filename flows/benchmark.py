"""The flow ``benchmark``: a BenchmarkJob's runs, measured one after the other. ``re_run_benchmarks``: once more. And
``refit_profiles``: where live latencies have left a profile, its benchmark once more, and the profile anew.

Runs are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that waits for the figures.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import BenchmarkParameters, RefitParameters, ReRunParameters
from modelyard.benchmarks.story import COMPLETED, FAILED
from modelyard.benchmarks.targets import Load
from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import Cluster, ClusterSettings, NotFound
from modelyard.objects import Key
from modelyard.objects.documents import counted, few
from modelyard.reconcile.acting import Acted
from tasks.acting import cut_short
from tasks.benchmark import (
    BenchmarkEnd,
    Benchmarking,
    RunFailed,
    baseline,
    carry_out,
    compare,
    measure,
    publish,
    refit_drifted,
    resolve,
)
from tasks.journal import ProgressBar
from tasks.reconcile import BY_ID


def run_name() -> str:
    """Which BenchmarkJob."""
    given = run_parameters(BenchmarkParameters)
    first, *others = given.objects or [f"{given.namespace}/{given.name}"]
    return f"benchmark {first}" + (f" and {len(others)} more" if others else "")


@flow(
    name="benchmark",
    flow_run_name=run_name,
    description="Measures what a BenchmarkJob asks for, a run after the other, and tells what came of it.",
    persist_result=False,
    retries=0,
)
@flat(BenchmarkParameters)
async def benchmark(parameters: BenchmarkParameters) -> State[Any]:
    """Resolve, run, measure each, publish, compare.

    *Completed* when all runs are measured; with ``wait`` only then. *Failed* with the reason of one that cannot be, or
    with what is not as good as ``fail_if`` asks for.
    """
    run = parameters.run or f"{BY_ID}{flow_run.id}"
    until = time.monotonic() + parameters.timeout_seconds if parameters.wait and not parameters.run else None
    named = [_key(text) for text in parameters.objects] if parameters.run else []
    keys = named or [Key(parameters.namespace, parameters.name)]
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        on = Benchmarking(cluster, parameters.controller_namespace)
        gate = parameters.fail_if if until is not None else []
        before = await baseline(on, _key(parameters.baseline) if parameters.baseline else keys[0]) if gate else None
        keys = await resolve(on, keys, run, by_hand=not parameters.run, anew=parameters.re_run)
        bar = await stack.enter_async_context(ProgressBar("benchmark-progress", f"Benchmark {keys[0]}", every=5.0))
        acted = await _carry(on, keys, run, until, bar)
        ends = await publish(on, keys)
        problems = await compare(on, keys[0], before, gate) if before is not None and ends[0].state == COMPLETED else []
    return cut_short(acted) or _final(parameters, ends, problems)


def _key(text: str) -> Key:
    return Key(*text.split("/", 1))


async def _carry(on: Benchmarking, keys: list[Key], run: str, until: float | None, bar: ProgressBar) -> Acted:
    """Have the runs made, and follow each from when its Job begins."""
    running = asyncio.ensure_future(carry_out(on, keys, run, until))
    followed: dict[tuple[Key, Load], asyncio.Task[str]] = {}
    try:
        while not running.done():
            for key in keys:
                here = on.seen.get(key)
                if here is not None and here.job is not None and here.load and (key, here.load) not in followed:
                    followed[key, here.load] = asyncio.create_task(measure(on, key, here.load, bar, running))
            await on.seen.moved(1.0, running)
        acted = await running
        done = await asyncio.gather(*followed.values(), return_exceptions=True)
    finally:
        for one in (running, *followed.values()):
            one.cancel()
    for result in done:
        if isinstance(result, Exception) and not isinstance(result, RunFailed):
            get_run_logger().warning("A run could not be followed: %s", result)
    return acted


def _final(parameters: BenchmarkParameters, ends: list[BenchmarkEnd], problems: list[str]) -> State[Any]:
    """*Failed* with the reason of the first BenchmarkJob that has failed; one that is gone needs nothing."""
    if problems:
        return Failed(message="; ".join(few(problems, 5)))
    for one in ends:
        if one.state == FAILED or (parameters.wait and not parameters.run and one.state != COMPLETED):
            return Failed(message=f"{one.key} is {one.state}: {one.message}")
    said = [f"{one.key} is {one.state}: {one.message}" for one in ends if one.state != "Gone"]
    return Completed(message="; ".join(few(said, 5)) or "nothing is left to do")


@flow(
    name="re-run-benchmarks",
    description="Has a list of BenchmarkJobs measured anew, for a schedule; reconcile starts what follows.",
    persist_result=False,
    retries=0,
)
@flat(ReRunParameters)
async def re_run_benchmarks(parameters: ReRunParameters) -> State[Any]:
    """Ask for every BenchmarkJob to be measured anew; those of one service take turns. *Failed* names missing ones."""
    asked, missing = [], []
    async with Cluster.connect(ClusterSettings()) as cluster:
        for text in parameters.jobs:
            key = _key(text)
            body = {"metadata": {"annotations": {RE_RUN: str(flow_run.id)}}}
            try:
                await cluster.merge_patch(BENCHMARK_JOBS, key.name, body, key.namespace)
            except NotFound:
                missing.append(text)
            else:
                asked.append(text)
    said = f"{counted(len(asked), 'BenchmarkJob is', 'BenchmarkJobs are')} measured anew"
    if missing:
        return Failed(message=f"{said}; there is no BenchmarkJob {', '.join(few(missing, 5))}")
    return Completed(message=said)


@flow(
    name="refit-profiles",
    description="Where live latencies have left a profile: has its benchmark run again, and fits what that measured.",
    persist_result=False,
    retries=0,
)
@flat(RefitParameters)
async def refit_profiles(parameters: RefitParameters) -> State[Any]:
    """Look at every VariantAutoscaling whose profile does not hold. *Failed* where one could not be helped."""
    async with Cluster.connect(ClusterSettings()) as cluster:
        said, problems = await refit_drifted(
            cluster, parameters.namespaces, parameters.step_tokens, parameters.controller_namespace
        )
    if problems:
        return Failed(message="; ".join(few(problems + said, 5)))
    return Completed(message="; ".join(few(said, 5)) or "all profiles hold")
