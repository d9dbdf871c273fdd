"""The flow ``deliver``: a model's files onto the nodes that are to have them. And ``verify_models``: are they whole?

Runs of ``deliver`` are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that brings a
new model. Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import DeliverParameters, VerifyParameters
from flows.run_order import RunOrder
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.models.following import Ended, Following, NodeOutcome, kind_named
from modelyard.models.names import KINDS
from modelyard.objects import Key
from modelyard.objects.documents import amount, counted
from tasks.deliver import claim_model, report
from tasks.steps import cut_short, open_run, run_lifecycle


def run_name() -> str:
    """Which model."""
    given = run_parameters(DeliverParameters)
    first, *others = given.objects or [f"{given.namespace}/{given.name}"]
    return f"deliver {given.kind} {first.strip('/')}" + (f" and {len(others)} more" if others else "")


@flow(
    name="deliver",
    flow_run_name=run_name,
    description="Brings a model's files onto the nodes that are to have them, verified, and tells what the model is.",
    persist_result=False,
    retries=0,
)
@flat(DeliverParameters)
async def deliver(parameters: DeliverParameters) -> State[Any]:
    """Claim the model, fetch its files to each node, report.

    *Completed* when every model is ready; with ``wait`` only then. *Failed* with the reason of a model that is not.
    """
    kind = kind_named("BaseModel" if parameters.namespace else parameters.kind)
    order = RunOrder.of(parameters, f"deliver-{kind.plural}")
    ref, keys = order.ref, order.keys
    async with open_run(ref, f"Delivery of {keys[0].name}"):
        for key in keys if order.claims else ():
            uri = parameters.uri if order.by_hand else None
            await claim_model(ref, key, uri, parameters.node_selector, parameters.key, order.attempt)
        acted = await run_lifecycle(ref, keys, order.seconds, order.stays)
        ended, nodes = await report(ref, keys, acted.steps)
    return cut_short(acted) or _final(parameters, dict(zip(keys, ended, strict=True)), nodes)


def _final(parameters: DeliverParameters, ended: dict[Key, Ended], nodes: list[NodeOutcome]) -> State[Any]:
    """*Failed* with the reason of the first model that is not ready; a model that is gone needs nothing."""
    for key, one in ended.items():
        if one.state == "Failed" or (parameters.wait and not parameters.run and one.state != "Ready"):
            gone = "there is no such model any more" if one.state == "Gone" else f"{one.reason}: {one.message}"
            return Failed(message=f"{key.name} is not ready: {gone}")
    said = [f"{key.name}: {one.message}" for key, one in ended.items() if one.state != "Gone"]
    if nodes:
        size = amount(sum(one.bytes for one in nodes))
        said.append(f"{size} onto {counted(len({one.node for one in nodes}), 'node')}")
    return Completed(message="; ".join(said) or "nothing is left to do")


@flow(
    name="verify-models",
    description="Has models' files checked against their manifests on every node; what is damaged is delivered anew.",
    persist_result=False,
    retries=0,
)
@flat(VerifyParameters)
async def verify_models(parameters: VerifyParameters) -> State[Any]:
    """Ask for a check of every model; ``reconcile`` starts what follows, a few nodes at a time per source."""
    asked = []
    async with Cluster.connect(ClusterSettings()) as cluster:
        for kind in KINDS:
            if kind.namespaced or not parameters.namespaces:
                asked += await Following(cluster, kind).verify(parameters.namespaces, parameters.names)
    return Completed(message=f"{counted(len(asked), 'model is', 'models are')} checked")
