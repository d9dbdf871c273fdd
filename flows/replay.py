"""The flow ``replay``: several policies side by side on recorded traffic, as one table.

Deployed by ``prefect.yaml`` without a schedule, for a button or a pipeline; in the foreground by
``python -m flows.foreground replay --parameters @FILE``. ``modelyard replay`` does the same without Prefect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import TableArtifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.parameters import ReplayParameters, flat, run_parameters
from modelyard.replay.compare import Batch, BatchResult, batches
from modelyard.replay.output import check_folder
from modelyard.replay.report import Summary
from modelyard.replay.scenario import read_scenario
from tasks.journal import cells, unformatted
from tasks.replay import Hearing, replay_batch, write_reports

CALL_TIMEOUT = 10.0
"""Seconds that one call about progress may take."""


def run_name() -> str:
    """Which policies, and on whose traffic."""
    given = run_parameters()
    source = given["trace"].name if given["trace"] else f"{given['namespace']}/{given['model']}"
    return f"replay {', '.join(given['policies'])} on {source}"


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

    *Failed* when one of them could not be replayed; the table then has the others.
    """
    log = get_run_logger()
    folders = parameters.folders()
    for folder in folders.values():
        check_folder(folder)
    scenario, source, warnings = await read_scenario(parameters)
    for warning in warnings:
        log.warning("%s", warning)
    work = batches(scenario, parameters.chosen, parameters.rates)
    progress = _Progress([batch.name for batch in work], f"{parameters.artifact_key}-progress")
    gate = asyncio.Semaphore(parameters.parallel)
    limited = replay_batch.with_options(timeout_seconds=parameters.timeout_seconds)

    async def one(batch: Batch) -> BatchResult | Exception:
        async with gate:
            try:
                return await limited(batch, Hearing(progress.tell))
            except Exception as error:
                return error

    async with progress:
        running = [asyncio.create_task(one(batch)) for batch in work]
        try:
            found = await asyncio.gather(*running)
        finally:
            # A signal ends one of them; the others must not go on.
            for task in running:
                task.cancel()
    done = [result for result in found if isinstance(result, BatchResult)]
    failed = [f"{b.name}: {e}" for b, e in zip(work, found, strict=True) if isinstance(e, Exception)]
    if done:
        await _table(parameters, done, source, [*warnings, *failed])
    for rate, folder in folders.items():
        results = [result for result in done if result.summary.rate == rate]
        if results:
            context = scenario.context(source, scenario.at_rate(rate))
            await write_reports(folder, results, scenario.slo, context)
    if failed:
        return Failed(message="; ".join(failed))
    return Completed(message=_in_short(parameters, done))


class _Progress:
    """One progress artifact over all batches. Best effort: a server that does not answer holds up nothing."""

    def __init__(self, names: Sequence[str], key: str) -> None:
        self._shares = dict.fromkeys(names, 0.0)
        self._key = key
        self._artifact: UUID | None = None
        self._writer: asyncio.Task[None] | None = None
        self._log = get_run_logger()

    def tell(self, name: str, share: float) -> None:
        """Take note of how far a batch is (0 to 1)."""
        self._shares[name] = share

    async def __aenter__(self) -> _Progress:
        self._writer = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        self._writer.cancel()
        await asyncio.wait([self._writer])
        await self._write()

    async def _follow(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(1)

    async def _write(self) -> None:
        percent = 100 * sum(self._shares.values()) / max(1, len(self._shares))
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                if self._artifact is None:
                    self._artifact = await acreate_progress_artifact(
                        progress=percent, key=self._key, description=f"{len(self._shares)} replays"
                    )
                else:
                    await aupdate_progress_artifact(self._artifact, progress=percent)
        except Exception as error:
            self._log.debug("progress could not be written: %s", error)


def row(s: Summary) -> dict[str, Any]:
    """A row of the table artifact."""
    return {
        "policy": s.policy,
        "rate": s.rate,
        "replica-hours": round(s.replica_hours, 2),
        "cost": round(s.cost, 2),
        "× bound": _ratio(s),
        "within SLO %": round(100 * s.attainment, 2),
        "TTFT p95 ms": _milliseconds(s.ttft.p95),
        "ITL p95 ms": _milliseconds(s.itl.p95),
        "up": s.scale_ups,
        "down": s.scale_downs,
        "peak": s.peak_replicas,
        "minutes below": s.minutes_below,
        "rejected": s.rejected,
        "killed": s.killed,
    }


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
        table=[cells(row(one.summary)) for one in done],
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
