"""The flow ``deliver``: a model's files onto the nodes that are to have them. And ``verify_models``: are they whole?

Runs of ``deliver`` are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that brings a
new model. Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.forms import flat, run_parameters
from flows.parameters import DeliverParameters, VerifyParameters
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.models.following import Ended, Following, NodeFailed, NodeOutcome, kind_named
from modelyard.models.names import KINDS
from modelyard.objects import Key
from modelyard.objects.documents import amount, counted
from tasks.acting import cut_short
from tasks.deliver import fetch, place, publish, resolve
from tasks.journal import ProgressBar
from tasks.reconcile import BY_ID


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
    """Resolve, place, fetch on each node, publish.

    *Completed* when every model is ready; with ``wait`` only then. *Failed* with the reason of a model that is not.
    """
    run = parameters.run or f"{BY_ID}{flow_run.id}"
    until = time.monotonic() + parameters.timeout_seconds if parameters.wait and not parameters.run else None
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        kind = kind_named("BaseModel" if parameters.namespace else parameters.kind)
        following = Following(cluster, kind, parameters.controller_namespace)
        keys = await resolve(following, _asked(parameters, run))
        bar = await stack.enter_async_context(ProgressBar("deliver-progress", f"Delivery of {keys[0].name}", every=5.0))
        nodes, acted = await _carry(following, keys, run, until, bar)
        ended = await publish(following, keys, nodes)
    return cut_short(acted) or _final(parameters, dict(zip(keys, ended, strict=True)), nodes)


def _asked(parameters: DeliverParameters, run: str) -> Any:
    """What the parameters name, as keys; by hand the run takes the model over first."""

    async def asked(following: Following) -> list[Key]:
        if parameters.run:
            return [Key(*text.split("/", 1)) for text in parameters.objects]
        key = Key(parameters.namespace, parameters.name)
        if parameters.uri is not None:
            await following.order(key, parameters.uri, parameters.node_selector, secret=parameters.key)
        await following.take(key, run)
        return [key]

    return asked


async def _carry(
    following: Following, keys: list[Key], run: str, until: float | None, bar: ProgressBar
) -> tuple[list[NodeOutcome], Any]:
    """Have the models placed, and follow every node from when its Job begins."""
    log = get_run_logger()
    placing = asyncio.ensure_future(place(following, keys, run, until))
    followed: dict[tuple[Key, str], asyncio.Task[NodeOutcome]] = {}
    try:
        while not placing.done():
            for key, leg in following.parts():
                if leg.job is not None and leg.job.task.purpose == "fetch" and (key, leg.node) not in followed:
                    followed[key, leg.node] = asyncio.create_task(fetch(following, key, leg.node, bar, placing))
            await following.moved(1.0, placing)
        acted = await placing
        done = await asyncio.gather(*followed.values(), return_exceptions=True)
    finally:
        for task in (placing, *followed.values()):
            task.cancel()
    for one in done:
        if isinstance(one, Exception) and not isinstance(one, NodeFailed):
            log.warning("A node could not be followed: %s", one)
    return [one for one in done if isinstance(one, NodeOutcome)], acted


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
                asked += await Following(cluster, kind, "").verify(parameters.namespaces, parameters.names)
    return Completed(message=f"{counted(len(asked), 'model is', 'models are')} checked")
