"""Two shifts and one real Kubernetes Lease, on the real control plane."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prefect import flow
from prefect_support import until

from flows.autoscale import Autoscaling
from flows.parameters import AutoscaleParameters
from flows.shift import run_shift
from modelyard.autoscaling.decision import TickDecision
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import LEASES, Cluster
from modelyard.local.stack import LocalStack
from modelyard.reconcile.report import TickReport

pytestmark = pytest.mark.integration


class Recorder(Autoscaling):
    """The real controller with its connections and its Lease, but stages that only note when they would write."""

    def __init__(self, settings: ControllerSettings, writes: list[tuple[int, float, bool]]) -> None:
        super().__init__(settings)
        self.writes = writes

    async def collect(self) -> Any:
        return object()

    def decide(self, fleet: Any) -> TickDecision:
        return TickDecision(time.time())

    async def actuate(self, fleet: Any, decision: Any) -> Any:
        self.writes.append((id(self), time.monotonic(), self._may_write_for() > 0))

    async def report(self, decision: Any, done: Any) -> TickReport:
        return TickReport()


async def test_the_standby_takes_over_when_the_writer_hands_back_its_lease(
    control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    writes: list[tuple[int, float, bool]] = []

    @flow(name="autoscale")
    async def shift(seconds: float) -> Any:
        parameters = AutoscaleParameters(
            interval_seconds=0.5, shift_seconds=seconds, early_end_seconds=0.1, lease_namespace="default"
        )
        return await run_shift(parameters, lambda: Recorder(parameters, writes), table="none")

    async def writing() -> bool:
        return len(writes) > 0

    first = asyncio.create_task(shift(4, return_state=True))
    await until(writing, "the first shift writes")
    second = asyncio.create_task(shift(15, return_state=True))
    states = await asyncio.gather(first, second)
    assert [state.name for state in states] == ["Completed", "Completed"]
    assert all("0 failed" in (state.message or "") for state in states)
    owners = [owner for owner, _, _ in writes]
    assert owners == sorted(owners, key=owners.index), "the writers did not take turns"
    assert len(set(owners)) == 2
    assert all(held for _, _, held in writes)


async def test_a_single_tick_follows_a_writer_that_died(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own time would be over before the Lease is."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    dead = {"holderIdentity": "dead", "leaseDurationSeconds": 3, "leaseTransitions": 1}
    metadata = {"name": "modelyard-autoscale", "namespace": namespace}
    await control_plane_cluster.create(LEASES, {"metadata": metadata, "spec": dead})
    writes: list[tuple[int, float, bool]] = []

    @flow(name="autoscale")
    async def once() -> Any:
        parameters = AutoscaleParameters(interval_seconds=0.5, shift_seconds=0, lease_namespace=namespace)
        return await run_shift(parameters, lambda: Recorder(parameters, writes), table="none")

    state = await once(return_state=True)
    assert (state.name, state.message) == ("Completed", "1 ticks, 0 failed, 0 scaled")
    assert [held for _, _, held in writes] == [True]
