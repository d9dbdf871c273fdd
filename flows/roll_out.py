"""The flow ``roll_out``: deploys a service and waits until it answers, a step for each component.
Of a ModelRoute it shifts the requests to another server, in steps that are measured.

Runs are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that waits for a service.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import RollOutParameters
from flows.run_order import RunOrder, carry_out
from modelyard.routing import RouteRollOuts
from modelyard.workloads.kthena import ModelRollOut
from modelyard.workloads.roll_out import ServiceRollOut
from tasks.claims import claim
from tasks.roll_out import ANSWER_ATTEMPTS, report, request_models, show_changes
from tasks.roll_out_route import check_roll_out, report_routes, route_marks
from tasks.steps import conclude, open_run, run_lifecycle

ROLL_OUTS = {lifecycle.about.kind: lifecycle.name for lifecycle in (ServiceRollOut, ModelRollOut)}


def run_name() -> str:
    """Return the kind and name of the service."""
    given = run_parameters(RollOutParameters)
    return f"roll out {given.kind} {given.named}"


@flow(name="roll-out", flow_run_name=run_name, persist_result=False, retries=0)
@flat(RollOutParameters)
async def roll_out(parameters: RollOutParameters) -> State[Any]:
    """Claim the service, show what changes, roll out each component, request its models, report.

    *Completed* when every service is ready; with ``wait`` only then, and not where what answers serves no models.
    *Failed* with the reason of one that cannot be, and of a route whose requests went back.
    """
    if parameters.kind == "ModelRoute":
        return await _roll_out_routes(parameters)
    order = RunOrder.of(parameters, ROLL_OUTS[parameters.kind])
    ref, keys = order.ref, order.keys
    async with open_run(ref, f"Roll-out of {keys[0]}"):
        for key in keys if order.claims else ():
            await claim(ref, key, order.attempt)
        await show_changes(ref, keys)
        acted = await run_lifecycle(ref, keys, order.seconds, order.stays)
        answers = await request_models(ref, keys, ANSWER_ATTEMPTS if order.stays else 1)
        results = await report(ref, keys, answers)
    return conclude(acted, keys, results, order.stays)


async def _roll_out_routes(parameters: RollOutParameters) -> State[Any]:
    order = RunOrder.of(parameters, RouteRollOuts.name)
    ref, keys = order.ref, order.keys
    marks: dict[str, str | None] = {}
    async with open_run(ref, f"Roll-out of {keys[0]}"):
        if order.by_hand:
            standing = await check_roll_out(ref, keys[0], parameters.traffic)
            if standing is None or standing.problem:
                missing = "no roll-out is requested: give traffic the ModelServer and its steps"
                return Failed(message=f"ModelRoute {keys[0]}: {standing.problem if standing is not None else missing}")
            if parameters.dry_run:
                return Completed(message="; ".join(standing.ladder) or standing.says)
            marks = route_marks(standing, parameters.traffic)
        acted = await carry_out(order if parameters.wait else order._replace(seconds=0.0), marks)
        results = await report_routes(ref, keys)
    return conclude(acted, keys, results, order.stays)
