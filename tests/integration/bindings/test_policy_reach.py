"""A tenant with rights in its own namespace only, whose binding names a workload of another namespace.

The ticks run under the service account of the manifests, which may scale in every namespace: what holds the tenant back
is the rule alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fleet_fixture import eventually, quick, run_tick
from install_manifests import AUTOSCALER, CONTROLLER_NAMESPACE, install_roles, kubeconfig_of, tenant as tenant_of
from policy_world import PolicyWorld

from modelyard.autoscaling.fleet.kinds import BINDINGS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster, ClusterSettings, Forbidden
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS, NAMESPACES

pytestmark = pytest.mark.integration


@pytest.fixture
async def tenant(
    world: PolicyWorld, control_plane: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PolicyWorld]:
    """The attacker's world, through its own account; whoever else connects is the autoscaler of the manifests."""
    admin = control_plane.kubeconfig
    await install_roles(world.cluster)
    monkeypatch.setenv("KUBECONFIG", str(await kubeconfig_of(world.cluster, AUTOSCALER, admin, tmp_path / "loop")))
    own = await tenant_of(world.cluster, world.namespace, admin, tmp_path / "tenant")
    async with Cluster.connect(ClusterSettings(kubeconfig=own)) as cluster:
        yield PolicyWorld(cluster, world.endpoints, world.namespace)


@pytest.fixture
async def victim(world: PolicyWorld, other_namespace: str) -> PolicyWorld:
    """Another namespace with a loaded workload, whose pods note who asks them for metrics."""
    found = PolicyWorld(world.cluster, world.endpoints, other_namespace)
    await found.deploy("web", 2, load=30)
    return found


def settings_of(*worlds: PolicyWorld) -> ControllerSettings:
    settings = quick("http://127.0.0.1:9", worlds[0].namespace, controller_namespace=CONTROLLER_NAMESPACE)
    return settings.model_copy(update={"namespaces": [world.namespace for world in worlds]})


def foreign(victim: PolicyWorld) -> dict[str, Any]:
    """What a binding elsewhere says to mean the victim's workload, and its pods' port."""
    target = victim.target("web")
    target["targetRef"]["namespace"] = victim.namespace
    return target


def let_in(names: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {"modelyard.dev/allow-from": names}}}


async def test_a_foreign_workload_is_neither_scaled_nor_scraped_until_its_namespace_lets_the_tenant_in(
    tenant: PolicyWorld, victim: PolicyWorld
) -> None:
    with pytest.raises(Forbidden):
        await tenant.cluster.write_scale(DEPLOYMENTS, "web", victim.namespace, 5)
    with pytest.raises(Forbidden):
        await tenant.cluster.merge_patch(NAMESPACES, victim.namespace, let_in(tenant.namespace))
    await tenant.policy()
    await tenant.bind("grab", foreign(victim))
    asked = victim.endpoints.asked

    async def refused(loop: Controller) -> bool:
        tick = await run_tick(loop)
        assert not tick.outcome.errors
        found = await tenant.condition("grab", "TargetFound")
        return (found.get("status"), found.get("reason")) == ("False", "RefNotPermitted")

    async with Controller(settings_of(tenant, victim)) as loop:
        assert await refused(loop)
        await run_tick(loop)
        assert await victim.replicas("web") == 2
        assert asked == []
        message = (await tenant.condition("grab", "Ready"))["message"]
        assert f"modelyard.dev/allow-from: {tenant.namespace} on Namespace {victim.namespace}" in message
        assert not (await tenant.binding("grab"))["status"].get("units")

        await victim.cluster.merge_patch(NAMESPACES, victim.namespace, let_in(f"somebody, {tenant.namespace}"))

        async def scaled() -> bool:
            await run_tick(loop)
            return await victim.replicas("web") == 6

        await eventually(scaled, "the namespace has let the tenant in")
        assert asked
        assert (await tenant.condition("grab", "TargetFound"))["status"] == "True"

        await victim.cluster.merge_patch(NAMESPACES, victim.namespace, let_in(None))
        await eventually(lambda: refused(loop), "the namespace lets nobody in any more")
        await victim.settle("web", 6, load=90)
        asked.clear()
        await run_tick(loop)
        assert await victim.replicas("web") == 6
        assert asked == []


@pytest.mark.parametrize("loop_of_the_tenant", ["the same", "another"])
async def test_an_older_claim_of_a_tenant_does_not_keep_the_owner_from_scaling(
    tenant: PolicyWorld, victim: PolicyWorld, loop_of_the_tenant: str
) -> None:
    await tenant.policy()
    await tenant.bind("grab", foreign(victim))
    if loop_of_the_tenant == "another":
        labels = {"metadata": {"labels": {"wva.llmd.ai/controller-instance": "another"}}}
        await tenant.cluster.merge_patch(BINDINGS, "grab", labels, tenant.namespace)
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await victim.policy()
    await victim.bind("web")
    async with Controller(settings_of(tenant, victim)) as loop:
        await run_tick(loop)
    assert await victim.replicas("web") == 6
    assert (await victim.condition("web", "Ready"))["status"] == "True"


async def test_what_is_in_no_namespace_is_nobodys_target(tenant: PolicyWorld) -> None:
    """By its name alone such an object would be found from everywhere."""
    await tenant.policy()
    target = tenant.target("default")
    target["targetRef"] |= {"apiVersion": "v1", "kind": "Namespace"}
    await tenant.bind("grab", target)
    async with Controller(settings_of(tenant)) as loop:
        tick = await run_tick(loop)
    assert not tick.outcome.scaled
    found = await tenant.condition("grab", "TargetFound")
    assert (found["status"], found["reason"]) == ("False", "TargetInvalid")
    assert "are in no namespace" in found["message"]
