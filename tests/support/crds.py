"""The generated CRDs on a test's cluster."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import yaml

from modelyard.cluster import Cluster, ClusterSettings, UnknownKind
from modelyard.cluster.crd_install import install_crds
from modelyard.objects import ResourceType
from modelyard.resources import KINDS

CRD_FOLDER = Path(__file__).resolve().parents[2] / "config" / "crd"


async def apply_crds(kubeconfig: Path) -> None:
    """Install them and wait until they are served."""
    manifests = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CRD_FOLDER.glob("*.yaml"))]
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as cluster:
        await install_crds(cluster, manifests)
        for kind in KINDS.values():
            await served(cluster, ResourceType.of_resource(kind))


async def served(cluster: Cluster, kind: ResourceType) -> None:
    """Wait until the server answers for a kind, which it does a moment after the definition is established."""
    async with asyncio.timeout(120):
        while True:
            with suppress(UnknownKind):
                await cluster.list(kind)
                return
            await asyncio.sleep(0.05)
