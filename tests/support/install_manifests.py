"""The manifests of deployments/kubernetes, and kubeconfigs that act as a service account: one of theirs, a tenant's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from fleet_fixture import eventually

from modelyard.cluster import Cluster, ClusterSettings, Forbidden
from modelyard.cluster.transport import ApiRequest
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, ResourceType

FOLDER = Path(__file__).resolve().parents[2] / "deployments" / "kubernetes"
CONTROLLER_NAMESPACE = "workload-variant-autoscaler-system"
AUTOSCALER, EXPORTER = "modelyard-autoscaler", "modelyard-exporter"


def documents(*names: str) -> list[dict[str, Any]]:
    """Every object of these files, in order."""
    return [document for name in names for document in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]


def resources() -> list[str]:
    """The files the kustomization names."""
    listed: list[str] = documents("kustomization.yaml")[0]["resources"]
    return listed


async def install_roles(cluster: Cluster) -> None:
    """Namespace, service accounts, roles and bindings, for real. They stay for the session."""
    for document in documents("namespace.yaml", "rbac.yaml", "rbac-everywhere.yaml"):
        await cluster.apply(document)


async def narrow_accounts(cluster: Cluster, namespace: str, admin: Path, folder: Path) -> dict[str, Path]:
    """Kubeconfigs of two more accounts, which have the rights of rbac-namespaced.yaml in this namespace alone."""
    await install_roles(cluster)
    inside = [document for document in documents("rbac.yaml") if document["kind"] == "RoleBinding"]
    for document in (*inside, *documents("rbac-namespaced.yaml")):
        metadata, (subject,) = document["metadata"], document["subjects"]
        metadata["name"] += f"-{namespace}"
        metadata["namespace"] = {"chat": namespace}.get(metadata["namespace"], metadata["namespace"])
        subject["name"] += f"-{namespace}"
        account = {"name": subject["name"], "namespace": subject["namespace"]}
        await cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        await cluster.apply(document)
    kubeconfigs = {
        name: await kubeconfig_of(cluster, f"{name}-{namespace}", admin, folder / f"narrow-{name}")
        for name in (AUTOSCALER, EXPORTER)
    }
    await in_force(kubeconfigs[EXPORTER], DEPLOYMENTS, namespace)  # the last to be granted
    return kubeconfigs


async def tenant(cluster: Cluster, namespace: str, admin: Path, target: Path) -> Path:
    """A kubeconfig of somebody with every right in a namespace, and none anywhere else."""
    own = {"metadata": {"name": "owner", "namespace": namespace}}
    group = "rbac.authorization.k8s.io"
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    subject = {"kind": "ServiceAccount", "name": "owner", "namespace": namespace}
    role = {"apiGroup": group, "kind": "Role", "name": "owner"}
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", **own},
        {"apiVersion": f"{group}/v1", "kind": "Role", **own, "rules": [everything]},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", **own, "roleRef": role, "subjects": [subject]},
    ):
        await cluster.apply(body)
    kubeconfig = await kubeconfig_of(cluster, "owner", admin, target, namespace)
    await in_force(kubeconfig, CONFIG_MAPS, namespace)
    return kubeconfig


async def in_force(kubeconfig: Path, kind: ResourceType, namespace: str) -> None:
    """Wait until the API server knows of the right to list this."""
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as cluster:

        async def may() -> bool:
            try:
                await cluster.list(kind, namespace)
            except Forbidden:
                return False
            return True

        await eventually(may, f"{kubeconfig.name} may list {kind.plural}")


async def kubeconfig_of(
    cluster: Cluster, account: str, admin: Path, target: Path, namespace: str = CONTROLLER_NAMESPACE
) -> Path:
    """A kubeconfig like the administrator's, with a token of the service account in place of his certificate."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = await cluster.transport.json(ApiRequest("POST", path, "request", f"token of {account}", body=request))
    config = yaml.safe_load(admin.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    target.write_text(yaml.safe_dump(config), encoding="utf-8")
    return target
