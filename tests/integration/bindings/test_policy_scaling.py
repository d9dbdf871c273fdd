"""Workloads scaled by policies from end to end: real API server, real controllers, real scrapes."""

from __future__ import annotations

import pytest
from fleet_fixture import eventually
from metric_endpoints import page
from policy_world import PolicyWorld

from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.objects.kinds import EVENTS
from modelyard.reconcile.kernel.tell import Said

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0


async def events(world: PolicyWorld, name: str) -> list[tuple[str, str]]:
    listed = await world.cluster.list(EVENTS, world.namespace, field_selector=f"involvedObject.name={name}")
    return [
        (event["reason"], event["message"])
        for event in listed.items
        if event["involvedObject"]["kind"] == "AutoscalingPolicyBinding"
    ]


async def test_a_deployment_goes_up_at_once_and_down_after_its_window(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 2, load=30)
    await world.policy()
    await world.bind("chat")
    said = Said()

    up = await world.tick(state, T0, said=said)
    assert await world.replicas("chat") == 6
    assert up.view("chat").targets[0].instances == ({"vllm:num_requests_waiting": 30.0},) * 2
    assert up.decision("chat").records[0].writes.scale == 6
    assert [row["now → target"] for row in up.rows] == ["2 → 6"]
    assert (await world.condition("chat", "Ready"))["reason"] == "Reconciled"
    assert (await world.condition("chat", "TargetFound"))["status"] == "True"
    assert (await world.binding("chat"))["status"]["observedGeneration"] == 1

    await world.settle("chat", 6, load=10)
    steady = await world.tick(state, T0 + 15, said=said)
    assert steady.decision("chat").records[0].writes.scale is None

    await world.load("chat", 2)
    assert await world.ticks(state, [T0 + 30, T0 + 120, T0 + 300]) == [6, 6, 6]
    down = await world.tick(state, T0 + 330, said=said)
    assert down.decision("chat").records[0].target.replicas == 2
    assert await world.replicas("chat") == 2

    told = await events(world, "chat")
    assert {reason for reason, _ in told} == {"ScaledUp", "ScaledDown"}
    assert any("2 → 6" in message for _, message in told)


async def test_a_stateful_set_and_a_target_without_a_kind(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("db", 1, load=30, kind="StatefulSet")
    await world.deploy("web", 1, load=20)
    await world.policy()
    await world.bind("db", world.target("db", "StatefulSet"))
    await world.bind("web", world.target("web", kind=None))
    ticked = await world.tick(state, T0)
    assert await world.replicas("db", "StatefulSet") == 3
    assert await world.replicas("web") == 2
    assert {str(record.now.workload) for d in ticked.decisions for record in d.records} == {
        f"StatefulSet {world.namespace}/db",
        f"Deployment {world.namespace}/web",
    }


async def test_an_optimizer_shares_its_total_out_by_cost(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("cheap", 1, load=40)
    await world.deploy("dear", 1, load=40)
    await world.policy()
    parts = [("cheap", 30, 1, 4), ("dear", 100, 1, 4)]
    params = [
        {"target": world.target(name), "cost": cost, "minReplicas": least, "maxReplicas": most}
        for name, cost, least, most in parts
    ]
    await world.create_binding("both", {"policyRef": {"name": "queue"}, "optimizerConfiguration": {"params": params}})
    ticked = await world.tick(state, T0)
    # 80 waiting at 10 each ask for 8, the limit of the first minute is 2 + 4: the cheap one is filled up first.
    assert await world.replicas("cheap") == 4
    assert await world.replicas("dear") == 2
    assert len(ticked.outcome.scaled) == 2
    assert [row["model"] for row in ticked.rows] == ["cheap", "dear"]


async def test_only_labelled_pods_are_measured(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 1, load=30, tier="hot")
    await world.policy()
    await world.bind("chat", world.target("chat", additionalMatchLabels={"tier": "cold"}))
    ticked = await world.tick(state, T0)
    assert await world.replicas("chat") == 1
    (target,) = ticked.view("chat").targets
    assert target.ready == 1
    assert "additionalMatchLabels tier=cold" in target.scrape_errors[0]
    assert (await world.condition("chat", "MetricsAvailable"))["status"] == "False"


async def test_an_unready_pod_neither_stops_the_others_nor_counts_as_spare(
    world: PolicyWorld, state: PolicyState
) -> None:
    await world.deploy("chat", 3, load=20)
    await world.policy()
    await world.bind("chat")
    await world.tick(state, T0)
    assert await world.replicas("chat") == 6
    await world.settle("chat", 6, load=20, ready=3)
    ticked = await world.tick(state, T0 + 15)
    (target,) = ticked.view("chat").targets
    assert (target.ready, target.unready) == (3, 3)
    assert ticked.decision("chat").records[0].target.replicas == 6


async def test_to_zero_after_true_idleness_only(world: PolicyWorld, state: PolicyState) -> None:
    quick = {"scaleDown": {"stabilizationWindow": "0s"}, "scaleUp": {}}
    await world.deploy("chat", 1, load=0)
    await world.policy(behavior=quick)
    await world.bind("chat", least=0)
    busy = "vllm:num_requests_waiting 0\nvllm:num_requests_running 1\n"
    await world.show("chat", page(busy))
    assert (await world.look(state))[0].targets[0].demand == 1.0
    assert await world.ticks(state, [T0, T0 + 60]) == [1, 1]
    await world.show("chat", page("vllm:num_requests_waiting 0\n", "500 Internal Server Error"))
    assert (await world.look(state))[0].targets[0].demand is None
    assert await world.ticks(state, [T0 + 120, T0 + 180]) == [1, 1]
    await world.load("chat", 0)
    assert await world.ticks(state, [T0 + 240, T0 + 255, T0 + 275]) == [1, 1, 0]
    assert await world.replicas("chat") == 0


async def test_a_rate_is_known_from_the_second_look(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 1)
    await world.policy(metric="served_total")
    await world.bind("chat")

    def served(count: int) -> object:
        return page(f"# TYPE served_total counter\nserved_total {count}\n")

    await world.show("chat", served(100))  # type: ignore[arg-type]
    first = await world.tick(state, T0)
    assert first.view("chat").targets[0].instances == ({},)
    assert "seen for the first time" in first.view("chat").targets[0].scrape_errors[0]
    await world.show("chat", served(1_000_000))  # type: ignore[arg-type]
    second = await world.tick(state, T0 + 15)
    (values,) = second.view("chat").targets[0].instances
    assert values["served_total"] > 10
    assert await world.replicas("chat") == 5


async def test_a_quiet_fleet_costs_no_writes(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 2, load=10)
    await world.policy()
    await world.bind("chat")
    await world.tick(state, T0)

    async def version() -> str:
        return str((await world.binding("chat"))["metadata"]["resourceVersion"])

    await world.tick(state, T0 + 15)
    before = await version()
    for number in range(2, 6):
        ticked = await world.tick(state, T0 + 15 * number)
        assert not ticked.outcome.written
    assert await version() == before


async def test_events_tell_once_of_what_stands(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 1, load=10)
    await world.bind("chat", policy="nowhere")
    said = Said()
    for number in range(3):
        await world.tick(state, T0 + 15 * number, said=said)

    async def told() -> list[tuple[str, str]]:
        return await events(world, "chat")

    assert await eventually(told, "an Event")
    assert [reason for reason, _ in await told()] == ["PolicyNotFound"]
    assert await world.replicas("chat") == 1
