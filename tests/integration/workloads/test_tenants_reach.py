"""What is made for a tenant's service is no more than the tenant could have made: held against a real API server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kthena_models
import pytest
import service_cases
from fleet_fixture import eventually
from install_manifests import kubeconfig_of

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, UnknownKind
from modelyard.local.stack import LocalStack
from modelyard.objects import ResourceType
from modelyard.objects.kinds import CONTROLLER_REVISIONS, DEPLOYMENTS, SERVICE_ACCOUNTS
from modelyard.reconcile.kernel.carry_out import carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.run_view import look
from modelyard.workloads.rendering.values import Rendered, canonical
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration

OURS = ("ome.io", "registry.volcano.sh", "networking.volcano.sh")
"""Groups whose rights an administrator gives with the CustomResourceDefinitions."""
RBAC = "rbac.authorization.k8s.io/v1"
ROLES, ROLE_BINDINGS = (
    ResourceType("rbac.authorization.k8s.io", "v1", kind, plural, True)
    for kind, plural in (("Role", "roles"), ("RoleBinding", "rolebindings"))
)


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
        async with asyncio.timeout(120):
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


FORGERY = [
    {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["*"]},
    {"apiGroups": ["ome.io"], "resources": ["inferenceservices", "inferenceservices/status"], "verbs": ["*"]},
]
PRIVILEGED = {"name": "ome-container", "image": "example.invalid/evil:1", "securityContext": {"privileged": True}}


def old_form(namespace: str) -> dict[str, Any]:
    """Whole objects, as earlier releases kept them."""
    about = {"name": "chat-engine", "namespace": namespace, "labels": {"ome.io/inferenceservice": "chat"}}
    pods = {"metadata": {"labels": {"app": "chat-engine"}}, "spec": {"containers": [PRIVILEGED]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "chat-engine"}}, "template": pods}
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bodies = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec},
        {"apiVersion": RBAC, "kind": "Role", "metadata": about, "rules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]},
        {"apiVersion": RBAC, "kind": "RoleBinding", "metadata": about, "roleRef": reference, "subjects": [account]},
    ]
    children = [[body, "engine", [], None] for body in bodies]
    modes = {"engine": "RawDeployment"}
    return {"children": children, "notes": [], "modes": modes, "entry": "engine", "url": "", "address": ""}


def new_form(runtime: str) -> dict[str, Any]:
    """Inputs, with a runtime of the cluster that never had this spec."""
    spec = {"supportedModelFormats": [], "engineConfig": {"runner": PRIVILEGED}}
    wanted = {"model": {"name": runtime}, "runtime": {"name": runtime}, "engine": {}}
    return {"spec": wanted, "runtime": {"kind": "ClusterServingRuntime", "name": runtime, "spec": spec}}


async def let_forge(cluster: Cluster, tenant: Cluster, namespace: str) -> None:
    """Give the tenant more than ``admin`` has: ControllerRevisions, services, and their statuses."""
    about = {"name": "forger", "namespace": namespace}
    await cluster.apply({"apiVersion": RBAC, "kind": "Role", "metadata": about, "rules": FORGERY})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "forger"}
    subjects = [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}]
    binding = {"apiVersion": RBAC, "kind": "RoleBinding", "metadata": about, "roleRef": reference, "subjects": subjects}
    await cluster.apply(binding)

    async def in_force() -> bool:
        try:
            await tenant.list(INFERENCE_SERVICES, namespace)
        except Forbidden:
            return False
        return True

    await eventually(in_force, "the forger has its role")


@pytest.mark.parametrize("form", ["rendered", "inputs"])
async def test_a_forged_rollback_gives_a_tenant_no_rights(
    control_plane_cluster: Cluster, tenant: Cluster, namespace: str, fleets: Any, form: str
) -> None:
    """The tenant forges a ControllerRevision, the status that names it, and since when its update has failed."""
    cluster = control_plane_cluster
    await let_forge(cluster, tenant, namespace)

    async def roll_out() -> None:
        plans = await look(cluster, fleets.kinds, [namespace])
        await carry_out(cluster, plans.values(), Fence())

    await fleets.make(namespace)
    for _ in range(2):
        await roll_out()
    (service,) = await tenant.list(INFERENCE_SERVICES, namespace)
    text = canonical(old_form(namespace) if form == "rendered" else new_form(fleets.home))
    name = f"chat-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    owner = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "name": "chat", "controller": True}
    metadata = {
        "name": name,
        "labels": {"ome.io/inferenceservice": "chat"},
        "ownerReferences": [{**owner, "uid": service["metadata"]["uid"]}],
    }
    await tenant.create(CONTROLLER_REVISIONS, {"metadata": metadata, "data": {form: text}, "revision": 1}, namespace)
    notes = {"modelyard.dev/good": name, "modelyard.dev/since": "2020-01-01T00:00:00Z"}
    await tenant.merge_patch(INFERENCE_SERVICES, "chat", {"status": {"annotations": notes}}, namespace, "status")
    for _ in range(3):
        await roll_out()
    deployment = await cluster.get(DEPLOYMENTS, "chat-engine", namespace)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.invalid/engine:1"
    assert "privileged" not in (container.get("securityContext") or {})
    for kind in (ROLES, ROLE_BINDINGS):
        assert "chat-engine" not in [one["metadata"]["name"] for one in await cluster.list(kind, namespace)]
    stored = await tenant.get(INFERENCE_SERVICES, "chat", namespace)
    (latest,) = [c for c in stored["status"]["conditions"] if c["type"] == "LatestDeploymentReady"]
    assert latest["status"] == "False"
    assert ("cannot be rolled back" in latest["message"]) == (form == "inputs")


async def test_a_service_that_flips_with_canaries_and_forged_records_stays_within_bounds(
    control_plane_cluster: Cluster, tenant: Cluster, namespace: str, fleets: Any
) -> None:
    """Each edit comes with the shortest deadlines, a canary, a forged status, and forged revisions."""
    cluster = control_plane_cluster
    await let_forge(cluster, tenant, namespace)
    await fleets.make(namespace)
    shortest = {
        "modelyard.dev/progress-deadline-seconds": "0",
        "modelyard.dev/gate": "{windowSeconds: 0.001, requests: 0, promServerAddress: 'http://169.254.169.254'}",
    }
    for number in range(8):
        runner = {"name": "ome-container", "image": f"example.invalid/engine:{number % 2}"}
        engine = {"runner": runner, "canaryTrafficPercent": 99 - number, "minReplicas": 1}
        patch = {"metadata": {"annotations": shortest}, "spec": {"engine": engine}}
        service = await tenant.merge_patch(INFERENCE_SERVICES, "chat", patch, namespace)
        owner = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "name": "chat", "controller": True}
        for copy in range(5):
            text = canonical({**new_form(fleets.home), "copy": f"{number}-{copy}"})
            name = f"chat-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            metadata = {
                "name": name,
                "labels": {"ome.io/inferenceservice": "chat"},
                "ownerReferences": [{**owner, "uid": service["metadata"]["uid"]}],
            }
            body = {"metadata": metadata, "data": {"inputs": text}, "revision": number}
            await tenant.create(CONTROLLER_REVISIONS, body, namespace)
        notes = {
            "modelyard.dev/good": name,
            "modelyard.dev/returned": "forged",
            "modelyard.dev/compared": "forged",
            "modelyard.dev/since": "2020-01-01T00:00:00Z",
        }
        await tenant.merge_patch(INFERENCE_SERVICES, "chat", {"status": {"annotations": notes}}, namespace, "status")
        for _ in range(2):
            plans = await look(cluster, fleets.kinds, [namespace])
            await carry_out(cluster, plans.values(), Fence())
        deployments = await cluster.list(DEPLOYMENTS, namespace)
        assert {one["metadata"]["name"] for one in deployments} <= {"chat-engine", "chat-engine-canary"}
        for one in deployments:
            for container in one["spec"]["template"]["spec"]["containers"]:
                assert container["image"].startswith("example.invalid/engine:")
                assert "privileged" not in (container.get("securityContext") or {})
        for kind in (ROLES, ROLE_BINDINGS):
            assert not [
                one for one in await cluster.list(kind, namespace) if one["metadata"]["name"].startswith("chat")
            ]

    async def few_are_left() -> bool:
        """Those that are being deleted are up to the garbage collector."""
        plans = await look(cluster, fleets.kinds, [namespace])
        await carry_out(cluster, plans.values(), Fence())
        stored = [one["metadata"] for one in await cluster.list(CONTROLLER_REVISIONS, namespace)]
        return len([one for one in stored if "deletionTimestamp" not in one]) <= 2

    await eventually(few_are_left, "forged revisions are deleted", 120)
