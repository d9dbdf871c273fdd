"""What is made for a tenant's service is no more than the tenant could have made: held against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kthena_models
import pytest
import service_cases
from install_manifests import kubeconfig_of

from modelyard.cluster import SERVICE_ACCOUNTS, Cluster, ClusterSettings, Forbidden, UnknownKind
from modelyard.local.stack import LocalStack
from modelyard.workloads import Rendered

pytestmark = pytest.mark.integration

OURS = ("ome.io", "registry.volcano.sh", "networking.volcano.sh")
"""Groups whose rights an administrator gives with the CustomResourceDefinitions."""
RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture
async def tenant(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """A connection of a tenant: a ServiceAccount that administers its own namespace and has no other right."""
    await control_plane_cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "tenant"}}, namespace)
    binding = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
    }
    await control_plane_cluster.apply(binding)
    path = await kubeconfig_of(
        control_plane_cluster, "tenant", control_plane.kubeconfig, tmp_path / "kubeconfig", namespace
    )
    async with Cluster.connect(ClusterSettings(kubeconfig=path)) as cluster:
        async with asyncio.timeout(60):
            while True:
                try:
                    await cluster.list(SERVICE_ACCOUNTS, namespace)
                    break
                except Forbidden:
                    await asyncio.sleep(0.1)
        yield cluster


def moved(value: Any, old: str, new: str) -> Any:
    """The same in another namespace."""
    if isinstance(value, dict):
        return {
            name: new if name == "namespace" and one == old else moved(one, old, new) for name, one in value.items()
        }
    return [moved(one, old, new) for one in value] if isinstance(value, list) else value


CASES = [("service", name) for name in service_cases.CASES] + [("model", name) for name in kthena_models.names()]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
async def test_every_child_is_one_that_the_tenant_could_have_made(
    tenant: Cluster, namespace: str, kind: str, name: str
) -> None:
    result = service_cases.rendered(name, old=True) if kind == "service" else kthena_models.rendered_named(name)
    assert isinstance(result, Rendered)
    homes = {child.body["metadata"]["namespace"] for child in result.children}
    assert len(homes) == 1
    (home,) = homes
    made = 0
    for given in (one for child in result.children for one in kthena_models.served_here(child.body)):
        body = moved(given, home, namespace)
        if body["apiVersion"].partition("/")[0] in OURS:
            continue
        try:
            # A binding is allowed or not by the role that is there.
            body["metadata"]["namespace"] = namespace
            await tenant.apply(body, dry_run=body["apiVersion"] != RBAC)
        except UnknownKind:
            continue
        made += 1
    assert made


async def test_the_tenant_of_these_tests_has_its_limits(tenant: Cluster, namespace: str) -> None:
    """Else they would prove nothing: more rights than its own, and another namespace, are refused."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    role = {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": "more", "namespace": namespace}, "rules": rules}
    with pytest.raises(Forbidden):
        await tenant.apply(role)
    elsewhere = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}, "data": {}}
    with pytest.raises(Forbidden):
        await tenant.apply(elsewhere)
