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
from flows.run_order import RunOrder
from modelyard.objects.documents import few
from modelyard.routing.rolling import ROLLED_OUT
from modelyard.routing.route_roll_out import RouteRollOuts
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.lifecycle import ServiceRollOut
from tasks.claims import claim
from tasks.roll_out import (
    ANSWER_ATTEMPTS,
    EngineAnswer,
    ServiceEnd,
    report,
    request_models,
    show_changes,
)
from tasks.roll_out_route import check_roll_out, report_routes, route_marks
from tasks.steps import cut_short, open_run, run_lifecycle

ROLL_OUTS = {lifecycle.about.kind: lifecycle.name for lifecycle in (ServiceRollOut, ModelRollOut)}
"""Names of the lifecycles, by kind."""


def run_name() -> str:
    """Return the kind and name of the service."""
    given = run_parameters(RollOutParameters)
    return f"roll out {given.kind} {given.named}"


@flow(
    name="roll-out",
    flow_run_name=run_name,
    description="Deploys an InferenceService or a Model and waits until it is ready; shifts a ModelRoute's requests to"
    " another ModelServer step by step, and back where that serves worse.",
    persist_result=False,
    retries=0,
)
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
        ends = await report(ref, keys, answers)
    return cut_short(acted) or _final(ends, order.stays)


async def _roll_out_routes(parameters: RollOutParameters) -> State[Any]:
    order = RunOrder.of(parameters, RouteRollOuts.name)
    ref, keys = order.ref, order.keys
    async with open_run(ref, f"Roll-out of {keys[0]}"):
        if order.by_hand:
            standing = await check_roll_out(ref, keys[0], parameters.traffic)
            if standing is None or standing.problem:
                missing = "no roll-out is requested: give traffic the ModelServer and its steps"
                return Failed(message=f"ModelRoute {keys[0]}: {standing.problem if standing is not None else missing}")
            if parameters.dry_run:
                return Completed(message="; ".join(standing.ladder) or standing.says)
            await claim(ref, keys[0], order.attempt, route_marks(standing, parameters.traffic))
        acted = await run_lifecycle(ref, keys, order.seconds if parameters.wait else 0.0, order.stays)
        ends = await report_routes(ref, keys)
    if (cut := cut_short(acted)) is not None:
        return cut
    said = [f"ModelRoute {one.key}: {one.message}" for one in ends]
    bad = [text for one, text in zip(ends, said, strict=True) if one.reason not in ("", ROLLED_OUT)]
    late = [text for one, text in zip(ends, said, strict=True) if not one.reason]
    if bad or (order.stays and late):
        return Failed(message="; ".join(few(bad or [f"not at its end in time; {one}" for one in late], 5)))
    return Completed(message="; ".join(few(said, 5)))


def _final(ends: list[ServiceEnd], waits: bool) -> State[Any]:
    """*Failed* with the reason of the first service that cannot become ready; one that is gone needs nothing."""
    for one in ends:
        if waits and one.state == "Gone":
            return Failed(message=f"{one.key} is not ready: there is no such service")
        if one.final or (waits and not one.ready):
            return Failed(message=f"{one.key} is not ready: {one.reason}: {one.message}")
        if waits and one.answer.wrong:
            return Failed(message=f"{one.key}: its pods are ready, but {one.answer.address} says {one.answer.words}")
    said = [f"{one.key}{_answered(one.answer)}" for one in ends if one.ready]
    under_way = [one for one in ends if not one.ready and one.state != "Gone"]
    said += [": ".join(filter(None, (f"{one.key} is under way", one.reason, one.message))) for one in under_way]
    return Completed(message="; ".join(few(said, 5)) or "nothing is left to do")


def _answered(answer: EngineAnswer) -> str:
    if answer.well:
        return f" answers at {answer.address}"
    return f": its pods are ready; {answer.address} says {answer.words}" if answer.status else f": {answer.words}"
