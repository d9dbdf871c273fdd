"""A real API server takes the manifests of deployments/kubernetes.

Its release may be old (1.20 here and in CI): an HPA is then checked as autoscaling/v2beta2, which has the fields of v2;
a ScaledObject, whose CRD is KEDA's own, is only read by our own code.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml
from install_manifests import CONTROLLER_NAMESPACE, FOLDER, documents, install_roles, resources

from modelyard.autoscaling.live import observe
from modelyard.cluster import NAMESPACES, Cluster
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
from modelyard.objects import parse
from modelyard.resources import VariantAutoscaling

pytestmark = pytest.mark.integration


def named(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


@pytest.fixture(scope="session")
async def roles_installed(control_plane_cluster: Cluster) -> None:
    await install_roles(control_plane_cluster)


@pytest.mark.parametrize("document", documents(*resources()), ids=named)
async def test_the_server_takes_it_without_losing_a_field(
    control_plane_cluster: Cluster, roles_installed: None, document: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    stored = await control_plane_cluster.apply(document, dry_run=True)
    assert stored["metadata"]["name"] == document["metadata"]["name"]
    assert "dropped fields" not in caplog.text


async def test_kubectl_applies_the_whole_folder(control_plane: LocalStack, roles_installed: None) -> None:
    kubectl = ensure(["kubectl"], print)["kubectl"]
    process = await asyncio.create_subprocess_exec(
        *(str(kubectl), f"--kubeconfig={control_plane.kubeconfig}", "apply", "--dry-run=server", "-k", str(FOLDER)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    # Warnings aside (objects made by another tool), one line per object.
    done = [line for line in output.decode().splitlines() if line.endswith("(server dry run)")]
    assert len(done) == len(documents(*resources())), output.decode()


async def test_the_accounts_bound_are_the_accounts_there_are() -> None:
    everything = documents(*resources())
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
    for deployment in (d for d in documents(*resources()) if d["kind"] == "Deployment"):
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
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


def test_every_file_of_the_folder_is_installed_or_an_example() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert files == {*resources(), "kustomization.yaml"}
    for path in (FOLDER / "examples").glob("*.yaml"):
        assert all(document["kind"] for document in yaml.safe_load_all(path.read_text(encoding="utf-8")))


async def test_the_namespace_is_the_controllers_default(control_plane_cluster: Cluster, roles_installed: None) -> None:
    from modelyard.autoscaling.settings import FleetSettings

    assert FleetSettings().controller_namespace == CONTROLLER_NAMESPACE
    assert (await control_plane_cluster.get(NAMESPACES, CONTROLLER_NAMESPACE))["status"]["phase"] == "Active"
