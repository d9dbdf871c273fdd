"""The flow ``roll_out``: a service becomes pods that answer. Resolve → compare → apply → answer → publish.
A ModelRoute's requests go to another server, in steps that are measured. Foresee → begin → weigh → report.

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

from flows.forms import flat, run_parameters
from flows.parameters import RollOutParameters
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.objects import Key
from modelyard.objects.documents import few
from modelyard.reconcile.dispatch import PATIENCE
from modelyard.routing.rolling import ROLLED_OUT
from tasks.acting import cut_short
from tasks.journal import ProgressBar
from tasks.reconcile import BY_ID
from tasks.roll_out import (
    ANSWER_ATTEMPTS,
    EngineAnswer,
    RollingOut,
    ServiceEnd,
    answer,
    apply,
    compare,
    publish,
    resolve,
)
from tasks.roll_out_route import RollingRoutes, begin, foresee, report, weigh


def run_name() -> str:
    """Which service."""
    given = run_parameters(RollOutParameters)
    first, *others = given.objects or [f"{given.namespace}/{given.name}"]
    return f"roll-out {given.kind} {first}" + (f" and {len(others)} more" if others else "")


@flow(
    name="roll-out",
    flow_run_name=run_name,
    description="Makes of an InferenceService or a Model what it takes, waits for its pods, and tells what is missing;"
    " has a ModelRoute's requests go to another ModelServer step by step, and back where that serves worse.",
    persist_result=False,
    retries=0,
)
@flat(RollOutParameters)
async def roll_out(parameters: RollOutParameters) -> State[Any]:
    """Resolve, compare, apply, answer, publish.

    *Completed* when every service is ready; with ``wait`` only then, and not where what answers serves no models.
    *Failed* with the reason of one that cannot be, and of a route whose requests went back.
    """
    run = parameters.run or f"{BY_ID}{flow_run.id}"
    until = time.monotonic() + parameters.timeout_seconds if parameters.wait and not parameters.run else None
    named = [Key(*text.split("/", 1)) for text in parameters.objects] if parameters.run else []
    keys = named or [Key(parameters.namespace, parameters.name)]
    if parameters.kind == "ModelRoute":
        return await _roll_out_routes(parameters, keys, run)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        rolling = RollingOut(cluster, parameters.controller_namespace, parameters.kind)
        keys = await resolve(rolling, keys, run, by_hand=not parameters.run)
        await compare(rolling, keys)
        bar = await stack.enter_async_context(ProgressBar("roll-out-progress", f"Roll-out of {keys[0]}", every=5.0))
        acted = await apply(rolling, keys, run, until, bar)
        ends = await publish(rolling, keys, await answer(rolling, keys, 1 if until is None else ANSWER_ATTEMPTS))
    return cut_short(acted) or _final(parameters, ends)


async def _roll_out_routes(parameters: RollOutParameters, keys: list[Key], run: str) -> State[Any]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        rolling = RollingRoutes(cluster, parameters.controller_namespace)
        if not parameters.run:
            here = await foresee(rolling, keys[0], parameters.traffic)
            if here is None or here.problem:
                why = here.problem if here is not None else "nothing is wished of it: say where to, as traffic"
                return Failed(message=f"ModelRoute {keys[0]}: {why}")
            if parameters.dry_run:
                return Completed(message="; ".join(here.ladder) or here.says)
            await begin(rolling, keys[0], parameters.traffic, here, run)
        bar = await stack.enter_async_context(ProgressBar("roll-out-progress", f"Roll-out of {keys[0]}", every=5.0))
        stays = 0.0 if not parameters.wait else PATIENCE if parameters.run else parameters.timeout_seconds
        acted = await weigh(rolling, keys, run, stays, bar, by_hand=not parameters.run)
        ends = await report(rolling, keys)
    if (cut := cut_short(acted)) is not None:
        return cut
    waits = parameters.wait and not parameters.run
    said = [f"ModelRoute {one.key}: {one.message}" for one in ends]
    bad = [text for one, text in zip(ends, said, strict=True) if one.reason not in ("", ROLLED_OUT)]
    late = [text for one, text in zip(ends, said, strict=True) if not one.reason]
    if bad or (waits and late):
        return Failed(message="; ".join(few(bad or [f"not at its end in time; {one}" for one in late], 5)))
    return Completed(message="; ".join(few(said, 5)))


def _final(parameters: RollOutParameters, ends: list[ServiceEnd]) -> State[Any]:
    """*Failed* with the reason of the first service that cannot become ready; one that is gone needs nothing."""
    waits = parameters.wait and not parameters.run
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
