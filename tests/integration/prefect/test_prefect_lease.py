"""Shifts and real Kubernetes Leases, on the real control plane."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Crashed, Running
from prefect_support import until

from deployments.pool_issues import UNRESPONSIVE
from deployments.supervision import ShiftLeases, Supervision, read_clock
from deployments.work_pool import create_work_pool
from flows.autoscale import Autoscaling
from flows.parameters import AutoscaleParameters
from flows.shift import run_shift
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster, Lease, NotFound, standby_name
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import LEASES
from modelyard.reconcile.plans.report import TickReport

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LEASE_NAMES = ("modelyard-autoscale", standby_name("modelyard-autoscale"))


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
    control_plane: LocalStack, control_plane_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
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

    async def holders() -> list[str]:
        answers = await asyncio.gather(*(read_holder(control_plane_cluster, name, "default") for name in LEASE_NAMES))
        return list(answers) if all(answers) else []

    writer, standby = await until(holders, "the second shift is the standby")
    assert writer != standby
    states = await asyncio.gather(first, second)
    assert [state.name for state in states] == ["Completed", "Completed"]
    assert all("0 failed" in (state.message or "") for state in states)
    owners = [owner for owner, _, _ in writes]
    assert owners == sorted(owners, key=owners.index), "the writers did not take turns"
    assert len(set(owners)) == 2
    assert all(held for _, _, held in writes)
    assert {UUID(writer), UUID(standby)} == {state.state_details.flow_run_id for state in states}
    assert await holders() == [], "both are released"


async def read_holder(cluster: Cluster, name: str, namespace: str) -> str:
    """Return the token of the holder of a Lease; empty: nobody holds it."""
    try:
        spec = (await cluster.get(LEASES, name, namespace))["spec"]
    except NotFound:
        return ""
    return str(spec.get("holderIdentity") or "").rpartition("_")[2]


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


@flow
def nothing() -> None:
    """Nothing: its runs are only marked."""


async def test_supervision_goes_by_the_leases_whatever_prefect_says(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    namespace: str,
    client: PrefectClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    await create_work_pool(client, "leases")
    rarely = IntervalSchedule(interval=timedelta(days=1), anchor_date=datetime.now(UTC) - timedelta(hours=1))
    deployment = await client.create_deployment(
        await client.create_flow(nothing),
        "shifts",
        work_pool_name="leases",
        schedules=[DeploymentScheduleCreate(schedule=rarely)],
        parameters={"shift_seconds": 600, "lease_name": "shifts", "lease_namespace": namespace},
    )
    writer, standby = [await client.create_flow_run_from_deployment(deployment) for _ in range(2)]
    await client.set_flow_run_state(writer.id, Crashed(name=UNRESPONSIVE), force=True)
    await client.set_flow_run_state(standby.id, Running(), force=True)
    lease = Lease(control_plane_cluster, "shifts", namespace, "elsewhere", token=writer.id.hex)
    waiting = Lease(control_plane_cluster, "shifts.standby", namespace, "elsewhere", 3, token=standby.id.hex)
    assert await lease.acquire(0)
    assert await waiting.acquire(0)

    async def runs() -> dict[UUID, str]:
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
        answers = await client.read_flow_runs(deployment_filter=chosen)
        return {run.id: run.state.name for run in answers if run.state and not run.auto_scheduled}

    async with ShiftLeases() as leases:
        supervision = Supervision(client, "leases", leases)

        async def repairs() -> list[str]:
            now, _ = await read_clock(client)
            return (await supervision.run_once(now))[1]

        (repair,) = await repairs()
        assert repair.endswith("to Running: Heartbeats were missing, but the run renews its Lease")
        assert await runs() == {writer.id: "Running", standby.id: "Running"}
        assert await repairs() == []
        # Its process ends, on a machine that this one does not see: the record stays as it is.
        record = await control_plane_cluster.get(LEASES, "shifts.standby", namespace)
        await waiting.release()
        current = await control_plane_cluster.get(LEASES, "shifts.standby", namespace)
        await control_plane_cluster.replace(LEASES, {**current, "spec": record["spec"]})

        async def replaced() -> bool:
            await repairs()
            states = await runs()
            return states[standby.id] == UNRESPONSIVE and len(states) == 3

        await until(replaced, "the standby is replaced")
        assert (await runs())[writer.id] == "Running"
    await lease.release()
    await client.delete_deployment(deployment)
