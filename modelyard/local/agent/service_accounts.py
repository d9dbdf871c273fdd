"""Credentials of a pod's ServiceAccount, as files.

Clients in a pod look for them in ``/var/run/secrets/kubernetes.io/serviceaccount``, where a kubelet mounts them. Local
processes share one file system, so each container gets a folder of its own, with a kubeconfig for the variable
``KUBECONFIG`` next to the usual files. The token has the rights of the ServiceAccount and is void once its pod is gone.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from modelyard.cluster import ApiRequest, Cluster, Object
from modelyard.local.certificates import kubeconfig

ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
KUBECONFIG = "kubeconfig"
_TOKEN_SECONDS = 365 * 86_400
"""Lifetime to which the API server extends tokens of pods: none is renewed before its container restarts."""


async def request_token(cluster: Cluster, pod: Object) -> str:
    """Return a token of the pod's ServiceAccount, bound to the pod. Raises ``ClusterError``."""
    metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    answer = await cluster.transport.json(ApiRequest("POST", path, "request", f"token of {account}", body=body))
    return str(answer["status"]["token"])


def credential_files(admin: Path, namespace: str, token: str) -> dict[str, bytes]:
    """Return the files of the folder: the token, the namespace, and a kubeconfig for the cluster of ``admin``'s."""
    cluster = yaml.safe_load(admin.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    return {
        "token": token.encode(),
        "namespace": namespace.encode(),
        KUBECONFIG: kubeconfig("local", cluster, "pod", {"token": token}, namespace=namespace).encode(),
    }
