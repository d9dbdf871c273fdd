"""Storage of a BenchmarkJob: every field of ``dataset`` and ``outputLocation`` is acted on, or reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_world import OUTPUT, Benchmarks

from modelyard.benchmarks.jobs.storage import DATASET_CREDENTIALS, DATASET_FOLDER
from modelyard.benchmarks.measuring import datasets
from modelyard.benchmarks.records.program import MeasureError, environment
from modelyard.benchmarks.records.values import DatasetAccess, Measurement

BASE = {
    "reference": "shop/b",
    "service": "shop/s",
    "backend": "vllm",
    "url": "http://127.0.0.1:1",
    "model": "m",
    "tokenizer": "/models/m",
    "task": "text-to-text",
    "scenario": "D(50,20)",
    "concurrency": 1,
    "minutes": 1,
    "requests": 10,
    "output": {"uri": "local:///r", "folder": "f"},
}
TERM = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
OTHER = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}


@pytest.fixture
def fleet() -> Benchmarks:
    return Benchmarks()


def pod(fleet: Benchmarks) -> dict[str, Any]:
    found: dict[str, Any] = fleet.job()["spec"]["template"]["spec"]
    return found


def accepted(fleet: Benchmarks, **spec: Any) -> str:
    """Measure by this spec; the messages of the condition and of the warning."""
    fleet.benchmark(**spec)
    fleet.step()
    status, _, message = fleet.told("Accepted")
    assert status == "True", message
    warnings = [one for one in fleet.said["conditions"] if one["type"] == "SpecWarning"]
    assert all((one["status"], one["reason"]) == ("True", "FieldsIgnored") for one in warnings)
    return "; ".join([message, *(one["message"] for one in warnings)])


def refused(fleet: Benchmarks, **spec: Any) -> str:
    fleet.benchmark(**spec)
    fleet.step()
    status, _, message = fleet.told("Accepted")
    assert (status, fleet.jobs()) == ("False", [])
    return message


# Where a data set is


@pytest.mark.parametrize(
    ("uri", "parameters", "address", "revision"),
    [
        ("hf://org/prompts", {}, "org/prompts", None),
        ("hf://org/prompts@v2", {}, "org/prompts", "v2"),
        ("hf://org/prompts", {"revision": "refs/convert/parquet"}, "org/prompts", "refs/convert/parquet"),
        ("pvc://results/prompts", {}, DATASET_FOLDER, None),
        ("pvc://shop:results/prompts", {}, DATASET_FOLDER, None),
        ("s3://bucket/x", {}, "s3://bucket/x", None),
        ("s3://bucket@eu-west-1/x", {}, "s3://bucket@eu-west-1/x", None),
        ("oci://n/ns@eu-frankfurt-1/b/bkt/o/x", {}, "oci://n/ns@eu-frankfurt-1/b/bkt/o/x", None),
        ("oci://n/ns/b/bkt/o/x", {"region": "eu-frankfurt-1"}, "oci://n/ns/b/bkt/o/x", None),
        ("gs://bucket/x", {}, "gs://bucket/x", None),
        ("az://account/container/x", {}, "az://account/container/x", None),
        ("github://owner/repo", {"revision": "v1"}, "github://owner/repo@v1", None),
    ],
)
def test_a_data_set_is_read_from_every_storage_with_files(
    fleet: Benchmarks, uri: str, parameters: dict[str, str], address: str, revision: str | None
) -> None:
    given = {**parameters, "prompt_column": "question"}
    accepted(fleet, dataset={"storageUri": uri, "parameters": given})
    asked = fleet.asked()
    assert (asked.dataset, asked.access.revision, asked.columns) == (address, revision, {"prompt_column": "question"})


@pytest.mark.parametrize(
    ("uri", "parameters", "part"),
    [
        ("local:///data/prompts", {}, "a dataset is not read from local:// - write hf://, pvc://"),
        ("vendor://acme/dataset/x", {}, "a dataset is not read from vendor://"),
        ("oci://n/ns/b/bkt/o/x", {}, "names no region"),
        ("hf://org/prompts@v1", {"revision": "v2"}, "write one of them"),
        ("s3://bucket/x", {"endpoint": "http://minio.store:9000"}, "modelyard-models"),
        ("hf://org/prompts", {"secretKey": "../x"}, "no key of a Secret"),
        ("pvc://bank:results/x", {}, "the claim is in namespace bank"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_refused_with_a_remedy(
    fleet: Benchmarks, uri: str, parameters: dict[str, str], part: str
) -> None:
    message = refused(fleet, dataset={"storageUri": uri, "parameters": parameters})
    assert "spec.dataset" in message
    assert part in message


def test_a_claim_of_prompts_is_mounted_read_only(fleet: Benchmarks) -> None:
    fleet.put("PersistentVolumeClaim", "words", "shop", status={"phase": "Bound"})
    accepted(fleet, dataset={"storageUri": "pvc://words/english"})
    (container,) = pod(fleet)["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == DATASET_FOLDER]
    assert (mount["subPath"], mount["readOnly"]) == ("english", True)
    (volume,) = [one for one in pod(fleet)["volumes"] if one["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"] == {"claimName": "words"}


@pytest.mark.parametrize("uri", ["hf://org/prompts", "s3://bucket/x", "github://owner/repo"])
def test_the_secret_of_a_data_set_is_mounted_apart_from_that_of_the_results(fleet: Benchmarks, uri: str) -> None:
    """Both may hold AWS_ACCESS_KEY_ID, each for its own bucket."""
    output = {"storageUri": "s3://results/x", "key": "results-keys"}
    accepted(fleet, dataset={"storageUri": uri, "key": "prompt-keys"}, outputLocation=output)
    (container,) = pod(fleet)["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "results-keys"}}]
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == DATASET_CREDENTIALS]
    (volume,) = [one for one in pod(fleet)["volumes"] if one["name"] == mount["name"]]
    assert (volume["secret"], mount["readOnly"]) == ({"secretName": "prompt-keys"}, True)
    assert fleet.asked().access.credentials == DATASET_CREDENTIALS


def test_a_token_in_the_parameters_is_a_variable_and_a_warning(fleet: Benchmarks) -> None:
    message = accepted(fleet, dataset={"storageUri": "hf://org/prompts", "parameters": {"token": "hf_secret"}})
    (container,) = pod(fleet)["containers"]
    (variable,) = [one for one in container["env"] if one["name"] == "DATASET_TOKEN"]
    assert variable["value"] == "hf_secret"
    assert "hf_secret" not in fleet.asked().model_dump_json()
    assert "whoever reads it reads token of spec.dataset.parameters" in message


def test_an_endpoint_of_a_data_set_is_one_that_models_may_have(fleet: Benchmarks) -> None:
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": "endpoints: [minio.store, '*.example.com']"})
    for endpoint, public in (("http://minio.store:9000", False), ("https://s3.example.com", True)):
        parameters = {"endpoint": endpoint, "addressingStyle": "path", "include": "*.csv", "exclude": "old*"}
        fleet = Benchmarks()
        fleet.put(
            "ConfigMap", "modelyard-models", "home", data={"settings": "endpoints: [minio.store, '*.example.com']"}
        )
        accepted(fleet, dataset={"storageUri": "s3://bucket/x", "parameters": parameters})
        access = fleet.asked().access
        assert (access.parameters, access.public) == (parameters, public)


@pytest.mark.parametrize("task", ["image-to-text", "image-to-embeddings"])
def test_images_may_be_in_a_bucket(fleet: Benchmarks, task: str) -> None:
    accepted(fleet, task=task, trafficScenarios=["I(64,64)"], dataset={"storageUri": "gs://bucket/pictures"})
    assert fleet.asked().dataset == "gs://bucket/pictures"


# Nodes


@pytest.mark.parametrize("field", ["dataset", "outputLocation"])
def test_the_measuring_pod_goes_to_nodes_that_the_storage_names(fleet: Benchmarks, field: str) -> None:
    storage = {**OUTPUT, "nodeSelector": {"network": "fast"}}
    storage["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
    accepted(fleet, **{field: storage})
    assert pod(fleet)["nodeSelector"]["network"] == "fast"
    required = pod(fleet)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [TERM]}


def test_constraints_of_both_storages_and_of_the_override_hold_together(fleet: Benchmarks) -> None:
    def affinity(*terms: Any, weight: int) -> dict[str, Any]:
        preferred = [{"weight": weight, "preference": TERM}]
        return {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }

    name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    override = {"affinity": {"nodeAffinity": affinity(OTHER, weight=1), "podAntiAffinity": {}}}
    fleet.put("PersistentVolumeClaim", "words", "shop", status={"phase": "Bound"})
    accepted(
        fleet,
        podOverride=override,
        dataset={"storageUri": "pvc://words/x", "nodeAffinity": affinity(TERM, name, weight=2)},
        outputLocation={**OUTPUT, "nodeAffinity": affinity(TERM, {}, weight=3)},
    )
    found = pod(fleet)["affinity"]
    assert "podAntiAffinity" in found
    terms = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    zone, disk = OTHER["matchExpressions"], TERM["matchExpressions"]
    assert terms == [
        {"matchExpressions": [*zone, *disk, *disk]},
        {"matchExpressions": [*zone, *disk], "matchFields": name["matchFields"]},
    ], "an empty term allows no node"
    weights = [one["weight"] for one in found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert weights == [1, 2, 3]


@pytest.mark.parametrize(
    ("storage", "part"),
    [
        ({"nodeSelector": {"pool": "gpu"}}, "spec.outputLocation.nodeSelector: asks for pool=gpu, and the pod already"),
        ({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}, "names no nodeSelectorTerms"),
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": "x"}}},
            "is no list of objects",
        ),
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM] * 101}}},
            "has 101 expressions",
        ),
    ],
)
def test_constraints_that_no_node_can_meet_are_refused(fleet: Benchmarks, storage: dict[str, Any], part: str) -> None:
    override = {"nodeSelector": {"pool": "cpu"}}
    message = refused(fleet, podOverride=override, outputLocation={**OUTPUT, **storage})
    assert "spec.outputLocation.node" in message
    assert part in message


# Without effect


@pytest.mark.parametrize(
    ("field", "storage", "part"),
    [
        ("dataset", {"storageUri": "pvc://results/x", "key": "k"}, "spec.dataset.key has no effect for pvc://"),
        (
            "outputLocation",
            {**OUTPUT, "key": "k"},
            "spec.outputLocation.key has no effect for pvc://: a claim is mounted",
        ),
        ("dataset", {"parameters": {"prompt_colum": "x"}}, "spec.dataset.parameters: unknown key 'prompt_colum' has"),
        ("dataset", {"parameters": {"prompt_colum": "x"}}, "did you mean 'prompt_column'?"),
        ("dataset", {"parameters": {"region": "x"}}, "region has no effect for hf://, only for obs://, oci://, s3://"),
        ("dataset", {"parameters": {"secretKey": "x"}}, "secretKey has no effect without spec.dataset.key"),
        ("dataset", {"parameters": {"token": "x"}, "key": "k"}, "token has no effect next to spec.dataset.key"),
        ("outputLocation", {**OUTPUT, "parameters": {"region": "x"}}, "region has no effect for pvc://"),
        ("outputLocation", {**OUTPUT, "parameters": {"aws_region": "x"}}, "aws_region has no effect for pvc://"),
        ("outputLocation", {"storageUri": "gs://bucket/x", "parameters": {"aws_secret_access_key": "x"}}, "for gs://"),
        (
            "outputLocation",
            {"storageUri": "az://account/container", "parameters": {"regoin": "x"}},
            "did you mean 'region'?",
        ),
        (
            "outputLocation",
            {"storageUri": "s3://bucket/x", "parameters": {"profile": "x"}},
            "put credentials into the Secret",
        ),
    ],
)
def test_what_has_no_effect_for_a_kind_of_storage_is_reported(
    fleet: Benchmarks, field: str, storage: dict[str, Any], part: str
) -> None:
    assert part in accepted(fleet, **{field: {"storageUri": "hf://org/prompts", **storage}})


def test_what_is_acted_on_is_not_reported(fleet: Benchmarks) -> None:
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": "endpoints: [minio.store]"})
    parameters = {"endpoint": "http://minio.store:9000", "region": "x", "addressingStyle": "path"}
    nodes = {"nodeSelector": {"a": "b"}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    message = accepted(
        fleet,
        dataset={"storageUri": "s3://bucket/x", "key": "k", "parameters": {**parameters, "include": "*.txt"}, **nodes},
        outputLocation={"storageUri": "s3://bucket/y", "key": "k", "parameters": parameters, **nodes},
    )
    assert "no effect" not in message


def test_parameters_that_a_client_does_not_send_are_reported(fleet: Benchmarks) -> None:
    endpoint = {"url": "http://llm.shop:8000/v1", "apiFormat": "oci-cohere", "modelName": "org/llama"}
    parameters = {"temperature": "1", "topP": "0.9", "seed": "1"}
    message = accepted(fleet, endpoint={"endpoint": endpoint}, additionalRequestParams=parameters)
    assert "spec.additionalRequestParams: seed has no effect for the API oci-cohere" in message
    fleet = Benchmarks()
    endpoint["apiFormat"] = "cohere"
    assert "seed" not in accepted(fleet, endpoint={"endpoint": endpoint}, additionalRequestParams=parameters)


def test_the_run_to_measure_cannot_be_overridden_and_the_object_says_so(fleet: Benchmarks) -> None:
    override = {"env": [{"name": "MEASUREMENT", "value": "{}"}]}
    assert "spec.podOverride.env: MEASUREMENT has no effect" in accepted(fleet, podOverride=override)


# The hub


def test_a_private_hub_is_that_of_tokenizers_and_data_sets_unless_the_pod_names_another(fleet: Benchmarks) -> None:
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": "hubEndpoint: https://hub.example.com"})
    accepted(fleet)
    (container,) = pod(fleet)["containers"]
    assert {"name": "HF_ENDPOINT", "value": "https://hub.example.com"} in container["env"]
    fleet = Benchmarks()
    fleet.put("ConfigMap", "modelyard-models", "home", data={"settings": "hubEndpoint: https://hub.example.com"})
    accepted(fleet, podOverride={"env": [{"name": "HF_ENDPOINT", "value": "https://other.example.com"}]})
    (container,) = pod(fleet)["containers"]
    assert [one["value"] for one in container["env"] if one["name"] == "HF_ENDPOINT"] == ["https://other.example.com"]


def measurement(**changes: Any) -> Measurement:
    return Measurement.model_validate({**BASE, **changes})


@pytest.mark.parametrize(
    ("task", "access", "kwargs"),
    [
        ("text-to-text", {}, {"split": "train"}),
        ("text-to-text", {"revision": "v2"}, {"split": "train", "revision": "v2"}),
        ("text-to-embeddings", {"parameters": {"split": "test", "subset": "en"}}, {"split": "test", "name": "en"}),
        ("image-to-text", {"revision": "v2"}, {"split": "train", "revision": "v2"}),
    ],
)
def test_a_hubs_data_set_is_loaded_at_its_revision_split_and_subset(
    tmp_path: Path, task: str, access: dict[str, Any], kwargs: dict[str, str]
) -> None:
    asked = measurement(task=task, dataset="org/prompts", access=access)
    found = datasets.options(asked, tmp_path, {})
    assert found == {"--dataset-config": str(tmp_path / "dataset.json")}
    described = json.loads((tmp_path / "dataset.json").read_text("utf-8"))
    assert described["source"] == {"type": "huggingface", "path": "org/prompts", "huggingface_kwargs": kwargs}
    assert described["prompt_column"] == (None if task == "image-to-text" else "prompt")
    assert described.get("image_column") == ("image" if task == "image-to-text" else None)


@pytest.mark.parametrize(
    ("content", "parameters", "environ", "token"),
    [
        ({"token": "hf_file"}, {}, {"HF_TOKEN": "hf_tokenizer"}, "hf_file"),
        ({"mine": "hf_mine"}, {"secretKey": "mine"}, {"HF_TOKEN": "hf_tokenizer"}, "hf_mine"),
        ({}, {}, {"DATASET_TOKEN": "hf_inline", "HF_TOKEN": "hf_tokenizer"}, "hf_inline"),
        ({}, {}, {"HF_TOKEN": "hf_tokenizer"}, "hf_tokenizer"),
    ],
)
def test_the_program_reads_a_hubs_data_set_with_its_own_token(
    tmp_path: Path, content: dict[str, str], parameters: dict[str, str], environ: dict[str, str], token: str
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    access = DatasetAccess(parameters=parameters, credentials=str(tmp_path) if content else None)
    asked = measurement(dataset="org/prompts").model_copy(update={"access": access})
    variables = environment(environ, asked, tmp_path, datasets.token(asked, environ))
    assert variables["HF_TOKEN"] == token


def test_a_data_set_that_cannot_be_fetched_says_why(tmp_path: Path) -> None:
    access = {"parameters": {"endpoint": "http://127.0.0.1:9"}, "public": True}
    with pytest.raises(MeasureError, match=r"dataset s3://bucket/x: .*127\.0\.0\.1") as raised:
        datasets.options(measurement(dataset="s3://bucket/x", access=access), tmp_path, {})
    assert raised.value.reason == "DatasetMissing"


def test_a_corrected_spec_has_no_warning(fleet: Benchmarks) -> None:
    assert "spec.outputLocation.key has no effect" in accepted(fleet, outputLocation={**OUTPUT, "key": "k"})
    fleet.benchmark(podOverride={"image": "other:1"})
    fleet.step()
    assert "SpecWarning" not in {one["type"] for one in fleet.said["conditions"]}
