"""Every child of every Model in ``tests/data/kthena`` is taken by a real API server, by server-side apply."""

from __future__ import annotations

import pytest
from kthena_models import names, rendered_named, served_here

from modelyard.cluster import Cluster

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", names())
async def test_children_are_taken(control_plane_cluster: Cluster, namespace: str, name: str) -> None:
    for child in rendered_named(name).children:
        for body in served_here(child.body):
            body["metadata"]["namespace"] = namespace
            stored = await control_plane_cluster.apply(body, dry_run=True)
            assert stored["metadata"]["labels"].items() >= body["metadata"]["labels"].items()
