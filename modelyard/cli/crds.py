"""``modelyard crds``: print or install the CustomResourceDefinitions of every kind Modelyard knows."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer


def crds(
    install: Annotated[bool, typer.Option(help="Apply them to the cluster of the current kubeconfig.")] = False,
) -> None:
    """Print the CustomResourceDefinitions as YAML, or install them."""
    import yaml

    from modelyard.resources import KINDS
    from modelyard.resources.crd import crd

    manifests = [crd(kind) for kind in KINDS.values()]
    if not install:
        typer.echo(yaml.safe_dump_all(manifests, sort_keys=False), nl=False)
        return
    asyncio.run(_install(manifests))


async def _install(manifests: list[dict[str, Any]]) -> None:
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.cluster.crd_install import install_crds

    async with Cluster.connect(ClusterSettings()) as cluster:
        for name in await install_crds(cluster, manifests):
            typer.echo(f"customresourcedefinition/{name} installed")
