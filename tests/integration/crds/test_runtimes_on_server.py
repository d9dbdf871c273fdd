"""The catalogue of runtimes on a real API server, and a choice explained from what is stored there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard_beside
from crds import served

from modelyard.cluster import Cluster, Invalid
from modelyard.cluster.crd_install import install_crds
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CRDS, ResourceType
from modelyard.resources import BaseModel, ClusterServingRuntime, InferenceService, ServingRuntime, parse

pytestmark = pytest.mark.integration

CATALOGUE = sorted((Path(__file__).resolve().parents[3] / "config" / "runtimes").rglob("*.yaml"))
RUNTIMES, OWN, MODELS, SERVICES = map(
    ResourceType.of_resource, (ClusterServingRuntime, ServingRuntime, BaseModel, InferenceService)
)
CLASSES = ResourceType("ome.io", "v1beta1", "AcceleratorClass", "acceleratorclasses", False)
OF_A_PEER: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{CLASSES.plural}.{CLASSES.group}"},
    "spec": {
        "group": CLASSES.group,
        "scope": "Cluster",
        "names": {"plural": CLASSES.plural, "kind": CLASSES.kind},
        "versions": [
            {
                "name": CLASSES.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
async def test_a_runtime_of_the_catalogue_is_taken_as_it_is(control_plane_cluster: Cluster, path: Path) -> None:
    manifest = yaml.safe_load(path.read_text("utf-8"))
    stored = await control_plane_cluster.create(RUNTIMES, manifest, dry_run=True)
    assert parse(stored).to_manifest()["spec"] == parse(manifest).to_manifest()["spec"]


async def test_a_choice_is_explained_from_the_cluster(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = control_plane_cluster
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    what = {"modelFormat": {"name": "safetensors", "version": "1.0.0"}, "modelFramework": {"name": "transformers"}}
    spec = {**what, "modelParameterSize": "70B", "storage": {"storageUri": "hf://a/b"}}
    await cluster.create(MODELS, {"metadata": {"name": "big"}, "spec": spec}, namespace)
    gpus = {"runner": {"name": "e", "image": "e", "resources": {"limits": {"nvidia.com/gpu": 2}}}}
    serves = {"supportedModelFormats": [{**what, "autoSelect": True}], "engineConfig": gpus}
    for name in ("small", "large"):
        wants = {"acceleratorRequirements": {"acceleratorClasses": [f"{namespace}-{name}"]}}
        await cluster.create(OWN, {"metadata": {"name": name}, "spec": {**serves, **wants}}, namespace)

    async def explained(*arguments: object) -> tuple[int, dict[str, Any]]:
        done = await modelyard_beside("runtimes", "explain", "big", "-n", namespace, "-o", "json", *arguments)
        return done.code, json.loads(done.out)

    # Where no AcceleratorClasses are served, nobody knows how much memory there is.
    code, found = await explained()
    own = [one["name"] for one in found["runtimes"] if one["namespace"]]
    assert (code, found["chosen"], own) == (0, {"name": "large", "namespace": namespace}, ["large", "small"])

    await install_crds(cluster, [OF_A_PEER])
    try:
        await served(cluster, CLASSES)
        for name, memory in (("small", "80"), ("large", "70")):
            body = {"metadata": {"name": f"{namespace}-{name}"}, "spec": {"capabilities": {"memoryGB": memory}}}
            await cluster.create(CLASSES, body)
        code, found = await explained()
        assert (code, found["chosen"]["name"]) == (0, "small")
        reasons = {one["name"]: one["reasons"] for one in found["runtimes"] if one["namespace"] == namespace}
        assert [reason["code"] for reason in reasons["large"]] == ["NoFittingAccelerator"]
        assert "weights take 156.5 GiB of 140.0 GiB on 2 devices: 16.5 GiB too much" in reasons["large"][0]["message"]
    finally:
        await cluster.delete(CRDS, OF_A_PEER["metadata"]["name"])


async def test_a_reference_keeps_its_kind_and_one_of_no_kind_of_ours_is_refused(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    async def create(reference: dict[str, Any]) -> dict[str, Any]:
        spec = {"engine": {}, "model": {"name": "llama"}, "runtime": {"name": "any", **reference}}
        body = {"metadata": {"name": "chat"}, "spec": spec}
        stored = await control_plane_cluster.create(SERVICES, body, namespace, dry_run=True)
        runtime: dict[str, Any] = stored["spec"]["runtime"]
        return runtime

    assert await create({}) == {"name": "any", "apiGroup": "ome.io"}, "no kind that nobody has chosen"
    assert (await create({"kind": "ServingRuntime"}))["kind"] == "ServingRuntime"
    for field, value in (("kind", "Deployment"), ("kind", "clusterservingruntime"), ("apiGroup", "apps")):
        with pytest.raises(Invalid, match=rf"spec.runtime.{field}: Unsupported value: \"{value}\"") as refused:
            await create({field: value})
        assert {"kind": "ClusterServingRuntime", "apiGroup": "ome.io"}[field] in str(refused.value)


async def test_a_runtime_in_the_older_form_is_stored_whole(control_plane_cluster: Cluster, namespace: str) -> None:
    pod = {
        "containers": [{"name": "ome-container", "image": "engine:1"}],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"operator": "Exists"}],
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "hostIPC": True,
        "schedulerName": "other",
    }
    spec = {**pod, "workers": {**pod, "size": 2}}
    body = {"metadata": {"name": "older"}, "spec": spec}
    assert (await control_plane_cluster.create(OWN, body, namespace, dry_run=True))["spec"] == spec


async def test_a_model_that_is_nowhere_says_so(
    control_plane: LocalStack, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    done = await modelyard_beside("runtimes", "explain", "none", "-n", namespace)
    assert done.code == 1
    assert f"model none not found in namespace {namespace} or at cluster scope" in done.err
