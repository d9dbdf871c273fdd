"""The flow ``deliver``: a model's files onto its nodes. ``verify_models``: a check of the files that were delivered.

Runs of ``deliver`` are started by ``reconcile`` for pending work, by hand, and by a pipeline that brings a new model.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import DeliverParameters, VerifyParameters
from flows.run_order import RunOrder, carry_out
from modelyard.models.names import KINDS
from modelyard.models.requests import ModelState
from modelyard.objects import Key
from modelyard.objects.documents import amount, counted, few
from tasks.deliver import DeliveryReport, report, request, request_verification
from tasks.steps import cut_short, open_run, run_lifecycle

LIFECYCLES = {kind.kind: f"deliver-{kind.plural}" for kind in KINDS}
"""Names of the lifecycles, by kind."""


def run_name() -> str:
    """Return the kind and name of the model."""
    given = run_parameters(DeliverParameters)
    return f"deliver {given.kind} {given.named}"


@flow(
    name="deliver",
    flow_run_name=run_name,
    description="Fetches a model's files to the selected nodes, verifies them, and reports the model's state.",
    persist_result=False,
    retries=0,
)
@flat(DeliverParameters)
async def deliver(parameters: DeliverParameters) -> State[Any]:
    """Claim the model, fetch its files to each node, report.

    *Completed* when every model is ready; with ``wait`` only then. *Failed* with the reason of a model that is not.
    """
    order = RunOrder.of(parameters, LIFECYCLES["BaseModel" if parameters.namespace else parameters.kind])
    ref, keys = order.ref, order.keys
    async with open_run(ref, f"Delivery of {keys[0].name}"):
        if order.by_hand and parameters.uri is not None:
            await request(ref, keys[0], parameters.uri, parameters.node_selector, parameters.key)
        acted = await carry_out(order)
        delivered = await report(ref, keys, acted.steps)
    return cut_short(acted) or _final(keys, delivered, order.stays)


def _final(keys: Iterable[Key], delivered: DeliveryReport, waits: bool) -> State[Any]:
    """*Failed* with the reason of the first model that is not ready; a model that is gone needs nothing."""
    states = dict(zip(keys, delivered.models, strict=True))
    for key, state in states.items():
        if state.state == "Failed" or (waits and state.state != "Ready"):
            return Failed(message=f"{key.name} is not ready: {_reason(state)}")
    results = [f"{key.name}: {state.message}" for key, state in states.items() if state.state != "Gone"]
    if delivered.nodes:
        size = amount(sum(node.bytes for node in delivered.nodes))
        results.append(f"{size} onto {counted(len({node.node for node in delivered.nodes}), 'node')}")
    return Completed(message="; ".join(results) or "nothing is left to do")


def _reason(state: ModelState) -> str:
    return "there is no such model any more" if state.state == "Gone" else f"{state.reason}: {state.message}"


@flow(
    name="verify-models",
    flow_run_name="verify models",
    description="Checks models' files on every node, and fetches damaged or missing ones again.",
    persist_result=False,
    retries=0,
)
@flat(VerifyParameters)
async def verify_models(parameters: VerifyParameters) -> State[Any]:
    """Check the files of every delivered model on each of its nodes, a few nodes at a time per source.

    *Failed* names models that are not ready afterwards. A model that another run works on is left to that run.
    """
    kinds = [kind for kind in KINDS if kind.namespaced or not parameters.namespaces]
    reports = await asyncio.gather(*(_verify(kind.kind, parameters) for kind in kinds))
    states = {key: state for models, _ in reports for key, state in models.items()}
    elsewhere = sum(count for _, count in reports)
    bad = [f"{key}: {_reason(state)}" for key, state in states.items() if state.state not in ("Ready", "Gone")]
    text = f"{counted(len(states), 'model')} checked" + (f", {elsewhere} left to other runs" if elsewhere else "")
    return Failed(message="; ".join(few([*bad, text], 5))) if bad else Completed(message=text)


async def _verify(kind: str, parameters: VerifyParameters) -> tuple[dict[Key, ModelState], int]:
    """Return how the models of a kind stand after the check, and the number of those left to other runs."""
    order = RunOrder.scheduled(LIFECYCLES[kind], parameters)
    async with open_run(order.ref, f"Verification of {kind}s"):
        keys, elsewhere = await request_verification(order.ref, kind, parameters.namespaces, parameters.names)
        if not keys:
            return {}, elsewhere
        acted = await run_lifecycle(order.ref, keys, order.seconds, False)
        delivered = await report(order.ref, keys, acted.steps)
    return dict(zip(keys, delivered.models, strict=True)), elsewhere
