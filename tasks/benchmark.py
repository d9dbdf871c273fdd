"""A benchmark's own tasks: requests, baseline, comparison, report, and the refit of profiles. Its runs are steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.artifacts import ImageArtifact

from modelyard.autoscaling.fleet import VARIANTS
from modelyard.benchmarks.jobs import BENCHMARK_JOBS, RE_RUN, benchmark_result, row
from modelyard.benchmarks.measuring import BenchmarkResults, changes, kept, pairs, parse_condition, tripped
from modelyard.benchmarks.records import MeasuredRun, data_urls
from modelyard.fairness import interleave
from modelyard.objects import Key, cut, unformatted
from modelyard.profiles.refitting import ProfileDrift, drift_of, refit_variant
from modelyard.reconcile.plans import ObjectResult
from tasks.claims import claim_free
from tasks.journal import show, show_table
from tasks.stage import BRIEF, REPORT, RETRIED
from tasks.steps import RunRef, open_run


@task(name="request measurements", task_run_name="request measurements of {objects}", **BRIEF)
async def request_measurements(
    ref: RunRef, objects: str, keys: Sequence[Key], text: str
) -> tuple[list[Key], list[Key]]:
    """Claim BenchmarkJobs, and request that they are measured again; return those claimed, and those that do not exist.

    ``text`` tells this request from earlier ones: repeated, it requests no other.
    """
    requests, missing = [], []
    async with open_run(ref) as run:
        for key in keys:
            if (job := await run.read(key)) is None:
                missing.append(key)
            else:
                requests.append((job, {RE_RUN: text}))
        return await claim_free(run, ref, requests), missing


@task(name="request measurements", task_run_name="request measurements for {count} drifted profiles", **BRIEF)
async def request_for_drifts(ref: RunRef, count: int, drifts: Sequence[ProfileDrift]) -> list[Key]:
    """Claim the BenchmarkJobs of drifted profiles, and request that they are measured again; return those claimed.

    One that was measured since the drift is left out.
    """
    requests = {}
    async with open_run(ref) as run:
        for drift in drifts:
            job = await run.read(drift.benchmark) if drift.benchmark is not None else None
            if drift.benchmark is not None and job is not None and not drift.is_measured(job):
                requests[drift.benchmark] = job, drift.request(job)
        return await claim_free(run, ref, requests.values())


@task(name="read baseline", task_run_name="read baseline {key}", **BRIEF)
async def read_baseline(ref: RunRef, key: Key) -> BenchmarkResults:
    """Return the results to compare with, before they are measured again. Raises ``NotFound``."""
    async with open_run(ref) as run:
        return kept(await run.view.cluster.get(BENCHMARK_JOBS, key.name, key.namespace))


@task(name="compare", task_run_name="compare {key} with {before.name}", **BRIEF)
async def compare(ref: RunRef, key: Key, before: BenchmarkResults, fail_if: Sequence[str]) -> list[str]:
    """Compare the results with the baseline; return a sentence for each condition of ``fail_if`` that is met."""
    async with open_run(ref) as run:
        after = kept(await run.view.cluster.get(BENCHMARK_JOBS, key.name, key.namespace))
    compared = pairs(before, after)
    if not any(pair.before and pair.after for pair in compared):
        get_run_logger().warning("Cannot compare: %s has no earlier results of these runs", before.name)
    await show_table("benchmark-changes", f"Changes since {before.name}", map(changes, compared))
    return tripped([parse_condition(text) for text in fail_if], compared)


@task(name="report", task_run_name="report benchmarks", **REPORT)
async def report(ref: RunRef, keys: Sequence[Key]) -> list[ObjectResult]:
    """Show the table and the charts of the runs; return the result of each BenchmarkJob."""
    async with open_run(ref) as run:
        jobs = {key: run.view.details(key) for key in keys}
        measured = {key: job.memory.runs for key, job in jobs.items() if job is not None and job.memory.runs}
        for key, runs in measured.items():
            await _show_charts(key, runs)
        rows = [{"benchmark": str(key), **row(result)} for key, runs in measured.items() for result in runs]
        await show_table("benchmark-runs", "Benchmark runs; latencies in milliseconds", rows)
        return [benchmark_result(key, await run.read(key), job) for key, job in jobs.items()]


async def _show_charts(key: Key, measured: Sequence[MeasuredRun]) -> None:
    """Those that lie beside the results, as artifacts: nobody has to reach the place of results to see them."""
    try:
        charts = await asyncio.to_thread(data_urls, str(key), measured)
    except Exception as error:  # What a tenant's object remembers may be figures that nobody can draw.
        get_run_logger().warning("The charts of %s could not be drawn: %s", key, cut(str(error), 300))
        return
    for name, url in charts.items():
        await show(ImageArtifact(key=f"benchmark-{name}", image_url=url, description=unformatted(str(key))))


@task(name="find drift", task_run_name="find profiles that live latencies have left", **BRIEF)
async def find_drift(ref: RunRef, namespaces: Sequence[str]) -> list[ProfileDrift]:
    """Return the profiles to fit again: the first of each namespace, then the second of each, and so on.

    They are those of VariantAutoscalings that report ProfileDrift.
    """
    async with open_run(ref) as run:
        variants = await run.view.cluster.list(VARIANTS)
    drifts = [drift for variant in variants if (drift := drift_of(variant)) is not None]
    chosen = [drift for drift in drifts if not namespaces or drift.variant.namespace in namespaces]
    get_run_logger().info("%d of %d drifted profiles are in scope", len(chosen), len(drifts))
    return interleave(chosen, lambda drift: drift.variant.namespace)[0]


@task(name="fit profile", task_run_name="fit the profile of {drift.variant}", **RETRIED)
async def fit_profile(ref: RunRef, drift: ProfileDrift, tokens: int) -> list[str]:
    """Fit the profile to what its BenchmarkJob measured since it drifted, and give it to the variant.

    Returns what was done, a sentence each. Raises ``RefitFailed``.
    """
    async with open_run(ref) as run:
        return await refit_variant(run.view.cluster, drift, tokens, ref.home)
