"""The flow ``benchmark``: a BenchmarkJob's runs, measured one after the other. ``re_run_benchmarks``: a list of them,
again. ``refit_profiles``: where live latencies have left a profile, its benchmark again, and the profile fitted to it.

Runs are started by ``reconcile`` for pending work, by hand, and by a pipeline that waits for the figures. Deployed by
``prefect.yaml``.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import BenchmarkParameters, RefitParameters, ReRunParameters
from flows.run_order import RunOrder, carry_out, key_named
from modelyard.benchmarks.jobs import RE_RUN, BenchmarkRuns
from modelyard.objects import counted, cut, few, first_of
from modelyard.reconcile.plans import ObjectResult, ResultState
from tasks.benchmark import (
    compare,
    find_drift,
    fit_profile,
    read_baseline,
    report,
    request_for_drifts,
    request_measurements,
)
from tasks.claims import request_id
from tasks.steps import conclude, open_run, run_lifecycle

FIT_BUDGET = 600
"""Seconds after which a run of ``refit-profiles`` fits no more profiles of a namespace."""


def run_name() -> str:
    """Return the name of the BenchmarkJob."""
    return f"benchmark {run_parameters(BenchmarkParameters).named}"


@flow(name="benchmark", flow_run_name=run_name, persist_result=False, retries=0)
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
        marks = {RE_RUN: request_id(ref, order.attempt)} if order.by_hand and parameters.re_run else {}
        acted = await carry_out(order, marks)
        results = await report(ref, order.keys)
        if before is not None and results[0].state is ResultState.DONE:
            tripped = await compare(ref, first, before, gate)
            results = [ObjectResult(ResultState.FAILED, text) for text in tripped] or results
    return conclude(acted, order.keys, results, order.stays)


@flow(
    name="re-run-benchmarks",
    flow_run_name=lambda: f"measure {first_of(run_parameters(ReRunParameters).jobs)} again",
    persist_result=False,
    retries=0,
)
@flat(ReRunParameters)
async def re_run_benchmarks(parameters: ReRunParameters) -> State[Any]:
    """Claim a list of BenchmarkJobs, measure their runs again, report. Those of one service take turns.

    One that another run works on is left to that run, which measures it again. *Failed* names missing and failed ones.
    """
    order = RunOrder.scheduled(BenchmarkRuns.name, parameters)
    ref, text = order.ref, request_id(order.ref, order.attempt)
    async with open_run(ref, f"Measurement of {counted(len(parameters.jobs), 'BenchmarkJob')}"):
        jobs = list(map(key_named, parameters.jobs))
        claimed, missing = await request_measurements(ref, counted(len(jobs), "BenchmarkJob"), jobs, text)
        acted = await run_lifecycle(ref, claimed, order.seconds, order.stays)
        results = await report(ref, claimed)
    if missing:
        return Failed(message=f"there is no BenchmarkJob {', '.join(few(list(map(str, missing)), 5))}")
    return conclude(acted, claimed, results, parameters.wait)


@flow(name="refit-profiles", flow_run_name="refit profiles", persist_result=False, retries=0)
@flat(RefitParameters)
async def refit_profiles(parameters: RefitParameters) -> State[Any]:
    """Find profiles that do not hold, measure their BenchmarkJobs, fit each profile. *Failed* names what did not work.

    A BenchmarkJob that has been measured since the drift is not measured again.
    """
    order = RunOrder.scheduled(BenchmarkRuns.name, parameters)
    ref = order.ref
    async with open_run(ref, "Measurement of drifted profiles"):
        drifts = await find_drift(ref, parameters.namespaces)
        if drifts:
            claimed = await request_for_drifts(ref, len(drifts), drifts)
            await run_lifecycle(ref, claimed, order.seconds, order.stays)
        done, problems, spent = [], [], Counter[str]()
        for drift in drifts:
            began, space = time.monotonic(), drift.variant.namespace
            if spent[space] > FIT_BUDGET:
                problems.append(f"{drift.variant}: left for the next run: fits of {space} took over {FIT_BUDGET} s")
                continue
            try:
                done += [f"{drift.variant}: {text}" for text in await fit_profile(ref, drift, parameters.step_tokens)]
            except Exception as error:
                problems.append(f"{drift.variant}: {cut(str(error), 500)}")
            spent[space] += round(time.monotonic() - began)
    if problems:
        return Failed(message="; ".join(few(problems + done, 5)))
    return Completed(message="; ".join(few(done, 5)) or "all profiles hold")
