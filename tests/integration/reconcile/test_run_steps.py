"""Steps of a lifecycle on a real API server: side by side, each alone, repeated after a kill at any write."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from copying import DONE, Copies

from modelyard.cluster import Cluster
from modelyard.cluster.transport import ApiRequest
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.run_view import RunView, StepFailed, act, carry_out_step
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.plan import CLAIM, Plan, PlanStep, StepId, StepPhase, World
from modelyard.reconcile.plans.steps import REST

pytestmark = pytest.mark.integration


class Stepwise(Copies):
    """A step for each copy; a copy that is annotated ``fails`` fails its step."""

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        plan = super().plan(key, world, now)
        if plan is None:
            return None
        steps = {
            StepId("copy", body["metadata"]["name"]): PlanStep(StepPhase.ACTIVE, apply=(body,)) for body in plan.apply
        }
        there = world[CONFIG_MAPS].by("owner", plan.subject.uid)
        failed = {StepId("copy", one.key.name): PlanStep(StepPhase.FAILED, one.trouble) for one in there if one.trouble}
        return replace(plan, steps={**steps, **failed})


@pytest.fixture
async def key(control_plane_cluster: Cluster, namespace: str) -> Key:
    annotations = {"copies": "3", CLAIM: str(Claim("mine", "0" * 12, 1, time.time()))}
    metadata = {"name": "a", "labels": {"copies": "parent"}, "annotations": annotations}
    await control_plane_cluster.create(CONFIG_MAPS, {"metadata": metadata}, namespace)
    return Key(namespace, "a")


async def children(cluster: Cluster, key: Key) -> list[str]:
    listed = await cluster.list(CONFIG_MAPS, key.namespace, "copies=child")
    return sorted(one["metadata"]["name"] for one in listed.items)


async def test_a_step_writes_its_own_part_alone(control_plane_cluster: Cluster, key: Key) -> None:
    async with RunView(control_plane_cluster, Stepwise(), "mine") as view:
        await carry_out_step(view, key, StepId("copy", "a-1"))
        assert await children(control_plane_cluster, key) == ["a-1"]
        await asyncio.gather(*(carry_out_step(view, key, StepId("copy", f"a-{number}")) for number in (0, 1, 2)))
        assert await children(control_plane_cluster, key) == ["a-0", "a-1", "a-2"]
        await carry_out_step(view, key, REST)
    annotations = (await control_plane_cluster.get(CONFIG_MAPS, "a", key.namespace))["metadata"]["annotations"]
    assert annotations[DONE] == "3"


async def test_a_run_names_the_steps_that_it_carried_out(control_plane_cluster: Cluster, key: Key) -> None:
    acted = await act(control_plane_cluster, Stepwise(), [key], "mine")
    assert acted.settled == {key}
    assert acted.steps == {(key, StepId("copy", f"a-{number}")) for number in range(3)} | {(key, REST)}


@pytest.mark.parametrize("writes", range(4))
async def test_a_step_that_was_cut_off_is_repeated(
    control_plane_cluster: Cluster, key: Key, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, send = 0, control_plane_cluster.transport.send

    async def cut_off(request: ApiRequest) -> bytes:
        nonlocal written
        if request.method != "GET":
            written += 1
            if written > writes:
                raise asyncio.CancelledError
        return await send(request)

    step = StepId("copy", "a-0")
    with monkeypatch.context() as patch:
        patch.setattr(control_plane_cluster.transport, "send", cut_off)
        async with RunView(control_plane_cluster, Stepwise(), "mine") as view:
            with suppress(asyncio.CancelledError):
                await carry_out_step(view, key, step)
    async with RunView(control_plane_cluster, Stepwise(), "mine") as view:
        await carry_out_step(view, key, step)
    assert await children(control_plane_cluster, key) == ["a-0"]


async def test_a_step_that_failed_raises_and_stops_no_other(control_plane_cluster: Cluster, key: Key) -> None:
    await act(control_plane_cluster, Stepwise(), [key], "mine")
    body = {"metadata": {"annotations": {"trouble": "no room"}}}
    await control_plane_cluster.merge_patch(CONFIG_MAPS, "a-1", body, key.namespace)
    async with RunView(control_plane_cluster, Stepwise(), "mine") as view:
        with pytest.raises(StepFailed, match="no room"):
            await carry_out_step(view, key, StepId("copy", "a-1"))
        await carry_out_step(view, key, StepId("copy", "a-0"))
    assert (await act(control_plane_cluster, Stepwise(), [key], "mine")).settled == {key}
