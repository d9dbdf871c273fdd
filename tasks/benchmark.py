"""The steps of a benchmark: what is asked for, having it measured, one run's part, and what is told at the end."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from modelyard.benchmarks.story import COMPLETED, FAILED, Here, headline, line, row
from modelyard.benchmarks.targets import Load
from modelyard.benchmarks.values import MeasuredRun
from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import CONFIG_MAPS, Cluster, Forbidden, NotFound, Unavailable
from modelyard.objects import Key
from modelyard.objects.documents import cut
from modelyard.objects.kinds import NAMESPACES
from modelyard.objects.parse import namespace
from modelyard.reconcile.acting import Acted
from modelyard.reconcile.following import Followed, take
from modelyard.replay.refit import benchmark_of, drifted, in_turn, kept_as, refit, same_profile
from tasks.acting import AGAIN, stay
from tasks.journal import ProgressBar, cells, show, unformatted
from tasks.stage import RETRIED, STAGE

BUDGET = 600
"""Seconds after which a run of the flow ``refit-profiles`` fits no more profiles of a namespace."""


@dataclass(eq=False)
class Benchmarking:
    """BenchmarkJobs as a run follows them. ``home`` is the controller's namespace."""

    cluster: Cluster
    home: str
    seen: Followed[Here] = field(default_factory=Followed)
    lifecycle: BenchmarkRuns = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at."""
        self.lifecycle = BenchmarkRuns(self.home, self.seen)


@dataclass(frozen=True, slots=True)
class BenchmarkEnd:
    """How a BenchmarkJob stands at the end of a run: its published state, and in words."""

    key: Key
    state: str
    message: str = ""


class RunFailed(Exception):
    """A run of a benchmark was not measured; the message says why."""


@task(
    name="resolve",
    description="Find the BenchmarkJobs, and let this run work on them.",
    timeout_seconds=120,
    **RETRIED,
)
async def resolve(on: Benchmarking, keys: Sequence[Key], run: str, by_hand: bool, anew: bool) -> list[Key]:
    """The BenchmarkJobs to measure. By hand the run takes them over; what has failed is tried again."""
    for key in keys if by_hand else ():
        current = await on.cluster.get(BENCHMARK_JOBS, key.name, key.namespace)
        again = anew or (current.get("status") or {}).get("state") == FAILED
        await take(on.cluster, current, BENCHMARK_JOBS, run, {RE_RUN: run.rpartition("/")[2]} if again else {})
    return list(keys)


@task(
    name="run",
    description="Make a Job for each run, one after the other, and take note of what it measured.",
    **RETRIED,
)
async def carry_out(on: Benchmarking, keys: Sequence[Key], run: str, until: float | None) -> Acted:
    """Have it measured. ``until`` (a monotonic clock's reading): how long to stay for what waits."""

    async def left(acted: Acted) -> bool:
        found = [on.seen.get(key) for key in keys if key in acted.settled]
        return any(here is not None and here.waits for here in found)

    return await stay(on.cluster, on.lifecycle, keys, run, until, left)


@task(
    name="measure",
    task_run_name="measure {load} for {key}",
    description="Follow one run: its pod puts the load on the endpoint, and reports what it measured.",
    **RETRIED,
)
async def measure(on: Benchmarking, key: Key, load: Load, bar: ProgressBar, running: asyncio.Future[Acted]) -> str:
    """What one run measured, in words. Raises ``RunFailed``."""
    log, said = get_run_logger(), ""
    while True:
        here = on.seen.get(key)
        if here is not None:
            bar.tell(str(key), len(here.memory.runs) / max(1, len(here.loads)))
            done = [one for one in here.memory.runs if Load(one.scenario, one.concurrency) == load]
            if done:
                log.info("%s", line(done[0]))
                return line(done[0])
            if here.memory.ended:
                raise RunFailed(here.memory.failed)
            if here.message and here.message != said:
                said = here.message
                log.info("%s", said)
        if running.done():
            return f"{load} goes on without this run"
        await asyncio.wait([running], timeout=AGAIN)


@task(name="baseline", description="What to compare with, before it is measured anew.", timeout_seconds=120, **RETRIED)
async def baseline(on: Benchmarking, key: Key) -> BenchmarkResults:
    """What a BenchmarkJob has measured so far. Raises ``NotFound``."""
    return kept(await on.cluster.get(BENCHMARK_JOBS, key.name, key.namespace))


@task(
    name="compare",
    description="How it differs from what it is compared with, and whether that is good enough.",
    timeout_seconds=120,
    **RETRIED,
)
async def compare(on: Benchmarking, key: Key, before: BenchmarkResults, fail_if: Sequence[str]) -> list[str]:
    """What is not good enough, a sentence each."""
    found = pairs(before, kept(await on.cluster.get(BENCHMARK_JOBS, key.name, key.namespace)))
    if not any(pair.before and pair.after for pair in found):
        get_run_logger().warning("%s has measured none of it before: no change can be told", before.name)
    table = [cells(changes(pair)) for pair in found]
    await show(TableArtifact(key="benchmark-changes", description=f"Changes since {before.name}", table=table))
    return tripped([parse_condition(text) for text in fail_if], found)


@task(
    name="publish",
    description="The table and the pictures of runs, and how each benchmark stands.",
    timeout_seconds=300,
    **STAGE,
)
async def publish(on: Benchmarking, keys: Sequence[Key]) -> list[BenchmarkEnd]:
    """Tell people; how each BenchmarkJob stands."""
    rows = []
    for key in keys:
        here = on.seen.get(key)
        measured = here.memory.runs if here is not None else ()
        rows += [{"benchmark": str(key), **row(one)} for one in measured]
        if measured:
            await _pictures(key, measured)
    if rows:
        table = [cells(one) for one in rows]
        await show(TableArtifact(key="benchmark-runs", description="Runs; latencies in milliseconds", table=table))
    return [await _ended(on, key) for key in keys]


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


async def _ended(on: Benchmarking, key: Key) -> BenchmarkEnd:
    """How it stands now, as its status has it."""
    try:
        status = (await on.cluster.get(BENCHMARK_JOBS, key.name, key.namespace)).get("status") or {}
    except NotFound:
        return BenchmarkEnd(key, "Gone", "there is no such BenchmarkJob")
    here, state = on.seen.get(key), str(status.get("state") or "Pending")
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
