"""What is made for a Model is scaled: by the policy embedded in it, and by bindings that name its backend."""

from __future__ import annotations

import copy

import pytest
from kthena_models import PLAIN, a_backend, a_model, a_worker, children
from metric_endpoints import fresh_address
from policy_world import PolicyWorld, waiting

from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.autoscaling.reading.bindings.objects import ROLE
from modelyard.cluster import NotFound
from modelyard.resources.annotations import ROLE_RATIO
from modelyard.workloads.kthena.setup import Existing

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0
PREFILL, DECODE = "chat-pd-0-prefill", "chat-pd-0-decode"
SCALED = {"Deployment", "AutoscalingPolicy", "AutoscalingPolicyBinding"}


async def made(world: PolicyWorld, embedded: bool, existing: Existing | None = None) -> None:
    """Prefill and decode of a Model, one to two, and what scales them, applied as a roll-out does."""
    if not world.endpoints.port:
        await world.endpoints.add(waiting(0), fresh_address())
    config = {"port": world.endpoints.port}
    workers = [a_worker("prefill", config=config), a_worker("decode", config=config, replicas=2)]
    policy = {"metrics": [{"metricName": "kthena:num_requests_waiting", "targetValue": "10"}]}
    governed = {"autoscalingPolicy": policy, "maxReplicas": 4} if embedded else {}
    model = a_model(a_backend("vLLMDisaggregated", "pd", workers, **governed))
    model["metadata"]["namespace"] = world.namespace
    for child in children(model, PLAIN, existing=existing or Existing()).children:
        if child.kind in SCALED:
            await world.cluster.apply(copy.deepcopy(child.body))
    for name in (PREFILL, DECODE):
        role = name.rpartition("-")[2]
        world.selectors[name] = f"modelinfer.volcano.sh/name=chat-pd,{ROLE}={role}"


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "by name"])
async def test_roles_of_a_model_are_scaled_and_keep_their_ratio(
    world: PolicyWorld, state: PolicyState, embedded: bool
) -> None:
    await made(world, embedded)
    assert (await world.replicas(PREFILL), await world.replicas(DECODE)) == (1, 2)
    await world.settle(PREFILL, 1, load=10)
    await world.settle(DECODE, 2, load=20)
    if not embedded:
        await world.policy()
        for role, ratio in (("prefill", {ROLE_RATIO: "chat-pd-decode=1/2"}), ("decode", {})):
            target = world.target("chat-pd", "ModelInfer", additionalMatchLabels={ROLE: role})
            target["targetRef"].pop("apiVersion")
            await world.bind(f"chat-pd-{role}", target, least=1, most=8, annotations=ratio)
    ticked = await world.tick(state, T0)
    assert (await world.replicas(PREFILL), await world.replicas(DECODE)) == (2, 4)
    assert ticked.decision("chat-pd-prefill").records[0].why.reason == "RoleRatio"
    said = (await world.condition("chat-pd-prefill", "Ready"))["message"]
    assert "1 by itself, 2 to keep 1/2 of chat-pd-prefill for one of chat-pd-decode" in said
    assert (await world.condition("chat-pd-decode", "TargetFound"))["message"].endswith(f"/{DECODE}")
    # The next roll-out leaves them as they are.
    there = {PREFILL: 2, DECODE: 4}
    await made(world, embedded, Existing(there, frozenset() if embedded else frozenset({"chat-pd"})))
    assert (await world.replicas(PREFILL), await world.replicas(DECODE)) == (2, 4)


async def test_a_backend_of_several_workloads_says_how_to_name_one(world: PolicyWorld, state: PolicyState) -> None:
    await made(world, embedded=False)
    await world.policy()
    for name in ("chat-pd", "chat-other"):
        target = world.target(name, "ModelInfer")
        target["targetRef"].pop("apiVersion")
        await world.bind(name, target)
    await world.tick(state, T0)
    assert (await world.replicas(PREFILL), await world.replicas(DECODE)) == (1, 2)
    found = await world.condition("chat-pd", "TargetFound")
    assert found["status"] == "False"
    assert "has several roles (decode, prefill)" in found["message"]
    lost = await world.condition("chat-other", "TargetFound")
    assert "no LeaderWorkerSet or Deployment or StatefulSet" in lost["message"]
    with pytest.raises(NotFound):
        await world.binding("chat-pd-prefill")
