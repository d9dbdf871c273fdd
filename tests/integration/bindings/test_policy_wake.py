"""Demand for a binding's workload at zero is noticed between two ticks; a real Prometheus answers."""

from __future__ import annotations

import json

import pytest
from demand_server import DEMAND, DemandServer
from fleet_fixture import eventually, quick, run_tick
from policy_world import NO_PROMETHEUS, PolicyWorld
from prometheus_server import PrometheusServer

from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.wake import WakeWatch
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.metrics.prometheus.expressions import Expressions

pytestmark = pytest.mark.integration

WAKE = "modelyard.dev/wake-query"
SOURCES = "modelyard.dev/metric-sources"


async def until_awake(world: PolicyWorld, loop: Controller) -> None:
    """Tick when there is a change, and only then, until the workload is scaled up."""

    async def awake() -> bool:
        assert await loop.wait_for_change(120)
        await run_tick(loop)
        return await world.replicas("chat") == 1

    await eventually(awake, "demand wakes the loop")


@pytest.fixture
def mine(world: PolicyWorld, control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch) -> PolicyWorld:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return world


@pytest.mark.parametrize("source", ["expression", "metric"])
async def test_demand_between_ticks_wakes_at_once(mine: PolicyWorld, demand: DemandServer, source: str) -> None:
    await mine.deploy("chat", 0)
    await mine.policy(metric="queued")
    given = {WAKE: DEMAND} if source == "expression" else {SOURCES: json.dumps({"queued": DEMAND})}
    await mine.bind("chat", least=0, annotations=given)
    async with Controller(quick(demand.server.url, mine.namespace)) as loop:
        await run_tick(loop)
        assert await mine.replicas("chat") == 0
        demand.arrive(mine.namespace)
        await until_awake(mine, loop)


async def test_what_a_tick_knows_or_cannot_use_does_not_wake_it(mine: PolicyWorld, constants: PrometheusServer) -> None:
    demand = {WAKE: "vector(3)"}
    for name in ("awake", "chat"):
        await mine.deploy(name, 0)
    await mine.policy()
    await mine.bind("chat", least=0, annotations={**demand, "modelyard.dev/compatibility": "published"})
    await mine.bind("awake", least=0, annotations=demand)
    await mine.bind("lost", least=0, annotations=demand)
    await mine.bind("nothing", mine.target("chat"), policy="nowhere", least=0, annotations=demand)
    async with Controller(quick(constants.url, mine.namespace)) as loop:
        await run_tick(loop)
        assert await mine.replicas("awake") == 1
        assert await mine.replicas("chat") == 0

        async def quiet() -> bool:
            await run_tick(loop)
            return not await loop.wait_for_change(1)

        await eventually(quiet, "what was edited before the watch began has arrived")
        assert not await loop.wait_for_change(2.5)


async def test_an_expression_that_fails_wakes_nobody_and_the_others_are_heard(
    mine: PolicyWorld, demand: DemandServer
) -> None:
    for name in ("broken", "chat"):
        await mine.deploy(name, 0)
    await mine.policy()
    await mine.bind("broken", least=0, annotations={WAKE: "sum("})
    await mine.bind("chat", least=0, annotations={WAKE: DEMAND})
    async with Controller(quick(demand.server.url, mine.namespace)) as loop:
        await run_tick(loop)
        demand.arrive(mine.namespace)
        await until_awake(mine, loop)
    assert await mine.replicas("broken") == 0


async def test_without_prometheus_there_is_nobody_to_ask(control_plane_cluster: Cluster) -> None:
    async with WakeWatch(control_plane_cluster, NO_PROMETHEUS, Expressions(NO_PROMETHEUS)) as wakes:
        wakes.follow((), ())
        assert not await wakes.wait(0.01)
