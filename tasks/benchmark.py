"""A benchmark's own tasks: requests, baseline, comparison, report, and the refit of profiles. Its runs are steps."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import ImageArtifact, TableArtifact

from modelyard.autoscaling.kinds import VARIANTS
from modelyard.benchmarks.charts import draw
from modelyard.benchmarks.compare import changes, pairs, parse_condition, tripped
from modelyard.benchmarks.profiles import LIBRARY, library_patch, read_library
from modelyard.benchmarks.results import BenchmarkResults, kept
from modelyard.benchmarks.story import COMPLETED, Here, headline, row
from modelyard.benchmarks.values import MeasuredRun
from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import CONFIG_MAPS, Cluster, Forbidden, NotFound
from modelyard.objects import Key
from modelyard.objects.documents import cut
from modelyard.objects.kinds import NAMESPACES
from modelyard.objects.parse import namespace
from modelyard.reconcile.turns import in_turn
from modelyard.replay.refit import ProfileDrift, RefitFailed, drift_of, kept_as, refit, same_profile
from tasks.claims import claim_free
from tasks.journal import cells, show, unformatted
from tasks.stage import RETRIED, STAGE
from tasks.steps import RunRef, open_run


@dataclass(frozen=True, slots=True)
class BenchmarkEnd:
    """How a BenchmarkJob stands at the end of a run: its published state, and in words."""

    key: Key
    state: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """The BenchmarkJobs that a run is to measure, and those that do not exist."""

    claimed: list[Key]
    missing: list[Key]


@task(
    name="request measurements",
    task_run_name="request measurements of {objects}",
    description="Claim BenchmarkJobs, and request that they are measured again.",
    timeout_seconds=300,
    **RETRIED,
)
async def request_measurements(ref: RunRef, objects: str, keys: Sequence[Key], text: str) -> MeasurementRequest:
    """Request a measurement of each; ``text`` tells this request from earlier ones: repeated, it requests no other."""
    requests, missing = [], []
    async with open_run(ref) as run:
        for key in keys:
            try:
                requests.append((await run.view.cluster.get(BENCHMARK_JOBS, key.name, key.namespace), {RE_RUN: text}))
            except NotFound:
                missing.append(key)
        return MeasurementRequest(await claim_free(run, ref, requests), missing)


@task(
    name="request measurements",
    task_run_name="request measurements for {count} drifted profiles",
    description="Claim the BenchmarkJobs of drifted profiles, and request that they are measured again.",
    timeout_seconds=300,
    **RETRIED,
)
async def request_for_drifts(ref: RunRef, count: int, drifts: Sequence[ProfileDrift]) -> list[Key]:
    """Return the BenchmarkJobs that this run is to measure; those that were measured since the drift need not be."""
    requests = {}
    async with open_run(ref) as run:
        for drift in drifts:
            if drift.benchmark is None:
                continue
            with suppress(NotFound):  # fitting the profile fails with it
                job = await run.view.cluster.get(BENCHMARK_JOBS, drift.benchmark.name, drift.benchmark.namespace)
                if not drift.is_measured(job):
                    requests[drift.benchmark] = job, drift.request(job)
        return await claim_free(run, ref, requests.values())


@task(
    name="read baseline",
    task_run_name="read baseline {key}",
    description="Read the results to compare with, before they are measured again.",
    timeout_seconds=120,
    **RETRIED,
)
async def read_baseline(ref: RunRef, key: Key) -> BenchmarkResults:
    """Return the results of a BenchmarkJob so far. Raises ``NotFound``."""
    async with open_run(ref) as run:
        return kept(await run.view.cluster.get(BENCHMARK_JOBS, key.name, key.namespace))


@task(
    name="compare",
    task_run_name="compare {key} with {before.name}",
    description="Compare the results with the baseline, and check the conditions under which the run fails.",
    timeout_seconds=120,
    **RETRIED,
)
async def compare(ref: RunRef, key: Key, before: BenchmarkResults, fail_if: Sequence[str]) -> list[str]:
    """Return a sentence for each condition of ``fail_if`` that is met."""
    async with open_run(ref) as run:
        after = kept(await run.view.cluster.get(BENCHMARK_JOBS, key.name, key.namespace))
    found = pairs(before, after)
    if not any(pair.before and pair.after for pair in found):
        get_run_logger().warning("%s has measured none of it before: no change can be told", before.name)
    table = [cells(changes(pair)) for pair in found]
    await show(TableArtifact(key="benchmark-changes", description=f"Changes since {before.name}", table=table))
    return tripped([parse_condition(text) for text in fail_if], found)


@task(
    name="report",
    task_run_name="report benchmarks",
    description="Show the table and the charts of the runs, and how each BenchmarkJob stands.",
    timeout_seconds=300,
    **STAGE,
)
async def report(ref: RunRef, keys: Sequence[Key]) -> list[BenchmarkEnd]:
    """Return how each BenchmarkJob stands."""
    rows = []
    async with open_run(ref) as run:
        for key in keys:
            here: Here | None = run.view.details(key)
            measured = here.memory.runs if here is not None else ()
            rows += [{"benchmark": str(key), **row(result)} for result in measured]
            if measured:
                await _pictures(key, measured)
        if rows:
            table = [cells(result) for result in rows]
            await show(
                TableArtifact(
                    key="benchmark-runs", description="Benchmark runs; latencies in milliseconds", table=table
                )
            )
        return [await _ended(run.view.cluster, key, run.view.details(key)) for key in keys]


async def _pictures(key: Key, measured: Sequence[MeasuredRun]) -> None:
    """Those that lie beside the results, as artifacts: nobody has to reach the place of results to see them."""
    with tempfile.TemporaryDirectory(prefix="modelyard-charts-") as folder:
        try:
            paths = await asyncio.to_thread(draw, str(key), measured, Path(folder))
        except Exception as error:  # What a tenant's object remembers may be figures that nobody can draw.
            get_run_logger().warning("The pictures of %s could not be drawn: %s", key, cut(str(error), 300))
            return
        for path in paths:
            picture = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
            await show(
                ImageArtifact(key=f"benchmark-{path.stem}", image_url=picture, description=unformatted(str(key)))
            )


async def _ended(cluster: Cluster, key: Key, here: Here | None) -> BenchmarkEnd:
    """Return how it stands now by its status."""
    try:
        status = (await cluster.get(BENCHMARK_JOBS, key.name, key.namespace)).get("status") or {}
    except NotFound:
        return BenchmarkEnd(key, "Gone", "there is no such BenchmarkJob")
    state = str(status.get("state") or "Pending")
    if state == COMPLETED:
        return BenchmarkEnd(key, state, headline(here.memory.runs) if here is not None and here.memory.runs else "")
    told: dict[str, str] = next((one for one in status.get("conditions") or () if one.get("type") == COMPLETED), {})
    return BenchmarkEnd(key, state, str(status.get("failureMessage") or told.get("message") or ""))


@task(
    name="find drift",
    task_run_name="find profiles that live latencies have left",
    description="Read which VariantAutoscalings report ProfileDrift, and the BenchmarkJob of each one's profile.",
    timeout_seconds=120,
    **RETRIED,
)
async def find_drift(ref: RunRef, namespaces: Sequence[str]) -> list[ProfileDrift]:
    """Return the profiles to fit again: the first of each namespace, then the second of each, and so on."""
    async with open_run(ref) as run:
        variants = await run.view.cluster.list(VARIANTS)
    drifts = [drift for variant in variants if (drift := drift_of(variant)) is not None]
    chosen = [drift for drift in drifts if not namespaces or drift.variant.namespace in namespaces]
    get_run_logger().info("%d of %d drifted profiles are in scope", len(chosen), len(drifts))
    return in_turn(chosen, lambda drift: drift.variant.namespace)[0]


@task(
    name="fit profile",
    task_run_name="fit the profile of {drift.variant}",
    description="Fit the profile to what its BenchmarkJob measured since it drifted, and give it to the variant.",
    **RETRIED,
)
async def fit_profile(ref: RunRef, drift: ProfileDrift, tokens: int) -> list[str]:
    """Return what was done, a sentence each. Repeated, it fits the same measurements, and changes nothing.

    Raises ``RefitFailed``.
    """
    if drift.benchmark is None:
        raise RefitFailed("its profile was fitted to no BenchmarkJob of its namespace")
    key = drift.variant
    async with open_run(ref) as run:
        cluster = run.view.cluster
        variant = await cluster.get(VARIANTS, key.name, key.namespace)
        job = await cluster.get(BENCHMARK_JOBS, drift.benchmark.name, drift.benchmark.namespace)
        fitted = await asyncio.to_thread(refit, variant, job, drift.since, tokens)
        if fitted.patch is None:
            return [fitted.message]
        current = await cluster.get(VARIANTS, key.name, key.namespace)
        if not same_profile(variant, current):
            raise RefitFailed("was given another profile while one was fitted")
        # First: while the variant has the old profile, whoever goes on after a kill comes back to both.
        kept = await _keep(cluster, variant, fitted.patch, ref.home)
        version = {"resourceVersion": current["metadata"]["resourceVersion"]}
        body = {**fitted.patch, "metadata": fitted.patch["metadata"] | version}
        await cluster.merge_patch(VARIANTS, key.name, body, key.namespace)
        return [*kept, fitted.message]


async def _keep(cluster: Cluster, variant: Mapping[str, Any], body: Mapping[str, Any], home: str) -> list[str]:
    """Give the profile to the library's entries of the variant's old one; return what was done, a sentence each."""
    library = Key(home, LIBRARY)
    try:
        stored = await cluster.get(CONFIG_MAPS, LIBRARY, home)
    except NotFound:
        return []
    except Forbidden:
        return [f"ConfigMap {library} may not be read: whether its profile is kept there is not known"]
    spaces = {
        space["metadata"]["name"]: namespace(space)
        for space in await cluster.list(NAMESPACES, field_selector=f"metadata.name={home}")
    }
    entries = read_library(library, stored.get("data") or {})[0]
    kept = kept_as(variant, entries, home, spaces)
    for name in kept.keys:
        version = {"metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]}}
        stored = await cluster.merge_patch(CONFIG_MAPS, LIBRARY, library_patch(name, body) | version, home)
    done = [f"updated {name.name} in ConfigMap {library}, which had the same profile" for name in kept.keys]
    return [*done, *([f"ConfigMap {library} is unchanged: {kept.refused}"] if kept.refused else [])]
