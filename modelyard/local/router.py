"""A router on the local cluster: the manifests for real clusters, with what differs here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from modelyard.cluster import AlreadyExists, Cluster
from modelyard.local.paths import LocalClusterError
from modelyard.objects import CONFIG_MAPS, CONTROLLER_NAMESPACE, NAMESPACES
from modelyard.workloads.rendering import CONFIG_MAP

MANIFESTS = Path(__file__).resolve().parents[2] / "deployments/kubernetes/router.yaml"
"""There in a checkout."""
ADDRESS = f"http://modelyard-router.{CONTROLLER_NAMESPACE}.svc:8080"


def manifests(replicas: int, arguments: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the objects to apply. Raises ``LocalClusterError`` outside a checkout."""
    if not MANIFESTS.is_file():
        raise LocalClusterError(f"{MANIFESTS} is not there: run this in a checkout of Modelyard")
    for one in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")):
        if one["kind"] == "HorizontalPodAutoscaler":
            continue  # nothing here measures what pods use
        if one["kind"] == "Deployment":
            one["spec"]["replicas"] = replicas
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["args"] += arguments
        elif one["kind"] == "Service":
            one["spec"]["ports"][0]["port"] = 8080  # 80 is for root alone
        yield one


async def install(cluster: Cluster, replicas: int = 1, arguments: Sequence[str] = ()) -> str:
    """Apply the manifests, so that Services are behind the router unless there are settings of services already.

    Returns its URL by address, for clients that ask the system alone for names, where ``ADDRESS`` has none.
    """
    url = ADDRESS
    found = list(manifests(replicas, arguments))
    home = found[0]["metadata"]["namespace"]
    settings = {"ingress": json.dumps({"routed": True, "routerUrl": ADDRESS})}
    with contextlib.suppress(AlreadyExists):
        await cluster.create(NAMESPACES, {"metadata": {"name": home}})
    with contextlib.suppress(AlreadyExists):
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": settings}, home)
    for one in found:
        stored = await cluster.apply(one)
        if one["kind"] == "Service":
            spec = stored["spec"]
            url = f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"
    return url
