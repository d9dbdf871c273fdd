"""The flow ``replay``: several policies side by side on recorded traffic, as one table.

Deployed by ``prefect.yaml`` without a schedule, for a button or a pipeline; in the foreground by
``modelyard run replay --parameters @FILE``. ``modelyard replay`` does the same without Prefect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import LinkArtifact, TableArtifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import ReplayParameters
from flows.run_files import check_run_files
from modelyard.replay.compare import BatchResult, batches
from modelyard.replay.output import REPORT
from modelyard.replay.report import Summary
from modelyard.replay.scenario import read_scenario
from modelyard.reports import check, link
from tasks.journal import CALL_TIMEOUT, ProgressBar, cells, unformatted
from tasks.replay import Comparison, replay_batch, write_reports
from tasks.stage import share


def run_name() -> str:
    """Return the policies and the traffic."""
    given = run_parameters(ReplayParameters)
    source = given.trace.name if given.trace else f"{given.namespace}/{given.model}"
    return f"replay {', '.join(given.policies)} on {source}"


@flow(
    name="replay",
    flow_run_name=run_name,
    description="Replays recorded traffic against a simulated fleet, several policies side by side.",
    persist_result=False,
    retries=0,
)
@flat(ReplayParameters)
async def replay(parameters: ReplayParameters) -> State[Any]:
    """Replay every policy at every rate, some at a time, and compare them in a table.

    *Failed* when one of them could not be replayed; the table then has the others. *Failed* too when one is not as
    ``require`` and ``max_cost`` have it.
    """
    log = get_run_logger()
    places = parameters.places()
    inputs = [("manifests", path) for path in parameters.manifests]
    inputs += [("trace", parameters.trace)] if parameters.trace is not None else []
    check_run_files(inputs, [("out", out) for out in places.values()])
    for out in places.values():
        await asyncio.to_thread(check, out, REPORT)
    scenario, source, warnings = await read_scenario(parameters)
    for warning in warnings:
        log.warning("%s", warning)
    work = {batch.name: batch for batch in batches(scenario, parameters.chosen, parameters.rates)}
    progress = ProgressBar(f"{parameters.artifact_key}-progress", f"{len(work)} replays")
    for name in work:
        progress.tell(name, 0.0)
    comparison = Comparison(scenario, source, work, progress)
    places_free = asyncio.Semaphore(parameters.parallel)
    limited = replay_batch.with_options(timeout_seconds=parameters.timeout_seconds)

    async def replayed(name: str) -> str:
        """Return why the batch could not be replayed; empty where it was."""
        async with places_free:
            try:
                await limited(name)
            except Exception as error:
                return f"{name}: {error}"
        return ""

    with share(comparison):
        async with progress:
            running = [asyncio.create_task(replayed(name)) for name in work]
            try:
                failed = list(filter(None, await asyncio.gather(*running)))
            finally:
                # A signal ends one of them; the others must not go on.
                for task in running:
                    task.cancel()
        done = [comparison.results[name] for name in work if name in comparison.results]
        unmet = [f"not as required: {problem}" for problem in parameters.unmet(result.summary for result in done)]
        if done:
            await _table(parameters, done, source, [*warnings, *failed, *unmet])
        for rate, out in places.items():
            await write_reports(out, rate)
    if done and parameters.out is not None:
        await _link(parameters)
    if failed or unmet:
        return Failed(message="; ".join([*failed, *unmet]))
    return Completed(message=_in_short(parameters, done))


def row(s: Summary, attainment: float) -> dict[str, Any]:
    """A row of the table artifact: which policy, what it cost, whether it held the targets and why not."""
    return {
        "policy": s.policy,
        "rate": s.rate,
        "cost": round(s.cost, 2),
        "within SLO %": round(100 * s.attainment, 2),
        "why": _verdict(s, attainment),
        "× bound": _ratio(s),
        "replica-hours": round(s.replica_hours, 2),
        "TTFT p95 ms": _milliseconds(s.ttft.p95),
        "ITL p95 ms": _milliseconds(s.itl.p95),
        "up": s.scale_ups,
        "down": s.scale_downs,
        "peak": s.peak_replicas,
    }


def _verdict(s: Summary, attainment: float) -> str:
    held = s.attainment >= attainment
    late = {"TTFT": s.ttft_attainment, "ITL": s.itl_attainment}
    counted = {f"of {s.minutes} minutes below": s.minutes_below, "rejected": s.rejected, "killed": s.killed}
    told = [f"{count} {what}" for what, count in counted.items() if count]
    missed = [f"{name} in time for {100 * share:.4g} %" for name, share in late.items() if share < attainment]
    return ", ".join([f"{'holds' if held else 'misses'} {100 * attainment:.4g} %", *missed, *told])


def _ratio(summary: Summary) -> float | None:
    bound = summary.bound
    return round(summary.cost / bound, 2) if bound is not None and 0 < bound < math.inf else None


def _milliseconds(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(1000 * seconds, 1)


async def _table(
    parameters: ReplayParameters, done: Sequence[BatchResult], source: str, remarks: Sequence[str]
) -> None:
    text = (
        f"{source}: TTFT {parameters.slo_ttft:g} s and ITL {parameters.slo_itl:g} s for "
        f"{parameters.attainment:.4g} of the requests"
    )
    artifact = TableArtifact(
        key=parameters.artifact_key,
        description=unformatted("; ".join([text, *remarks])),
        table=[cells(row(one.summary, parameters.attainment)) for one in done],
    )
    async with asyncio.timeout(CALL_TIMEOUT):
        await artifact.acreate()


async def _link(parameters: ReplayParameters) -> None:
    """Where the reports are; a folder is one of the worker's machine."""
    assert parameters.out is not None
    where = link(parameters.out)
    about = "\n".join(f"- rate × {rate:g}: {unformatted(link(out))}" for rate, out in parameters.places().items())
    artifact = LinkArtifact(
        key=f"{parameters.artifact_key}-report", link=where, link_text=unformatted(where), description=about
    )
    async with asyncio.timeout(CALL_TIMEOUT):
        await artifact.acreate()


def _in_short(parameters: ReplayParameters, done: Sequence[BatchResult]) -> str:
    enough = [one for one in done if one.summary.attainment >= parameters.attainment]
    if not enough:
        return f"{len(done)} replays; none has {parameters.attainment:.4g} of the requests within the targets"
    best = min(enough, key=lambda one: one.summary.cost / one.summary.rate)
    return (
        f"{len(done)} replays, {len(enough)} within the targets; the cheapest of these: {best.summary.policy} at rate "
        f"{best.summary.rate:g} for {best.summary.cost:.2f}"
    )
