"""``modelyard services`` on a server that has one of the two kinds of services."""

from __future__ import annotations

import pytest
import yaml
from command_line import modelyard_beside
from crds import CRD_FOLDER, served

from modelyard.cluster import Cluster
from modelyard.cluster.crd_install import install_crds
from modelyard.local.stack import LocalStack
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration


async def test_a_kind_that_is_not_served_is_passed_over(
    api_server: LocalStack, cluster: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    done = await modelyard_beside("services", "-n", place)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("There are no services")
    manifests = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(CRD_FOLDER.glob("ome.io_*.yaml"))]
    await install_crds(cluster, manifests)
    await served(cluster, INFERENCE_SERVICES)
    spec = {"model": {"name": "none"}, "engine": {}}
    await cluster.create(INFERENCE_SERVICES, {"metadata": {"name": "chat"}, "spec": spec}, place)
    done = await modelyard_beside("services", "-n", place)
    assert (done.code, done.err) == (0, "")
    _, line = done.out.splitlines()
    assert line.split()[:4] == [place, "InferenceService", "chat", "none"]
