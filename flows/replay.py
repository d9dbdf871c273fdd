"""The flow ``replay``: several policies side by side on recorded traffic, as one table.

Deployed by ``prefect.yaml`` without a schedule, for a button or a pipeline; in the foreground by
``modelyard run replay --parameters @FILE``. ``modelyard replay`` does the same without Prefect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import LinkArtifact, TableArtifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import ReplayParameters
from flows.run_files import check_run_files
from modelyard.objects import cells, unformatted
from modelyard.replay.backtest import REPORT, Summary, batches, in_short, read_scenario, row, unmet_requirements
from modelyard.reports import check, link
from tasks.journal import ProgressBar, write
from tasks.replay import Comparison, replay_batch, write_reports
from tasks.stage import share


def run_name() -> str:
    """Return the policies and the traffic."""
    given = run_parameters(ReplayParameters)
    source = given.trace.name if given.trace else f"{given.namespace}/{given.model}"
    return f"replay {', '.join(given.policies)} on {source}"


@flow(name="replay", flow_run_name=run_name, persist_result=False, retries=0)
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
        done = [comparison.results[name].summary for name in work if name in comparison.results]
        unmet = [f"not as required: {problem}" for problem in unmet_requirements(parameters, done)]
        if done:
            await _show_table(parameters, done, [source, *warnings, *failed, *unmet])
        for rate, out in places.items():
            await write_reports(out, rate)
    if done and parameters.out is not None:
        await _show_link(parameters, parameters.out)
    if failed or unmet:
        return Failed(message="; ".join([*failed, *unmet]))
    return Completed(message=in_short(done, parameters.attainment))


async def _show_table(parameters: ReplayParameters, done: Sequence[Summary], about: Sequence[str]) -> None:
    p, table = parameters, [cells(row(summary, parameters.attainment)) for summary in done]
    target = f"TTFT {p.slo_ttft:g} s and ITL {p.slo_itl:g} s for {p.attainment:.4g} of the requests"
    description = unformatted(": ".join([about[0], "; ".join([target, *about[1:]])]))
    await write(TableArtifact(key=p.artifact_key, description=description, table=table))


async def _show_link(parameters: ReplayParameters, out: str) -> None:
    p, where = parameters, link(out)
    about = "\n".join(f"- rate × {rate:g}: {unformatted(link(place))}" for rate, place in p.places().items())
    await write(
        LinkArtifact(key=f"{p.artifact_key}-report", link=where, link_text=unformatted(where), description=about)
    )
