"""A real API server takes the manifests of deployments/kubernetes.

Its release may be old (1.20 here and in CI): an HPA is then checked as autoscaling/v2beta2, which has the fields of v2
(asked for v2, the server would be found to prefer v1, which has not),
and a PodDisruptionBudget as policy/v1beta1; a ScaledObject, whose CRD is KEDA's own, is only read by our own code.
Nothing here enforces NetworkPolicies.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from fleet_fixture import eventually
from install_manifests import CONTROLLER_NAMESPACE, FOLDER, documents, install_roles, resources

from modelyard.autoscaling.reading import observe
from modelyard.cluster import Cluster
from modelyard.cluster.transport import ApiRequest
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
from modelyard.objects import parse
from modelyard.objects.kinds import NAMESPACES
from modelyard.resources import KINDS, VariantAutoscaling
from modelyard.router.settings import RouterSettings

pytestmark = pytest.mark.integration

NAME = "app.kubernetes.io/name"

OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}


def named(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


@pytest.fixture(scope="session")
async def roles_installed(control_plane_cluster: Cluster) -> None:
    await install_roles(control_plane_cluster)


@pytest.mark.parametrize("document", documents(*resources(), "router.yaml", "worker-kubernetes.yaml"), ids=named)
async def test_the_server_takes_it_without_losing_a_field(
    control_plane_cluster: Cluster, roles_installed: None, document: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    wanted, older = document["apiVersion"], OLDER.get(document["apiVersion"])
    kind = await control_plane_cluster.resolve(wanted, document["kind"])
    if older and kind.api_version != wanted:
        kind = await control_plane_cluster.resolve(older, document["kind"])
    assert kind.api_version in (wanted, older)
    stored = await control_plane_cluster.apply({**document, "apiVersion": kind.api_version}, dry_run=True)
    assert stored["metadata"]["name"] == document["metadata"]["name"]
    assert "dropped fields" not in caplog.text


async def kubectl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(str(ensure(["kubectl"], print)["kubectl"]), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("rights", ["rbac-everywhere.yaml", "rbac-namespaced.yaml"])
async def test_kubectl_applies_the_whole_folder(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    roles_installed: None,
    namespace: str,
    tmp_path: Path,
    rights: str,
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    budgets = await control_plane_cluster.resolve("policy/v1", "PodDisruptionBudget")
    # As its users do: their choice of rights, their namespaces, their image.
    changes = {
        "kustomization.yaml": {"- rbac-everywhere.yaml": f"- {rights}", "newTag: 0.1.0": f"digest: sha256:{'0' * 64}"},
        "rbac-namespaced.yaml": {"namespace: chat\n": f"namespace: {namespace}\n"},
        "pod-disruption-budget.yaml": {"apiVersion: policy/v1": f"apiVersion: {budgets.api_version}"},
    }
    for name, replaced in changes.items():
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    output = await kubectl(f"--kubeconfig={control_plane.kubeconfig}", "apply", "--dry-run=server", "-k", str(folder))
    # Warnings aside (objects made by another tool), one line per object.
    done = [line for line in output.splitlines() if line.endswith("(server dry run)")]
    assert len(done) == len(documents(*resources())), output
    made = yaml.safe_load_all(await kubectl("kustomize", str(folder)))
    images = {c["image"] for one in made if one["kind"] == "Deployment" for c in containers(one)}
    assert images == {f"modelyard@sha256:{'0' * 64}"}


def containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return found


def test_both_choices_of_rights_bind_the_same_roles_to_the_same_accounts() -> None:
    everywhere, narrow = (
        [(one["roleRef"], one["subjects"]) for one in documents(f"rbac-{name}.yaml")]
        for name in ("everywhere", "namespaced")
    )
    assert everywhere == narrow


def test_every_role_is_bound_and_every_binding_has_its_role() -> None:
    everything = documents(*resources(), "router.yaml")
    roles = {(d["kind"], d["metadata"]["name"]) for d in everything if d["kind"].endswith("Role")}
    bound = {(d["roleRef"]["kind"], d["roleRef"]["name"]) for d in everything if d["kind"].endswith("RoleBinding")}
    assert roles == bound


def test_network_policies_and_the_budget_select_the_pods_of_the_deployments() -> None:
    everything = documents(*resources(), "router.yaml")
    pods = {d["metadata"]["name"]: d["spec"]["template"] for d in everything if d["kind"] == "Deployment"}
    guarded = set()
    for one in everything:
        if one["kind"] not in ("NetworkPolicy", "PodDisruptionBudget"):
            continue
        wanted = (one["spec"].get("podSelector") or one["spec"]["selector"])["matchLabels"]
        (name,) = [n for n, template in pods.items() if wanted.items() <= template["metadata"]["labels"].items()]
        assert one["metadata"]["name"] == name
        if one["kind"] == "NetworkPolicy":
            guarded.add(name)
            ports = {port["name"] for c in pods[name]["spec"]["containers"] for port in c["ports"]}
            assert {p["port"] for rule in one["spec"].get("ingress", ()) for p in rule["ports"]} <= ports
    assert guarded == set(pods)


def test_routers_leave_one_after_the_other_and_their_number_is_the_autoscalers_alone() -> None:
    found = {one["kind"]: one["spec"] for one in documents("router.yaml") if "spec" in one}
    deployment, scaler = found["Deployment"], found["HorizontalPodAutoscaler"]
    assert scaler["scaleTargetRef"]["name"] == found["NetworkPolicy"]["podSelector"]["matchLabels"][NAME]
    assert "replicas" not in deployment
    assert scaler["minReplicas"] > found["PodDisruptionBudget"]["maxUnavailable"]
    (metric,), (container,) = scaler["metrics"], containers({"spec": deployment})
    assert metric["resource"]["name"] in container["resources"]["requests"]
    (leaving,), pod = scaler["behavior"]["scaleDown"]["policies"], deployment["template"]["spec"]
    assert (leaving["type"], leaving["value"]) == ("Pods", 1)
    assert leaving["periodSeconds"] >= pod["terminationGracePeriodSeconds"]
    settings = RouterSettings()
    assert pod["terminationGracePeriodSeconds"] > settings.leave_seconds + settings.drain_seconds


def test_a_worker_is_given_up_only_after_its_longest_shift() -> None:
    (container,) = containers(documents("worker.yaml")[0])
    probe = container["livenessProbe"]
    flows = yaml.safe_load((FOLDER.parents[1] / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    longest = max(flow["parameters"].get("shift_seconds", 0) for flow in flows)
    assert probe["periodSeconds"] * probe["failureThreshold"] > longest > 0


def test_the_image_can_be_built_on_a_digest() -> None:
    lines = (FOLDER / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE}"]
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert lines.index(base) < lines.index("FROM ${BASE}")


async def test_the_accounts_bound_are_the_accounts_there_are() -> None:
    everything = documents(*resources(), "router.yaml")
    accounts = {d["metadata"]["name"] for d in everything if d["kind"] == "ServiceAccount"}
    bound = {
        (subject["namespace"], subject["name"])
        for d in everything
        if d["kind"].endswith("RoleBinding")
        for subject in d["subjects"]
    }
    used = {d["spec"]["template"]["spec"]["serviceAccountName"] for d in everything if d["kind"] == "Deployment"}
    assert bound == {(CONTROLLER_NAMESPACE, account) for account in accounts}
    assert used == accounts


async def test_the_probes_and_the_scrape_go_to_a_port_that_is_there() -> None:
    for deployment in (d for d in documents(*resources(), "router.yaml") if d["kind"] == "Deployment"):
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert container["livenessProbe"]["httpGet"]["port"] in ports
        assert container["readinessProbe"]["httpGet"]["port"] in ports
        if told := (template["metadata"].get("annotations") or {}).get("prometheus.io/port"):
            assert int(told) in ports.values()
            assert told in container["args"]


async def test_the_example_variant_is_accepted(control_plane_cluster: Cluster, namespace: str) -> None:
    (document,) = documents("examples/variantautoscaling.yaml")
    VariantAutoscaling.parse(document)
    document["metadata"]["namespace"] = namespace
    stored = await control_plane_cluster.apply(document, dry_run=True)
    assert stored["spec"] == document["spec"]


async def test_the_example_hpa_is_accepted_and_consumes_the_example_variant(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    (variant,), (hpa,) = documents("examples/variantautoscaling.yaml"), documents("examples/hpa.yaml")
    consumer = observe.hpa(hpa)
    assert consumer is not None
    assert consumer.target == parse.target_id(variant["metadata"]["namespace"], variant["spec"]["scaleTargetRef"])
    selector = hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    assert selector["variant_name"] == variant["metadata"]["name"]
    assert selector["exported_namespace"] == variant["metadata"]["namespace"]

    if (await control_plane_cluster.resolve("autoscaling/v2", hpa["kind"])).version != "v2":
        hpa["apiVersion"] = "autoscaling/v2beta2"
    hpa["metadata"]["namespace"] = namespace
    stored = await control_plane_cluster.apply(hpa)
    assert stored["metadata"]["uid"]
    read = await control_plane_cluster.get(
        await control_plane_cluster.resolve(hpa["apiVersion"], hpa["kind"]), hpa["metadata"]["name"], namespace
    )
    assert read["spec"]["metrics"] == hpa["spec"]["metrics"]
    assert read["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 120


def test_the_example_scaled_object_consumes_the_example_variant() -> None:
    (variant,), (scaled,) = documents("examples/variantautoscaling.yaml"), documents("examples/scaledobject.yaml")
    consumer = observe.scaled_object(scaled)
    assert consumer.target == parse.target_id(variant["metadata"]["namespace"], variant["spec"]["scaleTargetRef"])
    assert (consumer.minimum, consumer.maximum) == (1, 8)
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert f'variant_name="{variant["metadata"]["name"]}"' in query
    assert f'exported_namespace="{variant["metadata"]["namespace"]}"' in query
    assert query.startswith("max(")


def test_every_file_of_the_folder_is_installed_or_a_choice_or_an_example() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    choices = {"rbac-namespaced.yaml", "worker-kubernetes.yaml", "monitoring.yaml", "router.yaml"}
    assert files == {*resources(), "kustomization.yaml", *choices}
    for path in (FOLDER / "examples").glob("*.yaml"):
        assert all(document["kind"] for document in yaml.safe_load_all(path.read_text(encoding="utf-8")))


async def test_the_example_tenant_writes_the_kinds_of_its_namespace_and_nothing_else(
    control_plane_cluster: Cluster, roles_installed: None, namespace: str
) -> None:
    role, *others = documents("examples/tenant.yaml")
    allowed = {(rule["apiGroups"][0], plural) for rule in role["rules"] for plural in rule["resources"]}
    assert allowed == {(kind.group, kind.plural) for kind in KINDS.values() if kind.namespaced}
    await control_plane_cluster.apply(role)
    for document in others:
        if document["kind"] != "Namespace":
            document["metadata"]["namespace"] = namespace
            await control_plane_cluster.apply(document)

    async def may(group: str, resource: str, where: str, subresource: str = "") -> bool:
        attributes = {
            "group": group, "resource": resource, "namespace": where, "subresource": subresource, "verb": "patch",
        }  # fmt: skip
        body = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": "alice", "groups": ["acme"], "resourceAttributes": attributes},
        }  # fmt: skip
        request = ApiRequest(
            "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "request", "review", body=body
        )
        return bool((await control_plane_cluster.transport.json(request))["status"]["allowed"])

    async def in_force() -> bool:
        return await may("ome.io", "basemodels", namespace) and await may("", "configmaps", namespace)

    await eventually(in_force, "the rights of the tenant")
    for kind in KINDS.values():
        assert await may(kind.group, kind.plural, namespace) == kind.namespaced
        assert not await may(kind.group, kind.plural, namespace, "status")
        assert not await may(kind.group, kind.plural, CONTROLLER_NAMESPACE)
    assert not await may("", "configmaps", CONTROLLER_NAMESPACE)
    assert not await may("", "namespaces", namespace)
    assert not await may("", "pods", namespace, "status")


async def test_the_namespace_is_the_controllers_default(control_plane_cluster: Cluster, roles_installed: None) -> None:
    from modelyard.autoscaling.configuration.settings import FleetSettings

    assert FleetSettings().controller_namespace == CONTROLLER_NAMESPACE
    assert (await control_plane_cluster.get(NAMESPACES, CONTROLLER_NAMESPACE))["status"]["phase"] == "Active"


async def test_the_example_network_policy_lets_the_workers_reach_prefect(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    (policy,) = documents("examples/networkpolicy-prefect-server.yaml")
    (worker,), (connections,) = documents("worker.yaml"), documents("connections.yaml")
    first = policy["spec"]["ingress"][0]["from"][0]
    labels = worker["spec"]["template"]["metadata"]["labels"]
    assert first["podSelector"]["matchLabels"].items() <= labels.items()
    assert first["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": CONTROLLER_NAMESPACE}
    address = urlsplit(connections["data"]["PREFECT_API_URL"])
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == [address.port]
    assert str(address.hostname).split(".")[1] == policy["metadata"]["namespace"]
    policy["metadata"]["namespace"] = namespace
    stored = await control_plane_cluster.apply(policy, dry_run=True)
    assert stored["spec"] == policy["spec"]
