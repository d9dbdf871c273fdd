"""The flow ``onboard``: a model's URI and a target become a service of the right size.

Deliver → select → of each candidate roll out, measure, remove → compare → serve → verify → report. What it makes are
objects that ``reconcile`` and its runs carry out; it may die at any line, and the next run of it goes on from them.
Deployed by ``prefect.yaml``; from the terminal it is ``modelyard onboard``.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import OnboardParameters
from flows.run_files import check_run_files
from modelyard.onboarding.lifecycle import Onboarding
from modelyard.onboarding.progress import OnboardStanding
from modelyard.onboarding.start import OnboardRefused
from modelyard.reconcile.run_view import Superseded
from tasks.onboard import report, resolve_load, simulate, start, verify
from tasks.reconcile import BY_ID
from tasks.steps import RunRef, cut_short, open_run, run_lifecycle


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
    ref = RunRef(Onboarding.name, parameters.controller_namespace, f"{BY_ID}{flow_run.id}")
    async with open_run(ref, f"Onboarding of {parameters.name}") as run:
        try:
            check_run_files([("trace", parameters.trace)] if parameters.trace is not None else [])
            values = await resolve_load(
                ref, parameters.trace, parameters.service_class, parameters.namespace, parameters.name
            )
            key = await start(ref, parameters.asked(values), flow_run.run_count or 1)
        except (OnboardRefused, ValueError) as refused:
            return Failed(message=str(refused))
        except Superseded as superseded:
            return Completed(name="Superseded", message=str(superseded))
        acted = await run_lifecycle(ref, [key], parameters.timeout_seconds if parameters.wait else 0.0, False)
        here: OnboardStanding | None = run.view.details(key)
        checks = []
        served = here is not None and here.steps.done and not here.steps.problem
        if served:
            checks = [await simulate(ref, key, parameters.trace)]
            checks += [await verify(ref, key, parameters.check_seconds)] if parameters.check_seconds else []
        conclusion = await report(ref, key, checks)
    if (short := cut_short(acted)) is not None:
        return short
    under_way = here is not None and not here.steps.done and not parameters.wait
    holds = served and not any(check.problem for check in checks)
    return Completed(message=conclusion) if holds or under_way else Failed(message=conclusion)
