"""Real processes, really killed: what follows is what a process that lives decides of the same load.

Two loops, each with its share of the bindings by label, tick at the same times over workloads of the same load. One
of them is killed in a panic, while a window holds, and in the middle of its writes, and starts anew.
"""

from __future__ import annotations

import asyncio
import signal
from multiprocessing.context import ForkServerProcess
from typing import Any

import forked
import pytest
from fleet_fixture import quick
from policy_process import tick_when_told
from policy_world import PolicyWorld

from modelyard.autoscaling.fleet.kinds import BINDINGS
from modelyard.local.stack import LocalStack

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0
BEHAVIOUR = {
    "scaleUp": {
        "stablePolicy": {"instances": 1, "percent": 0, "period": "60s"},
        "panicPolicy": {"percent": 100, "period": "30s", "panicThresholdPercent": 200, "panicModeHold": "60s"},
    },
    "scaleDown": {
        "instances": 1,
        "percent": 50,
        "period": "60s",
        "selectPolicy": "And",
        "stabilizationWindow": "60s",
    },
}
STORY = [
    (0, 40.0, "memory"),
    (15, 20.0, "between"),
    (30, 4.0, "decided"),
    (60, 4.0, "between"),
    (75, 2.0, "between"),
    (90, 2.0, "status"),
    (120, 2.0, "between"),
    (150, 2.0, "decided"),
    (210, 1.0, "memory"),
    (285, 1.0, "scale"),
]
"""Seconds, waiting requests per instance, where the kill comes: a panic, its hold, then a slow way down."""


class Loop:
    """A loop in a process of its own, for the bindings labelled with ``share``."""

    def __init__(self, namespace: str, share: str) -> None:
        self._settings = quick("http://127.0.0.1:9", namespace).model_copy(update={"label_selector": f"share={share}"})
        self._process: ForkServerProcess | None = None

    async def tick(self, now: float, point: str = "never") -> dict[str, Any] | None:
        """The answer; ``None`` when the process died over it."""
        if self._process is None:
            self._orders, taken = forked.pipe()
            self._process = forked.start(tick_when_told, self._settings, taken)
            taken.close()
        self._orders.send((now, point))
        try:
            found: dict[str, Any] = await asyncio.wait_for(asyncio.to_thread(self._orders.recv), 120)
        except EOFError:
            assert await self.ended() == -signal.SIGKILL
            return None
        return found

    async def ended(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        await asyncio.to_thread(process.join)
        self._orders.close()
        return process.exitcode

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        await self.ended()


async def test_a_loop_that_is_killed_decides_what_one_that_lives_decides(
    world: PolicyWorld, control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    await world.policy(behavior=BEHAVIOUR)
    for name in ("living", "killed"):
        await world.deploy(name, 2)
        await world.bind(name)
        await world.cluster.merge_patch(BINDINGS, name, {"metadata": {"labels": {"share": name}}}, world.namespace)
    loops = {name: Loop(world.namespace, name) for name in ("living", "killed")}
    modes, deaths = set(), 0
    try:
        for seconds, load, point in STORY:
            now = T0 + seconds
            for name in loops:
                await world.settle(name, await world.replicas(name) or 0, load)
            lived = await loops["living"].tick(now)
            assert lived is not None
            if point == "between":
                await loops["killed"].kill()
                died = await loops["killed"].tick(now)
            else:
                died = await loops["killed"].tick(now, point)
                if died is None:
                    deaths += 1
                    # The successor's first look: the workload may be where the dead one put it already.
                    for name in loops:
                        await world.settle(name, await world.replicas(name) or 0)
                    died = await loops["killed"].tick(now)
            assert died is not None
            assert died["decided"] == lived["decided"], f"at {seconds} s, killed {point}"
            assert await world.replicas("killed") == await world.replicas("living")
            modes |= {mode for mode, *_ in lived["decided"]}
    finally:
        for loop in loops.values():
            await loop.kill()
    assert modes == {"Panic", "Stable"}
    assert deaths == sum(1 for _, _, point in STORY if point != "between")
