"""The flow ``roll_out``: a service becomes pods that answer. Resolve → compare → apply → answer → publish.

Runs are started by ``reconcile`` for what is due, by hand for a button, and by a pipeline that waits for a service.
Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.parameters import RollOutParameters, flat, run_parameters
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.objects import Key
from tasks.journal import ProgressBar
from tasks.reconcile import BY_ID
from tasks.roll_out import RollingOut, ServiceEnd, answer, apply, compare, publish, resolve


def run_name() -> str:
    """Which service."""
    given = run_parameters(RollOutParameters)
    if not (given.name or given.run):
        return "roll-out"
    first, *others = given.objects or [f"{given.namespace}/{given.name}"]
    return f"roll-out {first}" + (f" and {len(others)} more" if others else "")


@flow(
    name="roll-out",
    flow_run_name=run_name,
    description="Makes of an InferenceService what it takes, waits for its pods, and tells what is missing.",
    persist_result=False,
    retries=0,
)
@flat(RollOutParameters)
async def roll_out(parameters: RollOutParameters) -> State[Any]:
    """Resolve, compare, apply, answer, publish.

    *Completed* when every service is ready; with ``wait`` only then. *Failed* with the reason of one that cannot be.
    """
    if not parameters.name and not parameters.run:
        return Completed(message="No service is named, so there is nothing to do; reconcile rolls out what is due")
    run = parameters.run or f"{BY_ID}{flow_run.id}"
    until = time.monotonic() + parameters.timeout_seconds if parameters.wait and not parameters.run else None
    named = [Key(*text.split("/", 1)) for text in parameters.objects] if parameters.run else []
    keys = named or [Key(parameters.namespace, parameters.name or "")]
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        rolling = RollingOut(cluster, parameters.controller_namespace)
        keys = await resolve(rolling, keys, run, by_hand=not parameters.run)
        await compare(rolling, keys)
        bar = await stack.enter_async_context(ProgressBar("roll-out-progress", f"Roll-out of {keys[0]}", every=5.0))
        acted = await apply(rolling, keys, run, until, bar)
        ends = await publish(rolling, keys, await answer(rolling, keys))
    if acted.lost:
        return Completed(name="Superseded", message="another run has taken over: " + ", ".join(map(str, acted.lost)))
    if acted.failed:
        return Failed(message="; ".join(f"{key}: {why}" for key, why in acted.failed.items()))
    return _final(parameters, ends)


def _final(parameters: RollOutParameters, ends: list[ServiceEnd]) -> State[Any]:
    """*Failed* with the reason of the first service that cannot become ready; one that is gone needs nothing."""
    waits = parameters.wait and not parameters.run
    for one in ends:
        if waits and one.state == "Gone":
            return Failed(message=f"{one.key} is not ready: there is no such service")
        if one.final or (waits and not one.ready):
            return Failed(message=f"{one.key} is not ready: {one.reason}: {one.message}")
    ready = [f"{one.key} answers at {one.url}" for one in ends if one.ready]
    return Completed(
        message="; ".join(ready[:5]) + (f" and {len(ready) - 5} more" if len(ready) > 5 else "")
        or "nothing is left to do"
    )
