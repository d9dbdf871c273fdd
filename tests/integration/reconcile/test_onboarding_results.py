"""Where an onboarding's results go is looked at before it makes anything, on a real API server."""

from __future__ import annotations

import pytest
from onboarded import request

from modelyard.cluster import Cluster
from modelyard.objects.kinds import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS
from modelyard.onboarding.execution.start import OnboardRefused, take_over

pytestmark = pytest.mark.integration


async def test_an_onboarding_without_its_claim_makes_nothing(control_plane_cluster: Cluster, namespace: str) -> None:
    cluster = control_plane_cluster
    asked = request(namespace=namespace)
    with pytest.raises(OnboardRefused, match=f"PersistentVolumeClaim {namespace}/results not found; create it"):
        await take_over(cluster, asked, "run")
    spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
    for name in ("other", "results"):
        await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace)
    with pytest.raises(OnboardRefused, match=r"results can only be read; name one with ReadWriteMany"):
        await take_over(cluster, asked, "run")
    assert not [one for one in await cluster.list(CONFIG_MAPS, namespace) if one["metadata"]["name"].startswith("chat")]
    writable = {**spec, "accessModes": ["ReadWriteOnce"]}
    await cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "more"}, "spec": writable}, namespace)
    assert await take_over(cluster, request(namespace=namespace, results="pvc://more/x"), "run")
