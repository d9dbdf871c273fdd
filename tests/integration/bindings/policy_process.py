"""A process that ticks when it is told to, at the time it is told, and dies (SIGKILL) at a line if it is told so."""

import asyncio
import dataclasses
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings

POINT = "never"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(loop: Controller) -> None:
    cluster = loop.cluster
    merge_patch, update_status, write_scale = cluster.merge_patch, cluster.update_status, cluster.write_scale

    async def patch(kind: Any, *args: Any, **kwargs: Any) -> Any:
        result = await merge_patch(kind, *args, **kwargs)
        if POINT == "memory" and not kwargs.get("subresource"):
            die()
        return result

    async def status(kind: Any, *args: Any, **kwargs: Any) -> Any:
        result = await update_status(kind, *args, **kwargs)
        if POINT == "status" and kind.kind == "AutoscalingPolicyBinding":
            die()
        return result

    async def scale(*args: Any, **kwargs: Any) -> Any:
        result = await write_scale(*args, **kwargs)
        if POINT == "scale":
            die()
        return result

    cluster.merge_patch, cluster.update_status, cluster.write_scale = patch, status, scale  # type: ignore[method-assign]


async def tick(loop: Controller, now: float) -> dict[str, Any]:
    fleet = dataclasses.replace(await loop.collect(), now=now)
    decision = loop.decide(fleet)
    if POINT == "decided":
        die()
    done = await loop.actuate(fleet, decision)
    await loop.report(decision, done)
    decided = decision.bindings
    return {
        "decided": [
            ["Panic" if binding.panic else "Stable", *(record.target.replicas for record in binding.records)]
            for binding in decided
        ],
        "scaled": len(done.outcome.scaled),
    }


async def main(settings: ControllerSettings, orders: Connection) -> None:
    global POINT
    async with Controller(settings) as loop:
        arm(loop)
        while True:
            now, POINT = await asyncio.to_thread(orders.recv)
            orders.send(await tick(loop, now))


def tick_when_told(settings: ControllerSettings, orders: Connection) -> None:
    """Takes (time, point), the point being never, decided, memory, status or scale (right after the first write of
    that kind), and answers with the targets and modes of its bindings.
    """
    asyncio.run(main(settings, orders))
