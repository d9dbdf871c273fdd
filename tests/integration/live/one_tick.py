"""One tick in a process of its own that kills itself (SIGKILL) at a chosen line."""

import asyncio
import os
import signal
from typing import Any

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(cluster: Cluster, point: str) -> None:
    merge_patch, update_status, write_scale = cluster.merge_patch, cluster.update_status, cluster.write_scale

    async def patch(*args: Any, **kwargs: Any) -> Any:
        result = await merge_patch(*args, **kwargs)
        if point == "memory" and not kwargs.get("subresource"):
            die()
        return result

    async def status(*args: Any, **kwargs: Any) -> Any:
        result = await update_status(*args, **kwargs)
        if point == "status":
            die()
        return result

    async def scale(*args: Any, **kwargs: Any) -> Any:
        result = await write_scale(*args, **kwargs)
        if point == "scale":
            die()
        return result

    cluster.merge_patch, cluster.update_status, cluster.write_scale = patch, status, scale  # type: ignore[method-assign]


async def main(settings: ControllerSettings, point: str) -> None:
    async with Controller(settings) as loop:
        arm(loop.cluster, point)
        fleet = await loop.collect()
        decision = loop.decide(fleet)
        if point == "decided":
            die()
        await loop.report(decision, await loop.actuate(fleet, decision))


def tick_and_die(settings: ControllerSettings, point: str) -> None:
    """One tick; ``point`` is never, decided (between decide and actuate), memory, status or scale (right after the
    first write of that kind).
    """
    asyncio.run(main(settings, point))
