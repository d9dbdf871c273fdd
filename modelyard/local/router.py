"""A router on the local cluster: the manifests for real clusters, with what differs here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from modelyard.cluster import CONFIG_MAPS, NAMESPACES, AlreadyExists, Cluster
from modelyard.cluster.transport import ApiRequest
from modelyard.local.paths import LocalClusterError
from modelyard.workloads.settings import CONFIG_MAP

MANIFESTS = Path(__file__).resolve().parents[2] / "deployments/kubernetes/router.yaml"
"""There in a checkout."""
IMAGE = "modelyard.dev/router:local"
ADDRESS = "http://modelyard-router.workload-variant-autoscaler-system.svc:8080"
_SECRET = "modelyard-router-kubeconfig"
_DAYS = 10


def manifests(replicas: int, arguments: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """What to apply. Pods here have no service account of their own: a kubeconfig with its token takes that place.

    Raises ``LocalClusterError`` outside a checkout.
    """
    if not MANIFESTS.is_file():
        raise LocalClusterError(f"{MANIFESTS} is not there: run this in a checkout of Modelyard")
    for one in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")):
        if one["kind"] == "HorizontalPodAutoscaler":
            continue  # nothing here measures what pods use
        if one["kind"] == "Deployment":
            one["spec"]["replicas"] = replicas
            spec = one["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            container["image"] = IMAGE
            container["args"] += arguments
            container["env"].append({"name": "KUBECONFIG", "value": "/etc/modelyard/kubeconfig"})
            container["volumeMounts"].append({"name": "kubeconfig", "mountPath": "/etc/modelyard"})
            spec["volumes"].append({"name": "kubeconfig", "secret": {"secretName": _SECRET}})
        elif one["kind"] == "Service":
            one["spec"]["ports"][0]["port"] = 8080  # 80 is for root alone
        yield one


async def install(cluster: Cluster, admin: Path, replicas: int = 1, arguments: Sequence[str] = ()) -> str:
    """Apply the manifests, with a kubeconfig like the administrator's but with the rights of a router alone.

    Services are behind it from then on, unless there are settings of services already. Returns its URL by address, for
    clients that ask the system alone for names, where ``ADDRESS`` has none.
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
        if one["kind"] == "Deployment":
            config = await _kubeconfig(cluster, admin, home, one["spec"]["template"]["spec"]["serviceAccountName"])
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": _SECRET, "namespace": home},
                "stringData": {"kubeconfig": config},
            }
            await cluster.apply(secret)
        stored = await cluster.apply(one)
        if one["kind"] == "Service":
            spec = stored["spec"]
            url = f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"
    return url


async def _kubeconfig(cluster: Cluster, admin: Path, namespace: str, account: str) -> str:
    spec = {"expirationSeconds": _DAYS * 86_400}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = await cluster.transport.json(ApiRequest("POST", path, "request", f"token of {account}", body=request))
    config = yaml.safe_load(admin.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    return yaml.safe_dump(config)
