"""Server-side apply on a real (1.20 or current) API server: creation, ownership, replicas, dropped fields."""

from __future__ import annotations

import asyncio
import logging

import pytest
from cluster_manifests import config_map, deployment, widget

from modelyard.cluster import Cluster, Conflict, Invalid, UnknownKind
from modelyard.cluster.objects import Object
from modelyard.objects.kinds import DEPLOYMENTS

pytestmark = pytest.mark.integration


def managers(obj: Object, operation: str = "Apply") -> set[str]:
    return {entry["manager"] for entry in obj["metadata"]["managedFields"] if entry["operation"] == operation}


async def test_an_apply_that_creates_returns_the_object(cluster: Cluster, place: str) -> None:
    made = await cluster.apply(config_map("a", place, x="1"))
    assert made["metadata"]["uid"]
    assert managers(made) == {"modelyard"}


async def test_what_is_no_longer_applied_goes(cluster: Cluster, place: str) -> None:
    await cluster.apply(config_map("a", place, x="1", y="2"))
    applied = await cluster.apply(config_map("a", place, x="1"))
    assert applied["data"] == {"x": "1"}


async def test_another_manager_s_field_is_a_conflict_unless_forced(cluster: Cluster, place: str) -> None:
    await cluster.apply(config_map("a", place, x="theirs"), field_manager="somebody")
    with pytest.raises(Conflict, match="somebody"):
        await cluster.apply(config_map("a", place, x="ours"), force=False)
    assert (await cluster.apply(config_map("a", place, x="ours")))["data"] == {"x": "ours"}


async def test_a_legacy_version_is_applied_in_the_served_one(cluster: Cluster, place: str) -> None:
    applied = await cluster.apply({**deployment("web", place), "apiVersion": "apps/v1beta1"})
    assert applied["apiVersion"] == "apps/v1"


async def test_an_unknown_kind_cannot_be_applied(cluster: Cluster, place: str) -> None:
    with pytest.raises(UnknownKind, match="Gadget"):
        await cluster.apply({"apiVersion": "x.example/v1", "kind": "Gadget", "metadata": {"name": "a"}})


PROBE = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 5}
FIELD = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"readinessProbe": PROBE, "lifecycle": {"preStop": {"exec": {"command": ["stop"]}}}}, {}),
        ({"livenessProbe": PROBE}, {"livenessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 5}}),
        ({"env": [{"name": "A", **FIELD}]}, {"env": [{"name": "A", "value": "1"}]}),
        ({"ports": [{"containerPort": 1}], "readinessProbe": PROBE}, {"ports": [{"containerPort": 2}]}),
    ],
    ids=["removed", "of another kind", "a value in place of a reference", "beside others"],
)
async def test_a_struct_that_is_no_longer_applied_goes_with_what_the_server_had_set_in_it(
    cluster: Cluster, place: str, before: Object, after: Object
) -> None:
    def engine(fields: Object) -> Object:
        body = deployment("web", place)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container.update(fields)
        return body

    await cluster.apply(engine(before))
    theirs = {"containers": [{"name": "beside", "image": "i"}]}
    marks = {"template": {"metadata": {"annotations": {"somebody": "else"}}, "spec": theirs}}
    other = {key: value for key, value in deployment("web", place).items() if key != "spec"}
    await cluster.apply({**other, "spec": marks}, field_manager="somebody")
    await cluster.write_scale(DEPLOYMENTS, "web", place, 3)
    applied = await cluster.apply(engine(after))
    assert applied["spec"]["replicas"] == 3
    assert applied["spec"]["template"]["metadata"]["annotations"] == {"somebody": "else"}
    first, second = sorted(applied["spec"]["template"]["spec"]["containers"], key=lambda one: one["name"] == "beside")
    assert second["name"] == "beside"
    fresh = await cluster.apply({**engine(after), "metadata": {"name": "fresh", "namespace": place}}, dry_run=True)
    assert first == fresh["spec"]["template"]["spec"]["containers"][0], "as if it had never been"
    # Nothing of it stays ours that is not applied.
    bare = await cluster.apply(engine({}))
    first = min(bare["spec"]["template"]["spec"]["containers"], key=lambda one: one["name"] == "beside")
    assert not first.keys() & {"readinessProbe", "livenessProbe", "lifecycle"}
    assert not [one for one in bare["metadata"]["managedFields"] if one["manager"] == "modelyard-structs"]


@pytest.mark.parametrize("scaled_to", [3, 0])
async def test_giving_up_replicas_keeps_what_the_scaler_set(cluster: Cluster, place: str, scaled_to: int) -> None:
    await cluster.apply(deployment("web", place, replicas=5))
    await cluster.write_scale(DEPLOYMENTS, "web", place, scaled_to)
    for note in ("first", "second"):
        body = deployment("web", place, paused=True)
        body["metadata"]["annotations"] = {"note": note}
        applied = await cluster.apply(body)
        assert applied["spec"]["replicas"] == scaled_to
        assert applied["metadata"]["annotations"]["note"] == note
    await cluster.write_scale(DEPLOYMENTS, "web", place, 7)
    assert (await cluster.apply(deployment("web", place)))["spec"]["replicas"] == 7


async def test_giving_up_replicas_of_a_custom_resource_keeps_them(cluster: Cluster, place: str) -> None:
    await cluster.apply(widget("w", place, replicas=5, color="red"))
    applied = await cluster.apply(widget("w", place, color="blue"))
    assert applied["spec"] == {"replicas": 5, "color": "blue"}


async def test_replicas_that_are_applied_are_set(cluster: Cluster, place: str) -> None:
    await cluster.apply(deployment("web", place, replicas=5))
    assert (await cluster.apply(deployment("web", place, replicas=2)))["spec"]["replicas"] == 2


async def test_the_status_is_applied_by_its_subresource(cluster: Cluster, place: str) -> None:
    await cluster.apply(widget("w", place, color="red"))
    body = widget("w", place)
    del body["spec"]
    applied = await cluster.apply({**body, "status": {"log": ["seen"]}}, field_manager="reporter", subresource="status")
    assert applied["status"] == {"log": ["seen"]}
    assert applied["spec"] == {"color": "red"}


async def test_fields_that_the_server_drops_are_said(
    cluster: Cluster, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "modelyard.cluster"):
        await cluster.apply(widget("w", place, color="red"))
        assert not caplog.records
        # A field that the CRD lacks: a server before 1.25 prunes it without a word, a later one refuses it.
        (outcome,) = await asyncio.gather(
            cluster.apply(widget("w", place, color="red", size=7)), return_exceptions=True
        )
    if isinstance(outcome, dict):
        assert "size" not in outcome["spec"]
        assert f"Widget {place}/w: the server dropped fields that it does not know: spec.size" in caplog.text
    else:
        assert isinstance(outcome, Invalid)
        assert "spec.size" in str(outcome)
