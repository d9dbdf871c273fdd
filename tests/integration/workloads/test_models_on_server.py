"""Every child of every Model in ``tests/data/kthena`` is taken by a real API server, by server-side apply."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kthena_models import names, rendered_named

from modelyard.cluster import Cluster

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", names())
async def test_children_are_taken(control_plane_cluster: Cluster, namespace: str, name: str) -> None:
    for child in rendered_named(name).children:
        for body in _served(child.body):
            body["metadata"]["namespace"] = namespace
            stored = await control_plane_cluster.apply(body, dry_run=True)
            assert stored["metadata"]["labels"].items() >= body["metadata"]["labels"].items()


def _served(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The object; of a kind that no server of these tests has, the pods it would make."""
    if body["kind"] != "LeaderWorkerSet":
        return [copy.deepcopy(body)]
    template = body["spec"]["leaderWorkerTemplate"]
    pods = []
    for part in ("leaderTemplate", "workerTemplate"):
        one = copy.deepcopy(template[part])
        one["metadata"]["name"] = f"{body['metadata']['name']}-{part.lower()}"
        pods.append({"apiVersion": "v1", "kind": "Pod", **one})
    return pods
