"""The flow ``benchmark``: a BenchmarkJob's runs, measured one after the other. ``re_run_benchmarks``: once more. And
``refit_profiles``: where live latencies have left a profile, its benchmark once more, and the profile anew.

Runs are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that waits for the figures.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import BenchmarkParameters, RefitParameters, ReRunParameters
from flows.run_order import RunOrder, key_named
from modelyard.benchmarks.lifecycle import BenchmarkRuns
from modelyard.benchmarks.story import COMPLETED, FAILED
from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import Cluster, ClusterSettings, NotFound
from modelyard.objects.documents import counted, few
from tasks.benchmark import BenchmarkEnd, claim_benchmark, compare, read_baseline, refit_drifted, report
from tasks.steps import cut_short, open_run, run_lifecycle


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
    """Claim the BenchmarkJob, measure its runs one after the other, report, compare.

    *Completed* when all runs are measured; with ``wait`` only then. *Failed* with the reason of one that cannot be, or
    with what is not as good as ``fail_if`` asks for.
    """
    order = RunOrder.of(parameters, BenchmarkRuns.name)
    ref, first = order.ref, order.keys[0]
    async with open_run(ref, f"Benchmark {first}"):
        gate = parameters.fail_if if order.stays else []
        baseline = key_named(parameters.baseline) if parameters.baseline else first
        before = await read_baseline(ref, baseline) if gate else None
        for key in order.keys if order.claims else ():
            await claim_benchmark(ref, key, order.by_hand and parameters.re_run, order.attempt)
        acted = await run_lifecycle(ref, order.keys, order.seconds, order.stays)
        ends = await report(ref, order.keys)
        measured = ends[0].state == COMPLETED
        problems = await compare(ref, first, before, gate) if before is not None and measured else []
    return cut_short(acted) or _final(parameters, ends, problems)


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
            key = key_named(text)
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
