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
from modelyard.onboarding.execution import OnboardRefused
from modelyard.onboarding.planning import Onboarding
from modelyard.reconcile.kernel import Superseded
from tasks.onboard import report, resolve_load, simulate, start, verify
from tasks.reconcile import BY_ID
from tasks.steps import RunRef, conclude, open_run, run_lifecycle


def run_name() -> str:
    """Return the namespace and name of the model."""
    given = run_parameters(OnboardParameters)
    return f"onboard {given.namespace}/{given.name}"


@flow(name="onboard", flow_run_name=run_name, persist_result=False, retries=0)
@flat(OnboardParameters)
async def onboard(parameters: OnboardParameters) -> State[Any]:
    """Deliver, select, roll out and measure each candidate, compare, serve, verify, report.

    *Completed* when the service is there and held the expected load within the target; *Failed* with the reason, and
    the nearest target that can be reached. Started again with the same parameters it goes on where it was.
    """
    given, wait = parameters, parameters.wait
    ref = RunRef(Onboarding.name, given.controller_namespace, f"{BY_ID}{flow_run.id}")
    async with open_run(ref, f"Onboarding of {given.name}") as run:
        try:
            check_run_files([("trace", given.trace)] if given.trace is not None else [])
            values = await resolve_load(ref, given.trace, given.service_class, given.namespace, given.name)
            key = await start(ref, given.asked(values), flow_run.run_count or 1)
        except (OnboardRefused, ValueError) as refused:
            return Failed(message=str(refused))
        except Superseded as superseded:
            return Completed(name="Superseded", message=str(superseded))
        acted = await run_lifecycle(ref, [key], given.timeout_seconds if wait else 0.0, False)
        standing, checks = run.view.details(key), []
        if standing is not None and standing.is_served:
            checks = [await simulate(ref, key, given.trace)]
            checks += [await verify(ref, key, given.check_seconds)] if given.check_seconds else []
        result = await report(ref, key, checks)
    return conclude(acted, [key], [result], wait)
