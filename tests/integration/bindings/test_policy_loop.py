"""The whole loop with policies beside variants: collected, decided, written and reported by the same four stages."""

from __future__ import annotations

import time

import pytest
from fleet_fixture import quick, run_tick
from policy_world import PolicyWorld

from modelyard.autoscaling.live.controller import Controller
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import HPAS

pytestmark = pytest.mark.integration

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def mine(world: PolicyWorld, control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch) -> PolicyWorld:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return world


async def test_a_tick_scales_by_policy_without_prometheus_or_variants(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat")
    async with Controller(quick(NOWHERE, mine.namespace)) as loop:
        tick = await run_tick(loop)
        assert [binding.key.name for binding in tick.decision.bindings] == ["chat"]
        assert await mine.replicas("chat") == 6
    assert [(row["variant"], row["now → target"]) for row in tick.report.rows] == [(f"{mine.namespace}/chat", "2 → 6")]
    status = (await mine.binding("chat"))["status"]
    assert (status["currentReplicas"], status["desiredReplicas"], status["mode"]) == (2, 6, "Stable")
    assert (status["minReplicas"], status["maxReplicas"]) == (1, 20)
    assert status["units"][0]["name"] == "chat"


@pytest.mark.parametrize("hours", [2, -2])
async def test_a_writer_whose_clock_jumps_keeps_the_stabilization_window(
    mine: PolicyWorld, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat")
    async with Controller(quick(NOWHERE, mine.namespace)) as loop:
        await run_tick(loop)
        assert await mine.replicas("chat") == 6
        await mine.settle("chat", 6, load=2)
        before = await run_tick(loop)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + 3600 * hours)
    async with Controller(quick(NOWHERE, mine.namespace)) as loop:  # of the next shift, which has a clock of its own
        after = await run_tick(loop)
    assert await mine.replicas("chat") == 6, "the higher recommendation is minutes old at most"
    assert abs(after.fleet.now - before.fleet.now) < 600


async def test_an_hpa_in_a_namespace_without_variants_is_seen(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    body = {
        "metadata": {"name": "rival", "namespace": mine.namespace},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 3},
    }
    await mine.cluster.create(HPAS, body, mine.namespace)
    async with Controller(quick(NOWHERE, mine.namespace)) as loop:
        await run_tick(loop)
    assert await mine.replicas("chat") == 2
    ready = await mine.condition("chat", "Ready")
    assert "HorizontalPodAutoscaler" in ready["message"]


async def test_dry_run_writes_nothing(mine: PolicyWorld) -> None:
    await mine.deploy("chat", 2, load=30)
    await mine.policy()
    await mine.bind("chat")
    async with Controller(quick(NOWHERE, mine.namespace, dry_run=True)) as loop:
        tick = await run_tick(loop)
    assert tick.decision.bindings[0].records[0].target.replicas == 6
    assert await mine.replicas("chat") == 2
    binding = await mine.binding("chat")
    assert "status" not in binding
    assert "modelyard.dev/policy-state" not in (binding["metadata"].get("annotations") or {})
