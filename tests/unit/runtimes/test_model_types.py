"""The type of a model (``model_type``) in selection: where the architecture is not known, and between equals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelyard.runtimes import parse_model, parse_runtime, parse_wishes, select
from modelyard.runtimes.matching import is_architecture_of
from modelyard.runtimes.values import LONGEST_TYPE

Body = dict[str, Any]
PUBLIC = json.loads((Path(__file__).parents[2] / "data" / "models" / "widely-served.json").read_text(encoding="utf-8"))


def stated(config: Body) -> list[tuple[str, str]]:
    """Return type and architecture of a public configuration, where it states both."""
    kind, architectures = config.get("model_type"), config.get("architectures") or []
    return [(kind, architectures[0])] if kind and architectures else []


PAIRS = sorted({pair for entry in PUBLIC for pair in stated(entry["config"])})


@pytest.mark.parametrize(("kind", "architecture"), PAIRS)
def test_public_models_are_of_the_architecture_that_their_type_tells(kind: str, architecture: str) -> None:
    assert is_architecture_of(architecture, kind)
    related = {kind, *(("deepseek_v3", "kimi_k2") if architecture == "DeepseekV3ForCausalLM" else ())}
    related |= {"gemma3", "gemma3_text"} if kind.startswith("gemma3") else set()
    assert {other for other, _ in PAIRS if is_architecture_of(architecture, other)} <= related


@pytest.mark.parametrize(
    ("kind", "architecture", "expected"),
    [
        ("llama", "LlamaForCausalLM", True),
        ("llama", "Llama4ForConditionalGeneration", False),
        ("llama4", "LlamaForCausalLM", False),
        ("qwen2", "Qwen2VLForConditionalGeneration", False),
        ("qwen2", "Qwen2AudioForConditionalGeneration", False),
        ("gpt2", "GPT2LMHeadModel", True),
        ("bert", "BertModel", True),
        ("bert", "RobertaModel", False),
        ("xlm-roberta", "XLMRobertaModel", True),
        ("chatglm", "ChatGLMModel", True),
        ("multi_modality", "MultiModalityCausalLM", True),
        ("phi3_v", "Phi3VForCausalLM", True),
        ("phi3", "Phi3VForCausalLM", False),
        ("", "LlamaForCausalLM", False),
        ("__", "LlamaForCausalLM", False),
    ],
)
def test_architectures_of_a_type(kind: str, architecture: str, expected: bool) -> None:
    assert is_architecture_of(architecture, kind) is expected


def entry(architecture: str = "", kind: str = "", **more: Any) -> Body:
    body: Body = {"modelFormat": {"name": "safetensors"}, "modelFramework": {"name": "transformers"}, **more}
    body |= {"modelArchitecture": architecture} if architecture else {}
    return {"autoSelect": True, **body, **({"modelType": kind} if kind else {})}


def ranked(model: Body, runtimes: dict[str, Body], service: Body | None = None) -> Any:
    spec = {"modelFormat": {"name": "safetensors"}, "modelFramework": {"name": "transformers"}, **model}
    spec["storage"] = {"storageUri": "hf://a/b"}
    view = parse_model({"kind": "ClusterBaseModel", "metadata": {"name": "m"}, "spec": spec})
    offered = [
        parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": name}, "spec": runtime})
        for name, runtime in runtimes.items()
    ]
    assert not view.problem
    assert not any(runtime.problem for runtime in offered)
    wishes = parse_wishes({"spec": service, "metadata": {"name": "s", "namespace": "n"}}) if service else None
    return select(view, offered, namespace="n", wishes=wishes)


def order(ranking: Any) -> list[str]:
    return [verdict.runtime.name for verdict in ranking.accepted]


FAMILIES = {
    "llama": {"supportedModelFormats": [entry("LlamaForCausalLM")]},
    "llama4": {"supportedModelFormats": [entry("Llama4ForConditionalGeneration")]},
    "qwen": {"supportedModelFormats": [entry("Qwen2ForCausalLM")]},
}


def test_the_type_stands_for_an_architecture_that_is_not_known() -> None:
    assert order(ranked({"modelType": "llama"}, FAMILIES)) == ["llama"]
    assert order(ranked({"modelType": "llama4"}, FAMILIES)) == ["llama4"]
    assert order(ranked({}, FAMILIES)) == []
    refused = ranked({"modelType": "mixtral"}, FAMILIES)
    assert "architecture mismatch: model is of type 'mixtral', runtime 'LlamaForCausalLM'" in refused.problem.message


def test_an_architecture_comes_before_the_type() -> None:
    complete = {"modelType": "llama", "modelArchitecture": "Qwen2ForCausalLM"}
    assert order(ranked(complete, FAMILIES)) == ["qwen"]


def test_a_runtime_for_any_architecture_stays_one() -> None:
    runtimes = {"any": {"supportedModelFormats": [entry()]}}
    assert order(ranked({"modelType": "llama"}, runtimes)) == ["any"]


def test_between_equals_the_one_that_names_the_type_is_chosen() -> None:
    runtimes = {
        "a-other": {"supportedModelFormats": [entry(kind="qwen2")]},
        "b-silent": {"supportedModelFormats": [entry()]},
        "c-named": {"supportedModelFormats": [entry(kind="Llama")]},
    }
    ranking = ranked({"modelType": "llama"}, runtimes)
    assert order(ranking) == ["c-named", "b-silent", "a-other"]
    notes = {verdict.runtime.name: verdict.notes for verdict in ranking.verdicts}
    assert notes["a-other"] == ("its entry names model type qwen2, the model is of type llama",)
    assert order(ranked({}, runtimes)) == ["a-other", "b-silent", "c-named"]
    higher = {**runtimes, "a-other": {"supportedModelFormats": [entry(kind="qwen2", priority=2)]}}
    assert order(ranked({"modelType": "llama"}, higher))[0] == "a-other", "priority comes first"


SPEAKS = {
    "cohere": {"supportedModelFormats": [entry()], "protocolVersions": ["cohere"]},
    "open": {"supportedModelFormats": [entry()], "protocolVersions": ["openAI", "openInference-v2"]},
    "silent": {"supportedModelFormats": [entry()]},
}


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({"engine": {}}, ["cohere", "open", "silent"]),
        ({"predictor": {"model": {"protocolVersion": "cohere"}}}, ["cohere", "silent"]),
        ({"predictor": {"model": {"protocolVersion": "OPENAI"}}}, ["open", "silent"]),
        ({"predictor": {"model": {"protocolVersion": "v2"}}}, ["open", "silent"]),
        ({"predictor": {"model": {"protocolVersion": "v1"}}}, ["silent"]),
        ({"predictor": {"model": {"protocolVersion": "grpc-v2"}}}, ["silent"]),
        ({"engine": {"runner": {"env": [{"name": "PROTOCOL_VERSION", "value": "openAI"}]}}}, ["open", "silent"]),
        ({"engine": {}, "predictor": {"model": {"protocolVersion": "cohere"}}}, ["cohere", "open", "silent"]),
    ],
)
def test_a_runtime_that_lists_protocols_is_for_services_that_ask_for_one_of_them(
    service: Body, expected: list[str]
) -> None:
    ranking = ranked({}, SPEAKS, service)
    assert order(ranking) == expected
    codes = {reason.code for verdict in ranking.verdicts for reason in verdict.reasons}
    assert codes == (set() if len(expected) == 3 else {"ProtocolNotSupported"})


def test_a_protocol_that_nobody_knows_is_a_remark() -> None:
    spec = {"protocolVersions": ["openAI", "grpc", "openInference-V2"]}
    view = parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": "r"}, "spec": spec})
    assert view.protocols == ("openAI", "grpc", "openInference-v2")
    (remark,) = view.remarks
    assert remark.startswith("spec.protocolVersions: grpc: no known protocol; write openAI, cohere, openInference-v1")


def test_of_a_type_as_long_as_an_object_only_the_beginning_is_compared() -> None:
    """The letters of a type of a million characters were once picked for each entry of each runtime of the cluster."""
    spec = {"storage": {"storageUri": "hf://x/y"}, "modelType": f"llama{'x' * 2**20}"}
    model = parse_model({"kind": "BaseModel", "metadata": {"name": "m", "namespace": "shop"}, "spec": spec})
    assert not model.problem
    assert model.kind.model_type == f"llama{'x' * (LONGEST_TYPE - len('llama'))}"
