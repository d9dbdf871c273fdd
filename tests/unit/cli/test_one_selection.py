"""The same objects give the same model and runtime to the command line, the controller and onboarding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard
from onboarded import request
from service_world import ENGINE, SERVED, Fleet

from modelyard.cli.worlds import world_of
from modelyard.onboarding.planning.fits import fits
from modelyard.workloads.roll_out.world import CLASSES_SERVED, RUNTIMES_WANTED, classes_wanted

LLAMA = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
}
Body = dict[str, Any]


def obj(kind: str, name: str, spec: Body, namespace: str = "") -> Body:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}


def model(size: str = "8B", namespace: str = "", **spec: Any) -> Body:
    body = {**LLAMA, "modelParameterSize": size, "storage": {"storageUri": "hf://a/b"}, **spec}
    return obj("BaseModel" if namespace else "ClusterBaseModel", "llama", body, namespace)


def runtime(name: str, namespace: str = "", gpus: int = 1, priority: int = 1, **spec: Any) -> Body:
    engine = {"runner": {**ENGINE, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}}
    entry = {**LLAMA, "autoSelect": True, "priority": priority}
    body = {"supportedModelFormats": [entry], "engineConfig": engine, **spec}
    return obj("ServingRuntime" if namespace else "ClusterServingRuntime", name, body, namespace)


def on(*classes: str) -> Body:
    return {"acceleratorRequirements": {"acceleratorClasses": list(classes)}}


def accelerator(name: str, memory: int) -> Body:
    return obj("AcceleratorClass", name, {"capabilities": {"memoryGB": str(memory)}})


SMALL, LARGE = runtime("small", modelSizeRange={"max": "10B"}), runtime("large", modelSizeRange={"min": "60B"})
CARDS = (accelerator("t4", 16), accelerator("h100", 80))
BEST_ON_T4 = runtime("best", priority=9, **on("t4"))
SECOND_ON_H100 = runtime("second", **on("h100"))


def by_command_line(folder: Path, objects: list[Body], service: Body) -> tuple[str, str]:
    """Model and runtime (as KIND NAME) that ``runtimes explain`` and ``services render`` say; both say the same."""
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all([*objects, service]), encoding="utf-8")
    done = modelyard("runtimes", "explain", "llama", "-n", "shop", "-f", path, "-o", "json")
    explained = json.loads(done.out) if done.out else {"model": None, "chosen": None}
    about, chosen = explained["model"], explained["chosen"]
    kind = "ServingRuntime" if chosen and chosen["namespace"] else "ClusterServingRuntime"
    choice = (
        "" if about is None else "BaseModel" if about["namespace"] else "ClusterBaseModel",
        "" if chosen is None else f"{kind} {chosen['name']}",
    )
    done = modelyard("services", "render", "-f", path, "-o", "json")
    children = json.loads(done.out)["items"] if done.out else []
    deployments = [body for body in children if body["kind"] == "Deployment"]
    rendered = [entry["metadata"]["annotations"]["ome.io/serving-runtime"] for entry in deployments]
    assert rendered == ([choice[1].partition(" ")[2]] if choice[1] else []), done.err
    folders = [
        pod["volumes"][0]["hostPath"]["path"] for pod in (entry["spec"]["template"]["spec"] for entry in deployments)
    ]
    assert all(("/shop/" in folder) == (choice[0] == "BaseModel") for folder in folders)
    return choice


def by_controller(objects: list[Body], service: Body) -> tuple[str, str]:
    has_classes = any(entry["kind"] == "AcceleratorClass" for entry in objects)
    fleet = Fleet(served=SERVED | {CLASSES_SERVED} if has_classes else SERVED)
    for entry in [*objects, service]:
        metadata = entry["metadata"]
        fleet.put(entry["kind"], metadata["name"], metadata.get("namespace", ""), spec=entry["spec"], status={})
    assert fleet.look() is not None
    resolved = fleet.standing().resolved
    return (
        "" if resolved.model is None else resolved.model.served.stored.subject.kind.kind,
        "" if resolved.runtime is None else f"{resolved.runtime.kind} {resolved.runtime.choice.name}",
    )


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        # The model of the namespace comes before that of the cluster, and decides which runtime is chosen.
        ([model("70B", "shop"), model("8B"), SMALL, LARGE], ("BaseModel", "ClusterServingRuntime large")),
        ([model("8B", "shop"), model("70B"), SMALL, LARGE], ("BaseModel", "ClusterServingRuntime small")),
        ([model("70B", "other"), model("8B"), SMALL, LARGE], ("ClusterBaseModel", "ClusterServingRuntime small")),
        ([model("8B", "other"), SMALL], ("", "")),
        # The runtime of the namespace comes first; one of another namespace is none.
        ([model(), runtime("any", "shop"), runtime("any", priority=9)], ("ClusterBaseModel", "ServingRuntime any")),
        ([model(), runtime("any", "other"), runtime("any")], ("ClusterBaseModel", "ClusterServingRuntime any")),
        ([model(), runtime("any", "other")], ("ClusterBaseModel", "")),
        # Accelerator classes count where there are some: 8B at 16 bits are too much for one T4.
        ([model(), BEST_ON_T4, SECOND_ON_H100, *CARDS], ("ClusterBaseModel", "ClusterServingRuntime second")),
        ([model(), BEST_ON_T4, SECOND_ON_H100], ("ClusterBaseModel", "ClusterServingRuntime best")),
        ([model(), BEST_ON_T4, CARDS[0]], ("ClusterBaseModel", "")),
        ([model(), runtime("best", gpus=2, **on("t4")), CARDS[0]], ("ClusterBaseModel", "ClusterServingRuntime best")),
        # A disabled model or runtime.
        ([model(disabled=True), SMALL], ("ClusterBaseModel", "")),
        (
            [model(), runtime("off", priority=9, disabled=True), SMALL],
            ("ClusterBaseModel", "ClusterServingRuntime small"),
        ),
    ],
)
def test_command_line_and_controller_choose_the_same(
    tmp_path: Path, objects: list[Body], expected: tuple[str, str]
) -> None:
    service = obj("InferenceService", "chat", {"model": {"name": "llama"}, "engine": {}}, "shop")
    assert by_command_line(tmp_path, objects, service) == expected
    assert by_controller(objects, service) == expected


BOTH = [model("70B", "shop"), model("8B"), runtime("any", "shop"), runtime("any", priority=9)]
OWN = ("BaseModel", "ServingRuntime any")
CLUSTER = ("ClusterBaseModel", "ClusterServingRuntime any")


@pytest.mark.parametrize(
    ("objects", "kinds", "expected", "fields"),
    [
        (BOTH, ("", ""), OWN, ()),
        (BOTH, ("BaseModel", "ServingRuntime"), OWN, ()),
        (BOTH, ("ClusterBaseModel", "ClusterServingRuntime"), CLUSTER, ()),
        (BOTH, ("BaseModel", "ClusterServingRuntime"), (OWN[0], CLUSTER[1]), ()),
        (BOTH[1::2], ("", ""), CLUSTER, ()),
        (BOTH[1::2], ("ClusterBaseModel", "ServingRuntime"), ("ClusterBaseModel", ""), ()),
        (BOTH[1::2], ("BaseModel", ""), ("", ""), ()),
        # Servers with the published schema write the kinds of the cluster into services that say none.
        (BOTH[::2], ("ClusterBaseModel", "ClusterServingRuntime"), OWN, ("spec.model.kind", "spec.runtime.kind")),
        (BOTH[::2], ("", ""), OWN, ()),
    ],
)
def test_the_kind_of_a_reference_decides_what_is_looked_up(
    tmp_path: Path, objects: list[Body], kinds: tuple[str, str], expected: tuple[str, str], fields: tuple[str, ...]
) -> None:
    named = [
        {"name": name, **({"kind": kind} if kind else {})} for name, kind in zip(("llama", "any"), kinds, strict=True)
    ]
    spec = {"model": named[0], "runtime": named[1], "engine": {}}
    service = obj("InferenceService", "chat", spec, "shop")
    assert by_controller(objects, service) == expected
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([*objects, service]), encoding="utf-8")
    rendered = modelyard("services", "render", "-f", path)
    notes = [line for line in rendered.out.splitlines() if "KindNotFound" in line]
    assert [note.partition(": ")[2].partition(":")[0] for note in notes] == list(fields), rendered.out
    assert (rendered.code == 0) == all(expected), rendered.err
    references = ["/".join(filter(None, (kind, name))) for name, kind in zip(("llama", "any"), kinds, strict=True)]
    done = modelyard(
        "runtimes", "explain", references[0], "--runtime", references[1], "-n", "shop", "-f", path, "-o", "json"
    )
    explained = json.loads(done.out) if done.out else {"model": None, "chosen": None}
    about, chosen = explained["model"], explained["chosen"]
    assert (
        "" if about is None else "BaseModel" if about["namespace"] else "ClusterBaseModel",
        "" if chosen is None else f"{'' if chosen['namespace'] else 'Cluster'}ServingRuntime {chosen['name']}",
    ) == expected


@pytest.mark.parametrize(
    ("reference", "field", "allowed"),
    [
        ({"model": {"name": "llama", "kind": "Deployment"}}, "spec.model.kind: 'Deployment'", "'ClusterBaseModel'"),
        ({"model": {"name": "llama", "kind": "ServingRuntime"}}, "spec.model.kind: 'ServingRuntime'", "'BaseModel'"),
        ({"model": {"name": "llama", "apiGroup": "apps"}}, "spec.model.apiGroup: 'apps'", "'ome.io'"),
        (
            {"runtime": {"name": "any", "kind": "clusterservingruntime"}},
            "spec.runtime.kind: 'cluster",
            "'ServingRuntime'",
        ),
        ({"runtime": {"name": "any", "apiGroup": "serving.kserve.io"}}, "spec.runtime.apiGroup: 'serving", "'ome.io'"),
        ({"runtime": {"name": "any", "kind": ""}}, "spec.runtime.kind: ''", "'ClusterServingRuntime'"),
    ],
)
def test_a_reference_of_no_kind_of_ours_names_what_may_be_written(
    tmp_path: Path, reference: Body, field: str, allowed: str
) -> None:
    service = obj("InferenceService", "chat", {"model": {"name": "llama"}, "engine": {}, **reference}, "shop")
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([*BOTH, service]), encoding="utf-8")
    done = modelyard("services", "render", "-f", path)
    assert done.code == 1
    assert f"InvalidSpec: {field}" in done.err
    assert allowed in done.err.partition("write")[2]
    fleet = Fleet()
    for entry in BOTH:
        fleet.put(entry["kind"], "x", entry["metadata"].get("namespace", ""), spec=entry["spec"], status={})
    fleet.put("InferenceService", "chat", "shop", spec=service["spec"], status={})
    fleet.settle()
    status, reason, message = fleet.condition("LatestDeploymentReady")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith(field)


def test_a_kind_that_explain_does_not_know_is_a_mistake_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(BOTH), encoding="utf-8")
    done = modelyard("runtimes", "explain", "llama", "--runtime", "Deployment/any", "-f", path)
    assert done.code == 2
    assert "write NAME, or KIND/NAME with a kind of ServingRuntime, ClusterServingRuntime" in done.err


def test_a_service_may_insist_on_the_model_of_its_namespace(tmp_path: Path) -> None:
    service = obj("InferenceService", "chat", {"model": {"name": "llama", "kind": "BaseModel"}, "engine": {}}, "shop")
    assert by_controller([model(), SMALL], service) == ("", "")
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([model(), SMALL, service]), encoding="utf-8")
    assert (
        "BaseModelNotFound: spec.model.name: model llama does not exist"
        in modelyard("services", "render", "-f", path).err
    )


def test_onboarding_has_the_runtimes_and_classes_that_the_controller_has() -> None:
    nodes = {"nvidia.com/gpu.product": "NVIDIA-H100"}

    def engine(**more: Any) -> Body:
        runner = {**ENGINE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        return {"engineConfig": {"nodeSelector": nodes, "runner": runner}, **more}

    objects = [
        runtime("best", priority=9, **engine(**on("t4"))),
        runtime("second", **engine(**on("h100"))),
        runtime("second", "other", **engine(disabled=True)),
        *CARDS,
    ]
    wants = (*RUNTIMES_WANTED, *classes_wanted(frozenset([CLASSES_SERVED])))
    asked = request(candidates=(), prices={"H100": 10})
    offers = fits(asked, model("8B", "shop"), world_of(wants, objects), ())
    assert [candidate.runtime for candidate in offers.candidates] == ["second"]
    assert list(offers.refused) == ["best"]
    assert "accelerator class t4 weights take" in offers.refused["best"]


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"runner": {"name": "ome-container", "image": "own:1"}}, ""),
        ({"containers": [{"name": "ome-container", "image": "own:1"}]}, ""),
        ({"leader": {"runner": {"image": "own:1"}}, "worker": {"size": 1, "runner": {"image": "own:1"}}}, ""),
        ({"runner": {"name": "ome-container"}}, "NoSupportingRuntime"),
        ({"leader": {"runner": {"image": "own:1"}}, "worker": {"size": 1}}, "NoSupportingRuntime"),
        ({}, "NoSupportingRuntime"),
    ],
)
def test_a_service_that_says_what_runs_its_engine_needs_no_runtime(tmp_path: Path, engine: Body, reason: str) -> None:
    service = obj("InferenceService", "chat", {"model": {"name": "llama"}, "engine": engine}, "shop")
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([model(), LARGE, service]), encoding="utf-8")
    done = modelyard("services", "render", "-f", path)
    assert (done.code, reason in done.err) == (1 if reason else 0, True), done.err
    fleet = Fleet()
    fleet.model()
    fleet.service(engine=engine)
    fleet.look()
    problem = fleet.standing().problem
    assert (problem.reason if problem else "") == reason


def test_a_service_whose_runtime_is_gone_keeps_what_runs() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service(engine={"runner": {"name": "ome-container", "image": "own:1"}})
    fleet.settle()
    del fleet.objects["ClusterServingRuntime", "", "small"]
    fleet.settle()
    assert fleet.condition("LatestDeploymentReady")[:2] == ("False", "NoSupportingRuntime")
    assert "Deployment chat-engine" in fleet.names()
