"""Who else scales a workload: other loops' bindings and variants, an HPA that follows; and silence when all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fleet_fixture import eventually, quick, run_tick
from policy_world import PolicyWorld
from prometheus_server import PrometheusServer

from modelyard.autoscaling.configuration.settings import Mode
from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.fleetwatch import Fleetwatch
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS, HPAS

pytestmark = pytest.mark.integration

NOWHERE = "http://127.0.0.1:9"
INSTANCE = "wva.llmd.ai/controller-instance"


@pytest.fixture
def mine(world: PolicyWorld, control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch) -> PolicyWorld:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return world


async def label(world: PolicyWorld, name: str, **labels: str) -> None:
    await world.cluster.merge_patch(BINDINGS, name, {"metadata": {"labels": labels}}, world.namespace)


def share(world: PolicyWorld, selector: str) -> ControllerSettings:
    return quick(NOWHERE, world.namespace).model_copy(update={"label_selector": selector})


async def hpa(world: PolicyWorld) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    body = {
        "metadata": {"name": "follower", "namespace": world.namespace},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 9},
    }
    await world.cluster.create(HPAS, body, world.namespace)


@pytest.mark.parametrize("way", ["annotation", "fleet"])
async def test_in_signal_mode_an_hpa_at_the_target_is_welcome(mine: PolicyWorld, way: str) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat", annotations={"modelyard.dev/actuation": "signal"} if way == "annotation" else None)
    await hpa(mine)
    mode = Mode.SIGNAL if way == "fleet" else Mode.DIRECT
    async with Controller(quick(NOWHERE, mine.namespace, actuation=mode)) as loop:
        tick = await run_tick(loop)
        assert not tick.outcome.scaled
    status = (await mine.binding("chat"))["status"]
    assert status["units"][0] | {"mode": ""} == {
        "name": "chat",
        "currentReplicas": 2,
        "desiredReplicas": 6,
        "mode": "",
    }
    assert (await mine.condition("chat", "Ready"))["status"] == "True"


@pytest.mark.parametrize("apart", ["selector", "instance"])
async def test_of_two_loops_only_one_scales_a_workload_both_were_given(mine: PolicyWorld, apart: str) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("older", mine.target("chat"), most=4)
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await mine.bind("younger", mine.target("chat"), most=9)
    if apart == "selector":
        await label(mine, "older", share="a")
        await label(mine, "younger", share="b")
        settings = [share(mine, "share=b"), share(mine, "share in (a)")]
    else:
        await label(mine, "younger", **{INSTANCE: "blue"})
        settings = [quick(NOWHERE, mine.namespace, controller_instance="blue"), quick(NOWHERE, mine.namespace)]
    async with Controller(settings[0]) as younger, Controller(settings[1]) as older:
        tick = await run_tick(younger)
        assert await mine.replicas("chat") == 2
        assert [one.key.name for one in tick.decision.bindings] == ["younger"]
        await run_tick(older)
        assert await mine.replicas("chat") == 4
    ready = await mine.condition("younger", "Ready")
    assert f"{mine.namespace}/older, which is older and belongs to another loop" in ready["message"]
    assert (await mine.condition("older", "Ready"))["status"] == "True"


async def test_a_variant_of_another_share_is_seen(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat")
    await label(mine, "chat", share="a")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    body = {
        "metadata": {"name": "theirs", "namespace": mine.namespace, "labels": {"share": "b"}},
        "spec": {"scaleTargetRef": reference, "modelID": "llama", "variantCost": "10.0"},
    }
    await mine.cluster.create(VARIANTS, body, mine.namespace)
    async with Controller(share(mine, "share=a")) as loop:
        await run_tick(loop)
        assert await mine.replicas("chat") == 2
        ready = await mine.condition("chat", "Ready")
        assert f"VariantAutoscaling {mine.namespace}/theirs" in ready["message"]
        await mine.cluster.delete(VARIANTS, "theirs", mine.namespace)

        async def scaled() -> bool:
            await run_tick(loop)
            return await mine.replicas("chat") == 6

        await eventually(scaled, "the workload is the binding's again")


async def test_a_quiet_tick_writes_nothing_at_all(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=10)
    await mine.deploy("idle", 0)
    await mine.policy()
    for name, more in (("chat", {}), ("idle", {"least": 0}), ("lost", {}), ("broken", {"policy": "nowhere"})):
        await mine.bind(name, mine.target("chat" if name == "broken" else name), **more)
    methods: list[str] = []
    async with Controller(quick(NOWHERE, mine.namespace)) as loop:
        for _ in range(3):
            await run_tick(loop)
        send: Callable[[Any], Awaitable[bytes]] = loop.cluster.transport.send

        async def seen(request: Any) -> bytes:
            methods.append(request.method)
            return await send(request)

        loop.cluster.transport.send = seen  # type: ignore[method-assign]
        for _ in range(3):
            await run_tick(loop)
    assert methods
    assert set(methods) == {"GET"}


async def test_pods_that_are_all_down_are_neither_idle_nor_too_many(
    mine: PolicyWorld, constants: PrometheusServer
) -> None:
    """The gateway says that nothing waits, because nothing gets through."""
    await mine.deploy("other", 1)  # from here on it is known at which port this test's pods answer
    await mine.deploy("chat", 0)
    await mine.cluster.write_scale(DEPLOYMENTS, "chat", mine.namespace, 3)
    await mine.settle("chat", 3, ready=0)
    behaviour = {"scaleDown": {"stabilizationWindow": "0s", "period": "0s"}}
    await mine.policy(metric="queued", behavior=behaviour)
    quiet = {
        "modelyard.dev/metric-sources": '{"queued": "vector(0)"}',
        "modelyard.dev/wake-query": "vector(0)",
        "modelyard.dev/scale-to-zero-grace": "0s",
    }
    await mine.bind("chat", least=0, annotations=quiet)
    async with Controller(quick(constants.url, mine.namespace)) as loop:

        async def listed() -> bool:
            tick = await run_tick(loop)
            return tick.fleet.bindings[0].targets[0].unready == 3

        await eventually(listed, "the pods are listed")
        tick = await run_tick(loop)
        assert tick.decision.bindings[0].records[0].why.reason == "NoReadyInstance"
        assert await mine.replicas("chat") == 3
        await mine.settle("chat", 3, load=0)
        await run_tick(loop)
        assert await mine.replicas("chat") == 0


async def test_the_gauges_follow_the_binding_and_go_with_it(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat", annotations={"modelyard.dev/actuation": "signal"})
    watch = Fleetwatch(mine.cluster)
    running = asyncio.create_task(watch.run())

    def shown() -> list[tuple[str, int, int | None]]:
        found = (one for one in watch.published_bindings() if one.binding.namespace == mine.namespace)
        return [(one.target, one.desired, one.current) for one in found]

    async def becomes(expected: list[tuple[str, int, int | None]]) -> None:
        async def same() -> bool:
            return shown() == expected

        await eventually(same, f"the gauges are {expected}, not {shown()}")

    try:
        await asyncio.wait_for(watch.synced.wait(), 120)
        assert shown() == []
        async with Controller(quick(NOWHERE, mine.namespace)) as loop:
            await run_tick(loop)
            await becomes([("chat", 6, 2)])
            await mine.cluster.delete(POLICIES, "queue", mine.namespace)
            await run_tick(loop)
            await becomes([])
            await mine.policy()
            await run_tick(loop)
            await becomes([("chat", 6, 2)])
        await mine.cluster.delete(BINDINGS, "chat", mine.namespace)
        await becomes([])
    finally:
        running.cancel()
        await asyncio.wait([running])
