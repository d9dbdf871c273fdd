"""What services are made of, held against a real API server: each child in a dry run of server-side apply."""

from __future__ import annotations

from typing import Any

import pytest
from service_cases import CASES, rendered

from modelyard.cluster import Cluster, UnknownKind
from modelyard.workloads.rendering.values import Rendered

pytestmark = pytest.mark.integration

WITHOUT_A_SERVER = {
    "LeaderWorkerSet",
    "RayCluster",
    "ScaledObject",
    "HTTPRoute",
    "VirtualService",
    "serving.knative.dev/v1",
}
"""Kinds of others, whose CustomResourceDefinitions the server has not."""


def missing(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Paths of what was sent and is not there: a server this old drops unknown fields without a word."""
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            return [path]
        return [gone for name, value in sent.items() for gone in missing(value, stored.get(name), f"{path}.{name}")]
    if isinstance(sent, list):
        if not isinstance(stored, list) or len(stored) != len(sent):
            return [path]
        return [gone for i, one in enumerate(sent) for gone in missing(one, stored[i], f"{path}[{i}]")]
    return [] if sent == stored else [f"{path}: {sent!r} became {stored!r}"]


def pods(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of a kind that the server has not."""
    spec = body.get("spec", {})
    if body["kind"] == "LeaderWorkerSet":
        return [one for name, one in spec["leaderWorkerTemplate"].items() if name.endswith("Template")]
    if body["kind"] == "RayCluster":
        return [spec["headGroupSpec"]["template"], *(one["template"] for one in spec.get("workerGroupSpecs", ()))]
    return []


@pytest.mark.parametrize("case", CASES)
async def test_the_server_takes_every_child_as_it_is(control_plane_cluster: Cluster, namespace: str, case: str) -> None:
    result = rendered(case, old=True)
    assert isinstance(result, Rendered)
    taken = 0
    for child in result.children:
        body = {**child.body, "metadata": {**child.body["metadata"], "namespace": namespace}}
        if {child.kind, body["apiVersion"]} & WITHOUT_A_SERVER:
            with pytest.raises(UnknownKind):
                await control_plane_cluster.apply(body, dry_run=True)
        else:
            stored = await control_plane_cluster.apply(body, dry_run=True)
            assert missing(body, stored) == [], child.name
            taken += 1
        for number, template in enumerate(pods(body)):
            metadata = {**template["metadata"], "name": f"{child.name}-{number}", "namespace": namespace}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            assert missing(pod, await control_plane_cluster.apply(pod, dry_run=True)) == [], child.name
    assert taken
