"""A process that ticks when it is told to, at the time it is told, and dies (SIGKILL) at a line if it is told so.

    python policy_process.py SETTINGS_JSON

Reads lines ``TIME POINT`` (``POINT``: ``never``, ``decided``, ``memory``, ``status``, ``scale``: right after the first
write of that kind) and answers each with the targets and modes of its bindings as JSON.
"""

import asyncio
import dataclasses
import json
import os
import signal
import sys
from typing import Any

from modelyard.autoscaling.live.settings import LoopSettings
from modelyard.autoscaling.live.tick import Loop, Tick

POINT = "never"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(loop: Loop) -> None:
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


async def tick(loop: Loop, now: float) -> dict[str, Any]:
    one = Tick(0)
    await loop.collect(one)
    assert one.fleet is not None
    one.fleet = dataclasses.replace(one.fleet, now=now)
    loop.decide(one)
    assert one.decision is not None
    if POINT == "decided":
        die()
    await loop.actuate(one)
    await loop.report(one)
    decided = one.decision.bindings
    return {
        "decided": [
            ["Panic" if binding.panic else "Stable", *(record.target.replicas for record in binding.records)]
            for binding in decided
        ],
        "scaled": len(one.bindings.scaled),
    }


async def main(settings: LoopSettings) -> None:
    global POINT
    async with Loop(settings) as loop:
        arm(loop)
        while line := await asyncio.to_thread(sys.stdin.readline):
            now, POINT = line.split()
            print(json.dumps(await tick(loop, float(now))), flush=True)


asyncio.run(main(LoopSettings.model_validate_json(sys.argv[1])))
