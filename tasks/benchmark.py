"""A benchmark's own tasks: claim, baseline, comparison, report, and the refit of profiles. Its runs are steps."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import ImageArtifact, TableArtifact

from modelyard.autoscaling.kinds import VARIANTS
from modelyard.benchmarks.charts import draw
from modelyard.benchmarks.compare import changes, pairs, parse_condition, tripped
from modelyard.benchmarks.lifecycle import BenchmarkRuns
from modelyard.benchmarks.profiles import LIBRARY, library_patch, read_library
from modelyard.benchmarks.results import BenchmarkResults, kept
from modelyard.benchmarks.story import COMPLETED, FAILED, Here, headline, row
from modelyard.benchmarks.values import MeasuredRun
from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import CONFIG_MAPS, Cluster, Forbidden, NotFound, Unavailable
from modelyard.objects import Key
from modelyard.objects.documents import cut
from modelyard.objects.kinds import NAMESPACES
from modelyard.objects.parse import namespace
from modelyard.reconcile.following import take
from modelyard.replay.refit import benchmark_of, drifted, in_turn, kept_as, refit, same_profile
from tasks.journal import cells, show, unformatted
from tasks.stage import RETRIED, STAGE
from tasks.steps import RunRef, open_run

BUDGET = 600
"""Seconds after which a run of the flow ``refit-profiles`` fits no more profiles of a namespace."""


@dataclass(frozen=True, slots=True)
class BenchmarkEnd:
    """How a BenchmarkJob stands at the end of a run: its published state, and in words."""

    key: Key
    state: str
    message: str = ""


@task(
    name="claim benchmark",
    task_run_name="claim {key}",
    description="Find the BenchmarkJob, and let this run work on it.",
    timeout_seconds=120,
    **RETRIED,
)
async def claim_benchmark(ref: RunRef, key: Key, anew: bool, attempt: int) -> None:
    """Give the run the right to work on the BenchmarkJob.

    What has failed is measured again, and with ``anew`` what has been measured. Raises ``NotFound``.
    """
    async with open_run(ref) as run:
        cluster = run.view.cluster
        current = await cluster.get(BENCHMARK_JOBS, key.name, key.namespace)
        again = anew or (current.get("status") or {}).get("state") == FAILED
        request = {RE_RUN: f"{ref.run.rpartition('/')[2]}-{attempt}"} if again else {}
        await take(cluster, current, BENCHMARK_JOBS, ref.run, request)


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
    task_run_name="report",
    description="Show the table and the charts of the runs, and how each BenchmarkJob stands.",
    timeout_seconds=300,
    **STAGE,
)
async def report(ref: RunRef, keys: Sequence[Key]) -> list[BenchmarkEnd]:
    """Return how each BenchmarkJob stands."""
    rows = []
    async with open_run(ref) as run:
        lifecycle = run.view.lifecycle
        assert isinstance(lifecycle, BenchmarkRuns)
        for key in keys:
            here = lifecycle.seen.get(key)
            measured = here.memory.runs if here is not None else ()
            rows += [{"benchmark": str(key), **row(result)} for result in measured]
            if measured:
                await _pictures(key, measured)
        if rows:
            table = [cells(result) for result in rows]
            await show(TableArtifact(key="benchmark-runs", description="Runs; latencies in milliseconds", table=table))
        return [await _ended(run.view.cluster, key, lifecycle.seen.get(key)) for key in keys]


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


@task(name="refit", description="Measure again, or fit anew, the profiles that live latencies have left.", **RETRIED)
async def refit_drifted(
    cluster: Cluster, namespaces: Sequence[str], tokens: int, home: str
) -> tuple[list[str], list[str]]:
    """What was done, and what could not be, a sentence for each VariantAutoscaling whose profile does not hold.

    ``home`` is the namespace of the library of profiles.
    """
    said: list[str] = []
    problems: list[str] = []
    spent = Counter[str]()
    for variant in in_turn(one for one in await cluster.list(VARIANTS) if drifted(one) is not None):
        key = Key(variant["metadata"]["namespace"], variant["metadata"]["name"])
        if (namespaces and key.namespace not in namespaces) or (since := drifted(variant)) is None:
            continue
        if spent[key.namespace] > BUDGET:
            problems.append(f"{key}: left for the next run: fits of its namespace took more than {BUDGET} s")
            continue
        if (source := benchmark_of(variant)) is None:
            problems.append(f"{key}: its profile was fitted to no BenchmarkJob of its namespace")
            continue
        began = time.monotonic()
        try:
            job = await cluster.get(BENCHMARK_JOBS, source.name, source.namespace)
            found = await asyncio.to_thread(refit, variant, job, since, tokens)
            if found.re_run is not None:
                body = {"metadata": {"annotations": {RE_RUN: found.re_run}}}
                await cluster.merge_patch(BENCHMARK_JOBS, source.name, body, source.namespace)
            if found.patch is not None:
                current = await cluster.get(VARIANTS, key.name, key.namespace)
                if not same_profile(variant, current):
                    problems.append(f"{key}: was given another profile while one was fitted")
                    continue
                # First: while the variant has the old profile, whoever goes on after a kill comes back to both.
                said += [f"{key}: {text}" for text in await _keep(cluster, variant, found.patch, home)]
                version = {"resourceVersion": current["metadata"]["resourceVersion"]}
                body = {**found.patch, "metadata": found.patch["metadata"] | version}
                await cluster.merge_patch(VARIANTS, key.name, body, key.namespace)
        except Unavailable:
            raise
        except Exception as error:  # this object's alone
            problems.append(f"{key}: {type(error).__name__}: {cut(str(error), 500)}")
        else:
            (problems if found.problem else said).append(f"{key}: {found.message}")
        finally:
            spent[key.namespace] += round(time.monotonic() - began)
    return said, problems


async def _keep(cluster: Cluster, variant: Mapping[str, Any], body: Mapping[str, Any], home: str) -> list[str]:
    """Give the profile to the entries of the library that the variant's was of; what was done, in words."""
    library = Key(home, LIBRARY)
    try:
        stored = await cluster.get(CONFIG_MAPS, LIBRARY, home)
    except NotFound:
        return []
    except Forbidden:
        return [f"ConfigMap {library} may not be read: whether its profile is kept there is not known"]
    mine = await cluster.list(NAMESPACES, field_selector=f"metadata.name={home}")
    spaces = {one["metadata"]["name"]: namespace(one) for one in mine}
    entries = read_library(library, stored.get("data") or {})[0]
    kept = kept_as(variant, entries, home, spaces)
    for one in kept.keys:
        version = {"metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]}}
        stored = await cluster.merge_patch(CONFIG_MAPS, LIBRARY, library_patch(one, body) | version, home)
    said = [f"kept anew as {one.name} in ConfigMap {library}, whose profile it had" for one in kept.keys]
    return [*said, *([f"ConfigMap {library} stays as it is: {kept.refused}"] if kept.refused else [])]
