"""A real API server accepts deeply nested objects, and one of them is no obstacle to reading the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fleet_fixture import eventually

from modelyard.cluster import Cluster
from modelyard.cluster.transport import ApiRequest
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects import Key
from modelyard.objects.parse import key_of
from modelyard.reconcile.kernel.mirror import Mirror
from modelyard.reconcile.plans.plan import Want

pytestmark = pytest.mark.integration

WANT = Want(BASE_MODELS, key_of)
NESTED = {
    "spec": '{{"storage": {{"storageUri": "hf://a/b"}}, "modelConfiguration": {deep}}}',
    "status": '{{"state": "Ready", "detected": {deep}}}',
}


async def write(cluster: Cluster, place: str, name: str, part: str, levels: int) -> None:
    """Create the model, or replace its status, as text: the client's encoder does not write such depths."""
    body: dict[str, Any] = {
        "apiVersion": BASE_MODELS.api_version,
        "kind": BASE_MODELS.kind,
        "metadata": {"name": name, "namespace": place},
    }
    method, path, verb = "POST", BASE_MODELS.path(place), "create"
    if part == "status":
        body["metadata"] = (await cluster.get(BASE_MODELS, name, place))["metadata"]
        method, path, verb = "PUT", BASE_MODELS.path(place, name, "status"), "replace"
    deep = NESTED[part].format(deep='{"a":' * levels + "1" + "}" * levels)
    text = json.dumps({**body, part: "NESTED"}).replace('"NESTED"', deep)
    # As YAML, because the client encodes every body that is sent as JSON.
    request = ApiRequest(method, path, verb, name, body=text, content_type="application/yaml")
    stored = await cluster.transport.json(request)
    assert stored["metadata"]["name"] == name


@pytest.mark.parametrize("part", NESTED)
@pytest.mark.parametrize("levels", [300, 1100, 9000])
async def test_a_deep_object_stops_no_other(
    control_plane_cluster: Cluster, namespace: str, levels: int, part: str
) -> None:
    cluster = control_plane_cluster
    good, late, deep = (Key(namespace, name) for name in ("good", "late", "deep"))
    await write(cluster, namespace, "good", "spec", 1)
    async with Mirror(cluster) as followed:
        followed.follow()
        await followed.begin()
        watched = await followed.read(WANT)
        await write(cluster, namespace, "deep", "spec", levels if part == "spec" else 1)
        if part == "status":
            await write(cluster, namespace, "deep", "status", levels)
        await write(cluster, namespace, "late", "spec", 1)
        await eventually(lambda: late in watched.all() and deep in watched.problems, "the watch goes on")
    async with Mirror(cluster) as listed:
        await listed.begin()
        store = await listed.read(WANT)
        assert [key for key in store.all() if key.namespace == namespace] == [good, late]
        assert "levels deep; make it flatter" in store.problems[deep]
    found = await cluster.get(BASE_MODELS, "deep", namespace)
    assert found["spec"]["storage"] == {"storageUri": "hf://a/b"}
    names = [item["metadata"]["name"] for item in await cluster.list(BASE_MODELS, namespace)]
    assert names == ["deep", "good", "late"]
