"""The generated CRDs on a test's cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.cluster.crd_install import install_crds

CRD_FOLDER = Path(__file__).resolve().parents[2] / "config" / "crd"


async def apply_crds(kubeconfig: Path) -> None:
    """Install them and wait until they are served."""
    manifests = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CRD_FOLDER.glob("*.yaml"))]
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as cluster:
        await install_crds(cluster, manifests)
