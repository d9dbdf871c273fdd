"""``modelyard plan`` for services, on files: what would be made, changed and taken away, and why it is held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard

CONFIG = Path(__file__).resolve().parents[3] / "config"
RUNTIME = CONFIG / "runtimes" / "vllm-small.yaml"
CHAT = CONFIG / "samples" / "services" / "chat.yaml"
UID = "0000-chat"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """A service that was rolled out, and all that was made for it, as a cluster has it."""
    service, model = yaml.safe_load_all(CHAT.read_text("utf-8"))
    runtime = yaml.safe_load(RUNTIME.read_text("utf-8"))
    done = modelyard("services", "render", "-f", CHAT, "-f", RUNTIME, "-o", "yaml")
    children = yaml.safe_load(done.out)["items"]
    owner = {"apiVersion": service["apiVersion"], "kind": service["kind"], "name": "chat", "uid": UID}
    for child in children:
        child["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    service["metadata"] |= {"uid": UID, "generation": 1}
    model["metadata"]["generation"] = runtime["metadata"]["generation"] = 1
    kind, name = runtime["kind"], runtime["metadata"]["name"]
    made_of = {"generation": "1", "runtime": f"{kind}/{name}@1", "model": "ClusterBaseModel/llama-8b@1"}
    service["status"] = {"annotations": {f"modelyard.dev/{key}": value for key, value in made_of.items()}}
    return {"service": service, "model": model, "runtime": runtime, "children": children}


def planned(tmp_path: Path, files: dict[str, Any], code: int = 0) -> dict[str, Any]:
    """What the plan says of the one service there is, and the exit code."""
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump_all([files["service"], files["model"], files["runtime"], *files["children"]]))
    done = modelyard("plan", "-f", path, "-o", "json", "--exit-code")
    assert done.code == code, done.err
    (found,) = json.loads(done.out)["services"]
    return dict(found)


def test_a_new_service_is_all_new_and_needs_no_metrics() -> None:
    done = modelyard("plan", "-f", CHAT, "-f", RUNTIME, "--exit-code")
    assert done.code == 2, done.err
    assert "InferenceService shop/chat" in done.out
    for child in ("ConfigMap modelconfig-chat", "Deployment chat-engine", "HorizontalPodAutoscaler chat-engine"):
        assert f"{child}: new" in done.out
    assert "then waits for engine" in done.out


MODEL = CONFIG / "samples" / "model.yaml"


def test_a_model_is_planned_as_well(tmp_path: Path) -> None:
    done = modelyard("plan", "-f", MODEL, "--exit-code")
    assert done.code == 2, done.err
    assert "Model default/llama-8b" in done.out
    for child in ("BaseModel llama-8b-096b58552a", "Deployment llama-8b-vllm", "ModelServer llama-8b-vllm"):
        assert f"{child}: new" in done.out
    assert "then waits for vllm" in done.out
    model = yaml.safe_load(MODEL.read_text("utf-8"))
    model["metadata"] |= {"uid": UID, "generation": 1}
    (backend,) = model["spec"]["backends"]
    del backend["autoscalingPolicy"]
    backend["maxReplicas"] = backend["minReplicas"]
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump(model))
    children = yaml.safe_load(modelyard("services", "render", "-f", path, "-o", "yaml").out)["items"]
    owner = {"apiVersion": model["apiVersion"], "kind": "Model", "name": "llama-8b", "uid": UID, "controller": True}
    for child in children:
        child["metadata"]["ownerReferences"] = [owner]

    def plan(code: int) -> dict[str, Any]:
        path.write_text(yaml.safe_dump_all([model, *children]))
        done = modelyard("plan", "-f", path, "-o", "json", "--exit-code")
        assert done.code == code, done.err
        (found,) = json.loads(done.out)["services"]
        return dict(found)

    found = plan(0)
    assert (found["kind"], found["changes"], found["held"]) == ("Model", [], [])
    backend["workers"][0]["image"] = "example.com/engine:2"
    (held,) = plan(0)["held"]
    assert held.startswith("Deployment llama-8b-vllm, which another controller made, would be: spec.template")
    model["metadata"]["annotations"] = {"modelyard.dev/accept-changes": "adoption"}
    changes = plan(2)["changes"]
    assert {one.partition(":")[0] for one in changes} == {"Deployment llama-8b-vllm"}
    assert any("'example.com/engine:2'" in one for one in changes)


def test_what_is_as_it_should_be_changes_nothing(tmp_path: Path, files: dict[str, Any]) -> None:
    found = planned(tmp_path, files)
    assert (found["service"], found["kind"]) == ({"namespace": "shop", "name": "chat"}, "InferenceService")
    assert (found["changes"], found["held"], found["refused"]) == ([], [], False)
    assert found["message"] == "engine: 0 of 1 pods are ready"


def test_what_is_asked_for_otherwise_is_told_by_field_and_what_goes_by_name(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    files["service"]["spec"]["engine"]["maxReplicas"] = 6
    files["service"]["metadata"]["generation"] = 2
    extra = {"name": "chat-router", "namespace": "shop", "labels": {"ome.io/inferenceservice": "chat"}}
    extra["ownerReferences"] = files["children"][0]["metadata"]["ownerReferences"]
    files["children"].append({"apiVersion": "v1", "kind": "Service", "metadata": extra})
    assert planned(tmp_path, files, 2)["changes"] == [
        "HorizontalPodAutoscaler chat-engine: spec.maxReplicas: 4 → 6",
        "Service chat-router: goes",
    ]


def test_what_a_changed_runtime_would_restart_is_held(tmp_path: Path, files: dict[str, Any]) -> None:
    runtime = files["runtime"]
    runtime["metadata"]["generation"] = 2
    runtime["spec"]["engineConfig"]["runner"]["image"] = "example.com/engine:2"
    found = planned(tmp_path, files)
    assert found["changes"] == []
    name = f"{runtime['kind']}/{runtime['metadata']['name']}"
    assert found["held"] == [f"{name}@1 was rolled out, and now it would be {name}@2"]
    assert found["message"].endswith("allow it by the annotation modelyard.dev/accept-changes")
    files["service"]["metadata"]["annotations"] = {"modelyard.dev/accept-changes": "always"}
    (change,) = planned(tmp_path, files, 2)["changes"]
    assert change.startswith("Deployment chat-engine: spec.template.spec.containers")
    assert "example.com/engine:2" in change


def test_a_refusal_is_no_plan_for_a_pipeline(tmp_path: Path, files: dict[str, Any]) -> None:
    files["service"]["spec"]["model"]["name"] = "nobodys"
    found = planned(tmp_path, files, 1)
    assert found["refused"]
    assert found["message"].startswith("refused: spec.model.name: model nobodys does not exist")


def test_namespaces_and_labels_select(tmp_path: Path) -> None:
    for arguments in (("-n", "elsewhere"), ("-l", "team=chat")):
        done = modelyard("plan", "-f", CHAT, "-f", RUNTIME, *arguments)
        assert (done.code, done.err) == (0, "")
        assert "or service in these files" in done.out
    done = modelyard("plan", "-f", CHAT, "-f", RUNTIME, "-l", "team in (")
    assert "write it as for kubectl" in done.err


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        (
            "InferenceService",
            {"engine": {"minReplica": 2}},
            "spec.engine.minReplica: unknown field, did you mean 'minReplicas'?",
        ),
        ("InferenceService", {"colour": "blue"}, "spec.colour: unknown field"),
        ("ClusterBaseModel", {"colour": "blue"}, "spec.colour: unknown field"),
        ("ClusterServingRuntime", {"colour": "blue"}, "spec.colour: unknown field"),
        ("Model", {"colour": "blue"}, "spec.colour: unknown field"),
    ],
)
@pytest.mark.parametrize("command", [("plan",), ("services", "render")])
def test_fields_without_effect_are_named_on_standard_error(
    tmp_path: Path, command: tuple[str, ...], kind: str, change: dict[str, Any], expected: str
) -> None:
    objects = [obj for path in (CHAT, RUNTIME, MODEL) for obj in yaml.safe_load_all(path.read_text("utf-8"))]
    (changed,) = (obj for obj in objects if obj["kind"] == kind)
    changed["spec"] |= change
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    done = modelyard(*command, "-f", path)
    warnings = [line for line in done.err.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1, done.err
    assert f"{kind} " in warnings[0]
    assert warnings[0].endswith(f"without effect: {expected}")


def test_manifests_without_such_fields_have_no_warning() -> None:
    for command in (("plan",), ("services", "render")):
        assert modelyard(*command, "-f", CHAT, "-f", RUNTIME, "-f", MODEL).err == ""
