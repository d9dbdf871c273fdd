"""What the API server of these tests can do."""

from __future__ import annotations

import pytest

from modelyard.cluster import Cluster
from modelyard.objects.kinds import CRDS


@pytest.fixture(scope="session")
async def evaluates_cel(control_plane_cluster: Cluster) -> bool:
    """Whether the server keeps, and so evaluates, ``x-kubernetes-validations``."""
    stored = await control_plane_cluster.get(CRDS, "variantautoscalings.llmd.ai")
    spec = stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return "x-kubernetes-validations" in spec
