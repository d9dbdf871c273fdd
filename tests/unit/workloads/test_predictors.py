"""The deprecated predictor: what of it is acted on, what wins over it, and what is told of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from service_world import ENGINE, Fleet

from modelyard.resources import InferenceService
from modelyard.workloads.rendering.components import effective
from modelyard.workloads.rendering.predictors import migrates, with_tag
from modelyard.workloads.rendering.values import Refused, Rendered

Body = dict[str, Any]
DIGEST = "example.com/engine@sha256:" + 64 * "0"


def fleet(predictor: Body, offered: Body | None = None, **spec: Any) -> Fleet:
    """A cluster with a model, a runtime and a service that has this predictor."""
    made = Fleet()
    made.model()
    made.runtime(**(offered or {}))
    body = {"predictor": predictor, **spec}
    made.put("InferenceService", "chat", "shop", spec=body, status={}, metadata={"annotations": {}})
    made.look()
    return made


def result(made: Fleet) -> Rendered | Refused:
    return made.standing().result


def pod(made: Fleet) -> Body:
    rendered = result(made)
    assert isinstance(rendered, Rendered), rendered
    deployment = next(child.body for child in rendered.children if child.kind == "Deployment")
    spec: Body = deployment["spec"]["template"]["spec"]
    return spec


def told(made: Fleet) -> str:
    rendered = result(made)
    assert isinstance(rendered, Rendered), rendered
    return "; ".join(f"{note.reason}: {note.message}" for note in rendered.notes)


@pytest.mark.parametrize(
    ("image", "made"),
    [
        ("engine:1", "engine:v2"),
        ("engine", "engine:v2"),
        ("registry.example.com:5000/team/engine", "registry.example.com:5000/team/engine:v2"),
        ("registry.example.com:5000/team/engine:1", "registry.example.com:5000/team/engine:v2"),
        ("localhost/engine:latest", "localhost/engine:v2"),
        (DIGEST, DIGEST),
        (f"example.com/engine:1@{DIGEST.partition('@')[2]}", f"example.com/engine:1@{DIGEST.partition('@')[2]}"),
    ],
)
def test_the_tag_of_an_image_is_replaced_and_a_digest_stays(image: str, made: str) -> None:
    assert with_tag(image, "v2") == made


def test_the_version_of_the_runtime_is_the_tag_of_the_engines_image_alone() -> None:
    engine = {"runner": ENGINE, "containers": [{"name": "sidecar", "image": "sidecar:1"}]}
    made = fleet({"model": {"baseModel": "llama", "runtimeVersion": "v2"}}, {"engineConfig": engine})
    assert {c["name"]: c["image"] for c in pod(made)["containers"]} == {
        "sidecar": "sidecar:1",
        "ome-container": "engine:v2",
    }
    assert told(made) == ""


def test_workers_have_the_version_of_their_leader() -> None:
    engine = {"runner": ENGINE, "worker": {"size": 1, "runner": ENGINE}}
    made = fleet({"model": {"baseModel": "llama", "runtimeVersion": "v2"}}, {"engineConfig": engine})
    rendered = result(made)
    assert isinstance(rendered, Rendered)
    pods = [child.body["spec"]["template"]["spec"] for child in rendered.children if child.kind == "StatefulSet"]
    assert [spec["containers"][0]["image"] for spec in pods] == ["engine:v2", "engine:v2"]


def test_a_version_next_to_a_digest_is_told() -> None:
    engine = {"runner": {**ENGINE, "image": DIGEST}}
    made = fleet({"model": {"baseModel": "llama", "runtimeVersion": "v2"}}, {"engineConfig": engine})
    assert pod(made)["containers"][0]["image"] == DIGEST
    assert "spec.predictor.model.runtimeVersion v2 has no effect on" in told(made)


def test_a_version_that_is_no_tag_is_refused() -> None:
    made = fleet({"model": {"baseModel": "llama", "runtimeVersion": "1 && rm"}})
    assert str(result(made)).startswith("spec.predictor.model.runtimeVersion: '1 && rm' is no tag of an image")


def test_a_version_brings_no_other_program_into_pods_with_rights() -> None:
    model = {"baseModel": "llama", "runtimeVersion": "v2"}
    made = fleet({"model": model}, {"engineConfig": {"runner": ENGINE, "hostNetwork": True}})
    assert str(result(made)).startswith("spec.predictor.model.runtimeVersion: the runtime gives these pods hostNetwork")


def test_files_in_a_claim_are_mounted() -> None:
    model = {"storageUri": "pvc://weights/llama/8b", "runtime": "small"}
    spec = pod(fleet({"model": model}))
    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "modelyard-model", "persistentVolumeClaim": claim} in spec["volumes"]
    (container,) = spec["containers"]
    mount = {"name": "modelyard-model", "mountPath": "/opt/ml/model", "readOnly": True, "subPath": "llama/8b"}
    assert mount in container["volumeMounts"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables == {"MODEL_PATH": "/opt/ml/model", "STORAGE_URI": "pvc://weights/llama/8b"}


def fleet_path() -> str:
    """Return where the files of the model are that every cluster of these tests has."""
    (volume,) = pod(fleet({"model": {"baseModel": "llama"}}))["volumes"]
    return str(volume["hostPath"]["path"])


def test_files_that_a_model_has_are_that_models() -> None:
    made = fleet({"model": {"storageUri": "hf://meta/llama"}})
    spec = pod(made)
    (volume,) = spec["volumes"]
    assert volume["hostPath"]["path"] == fleet_path()
    assert made.standing().resolved.inputs["modelyard.dev/model"] == "ClusterBaseModel/llama@1"
    assert made.standing().resolved.inputs["modelyard.dev/runtime"] == "ClusterServingRuntime/small@1"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "hf://other/model",
            "BaseModelNotFound: spec.predictor.model.storageUri: no BaseModel of namespace shop and no",
        ),
        ("s3://bucket/model", "BaseModelNotFound: spec.predictor.model.storageUri: "),
        ("pvc://else:weights/llama", "RefNotPermitted: spec.predictor.model.storageUri: "),
        ("pvc://", "InvalidSpec: spec.predictor.model.storageUri: "),
    ],
)
def test_files_that_nothing_mounts_are_refused(uri: str, message: str) -> None:
    problem = result(fleet({"model": {"storageUri": uri, "runtime": "small"}}))
    assert isinstance(problem, Refused)
    assert f"{problem.reason}: {problem}".startswith(message)


def test_the_files_of_a_base_model_come_before_others_and_that_is_told() -> None:
    made = fleet({"model": {"baseModel": "llama", "storageUri": "pvc://weights/llama"}})
    assert all("persistentVolumeClaim" not in volume for volume in pod(made)["volumes"])
    assert "storageUri pvc://weights/llama is not mounted: the files of model llama are" in told(made)
    same = fleet({"model": {"baseModel": "llama", "storageUri": "hf://meta/llama"}})
    assert told(same) == ""


@pytest.mark.parametrize("predictor", [{"minReplicas": 4, "model": {"baseModel": "other"}}, {"containers": [ENGINE]}])
def test_an_engine_replaces_a_predictor_and_that_is_told(predictor: Body) -> None:
    made = fleet(predictor, engine={}, model={"name": "llama"})
    assert [c["image"] for c in pod(made)["containers"]] == ["engine:1"]
    text = "PredictorWithoutEffect: spec.predictor has no effect: spec.engine replaces it; remove one of the two"
    assert told(made) == text
    made.settle()
    made.up("chat-engine")
    made.settle()
    assert "spec.predictor has no effect" in made.condition("LatestDeploymentReady")[2]


def test_an_empty_predictor_is_not_worth_a_word() -> None:
    assert told(fleet({}, engine={}, model={"name": "llama"})) == ""


def test_model_and_runtime_of_the_service_come_before_those_of_its_predictor() -> None:
    predictor = {"model": {"baseModel": "other", "runtime": "nowhere"}}
    made = fleet(predictor, model={"name": "llama"}, runtime={"name": "small"})
    assert "MODEL_PATH" in str(pod(made))
    assert "spec.predictor.model.baseModel other has no effect: spec.model names llama" in told(made)
    assert "spec.predictor.model.runtime nowhere has no effect: spec.runtime names small" in told(made)


def test_a_predictor_that_says_nothing_is_no_engine() -> None:
    problem = result(fleet({"model": {"protocolVersion": "openAI"}}))
    assert isinstance(problem, Refused)
    assert str(problem).startswith("spec.engine: is missing - write engine: {}")
    assert "or name a model in spec.predictor.model.baseModel" in str(problem)


@pytest.mark.parametrize(
    ("asked", "listed", "reason"),
    [
        ("openAI", ["openAI"], ""),
        ("openai", ["openAI", "cohere"], ""),
        ("v2", ["openInference-v2"], ""),
        ("openInference-v2", [], ""),
        ("openInference-v2", ["openAI"], "NoSupportingRuntime"),
        ("cohere", ["openAI", "openInference-v1"], "NoSupportingRuntime"),
    ],
)
def test_the_runtime_speaks_the_protocol_that_the_predictor_asks_for(
    asked: str, listed: list[str], reason: str
) -> None:
    made = fleet({"model": {"baseModel": "llama", "protocolVersion": asked}}, {"protocolVersions": listed})
    problem = made.standing().problem
    assert (problem.reason if problem else "") == reason
    if problem:
        assert f"does not speak protocol {asked}" in str(problem)
    # What a predictor becomes on a server that rewrites it asks for the same.
    runner = {"env": [{"name": "PROTOCOL_VERSION", "value": asked}]}
    later = Fleet()
    later.model()
    later.runtime(protocolVersions=listed)
    later.service(engine={"runner": runner})
    later.look()
    problem = later.standing().problem
    assert (problem.reason if problem else "") == reason


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"predictor": {"minReplicas": 0}}, True),
        ({"predictor": {"model": {"baseModel": "llama"}}}, True),
        ({"predictor": {"model": {"storageUri": "pvc://a/b"}}}, True),
        ({"predictor": {"workerSpec": {"size": 1}}}, True),
        ({"predictor": {"tolerations": [{"operator": "Exists"}]}}, True),
        ({"predictor": {"tolerations": [], "containers": None}}, False),
        ({"predictor": {"model": {"runtime": "small"}}}, False),
        ({"predictor": {}}, False),
        ({"predictor": {"minReplicas": 1}, "engine": {}}, False),
        ({"engine": {}}, False),
    ],
)
def test_a_service_in_the_older_form_is_one_whose_predictor_is_read(spec: Body, expected: bool) -> None:
    service = InferenceService.parse({"metadata": {"name": "chat", "namespace": "shop"}, "spec": spec})
    assert migrates(service) is expected
    assert ("engine" in effective(service) and "engine" not in spec) is expected


@pytest.mark.parametrize("image", [5, True, {"name": "engine"}, ["engine"]])
def test_an_image_that_is_no_text_is_refused(image: Any) -> None:
    """With a tag to put on it, it ended the plan with an error of ours instead of a condition."""
    container = {"name": "ome-container", "image": image}
    made = fleet({"model": {"baseModel": "llama", "runtimeVersion": "v2"}, "containers": [container]}, {})
    sidecar = fleet({"model": {"baseModel": "llama"}, "containers": [ENGINE, {"name": "logs", "image": image}]}, {})
    for refused in map(result, (made, sidecar)):
        assert isinstance(refused, Refused)
        assert refused.reason == "InvalidSpec"


@pytest.mark.parametrize(
    ("fields", "listed"),
    [
        ({"modelFormat": {"name": "safetensors"}}, "modelFormat"),
        ({"modelFormat": {"name": "safetensors"}, "storage": {"key": "s3"}}, "modelFormat, storage"),
        ({"imagePullPolicy": "Always", "Image": "engine:3"}, "Image"),
    ],
)
def test_unknown_fields_of_the_model_reach_no_container_and_are_named(fields: Body, listed: str) -> None:
    made = fleet({"model": {"baseModel": "llama", "workingDir": "/srv", **fields}})
    (container,) = pod(made)["containers"]
    assert container["workingDir"] == "/srv"
    assert container.get("imagePullPolicy") == fields.get("imagePullPolicy")
    assert not container.keys() & set(listed.split(", "))
    assert told(made) == (
        f"PredictorWithoutEffect: spec.predictor.model has unknown fields without effect: {listed}; remove them"
    )
