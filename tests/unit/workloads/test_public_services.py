"""Services and Models as people have published them: accelerators of every vendor, bounds, Services' variables."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.cli.services import outcome
from modelyard.workloads.rendering.values import Refused, Rendered

DATA = Path(__file__).parents[2] / "data" / "render"
MIG = "nvidia.com/mig-3g.40gb"
CRDS = {
    "Knative": ("serving.knative.dev", "Service", "v1"),
    "KEDA": ("keda.sh", "ScaledObject", "v1alpha1"),
    "LWS": ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "v1"),
    "Ray": ("ray.io", "RayCluster", "v1"),
}


def manifests(*names: str) -> list[Manifest]:
    return read_manifests([DATA / f"{name}.yaml" for name in names])


def chat(*more: str, serves: str = "") -> list[Manifest]:
    """The service, its model and its runtime; a cluster that ``serves`` something more."""
    objects = manifests("rt-nvidia-com-mig-3g-40gb", "svc-chat", *more)
    if serves:
        group, kind, version = CRDS[serves]
        spec = {"group": group, "names": {"kind": kind}, "versions": [{"name": version}]}
        metadata = {"name": kind, "namespace": ""}
        objects.append(Manifest("", {"kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}))
    return objects


def of_kind(objects: list[Manifest], kind: str) -> dict[str, Any]:
    return next(entry.body for entry in objects if entry.kind == kind)


def rendered(objects: list[Manifest], kind: str = "InferenceService") -> list[dict[str, Any]]:
    result = outcome(next(entry for entry in objects if entry.kind == kind), objects)
    assert isinstance(result, Rendered), result
    return [child.body for child in result.children]


def templates(value: Any) -> list[dict[str, Any]]:
    """The spec of every pod that comes of rendered objects."""
    if isinstance(value, list):
        return [entry for item in value for entry in templates(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [entry for item in value.values() for entry in templates(item)]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        (MIG, 1),
        (MIG, 2),
        ("nvidia.com/gpu", 8),
        ("amd.com/gpu", 8),
        ("amd.com/cpx_nps4", 4),
        ("habana.ai/gaudi", 8),
        ("google.com/tpu", 4),
        ("aws.amazon.com/neuron", 16),
        ("aws.amazon.com/neuroncore", 2),
        ("huawei.com/Ascend910", 8),
        ("huawei.com/ascend-1980", 4),
        ("gpu.intel.com/i915", 2),
        ("gpu.intel.com/xe", 4),
        ("metax-tech.com/gpu", 4),
        ("cambricon.com/mlu", 2),
    ],
)
def test_every_accelerator_resource_sets_the_parallelism(resource: str, amount: int) -> None:
    objects = chat()
    runner = of_kind(objects, "ClusterServingRuntime")["spec"]["engineConfig"]["runner"]
    runner["resources"] = {"requests": {"cpu": 4, resource: amount}, "limits": {resource: amount}}
    ((container,),) = [pod["containers"] for pod in templates(rendered(objects))]
    assert variables(container)["PARALLELISM_SIZE"] == str(amount)


def test_memory_of_a_shared_device_is_no_parallelism() -> None:
    objects = chat()
    runner = of_kind(objects, "ClusterServingRuntime")["spec"]["engineConfig"]["runner"]
    runner["resources"] = {"limits": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 20000, "nvidia.com/gpucores": 50}}
    ((container,),) = [pod["containers"] for pod in templates(rendered(objects))]
    assert variables(container)["PARALLELISM_SIZE"] == "2"


def test_a_resource_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = chat()
    runner = of_kind(objects, "ClusterServingRuntime")["spec"]["engineConfig"]["runner"]
    runner["resources"] = {"limits": {"vendor.example/chip": 2}}
    result = outcome(next(entry for entry in objects if entry.kind == "InferenceService"), objects)
    assert isinstance(result, Refused)
    assert "names no accelerator (vendor.example/chip)" in result.problem
    monkeypatch.setenv("MODELYARD_ACCELERATORS", "vendor.example/*")
    ((container,),) = [pod["containers"] for pod in templates(rendered(objects))]
    assert variables(container)["PARALLELISM_SIZE"] == "2"


GROUP = {"leader": {"runner": {"image": "i"}}, "worker": {"size": 1, "runner": {"image": "i"}}}


@pytest.mark.parametrize(
    ("edit", "serves", "pods"),
    [
        ({}, "", 1),
        ({"annotations": {"ome.io/deploymentMode": "Serverless"}}, "Knative", 1),
        (GROUP, "LWS", 2),
        (GROUP, "", 2),
        ({**GROUP, "annotations": {"ome.io/deploymentMode": "MultiNodeRayVLLM"}}, "Ray", 2),
    ],
)
def test_pods_have_no_variables_of_services_unless_they_ask(edit: dict[str, Any], serves: str, pods: int) -> None:
    objects = chat(serves=serves)
    of_kind(objects, "ClusterServingRuntime")["spec"]["engineConfig"] = {"runner": {"name": "e", "image": "i"}}
    engine = of_kind(objects, "InferenceService")["spec"]["engine"]
    engine |= copy.deepcopy(edit)
    assert [entry["enableServiceLinks"] for entry in templates(rendered(objects))] == [False] * pods
    for part in (engine, engine.get("leader") or {}, engine.get("worker") or {}):
        part["enableServiceLinks"] = True
    assert [entry["enableServiceLinks"] for entry in templates(rendered(objects))] == [True] * pods


def test_pods_of_a_router_and_of_a_model_have_no_variables_of_services() -> None:
    objects = chat()
    of_kind(objects, "InferenceService")["spec"]["router"] = {"runner": {"name": "r", "image": "i"}}
    assert [entry["enableServiceLinks"] for entry in templates(rendered(objects))] == [False, False]
    assert [entry["enableServiceLinks"] for entry in templates(rendered(manifests("model-tp4"), "Model"))] == [False]


@pytest.mark.parametrize(
    ("engine", "serves", "kind", "bounds"),
    [
        ("{minReplicas: 5, maxReplicas: 3}", "", "HorizontalPodAutoscaler", {"minReplicas": 5, "maxReplicas": 5}),
        (
            "{minReplicas: 5, maxReplicas: 3, annotations: {ome.io/autoscalerClass: keda}}",
            "KEDA",
            "ScaledObject",
            {"minReplicaCount": 5, "maxReplicaCount": 5},
        ),
        (
            "{minReplicas: 4, maxReplicas: 3, leader: {runner: {image: i}}, worker: {size: 1, runner: {image: i}}}",
            "LWS",
            "LeaderWorkerSet",
            {"replicas": 4},
        ),
    ],
)
def test_a_minimum_above_the_maximum_is_lifted(engine: str, serves: str, kind: str, bounds: dict[str, int]) -> None:
    objects = chat(serves=serves)
    of_kind(objects, "InferenceService")["spec"]["engine"] = yaml.safe_load(engine)
    of_kind(objects, "ClusterServingRuntime")["spec"]["engineConfig"]["runner"]["args"] = []
    spec = next(body["spec"] for body in rendered(objects) if body["kind"] == kind)
    assert {name: spec[name] for name in bounds} == bounds


def test_a_minimum_above_the_maximum_is_lifted_for_knative_which_refuses_it() -> None:
    objects = chat(serves="Knative")
    text = "{minReplicas: 5, maxReplicas: 3, annotations: {ome.io/deploymentMode: Serverless}}"
    of_kind(objects, "InferenceService")["spec"]["engine"] = yaml.safe_load(text)
    body = next(entry for entry in rendered(objects) if entry["apiVersion"].startswith("serving.knative.dev"))
    noted = body["spec"]["template"]["metadata"]["annotations"]
    scales = {name.partition("/")[2]: value for name, value in noted.items() if name.startswith("autoscaling.")}
    assert (scales["min-scale"], scales["max-scale"]) == ("5", "5")


def arguments(config: dict[str, Any], kind: str = "SGLang", gpus: Any = 4, pods: int = 1) -> list[str]:
    """The command line of the engine of the published Model, with another configuration."""
    objects = manifests("model-tp4")
    backend = of_kind(objects, "Model")["spec"]["backends"][0]
    backend["type"] = kind
    worker = backend["workers"][0]
    worker |= {"config": config, "pods": pods, "resources": {"limits": gpus if isinstance(gpus, dict) else {}}}
    if not isinstance(gpus, dict):
        worker["resources"]["limits"] = {"nvidia.com/gpu": gpus}
    container = templates(rendered(objects, "Model"))[0]["containers"][0]
    return [str(word) for word in " ".join(container["args"]).split()]


def ranks(words: list[str]) -> str:
    flags = [place for place, word in enumerate(words) if word in ("--tp-size", "--tensor-parallel-size", "--tp")]
    return " ".join(words[place + 1] for place in flags)


@pytest.mark.parametrize(
    ("config", "kind", "gpus", "pods", "expected"),
    [
        # Data-parallel attention shares the tensor-parallel ranks: SGLang does not start with fewer of these.
        ({"enable-dp-attention": True, "dp-size": 4}, "SGLang", 4, 1, "4"),
        ({"enable_dp_attention": True, "dp_size": 8}, "SGLang", 8, 2, "16"),
        ({"dp-size": 4}, "SGLang", 4, 1, ""),
        ({"dp": 2}, "SGLang", 8, 1, "4"),
        ({"pp-size": 2}, "SGLang", 8, 2, "8"),
        ({}, "SGLang", 4, 1, "4"),
        ({}, "SGLang", 1, 1, ""),
        ({"tp": 2}, "SGLang", 4, 1, "2"),
        ({"tensor_parallel_size": 2}, "SGLang", 4, 1, "2"),
        ({}, "vLLM", 4, 1, "4"),
        ({}, "vLLM", 8, 2, "16"),
        ({"pipeline-parallel-size": 2}, "vLLM", 8, 2, "8"),
        ({"data_parallel_size": 4}, "vLLM", 4, 1, ""),
        ({"tensor-parallel-size": 2}, "vLLM", 4, 1, "2"),
        ({"pipeline-parallel-size": 3}, "vLLM", 4, 1, ""),
        ({"pipeline-parallel-size": "many"}, "vLLM", 4, 1, ""),
        ({}, "vLLM", {"huawei.com/ascend-1980": 4}, 1, "4"),
        ({}, "vLLM", {"cpu": 8}, 1, ""),
    ],
)
def test_a_model_uses_the_accelerators_that_it_asks_for(
    config: dict[str, Any], kind: str, gpus: Any, pods: int, expected: str
) -> None:
    assert ranks(arguments(config, kind, gpus, pods)) == expected


def test_the_published_model_is_rendered_as_its_engine_takes_it() -> None:
    (pod,) = templates(rendered(manifests("model-tp4", "roots"), "Model"))
    words = pod["containers"][0]["args"]
    assert words[words.index("--tp-size") + 1] == "4"
    assert words[words.index("--dp-size") + 1] == "4"
    assert "--enable-dp-attention" in words
    assert not [word for word in words if "radix" in word], "a switch that is off is left out"
    assert pod["volumes"][0]["hostPath"]["path"].startswith("/mnt/models/shop/")


def stored(path: str) -> list[Manifest]:
    """The service with its model in a folder that the cluster's administrator has listed."""
    objects = chat("roots")
    of_kind(objects, "ClusterBaseModel")["spec"]["storage"]["path"] = path
    return objects


@pytest.mark.parametrize("path", ["/raid/models/llama-8b", "/mnt/data/llama-8b", "/mnt/models/llama-8b"])
def test_a_model_of_the_cluster_may_be_in_every_folder_that_is_listed(path: str) -> None:
    (pod,) = templates(rendered(stored(path)))
    assert [entry["hostPath"]["path"] for entry in pod["volumes"]] == [path]
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == path


@pytest.mark.parametrize("folder", ["/raid/models", "/mnt/data"])
def test_a_model_of_a_namespace_needs_a_folder_of_its_own_and_is_told_where_to_list_it(folder: str) -> None:
    objects = manifests("model-tp4", "roots")
    of_kind(objects, "Model")["spec"]["backends"][0]["cacheURI"] = f"hostpath:/{folder}"
    result = outcome(next(entry for entry in objects if entry.kind == "Model"), objects)
    assert isinstance(result, Refused)
    assert "namespaceRoots" in result.remedy
    text = yaml.safe_dump({"namespaceRoots": {"shop": [folder]}})
    of_kind(objects, "ConfigMap")["data"]["settings"] = text
    (pod,) = templates(rendered(objects, "Model"))
    assert pod["volumes"][0]["hostPath"]["path"].startswith(f"{folder}/")
