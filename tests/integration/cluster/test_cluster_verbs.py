"""Reading and writing objects on a real API server."""

from __future__ import annotations

import pytest
from cluster_manifests import WIDGETS, config_map, widget

from modelyard.cluster import AlreadyExists, Cluster, Conflict, Invalid, NotFound, UnknownKind
from modelyard.objects.kinds import CONFIG_MAPS, HPAS, NAMESPACES, PODS, ResourceType

pytestmark = pytest.mark.integration


async def test_an_object_from_creation_to_deletion(cluster: Cluster, place: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("a", place, x="1"))
    assert await cluster.get(CONFIG_MAPS, "a", place) == made
    patched = await cluster.merge_patch(CONFIG_MAPS, "a", {"data": {"y": "2"}}, place)
    assert patched["data"] == {"x": "1", "y": "2"}
    patched = await cluster.merge_patch(CONFIG_MAPS, "a", {"data": {"x": None}}, place)
    assert patched["data"] == {"y": "2"}
    replaced = await cluster.replace(CONFIG_MAPS, {**patched, "data": {"z": "3"}})
    assert replaced["data"] == {"z": "3"}
    await cluster.delete(CONFIG_MAPS, "a", place)
    with pytest.raises(NotFound, match=rf"get ConfigMap {place}/a: 404 NotFound"):
        await cluster.get(CONFIG_MAPS, "a", place)


async def test_a_dry_run_stores_nothing(cluster: Cluster, place: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("a", place), dry_run=True)
    await cluster.apply(config_map("b", place), dry_run=True)
    assert len(await cluster.list(CONFIG_MAPS, place)) == 0


async def test_what_the_server_refuses_is_told_apart(cluster: Cluster, place: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("a", place))
    with pytest.raises(AlreadyExists, match=f"create ConfigMap {place}/a"):
        await cluster.create(CONFIG_MAPS, config_map("a", place))
    await cluster.merge_patch(CONFIG_MAPS, "a", {"data": {"x": "9"}}, place)
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict, match=f"replace ConfigMap {place}/a"):
        await cluster.replace(CONFIG_MAPS, made)
    with pytest.raises(Conflict):
        await cluster.merge_patch(CONFIG_MAPS, "a", {**stale, "data": {"x": "1"}}, place)
    with pytest.raises(Conflict):
        await cluster.delete(CONFIG_MAPS, "a", place, uid="somebody-else")
    await cluster.delete(CONFIG_MAPS, "b", place)
    with pytest.raises(NotFound, match="namespaces"):
        await cluster.create(CONFIG_MAPS, config_map("a", "no-such-namespace"))


async def test_invalid_names_every_field(cluster: Cluster, place: str) -> None:
    with pytest.raises(Invalid) as caught:
        await cluster.create(WIDGETS, widget("w", place, replicas=-1, color="green"))
    assert {cause.field for cause in caught.value.causes} == {"spec.replicas", "spec.color"}
    assert caught.value.status == 422
    assert (caught.value.verb, caught.value.object) == ("create", f"Widget {place}/w")


async def test_a_missing_namespace_is_said_before_asking_the_server(cluster: Cluster) -> None:
    with pytest.raises(Invalid, match="namespace is missing"):
        await cluster.get(PODS, "p")
    with pytest.raises(Invalid, match=r"metadata\.namespace is missing"):
        await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(Invalid, match="needs apiVersion, kind and metadata"):
        await cluster.apply({"kind": "ConfigMap", "metadata": {"name": "a"}})


async def test_kinds_are_found_by_the_server_s_own_lists(cluster: Cluster) -> None:
    deployment = ResourceType("apps", "v1", "Deployment", "deployments", True)
    for written in ("apps/v1", "apps/", "apps/v1beta1", ""):
        assert await cluster.resolve(written, "Deployment") == deployment
    assert await cluster.resolve("v1", "Pod") == PODS
    assert await cluster.resolve("", "Namespace") == NAMESPACES
    assert await cluster.resolve("test.modelyard.dev/v1", "Widget") == WIDGETS
    assert (await cluster.resolve("autoscaling/", HPAS.kind)).version
    assert len(await cluster.list(HPAS)) == 0


async def test_an_unknown_kind_is_named(cluster: Cluster, place: str) -> None:
    with pytest.raises(UnknownKind, match=r"LeaderWorkerSet leaderworkerset\.x-k8s\.io/v1"):
        await cluster.resolve("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    with pytest.raises(UnknownKind, match="it serves v1"):
        await cluster.resolve("apps/v1", "Gadget")
    unknown = ResourceType("nobody.example", "v1", "Gadget", "gadgets", True)
    with pytest.raises(UnknownKind, match=f"list gadgets in {place}"):
        await cluster.list(unknown, place)
    with pytest.raises(UnknownKind, match=f"read scale of ConfigMap {place}/a"):
        await cluster.read_scale(CONFIG_MAPS, "a", place)
