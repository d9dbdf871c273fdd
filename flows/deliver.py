"""The flow ``deliver``: a model's files onto its nodes. ``verify_models``: a check of the files that were delivered.

Runs of ``deliver`` are started by ``reconcile`` for pending work, by hand, and by a pipeline that brings a new model.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import DeliverParameters, VerifyParameters
from flows.run_order import RunOrder, carry_out
from modelyard.models.delivery import KINDS
from modelyard.objects import counted, few
from modelyard.reconcile.plans import ObjectResult, ResultState
from tasks.deliver import report, request, request_verification
from tasks.steps import conclude, open_run, run_lifecycle

LIFECYCLES = {kind.kind: f"deliver-{kind.plural}" for kind in KINDS}


def run_name() -> str:
    """Return the kind and name of the model."""
    given = run_parameters(DeliverParameters)
    return f"deliver {given.kind} {given.named}"


@flow(name="deliver", flow_run_name=run_name, persist_result=False, retries=0)
@flat(DeliverParameters)
async def deliver(parameters: DeliverParameters) -> State[Any]:
    """Claim the model, fetch its files to each selected node, verify them, and report.

    *Completed* when every model is ready; with ``wait`` only then. *Failed* with the reason of a model that is not.
    """
    order = RunOrder.of(parameters, LIFECYCLES["BaseModel" if parameters.namespace else parameters.kind])
    ref, keys = order.ref, order.keys
    async with open_run(ref, f"Delivery of {keys[0].name}"):
        if order.by_hand and parameters.uri is not None:
            await request(ref, keys[0], parameters.uri, parameters.node_selector, parameters.key)
        acted = await carry_out(order)
        results = await report(ref, keys, acted.steps)
    return conclude(acted, keys, results, order.stays)


@flow(name="verify-models", flow_run_name="verify models", persist_result=False, retries=0)
@flat(VerifyParameters)
async def verify_models(parameters: VerifyParameters) -> State[Any]:
    """Check the files of every delivered model on each of its nodes, a few nodes at a time per source.

    Damaged and missing files are fetched again. *Failed* names models that are not ready afterwards. A model that
    another run works on is left to that run.
    """
    kinds = [kind for kind in KINDS if kind.namespaced or not parameters.namespaces]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(_verify(kind.kind, parameters)) for kind in kinds]
    verified = [task.result() for task in running]
    elsewhere = sum(count for _, _, count in verified)
    text = f"{counted(sum(count for _, count, _ in verified), 'model')} checked"
    text += f", {elsewhere} left to other runs" if elsewhere else ""
    bad = [
        result.text
        for results, _, _ in verified
        for result in results
        if result.state in (ResultState.PENDING, ResultState.FAILED)
    ]
    return Failed(message="; ".join(few([*bad, text], 5))) if bad else Completed(message=text)


async def _verify(kind: str, parameters: VerifyParameters) -> tuple[list[ObjectResult], int, int]:
    """Return the results of a kind's models, the number of them, and that of models left to other runs."""
    order = RunOrder.scheduled(LIFECYCLES[kind], parameters)
    async with open_run(order.ref, f"Verification of {kind}s"):
        keys, elsewhere = await request_verification(order.ref, kind, parameters.namespaces, parameters.names)
        if not keys:
            return [], 0, elsewhere
        acted = await run_lifecycle(order.ref, keys, order.seconds, False)
        return await report(order.ref, keys, acted.steps), len(keys), elsewhere
