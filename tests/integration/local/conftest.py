"""Fixtures of the tests on the whole local cluster."""

from __future__ import annotations

import pytest
from cluster_helpers import Namespace

from modelyard.cluster import Cluster


@pytest.fixture
async def space(local_cluster: Cluster, local_namespace: str) -> Namespace:
    """A namespace of the whole local cluster."""
    return Namespace(local_cluster, local_namespace)
