"""The flow ``onboard``: a model's URI and a target become a service of the right size.

Deliver → select → of each candidate roll out, measure, remove → compare → serve → verify → report. What it makes are
objects that ``reconcile`` and its runs carry out; it may die at any line, and the next run of it goes on from them.
Deployed by ``prefect.yaml``; from the terminal it is ``modelyard onboard``.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import OnboardParameters
from flows.run_files import check_run_files
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.onboarding.following import OnboardRefused, OnboardRun
from modelyard.onboarding.report import COMPARE, DELIVER, SELECT, SERVE, of_candidate
from modelyard.onboarding.request import ServingCandidate
from modelyard.reconcile.acting import Acted
from tasks.acting import cut_short
from tasks.journal import ProgressBar
from tasks.onboard import StepFailed, begin, carry_out, check, expect, foresee, publish, step
from tasks.reconcile import BY_ID


def run_name() -> str:
    """Which model."""
    given = run_parameters(OnboardParameters)
    return f"onboard {given.namespace}/{given.name}"


@flow(
    name="onboard",
    flow_run_name=run_name,
    description="From a model's URI and a target to a service that is delivered, measured, priced and autoscaled.",
    persist_result=False,
    retries=0,
)
@flat(OnboardParameters)
async def onboard(parameters: OnboardParameters) -> State[Any]:
    """Deliver, select, roll out and measure each candidate, compare, serve, verify, report.

    *Completed* when the service is there and held the expected load within the target; *Failed* with the reason, and
    the nearest target that can be reached. Started again with the same parameters it goes on where it was.
    """
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        run, name = f"{BY_ID}{flow_run.id}", parameters.name
        try:
            check_run_files([("trace", parameters.trace)] if parameters.trace is not None else [])
            found, trace = await expect(
                cluster, parameters.trace, parameters.service_class, parameters.namespace, parameters.name,
                parameters.controller_namespace,
            )  # fmt: skip
            on = OnboardRun(cluster, parameters.asked(found))
            await begin(on, run)
        except (OnboardRefused, ValueError) as refused:
            return Failed(message=str(refused))
        bar = await stack.enter_async_context(ProgressBar("onboard-progress", f"Onboarding of {name}", every=5.0))
        running = asyncio.ensure_future(carry_out(on, run, parameters.timeout_seconds if parameters.wait else 0.0))
        try:
            await _follow(on, bar, running)
            acted = await running
        finally:
            running.cancel()
        here, checks = on.here, []
        served = here is not None and here.steps.done and not here.steps.problem
        if served:
            checks = [await foresee(on, trace)]
            checks += [await check(on, parameters.check_seconds)] if parameters.check_seconds else []
        said = await publish(on, checks)
    if (short := cut_short(acted)) is not None:
        return short
    under_way = here is not None and not here.steps.done and not parameters.wait
    well = served and not any(one.problem for one in checks)
    return Completed(message=said) if well or under_way else Failed(message=said)


async def _follow(on: OnboardRun, bar: ProgressBar, running: asyncio.Future[Acted]) -> None:
    """Every step in its turn, those of the candidates side by side, until one ends it all."""
    try:
        await step(on, DELIVER, bar, running)
        await step(on, SELECT, bar, running)
        here = on.here
        assert here is not None
        tries = (_try(on, one, bar, running) for one in here.asked.candidates)
        await asyncio.gather(*tries)
        await step(on, COMPARE, bar, running)
        await step(on, SERVE, bar, running)
    except StepFailed:
        pass  # the task run says so, and the report


async def _try(on: OnboardRun, one: ServingCandidate, bar: ProgressBar, running: asyncio.Future[Acted]) -> None:
    """A candidate from its probe to its figures; what fails of it is a matter of this candidate alone."""
    rolled_out, measured, removed = of_candidate(one)
    try:
        await step(on, rolled_out, bar, running)
        await step(on, measured, bar, running)
    except StepFailed:
        return
    await step(on, removed, bar, running)
