"""Two shifts and one real Kubernetes Lease, on the real control plane."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prefect import flow
from prefect_support import until

from flows.parameters import AutoscaleParameters
from flows.shift import LoopType
from flows.shift_run import run_shift
from modelyard.autoscaling.live.settings import LoopSettings
from modelyard.autoscaling.live.tick import Loop, Tick
from modelyard.local.stack import LocalStack

pytestmark = pytest.mark.integration


def recording(writes: list[tuple[int, float, bool]]) -> LoopType:
    """The real loop with its connections and its Lease, but stages that only note when they would write."""

    class Recorder(Loop):
        async def collect(self, tick: Tick) -> dict[str, Any]:
            return {}

        def decide(self, tick: Tick) -> dict[str, Any]:
            return {}

        async def actuate(self, tick: Tick) -> dict[str, Any]:
            writes.append((id(self), time.monotonic(), self.lease_held()))
            return {}

        async def report(self, tick: Tick) -> dict[str, Any]:
            return {}

    def make(settings: LoopSettings) -> Recorder:
        return Recorder(settings)

    return make


async def test_the_standby_takes_over_when_the_writer_hands_back_its_lease(
    control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    writes: list[tuple[int, float, bool]] = []
    loop = recording(writes)

    @flow(name="autoscale")
    async def shift(seconds: float) -> Any:
        parameters = AutoscaleParameters(
            interval_seconds=0.5, shift_seconds=seconds, early_end_seconds=0.1, lease_namespace="default"
        )
        return await run_shift(parameters, loop, Tick)

    async def writing() -> bool:
        return len(writes) > 0

    first = asyncio.create_task(shift(4, return_state=True))
    await until(writing, "the first shift writes")
    second = asyncio.create_task(shift(8, return_state=True))
    states = await asyncio.gather(first, second)
    assert [state.name for state in states] == ["Completed", "Completed"]
    assert all("0 failed" in (state.message or "") for state in states)
    owners = [owner for owner, _, _ in writes]
    assert owners == sorted(owners, key=owners.index), "the writers did not take turns"
    assert len(set(owners)) == 2
    assert all(held for _, _, held in writes)
