"""The scale subresource of a Deployment and of a custom resource."""

from __future__ import annotations

import pytest
from cluster_manifests import WIDGETS, deployment, widget

from modelyard.cluster import Cluster, Conflict, Invalid, NotFound
from modelyard.objects.kinds import DEPLOYMENTS

pytestmark = pytest.mark.integration


async def test_a_deployment_is_read_and_scaled(cluster: Cluster, place: str) -> None:
    await cluster.apply(deployment("web", place, replicas=2))
    scale = await cluster.read_scale(DEPLOYMENTS, "web", place)
    assert (scale.replicas, scale.status_replicas, scale.selector) == (2, 0, "app=web")
    written = await cluster.write_scale(DEPLOYMENTS, "web", place, 4, scale.resource_version)
    assert written.replicas == 4
    assert (await cluster.get(DEPLOYMENTS, "web", place))["spec"]["replicas"] == 4
    assert (await cluster.write_scale(DEPLOYMENTS, "web", place, 0)).replicas == 0
    assert (await cluster.read_scale(DEPLOYMENTS, "web", place)).replicas == 0


async def test_a_custom_resource_is_read_and_scaled(cluster: Cluster, place: str) -> None:
    await cluster.create(WIDGETS, widget("w", place, replicas=1))
    await cluster.merge_patch(WIDGETS, "w", {"status": {"replicas": 1, "selector": "app=w"}}, place, "status")
    scale = await cluster.read_scale(WIDGETS, "w", place)
    assert (scale.replicas, scale.status_replicas, scale.selector) == (1, 1, "app=w")
    assert (await cluster.write_scale(WIDGETS, "w", place, 3)).replicas == 3
    assert (await cluster.get(WIDGETS, "w", place))["spec"]["replicas"] == 3


async def test_a_scale_changed_meanwhile_is_a_conflict(cluster: Cluster, place: str) -> None:
    await cluster.apply(deployment("web", place, replicas=2))
    scale = await cluster.read_scale(DEPLOYMENTS, "web", place)
    await cluster.write_scale(DEPLOYMENTS, "web", place, 3)
    with pytest.raises(Conflict, match=f"scale Deployment {place}/web"):
        await cluster.write_scale(DEPLOYMENTS, "web", place, 4, scale.resource_version)
    assert (await cluster.read_scale(DEPLOYMENTS, "web", place)).replicas == 3


async def test_a_missing_target_is_not_found(cluster: Cluster, place: str) -> None:
    with pytest.raises(NotFound, match=f"read scale of Deployment {place}/web"):
        await cluster.read_scale(DEPLOYMENTS, "web", place)


async def test_a_custom_resource_without_replicas(cluster: Cluster, place: str) -> None:
    await cluster.create(WIDGETS, widget("w", place, color="red"))
    with pytest.raises(Invalid, match=r"spec\.replicas.*does not exist; set the field on the object once"):
        await cluster.read_scale(WIDGETS, "w", place)
