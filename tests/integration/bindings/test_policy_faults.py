"""Policies under faults: broken endpoints, missing objects, rivals, conflicts, kills. No wrong scaling, no loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from binding_decisions import decide_bindings
from fleet_fixture import eventually, ready_status
from metric_endpoints import Handler, cut, endless, hang, page
from policy_world import NO_PROMETHEUS, PolicyWorld

from modelyard.autoscaling.bindings.claims import without_rivals
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Consumer, Fleet
from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES
from modelyard.autoscaling.live.collect import Selection
from modelyard.autoscaling.live.collect_bindings import list_bindings, observe_bindings
from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.cluster import Cluster, Invalid, UnknownKind
from modelyard.metrics.endpoints.scrape import Scraper
from modelyard.metrics.prometheus.expressions import Expressions
from modelyard.objects import Key, WorkloadId
from modelyard.objects.kinds import CRDS, DEPLOYMENTS, PODS
from modelyard.reconcile.kernel.fence import Fence, NotTheWriter
from modelyard.reconcile.kernel.mirror import Mirror

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (hang, "no complete answer"),
        (cut, "GET http"),
        (endless, "larger than 1000000 bytes"),
        (page("<html>hello</html>"), "not among the pod's metrics"),
        (page("vllm:num_requests_waiting NaN\n"), "shows nan"),
        (page("vllm:num_requests_waiting -oops-\n"), "not in the exposition format"),
        (page("", "302 Found", "Location: /elsewhere\r\n"), "redirects are not followed"),
        (page("vllm:num_requests_waiting 99\n", "500 Internal Server Error"), "HTTP status 500"),
    ],
)
async def test_a_pod_that_cannot_be_read_never_scales_down_under_load(
    world: PolicyWorld, fault: Handler, why: str
) -> None:
    await world.deploy("chat", 3, load=11)
    await world.policy()
    await world.bind("chat")
    (first, *_) = [world.addresses[pod["metadata"]["name"]] for pod in await world.pods("chat")]
    world.endpoints[first] = fault
    # However busy the machine is, an answer that has an end must arrive.
    async with PolicyState(Scraper(seconds=3.0 if fault is hang else 30.0, total=60.0, max_body=1_000_000)) as state:
        for now in (T0, T0 + 15, T0 + 400, T0 + 800):
            ticked = await world.tick(state, now)
            assert ticked.decision("chat").records[0].target.replicas == 3
    (target,) = ticked.view("chat").targets
    assert sorted(map(len, target.instances)) == [0, 1, 1]
    assert target.unready == 0
    assert len(target.scrape_errors) == 1
    assert why in target.scrape_errors[0]
    assert await world.replicas("chat") == 3


async def test_a_broken_workload_does_not_hurt_another_binding(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("bad", 2, load=50)
    await world.deploy("good", 1, load=30)
    await world.show("bad", hang)
    await world.policy()
    for name in ("bad", "good"):
        await world.bind(name)
    await world.tick(state, T0)
    assert (await world.replicas("bad"), await world.replicas("good")) == (2, 3)
    assert (await world.condition("bad", "MetricsAvailable"))["status"] == "False"
    assert (await world.condition("good", "MetricsAvailable"))["status"] == "True"


async def test_a_pod_that_restarts_while_it_is_scraped(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 1)
    await world.policy(metric="served_total")
    await world.bind("chat", least=1, most=4)

    def served(count: int) -> Handler:
        return page(f"# TYPE served_total counter\nserved_total {count}\n")

    async def rate() -> float | None:
        (values,) = (await world.look(state))[0].targets[0].instances
        return values.get("served_total")

    await world.show("chat", served(1_000_000))
    assert await rate() is None
    # The container starts anew between the list of pods and the scrape: the list still tells of the old one.
    await world.show("chat", served(3))
    assert await rate() is None
    (pod,) = await world.pods("chat")
    status = ready_status(T0, world.addresses[pod["metadata"]["name"]])
    running = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    status["status"]["containerStatuses"] = [
        {"name": "engine", "image": "x", "imageID": "", "ready": True, "restartCount": 1, "state": running}
    ]
    await world.cluster.merge_patch(PODS, pod["metadata"]["name"], status, world.namespace, subresource="status")
    await world.show("chat", served(6))

    async def seen() -> bool:
        return (await rate()) is not None or (await world.look(state))[0].targets[0].ready == 1

    await eventually(seen, "the pod is listed")
    await world.show("chat", served(100_006))
    later = await rate()
    assert later is not None
    assert later > 0


# What is configured


async def test_a_policy_deleted_while_it_is_referenced(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 2, load=10)
    await world.policy()
    await world.bind("chat")
    await world.tick(state, T0)
    await world.cluster.delete(POLICIES, "queue", world.namespace)
    await world.load("chat", 90)
    ticked = await world.tick(state, T0 + 15)
    assert ticked.decision("chat").records[0].why.reason == "PolicyNotFound"
    assert await world.replicas("chat") == 2
    ready = await world.condition("chat", "Ready")
    assert (ready["status"], "queue does not exist" in ready["message"]) == ("False", True)
    await world.policy()
    await world.tick(state, T0 + 30)
    assert await world.replicas("chat") == 6


async def test_both_or_neither_configuration_is_refused_on_the_way_in(world: PolicyWorld) -> None:
    scaling = {"target": world.target("chat"), "minReplicas": 1, "maxReplicas": 2}
    optimizer = {"params": [scaling]}
    both = {"scalingConfiguration": scaling, "optimizerConfiguration": optimizer}
    for wrong in ({}, both):
        with pytest.raises(Invalid):
            await world.create_binding("wrong", {"policyRef": {"name": "queue"}, **wrong})


async def test_of_two_bindings_on_one_target_the_older_scales(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 1, load=20)
    await world.policy()
    await world.bind("first", world.target("chat"))
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await world.bind("again", world.target("chat", kind=None), most=9)
    ticked = await world.tick(state, T0)
    assert list(ticked.outcome.scaled) == [
        (world.ref("first"), WorkloadId(world.namespace, "apps", "Deployment", "chat"))
    ]
    ready = await world.condition("again", "Ready")
    assert "already scaled by the older AutoscalingPolicyBinding" in ready["message"]


@pytest.mark.parametrize("rival", ["HorizontalPodAutoscaler", "ScaledObject"])
async def test_never_two_writers(world: PolicyWorld, state: PolicyState, rival: str) -> None:
    await world.deploy("chat", 1, load=50)
    await world.policy()
    await world.bind("chat")
    workload = WorkloadId(world.namespace, "apps", "Deployment", "chat")
    taken = Consumer(Key(world.namespace, "theirs"), rival, workload, 1, 3)
    ticked = await world.tick(state, T0, consumers=(taken,))
    assert await world.replicas("chat") == 1
    assert ticked.decision("chat").records[0].why.reason == "ConflictingScaler"
    assert f"{rival} {world.namespace}/theirs" in (await world.condition("chat", "Ready"))["message"]
    await world.tick(state, T0 + 15)
    assert await world.replicas("chat") == 5


async def test_a_missing_target_and_one_that_comes_back(world: PolicyWorld, state: PolicyState) -> None:
    await world.policy()
    await world.bind("chat")
    ticked = await world.tick(state, T0)
    assert ticked.view("chat").targets[0].problem == f"Deployment {world.namespace}/chat does not exist"
    assert (await world.condition("chat", "TargetFound"))["status"] == "False"
    await world.deploy("chat", 1, load=20)
    endpoint = {"metricEndpoint": {"port": world.endpoints.port}}
    patch = {"spec": {"scalingConfiguration": {"target": endpoint}}}
    await world.cluster.merge_patch(BINDINGS, "chat", patch, world.namespace)
    await world.tick(state, T0 + 15)
    assert await world.replicas("chat") == 2


async def test_a_cluster_without_our_kinds_has_no_bindings(
    control_plane_cluster: Cluster, state: PolicyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = BINDINGS._replace(version="v1alpha0")
    monkeypatch.setattr("modelyard.autoscaling.live.wants.BINDINGS", other)
    with pytest.raises(UnknownKind):
        await control_plane_cluster.list(other)
    assert (await control_plane_cluster.get(CRDS, f"{BINDINGS.plural}.{BINDINGS.group}"))["kind"]
    async with Mirror(control_plane_cluster) as mirror:
        listed = await list_bindings(mirror, FleetSettings(), Selection(), state)
        found = await observe_bindings(mirror, Expressions(NO_PROMETHEUS), FleetSettings(), listed, state)
    assert found == ()


# Kills

PANIC = {
    "behavior": {
        "scaleUp": {
            "stablePolicy": {"instances": 1, "percent": 0, "period": "60s"},
            "panicPolicy": {
                "percent": 100,
                "period": "30s",
                "panicThresholdPercent": 200,
                "panicModeHold": "60s",
            },
        },
        "scaleDown": {
            "instances": 1,
            "percent": 50,
            "period": "60s",
            "selectPolicy": "And",
            "stabilizationWindow": "60s",
        },
    }
}
STORY = [
    (0, 40.0),
    (15, 20.0),
    (30, 4.0),
    (60, 4.0),
    (75, 2.0),
    (90, 2.0),
    (120, 2.0),
    (150, 2.0),
    (210, 1.0),
    (285, 1.0),
]
"""Seconds and waiting requests per instance: a panic, its hold, then a slow way down."""


async def follow(world: PolicyWorld, name: str, kill: bool) -> list[int | None]:
    """The story on a workload; with ``kill`` every tick is a new process that knows only what the cluster keeps."""
    await world.deploy(name, 2)
    await world.bind(name)
    targets = []
    state = PolicyState(Scraper(seconds=30.0, total=60.0))
    for seconds, load in STORY:
        await world.settle(name, await world.replicas(name) or 0, load)
        if kill:
            await state.scraper.close()
            state = PolicyState(Scraper(seconds=30.0, total=60.0))
        ticked = await world.tick(state, T0 + seconds)
        targets.append(ticked.decision(name).records[0].target.replicas)
    await state.scraper.close()
    return targets


async def test_a_process_killed_before_every_tick_decides_what_one_that_lives_decides(world: PolicyWorld) -> None:
    await world.policy(**PANIC)
    living = await follow(world, "living", kill=False)
    await world.cluster.delete(BINDINGS, "living", world.namespace)
    killed = await follow(world, "killed", kill=True)
    assert killed == living
    assert max(target or 0 for target in living) >= 4
    assert living[-1] != max(target or 0 for target in living)


@pytest.mark.parametrize("point", ["decided", "memory", "status"])
async def test_a_kill_between_the_writes_of_a_tick_loses_nothing(
    world: PolicyWorld, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The writer dies after the write of that name; what follows is what an unkilled one arrives at."""
    await world.policy(**PANIC)
    await world.deploy("chat", 2, load=40)
    await world.bind("chat")
    left = {"decided": 0, "memory": 1, "status": 2}[point]

    def remaining() -> float:
        nonlocal left
        left -= 1
        return 10.0 if left >= 0 else -1.0

    async with PolicyState(Scraper(seconds=30.0, total=60.0)) as state:
        views = await world.look(state)
        decisions, _ = decide_bindings(without_rivals(views, Fleet(T0)), world.settings, T0)
        fence = Fence(remaining)
        with pytest.raises(NotTheWriter):
            await world.carry_out(views, decisions, T0, fence)
    assert await world.replicas("chat") == 2
    async with PolicyState(Scraper(seconds=30.0, total=60.0)) as successor:
        ticked = await world.tick(successor, T0 + 15)
    assert ticked.decision("chat").records[0].target.replicas == 4
    assert ticked.decision("chat").panic
    assert await world.replicas("chat") == 4


# Rivals at the very moment

Change = Callable[[PolicyWorld], Coroutine[Any, Any, None]]


async def edited(world: PolicyWorld) -> None:
    patch = {"spec": {"scalingConfiguration": {"maxReplicas": 1}}}
    await world.cluster.merge_patch(BINDINGS, "chat", patch, world.namespace)


async def deleted(world: PolicyWorld) -> None:
    await world.cluster.delete(BINDINGS, "chat", world.namespace)


async def replaced(world: PolicyWorld) -> None:
    await deleted(world)
    await world.bind("chat", most=1)


async def scaled(world: PolicyWorld) -> None:
    await world.cluster.write_scale(DEPLOYMENTS, "chat", world.namespace, 1)


async def gone(world: PolicyWorld) -> None:
    await world.cluster.delete(DEPLOYMENTS, "chat", world.namespace)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edited, "its spec was edited meanwhile"),
        (deleted, "deleted or replaced meanwhile"),
        (replaced, "deleted or replaced meanwhile"),
        (scaled, "went from 2 to 1 replica meanwhile"),
        (gone, "was deleted meanwhile"),
    ],
)
async def test_what_changed_since_it_was_read_is_left_alone(
    world: PolicyWorld, state: PolicyState, change: Change, said: str
) -> None:
    await world.deploy("chat", 2, load=40)
    await world.policy()
    await world.bind("chat")
    views = await world.look(state)
    decisions, _ = decide_bindings(views, world.settings, T0)
    assert decisions[0].records[0].writes.scale == 6
    await change(world)
    outcome = await world.carry_out(views, decisions, T0)
    assert not outcome.errors
    assert said in outcome.skipped[world.ref("chat")]
    assert not outcome.scaled
    expected = {scaled: 1, gone: None}.get(change, 2)
    assert await world.replicas("chat") == expected


async def test_a_status_that_others_write_as_well_keeps_their_conditions(
    world: PolicyWorld, state: PolicyState
) -> None:
    await world.deploy("chat", 2, load=40)
    await world.policy()
    await world.bind("chat")
    foreign = {
        "type": "Audited",
        "status": "True",
        "reason": "Yes",
        "message": "checked",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    views = await world.look(state)
    decisions, _ = decide_bindings(views, world.settings, T0)
    patch = {"status": {"conditions": [foreign]}}
    await world.cluster.merge_patch(BINDINGS, "chat", patch, world.namespace, subresource="status")
    await world.carry_out(views, decisions, T0)
    assert (await world.condition("chat", "Audited"))["reason"] == "Yes"
    assert (await world.condition("chat", "Ready"))["status"] == "True"
    assert await world.replicas("chat") == 6


async def test_another_writer_of_the_status_in_every_moment_does_not_stop_scaling(
    world: PolicyWorld, state: PolicyState
) -> None:
    await world.deploy("chat", 2, load=40)
    await world.policy()
    await world.bind("chat")
    stop = asyncio.Event()

    async def scribble() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            patch = {"metadata": {"annotations": {"scribble": str(number)}}}
            await world.cluster.merge_patch(BINDINGS, "chat", patch, world.namespace)

    task = asyncio.create_task(scribble())
    try:
        await world.tick(state, T0)
    finally:
        stop.set()
        await task
    assert await world.replicas("chat") == 6


async def test_annotations_that_make_no_sense_keep_the_replicas(world: PolicyWorld, state: PolicyState) -> None:
    await world.deploy("chat", 2, load=40)
    await world.policy()
    await world.bind("chat", annotations={"modelyard.dev/metric-sources": "[1, 2]"})
    await world.tick(state, T0)
    ready = await world.condition("chat", "Ready")
    assert "modelyard.dev/metric-sources" in ready["message"]
    assert await world.replicas("chat") == 2


async def test_an_address_taken_over_by_another_pod_is_another_pods_history(
    world: PolicyWorld, state: PolicyState
) -> None:
    """Histories belong to a pod's uid: a successor at the same address begins its own."""
    await world.deploy("chat", 1)
    await world.policy(metric="served_total")
    await world.bind("chat")
    shown = page("# TYPE served_total counter\nserved_total 5\n")
    await world.show("chat", shown)
    await world.look(state)
    (pod,) = await world.pods("chat")
    ip = world.addresses[pod["metadata"]["name"]]
    await world.cluster.delete(PODS, pod["metadata"]["name"], world.namespace, grace_seconds=0)

    async def successor() -> dict[str, Any] | None:
        pods = [one for one in await world.pods("chat") if one["metadata"]["uid"] != pod["metadata"]["uid"]]
        return pods[0] if pods else None

    new = await eventually(successor, "a new pod", 120)
    await world.cluster.merge_patch(
        PODS, new["metadata"]["name"], ready_status(T0, ip), world.namespace, subresource="status"
    )

    async def measured() -> Any:
        targets = (await world.look(state))[0].targets
        return targets[0] if targets[0].ready == 1 else None

    target = await eventually(measured, "the new pod is listed")
    assert target.instances in (({},), ({"served_total": 0.0},))
