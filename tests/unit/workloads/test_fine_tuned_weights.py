"""Fine-tuned weights of a service, planned in memory: loaded, routed, refused, rolled back, and the condition."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_world import ENGINE, NOW, Fleet
from test_routed_services import BEHIND, a_fleet

from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.cli.services import CURRENT, outcome
from modelyard.resources import ModelRoute
from modelyard.routing.objects import route
from modelyard.workloads.rendering.components import MAX_WEIGHTS
from modelyard.workloads.rendering.lora import loaded, started_engine
from modelyard.workloads.rendering.values import Rendered
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.returning import USUAL
from modelyard.workloads.roll_out.weight_status import WEIGHTS_READY

RUNTIMES = Path(__file__).parents[3] / "config" / "runtimes"
LATEST = "LatestDeploymentReady"
VLLM = {"name": "ome-container", "image": "vllm/vllm-openai:v1", "args": ["--model=$(MODEL_PATH)"]}
FIRST, FURTHER = "/opt/ml/model", "/opt/ml/adapters"


def put_weight(fleet: Fleet, name: str, **spec: Any) -> None:
    """Weights that were made from the model ``llama``."""
    body = {
        "baseModelRef": {"name": "llama"},
        "modelType": "LoRA",
        "hyperParameters": {},
        "storage": {"storageUri": f"hf://example/{name}"},
        **spec,
    }
    fleet.put("FineTunedWeight", name, spec=body, status={"state": "Ready"})


def ask(fleet: Fleet, *names: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
    """A service with these weights."""
    spec = {"engine": {"runner": VLLM}, **spec}
    fleet.service(model={"name": "llama", "fineTunedWeights": list(names)}, annotations=annotations, **spec)
    fleet.settle()


def serving(*names: str, runner: Mapping[str, Any] = VLLM, **spec: Any) -> Fleet:
    """A service that answers, with these weights."""
    fleet = a_fleet()
    for name in names:
        put_weight(fleet, name)
    ask(fleet, *names, engine={"runner": runner}, **spec)
    fleet.up("chat-engine")
    fleet.settle()
    return fleet


def engine_of(fleet: Fleet, name: str = "chat-engine") -> dict[str, Any]:
    container: dict[str, Any] = fleet.objects["Deployment", "shop", name]["spec"]["template"]["spec"]["containers"][0]
    return container


def test_adapters_are_loaded_and_the_condition_says_so() -> None:
    fleet = serving("tone", "legal")
    assert loaded(engine_of(fleet)) == {"tone": FIRST, "legal": f"{FURTHER}/legal"}
    spec = fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    for name, path in (("tone", FIRST), ("legal", f"{FURTHER}/legal")):
        assert sources[mounts[path]["name"]].endswith(f"/_weights/{name}")
        assert mounts[path]["readOnly"] is True
        assert spec["nodeSelector"][f"models.ome.io/finetunedweight.{name}"] == "Ready"
    variables = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
    assert variables["MODEL_PATH"] in mounts
    assert variables["MODEL_PATH"] not in (FIRST, FURTHER), "the engine serves the base model"
    assert fleet.condition(WEIGHTS_READY) == ("True", "WeightsServed", "served: tone, legal")
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
    models = json.loads(fleet.objects["ConfigMap", "shop", "modelconfig-chat"]["data"]["models.json"])
    uris = [entry["fineTunedWeightSpec"]["storage"]["storageUri"] for entry in models]
    assert uris == ["hf://example/tone", "hf://example/legal"]


def test_without_weights_there_is_no_such_condition() -> None:
    fleet = serving("tone")
    ask(fleet)
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(WEIGHTS_READY) == ("", "", "")
    assert loaded(engine_of(fleet)) == {}


def test_the_vendors_own_places_are_for_their_own_images() -> None:
    """With a model of vendor meta, the folder of the adapter once took the place of the model."""
    fleet = a_fleet()
    fleet.model(vendor="meta")
    put_weight(fleet, "tone")
    ask(fleet, "tone")
    variables = {variable["name"]: variable.get("value") for variable in engine_of(fleet)["env"]}
    assert variables["MODEL_PATH"] == "/mnt/models/_cluster/llama"
    assert "SERVED_MODEL_NAME" not in variables
    ask(fleet, "tone", engine={"runner": ENGINE})
    variables = {variable["name"]: variable.get("value") for variable in engine_of(fleet)["env"]}
    assert variables["MODEL_PATH"] == variables["FINE_TUNED_WEIGHT_PATH"] == FIRST
    assert variables["SERVED_MODEL_NAME"] == "/data/tone"


@pytest.mark.parametrize(
    ("settings", "detected", "limit"),
    [
        ({}, {"loraRank": 64}, "64"),
        ({"rank": 16}, {"loraRank": 100}, "128"),
        ({"r": 32}, {}, "32"),
        ({"lora_rank": "64"}, {}, "64"),
        ({"rank": "many"}, {}, ""),
        ({"rank": -1}, {"loraRank": "x"}, ""),
        ({"rank": True}, {}, ""),
    ],
)
def test_the_rank_comes_from_the_files_else_from_the_training(
    settings: dict[str, Any], detected: dict[str, Any], limit: str
) -> None:
    fleet = a_fleet()
    put_weight(fleet, "tone", hyperParameters=settings)
    fleet.objects["FineTunedWeight", "", "tone"]["status"]["detected"] = detected
    ask(fleet, "tone")
    assert [word for word in engine_of(fleet)["args"] if "rank" in word] == ([f"--max-lora-rank={limit}"] * bool(limit))


CATALOGUE = sorted(str(path.relative_to(RUNTIMES)) for path in RUNTIMES.rglob("*.yaml"))


@pytest.mark.parametrize("lws", [True, False])
@pytest.mark.parametrize("path", CATALOGUE)
def test_every_runtime_of_the_catalogue_loads_them(path: str, lws: bool) -> None:
    (manifest,) = read_manifests([RUNTIMES / path])
    runtime = manifest.body
    entry = runtime["spec"]["supportedModelFormats"][0]
    size = (runtime["spec"].get("modelSizeRange") or {}).get("max", "8B")
    names = ("modelFormat", "modelFramework", "modelArchitecture", "quantization")
    kept = {name: entry[name] for name in names if name in entry}
    kinds = (("decoder", "decoderConfig"), ("router", "routerConfig"))
    parts = {part: {} for part, configured in kinds if configured in runtime["spec"]}
    model = {"name": "llama", "fineTunedWeights": ["tone", "legal"]}
    service = {"model": model, "runtime": {"name": runtime["metadata"]["name"]}, "engine": {}, **parts}
    fleet = Fleet()
    for name in ("tone", "legal"):
        put_weight(fleet, name)
    fleet.put(
        "ClusterBaseModel", "llama", spec={**kept, "modelParameterSize": size, "storage": {"storageUri": "hf://a/b"}}
    )
    fleet.put("InferenceService", "chat", "shop", spec=service)
    manifests = [manifest]
    for (_, namespace, _), body in fleet.objects.items():
        body["metadata"]["namespace"] = namespace
        manifests.append(Manifest("", {"apiVersion": "ome.io/v1beta1", **body}))
    served = (*CURRENT, *(["leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"] if lws else []))
    result = outcome(next(entry for entry in manifests if entry.kind == "InferenceService"), manifests, served)
    assert isinstance(result, Rendered), result
    assert not [note for note in result.notes if "FineTunedWeight" in note.message]
    engines = set()
    for child in result.children:
        for pod in _pods(child.body):
            container = pod["containers"][0]
            if child.component == "router":
                assert loaded(container) == {}
                continue
            paths = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert paths >= {FIRST, f"{FURTHER}/legal"}, "workers read the files, too"
            if started_engine(container) is not None:
                engines.add(child.component)
                assert loaded(container) == {"tone": FIRST, "legal": f"{FURTHER}/legal"}
                assert "--enable-lora" in " ".join(container["args"])
    assert engines == {"engine", *(part for part in parts if part == "decoder")}


def _pods(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    spec = body.get("spec") or {}
    groups = spec.get("leaderWorkerTemplate") or {}
    templates = (spec.get("template"), groups.get("leaderTemplate"), groups.get("workerTemplate"))
    return [template["spec"] for template in templates if isinstance(template, Mapping) and "spec" in template]


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ({"baseModelRef": {"name": "mistral"}}, "ClusterBaseModel mistral"),
        ({"baseModelRef": {"name": "llama", "namespace": "shop"}}, "BaseModel shop/llama"),
    ],
)
def test_weights_of_another_model_are_refused_and_what_serves_stays(spec: dict[str, Any], origin: str) -> None:
    fleet = serving("tone")
    before = copy.deepcopy(engine_of(fleet))
    put_weight(fleet, "legal", **spec)
    ask(fleet, "tone", "legal")
    assert engine_of(fleet) == before
    assert fleet.condition("Ready")[0] == "True"
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "FineTunedWeightsMismatch")
    assert message.startswith(f"spec.model.fineTunedWeights[1]: FineTunedWeight legal was made from {origin} (its spec")
    assert "correct spec.baseModelRef of the FineTunedWeight to {name: llama}" in message
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", "FineTunedWeightsMismatch")
    assert fleet.condition(WEIGHTS_READY)[2].startswith("served: tone; not served: legal: spec.model.fine")
    assert fleet.status()["modelStatus"]["lastFailureInfo"]["reason"] == "FineTunedWeightsNotFound"
    put_weight(fleet, "legal")
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(WEIGHTS_READY) == ("True", "WeightsServed", "served: tone, legal")


def test_a_model_of_the_namespace_is_not_the_one_of_the_cluster() -> None:
    fleet = a_fleet()
    fleet.put("BaseModel", "llama", "shop", spec=copy.deepcopy(fleet.objects["ClusterBaseModel", "", "llama"]["spec"]))
    put_weight(fleet, "tone")
    ask(fleet, "tone")
    assert "the service's model is BaseModel shop/llama" in fleet.condition(LATEST)[2]
    assert "to {name: llama, namespace: shop}" in fleet.condition(LATEST)[2]
    put_weight(fleet, "tone", baseModelRef={"name": "llama", "namespace": "shop"})
    fleet.settle()
    assert loaded(engine_of(fleet)) == {"tone": FIRST}


@pytest.mark.parametrize(
    ("names", "spec", "reason", "text"),
    [
        (["tone", "x"], {}, "FineTunedWeightsNotFound", "fineTunedWeights[1]: FineTunedWeight x does not exist"),
        (["tone", "a=b,c -d"], {}, "FineTunedWeightsNotFound", "FineTunedWeight a=b,c -d does not exist"),
        (["tone", ""], {}, "FineTunedWeightsNotFound", "FineTunedWeight '' does not exist"),
        (["tone", "tone"], {}, "InvalidSpec", "fineTunedWeights[1]: tone is named twice"),
        (["tone"], {"disabled": True}, "FineTunedWeightsDisabled", "FineTunedWeight tone is disabled"),
        (
            ["tone"],
            {"storage": {"storageUri": "x://"}},
            "FineTunedWeightsNotReady",
            "FineTunedWeight tone cannot be read",
        ),
        (["tone", "two"], {"configuration": {"merged_weights": True}}, "InvalidSpec", "tone is merged with its model"),
    ],
)
def test_weights_that_cannot_be_used_are_named(names: list[str], spec: dict[str, Any], reason: str, text: str) -> None:
    fleet = a_fleet()
    put_weight(fleet, "two")
    put_weight(fleet, "tone", **spec)
    ask(fleet, *names)
    assert fleet.condition(LATEST)[:2] == ("False", reason)
    assert text in fleet.condition(LATEST)[2]
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", reason)
    assert text in fleet.condition(WEIGHTS_READY)[2]
    assert "Deployment chat-engine" not in fleet.names()


def test_an_adapter_that_is_called_like_the_model_is_refused() -> None:
    fleet = serving("tone")
    runner = {**VLLM, "args": ["--model=$(MODEL_PATH)", "--served-model-name={{.Name}}"]}
    put_weight(fleet, "chat")
    ask(fleet, "tone", "chat", engine={"runner": runner})
    assert fleet.condition(LATEST)[1] == "AdapterNameInUse"
    assert loaded(engine_of(fleet)) == {"tone": FIRST}
    assert fleet.condition(WEIGHTS_READY)[2].startswith("served: tone; not served: chat: ")


@pytest.mark.parametrize(
    ("runner", "reason", "text"),
    [
        (ENGINE, "EngineWithoutAdapters", "no command line of vLLM or SGLang"),
        ({**VLLM, "command": ["/start.sh"]}, "EngineWithoutAdapters", "no command line of vLLM or SGLang"),
    ],
)
def test_an_engine_that_loads_no_adapters_is_reported(runner: dict[str, Any], reason: str, text: str) -> None:
    fleet = serving("tone", runner=runner)
    assert fleet.condition("Ready")[0] == "True", "the model itself is served"
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", reason)
    assert fleet.condition(WEIGHTS_READY)[2].startswith(f"not served: tone: not loaded: {text}")
    assert f"FineTunedWeight tone: not loaded: {text}" in fleet.condition(LATEST)[2]
    variables = {variable["name"]: variable.get("value") for variable in engine_of(fleet)["env"]}
    assert variables["FINE_TUNED_WEIGHT_PATH"] == FIRST, "its entrypoint may use it"


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"modelType": "Tfew"}, "NotAnAdapter", "weights of type tfew are no LoRA adapter"),
        ({"modelType": "Distillation"}, "NotAnAdapter", "weights of type distillation are no LoRA adapter"),
        ({"hyperParameters": {"r": 1024}}, "RankTooLarge", "rank 1024 is above 512"),
        ({"storage": {"storageUri": "vendor://a/b/c"}}, "NotMounted", "its files are in the engine's image"),
    ],
)
def test_weights_that_are_no_adapter_are_reported(spec: dict[str, Any], reason: str, text: str) -> None:
    fleet = a_fleet()
    put_weight(fleet, "other", **spec)
    put_weight(fleet, "tone")
    ask(fleet, "other", "tone")
    fleet.up("chat-engine")
    fleet.settle()
    assert loaded(engine_of(fleet)) == {"tone": f"{FURTHER}/tone"}
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", reason)
    assert fleet.condition(WEIGHTS_READY)[2].startswith(f"served: tone; not served: other: not loaded: {text}")


def test_a_runtime_that_uses_the_variable_is_left_alone() -> None:
    runner = {
        **VLLM,
        "args": ["--model=$(MODEL_PATH)", "--enable-lora", "--lora-modules", "x=$(FINE_TUNED_WEIGHT_PATH)"],
    }
    fleet = serving("tone", runner=runner)
    assert engine_of(fleet)["args"] == runner["args"]
    assert fleet.condition(WEIGHTS_READY) == ("True", "WeightsServed", "served: tone")
    put_weight(fleet, "legal")
    ask(fleet, "tone", "legal", engine={"runner": runner})
    fleet.up("chat-engine")
    fleet.settle()
    assert engine_of(fleet)["args"] == runner["args"]
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", "LoadedByRuntime")
    assert (
        "served: tone; not served: legal: not loaded: the runtime loads FINE_TUNED_WEIGHT_PATH itself"
        in (fleet.condition(WEIGHTS_READY)[2])
    )


def test_merged_weights_serve_in_place_of_the_model() -> None:
    fleet = a_fleet()
    put_weight(fleet, "tone", configuration={"merged_weights": True})
    ask(fleet, "tone")
    assert fleet.condition(WEIGHTS_READY)[0] == "False"
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(WEIGHTS_READY) == ("True", "WeightsServed", "served: tone")
    assert engine_of(fleet)["args"] == VLLM["args"]
    variables = {variable["name"]: variable.get("value") for variable in engine_of(fleet)["env"]}
    assert variables["MODEL_PATH"].endswith("/_weights/tone")


def test_another_list_is_an_update_that_goes_back_where_it_does_not_become_ready() -> None:
    fleet = serving("tone")
    put_weight(fleet, "legal")
    ask(fleet, "tone", "legal")
    assert loaded(engine_of(fleet)).keys() == {"tone", "legal"}
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", "RollingOut")
    fleet.settle(now=NOW + USUAL)
    fleet.up("chat-engine")
    fleet.settle(now=NOW + USUAL)
    assert fleet.condition(LATEST)[1] == "RolledBack"
    assert loaded(engine_of(fleet)) == {"tone": FIRST}
    status, reason, message = fleet.condition(WEIGHTS_READY)
    assert (status, reason) == ("False", "RolledBack")
    assert message.startswith("served: tone; not served: legal: ")


def test_that_no_node_has_the_weights_is_told() -> None:
    fleet = a_fleet()
    put_weight(fleet, "tone")
    ask(fleet, "tone")
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    selector = {"models.ome.io/finetunedweight.tone": "Ready"}
    fleet.pod("p", conditions=[unscheduled], phase="Pending", spec={"nodeSelector": selector})
    fleet.settle()
    assert fleet.condition(WEIGHTS_READY)[:2] == ("False", "NoNodeHasModel")
    assert "tone: its delivery has not begun" in fleet.condition(WEIGHTS_READY)[2]


def test_changed_weights_restart_nothing_until_that_is_allowed() -> None:
    fleet = serving("tone")
    put_weight(fleet, "tone", hyperParameters={"rank": 64})
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "ChangesHeld"
    assert "--max-lora-rank=64" not in engine_of(fleet)["args"]
    assert fleet.condition(WEIGHTS_READY)[0] == "True"
    moved = "FineTunedWeight/tone@2"
    assert moved in fleet.condition(LATEST)[2]
    fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {ACCEPT: moved}
    fleet.settle()
    assert "--max-lora-rank=64" in engine_of(fleet)["args"]


@pytest.mark.parametrize(
    ("model", "predictor", "field"),
    [
        (None, {"baseModel": "llama", "fineTunedWeights": ["tone"]}, "predictor.model"),
        ({"name": "llama"}, {"fineTunedWeights": ["tone"]}, "predictor.model"),
        ({"name": "llama", "fineTunedWeights": ["tone"]}, {"fineTunedWeights": ["other"]}, "model"),
    ],
)
def test_a_predictors_weights_count(model: Any, predictor: dict[str, Any], field: str) -> None:
    fleet = a_fleet()
    put_weight(fleet, "tone")
    body: dict[str, Any] = {"predictor": {"model": predictor, "minReplicas": 1, "containers": [VLLM]}}
    body |= {"model": model} if model else {}
    fleet.put("InferenceService", "chat", "shop", spec=body, status={})
    fleet.settle()
    assert loaded(engine_of(fleet)) == {"tone": FIRST}
    fleet.up("chat-engine")
    fleet.settle()
    ignored = "spec.predictor.model.fineTunedWeights (other) has no effect"
    assert (ignored in fleet.condition(LATEST)[2]) is (field == "model")
    put_weight(fleet, "tone", disabled=True)
    fleet.settle()
    assert f"spec.{field}.fineTunedWeights[0]: FineTunedWeight tone is disabled" in fleet.condition(LATEST)[2]


def test_weights_without_a_model_are_refused() -> None:
    fleet = a_fleet()
    put_weight(fleet, "tone")
    predictor = {"model": {"fineTunedWeights": ["tone"]}, "minReplicas": 1, "containers": [VLLM]}
    fleet.put("InferenceService", "chat", "shop", spec={"predictor": predictor}, status={})
    fleet.settle()
    assert "weights tone are named without a model" in fleet.condition(LATEST)[2]


def route_spec(fleet: Fleet) -> dict[str, Any]:
    (spec,) = (obj["spec"] for (kind, _, _), obj in fleet.objects.items() if kind == "ModelRoute")
    route_spec: dict[str, Any] = spec
    return route_spec


def test_behind_the_router_their_names_are_routed() -> None:
    fleet = serving("tone", "legal", annotations=BEHIND)
    assert route_spec(fleet)["loraAdapters"] == ["legal", "tone"]
    (obj,) = (obj for (kind, _, _), obj in fleet.objects.items() if kind == "ModelRoute")
    assert route(obj).names == ("chat", "legal", "tone")
    ask(fleet, "tone", annotations=BEHIND)
    fleet.up("chat-engine")
    fleet.settle()
    assert route_spec(fleet)["loraAdapters"] == ["tone"]


@pytest.mark.parametrize(
    ("stored", "same"),
    [
        (["tone", "legal"], True),
        (["legal", "tone"], True),
        (["tone"], False),
        (["tone", "legal", "x"], False),
        (None, False),
    ],
)
def test_the_order_in_which_a_server_keeps_a_set_is_no_difference(stored: list[str] | None, same: bool) -> None:
    """An API server appends new entries of a set to those it has, so that the route was written for ever."""
    fleet = serving("tone", "legal", annotations=BEHIND)
    (name,) = (name for kind, _, name in fleet.objects if kind == "ModelRoute")
    spec = fleet.objects["ModelRoute", "shop", name]["spec"]
    spec |= {"loraAdapters": stored}
    plan = fleet.look()
    assert plan is not None
    assert ([body["kind"] for body in plan.apply] == []) is same
    assert ([body["kind"] for body in plan.apply] == ["ModelRoute"]) is not same


def test_a_route_has_ten_adapters_and_others_are_told() -> None:
    names = [f"a{number}" for number in range(12)]
    fleet = serving(*names, annotations=BEHIND)
    assert len(route_spec(fleet)["loraAdapters"]) == 10
    assert len(loaded(engine_of(fleet))) == 12
    assert "at most 10 adapters; not routed: a8, a9" in fleet.condition(LATEST)[2]


def test_a_route_that_clients_ask_by_the_name_of_an_adapter_is_refused() -> None:
    fleet = serving("tone", annotations=BEHIND)
    put_weight(fleet, "chat")
    ask(fleet, "tone", "chat", annotations=BEHIND)
    assert fleet.condition(LATEST)[1] == "AdapterNameInUse"
    assert route_spec(fleet)["loraAdapters"] == ["tone"]


def test_beside_a_canary_each_adapter_goes_where_it_is() -> None:
    fleet = serving("both", "old", annotations=BEHIND)
    put_weight(fleet, "new")
    ask(fleet, "both", "new", engine={"runner": VLLM, "canaryTrafficPercent": 20}, annotations=BEHIND)
    fleet.up("chat-engine-canary")
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "Canary"
    spec = route_spec(fleet)
    assert spec["loraAdapters"] == ["both", "new", "old"]
    ModelRoute.parse(
        {
            "apiVersion": "networking.volcano.sh/v1alpha1",
            "kind": "ModelRoute",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": spec,
        }
    )
    shares = {
        (rule.get("modelMatch") or {}).get("body", {}).get("model"): {
            target["modelServerName"]: target["weight"] for target in rule["targetModels"]
        }
        for rule in spec["rules"]
    }
    assert shares == {
        "new": {"chat-engine-canary": 100},
        "old": {"chat-engine": 100},
        None: {"chat-engine": 80, "chat-engine-canary": 20},
    }
    traffic = fleet.status()["components"]["engine"]["traffic"]
    assert {share["revisionName"]: share["percent"] for share in traffic} == shares[None]


def test_the_shipped_sample_of_weights_belongs_to_its_model() -> None:
    samples = RUNTIMES.parent / "samples"
    weight, service = (
        yaml.safe_load((samples / f"{name}.yaml").read_text()) for name in ("finetunedweight", "inferenceservice")
    )
    assert service["spec"]["model"]["fineTunedWeights"] == [weight["metadata"]["name"]]
    assert service["spec"]["model"]["name"] == weight["spec"]["baseModelRef"]["name"]


@pytest.mark.parametrize("form", ["model", "predictor"])
def test_a_list_as_long_as_an_object_is_refused_as_a_whole(form: str) -> None:
    """Each of 100,000 names was once compared with all before it, for minutes of the shared controller."""
    fleet, names = a_fleet(), [f"w{i}" for i in range(MAX_WEIGHTS + 1)]
    if form == "model":
        ask(fleet, *names)
    else:
        body = {"predictor": {"model": {"baseModel": "llama", "fineTunedWeights": names}}}
        fleet.put("InferenceService", "chat", "shop", spec=body, status={}, metadata={"annotations": {}})
        fleet.settle()
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "InvalidSpec")
    assert f"names {MAX_WEIGHTS + 1} FineTunedWeights, of {MAX_WEIGHTS} at most" in message
    ask(fleet, *names[:MAX_WEIGHTS])
    assert fleet.condition(LATEST)[1] == "FineTunedWeightsNotFound"
