"""The catalogue in config/runtimes: valid, with its sources, and each of it is somebody's choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.models.detection import Facts, parse_size, size_text
from modelyard.resources import parse
from modelyard.resources.field_effects import ineffective
from modelyard.resources.ome.models import BaseModelSpec
from modelyard.runtimes import Wishes, model_view, parse_runtime, select, warnings

FOLDER = Path(__file__).resolve().parents[3] / "config" / "runtimes"
CATALOGUE = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
SIMULATED = FOLDER / "local" / "simulated.yaml"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", [*CATALOGUE.values(), SIMULATED], ids=lambda path: path.stem)
def test_each_is_valid_named_like_its_file_and_says_where_it_comes_from(path: Path) -> None:
    found = parse(load(path))
    assert (found.name, ineffective(type(found), load(path))) == (path.stem, [])
    assert path.read_text("utf-8").startswith("# Source: ")
    seen = parse_runtime(load(path))
    assert (seen.problem, seen.remarks, bool(seen.devices)) == ("", (), True)


def test_nothing_in_the_catalogue_contradicts_itself() -> None:
    assert warnings(parse_runtime(load(path)) for path in (*CATALOGUE.values(), SIMULATED)) == []


def chosen(paths: list[Path], architecture: str, size: str, mode: str = "", **facts: Any) -> str:
    found = Facts(
        **{"architecture": architecture, "parameters": int(parse_size(size)), "framework_version": "4.46.0.dev0"}
        | {"format": "safetensors", "format_version": "1.0.0", "framework": "transformers"}
        | facts
    )
    spec = BaseModelSpec.model_validate({"storage": {"storageUri": "hf://a/b"}})
    ranking = select(model_view(spec, "m", facts=found), map(parse_runtime, map(load, paths)), wishes=Wishes(mode=mode))
    assert size_text(int(parse_size(size))) == size
    return ranking.chosen.runtime.name if ranking.chosen else ranking.problem.message if ranking.problem else ""


@pytest.mark.parametrize(
    ("name", "architecture", "size", "others"),
    [
        ("vllm-small", "LlamaForCausalLM", "8.03B", {}),
        ("vllm-small", "Qwen2ForCausalLM", "7.62B", {"quantization_method": "awq"}),
        ("vllm-large", "LlamaForCausalLM", "70.55B", {"quantization": "fp8"}),
        ("vllm-large", "GptOssForCausalLM", "116.83B", {"quantization_method": "mxfp4", "framework_version": "4.55.0"}),
        ("vllm-two-nodes", "LlamaForCausalLM", "405.85B", {}),
        ("vllm-two-nodes", "LlamaForCausalLM", "405.85B", {"quantization": "fp8", "quantization_method": "fbgemm_fp8"}),
        ("vllm-two-nodes", "Llama4ForConditionalGeneration", "401.52B", {"quantization": "fp8"}),
        ("vllm-prefill-decode", "Qwen3ForCausalLM", "32.76B", {"mode": "PDDisaggregated"}),
        ("vllm-prefill-decode", "Qwen3ForCausalLM", "32.76B", {"mode": "PDDisaggregated", "quantization": "fp8"}),
        ("sglang-small", "Qwen3MoeForCausalLM", "30.53B", {}),
        ("sglang-two-nodes", "DeepseekV3ForCausalLM", "684.49B", {"quantization": "fp8"}),
        ("sglang-prefill-decode", "Qwen3MoeForCausalLM", "235.09B", {"mode": "PDDisaggregated"}),
        ("vllm-two-nodes", "Qwen3MoeForCausalLM", "235.09B", {}),
    ],
)
def test_each_is_chosen_for_a_model(name: str, architecture: str, size: str, others: dict[str, Any]) -> None:
    assert chosen(list(CATALOGUE.values()), architecture, size, **others) == name


@pytest.mark.parametrize(
    "facts",
    [{"format": "gguf", "format_version": None, "framework": "llama.cpp"}, {"format": "gguf", "format_version": None}],
)
def test_no_engine_of_the_catalogue_is_chosen_for_gguf(facts: dict[str, Any]) -> None:
    message = chosen([*CATALOGUE.values(), SIMULATED], "LlamaForCausalLM", "8.03B", **facts)
    assert "no runtime found to support model m with format gguf" in message
    assert "format mismatch: model has 'gguf', runtime 'safetensors'" in message


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"quantization": "int4", "quantization_method": "compressed-tensors"}, "vllm-small"),
        ({"quantization": "fp8", "quantization_method": "compressed-tensors"}, "vllm-small"),
        ({"quantization": "fp8", "quantization_method": "modelopt"}, "vllm-small"),
        ({"quantization": "fp8", "quantization_method": "fbgemm_fp8"}, "vllm-small"),
        ({"quantization_method": "gptq"}, "vllm-small"),
        ({"quantization_method": "nvfp4"}, "vllm-small"),
    ],
)
def test_quantized_models_of_all_words_have_a_runtime(facts: dict[str, Any], name: str) -> None:
    assert chosen(list(CATALOGUE.values()), "LlamaForCausalLM", "8.03B", **facts) == name


def test_none_is_left_out() -> None:
    tried = test_each_is_chosen_for_a_model.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {case[0] for case in tried} == CATALOGUE.keys()


def test_the_local_cluster_serves_every_model_of_the_catalogue_with_the_simulated_engine() -> None:
    architectures = {one.architecture for path in CATALOGUE.values() for one in parse_runtime(load(path)).formats}
    for architecture in architectures:
        assert chosen([SIMULATED], architecture, "8B") == "simulated"
