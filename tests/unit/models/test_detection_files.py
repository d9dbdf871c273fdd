"""Detection from real folders, most of them hostile; facts that travel; specs that are filled; memory that is asked."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from modelyard.models.detection import MAX_JSON, Facts, Pipeline, detect, fill, fit
from modelyard.models.detection.files import Files, Weights
from modelyard.models.detection.interpret import interpret
from modelyard.resources import BaseModel

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def put(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def put_tensors(path: Path, tensors: dict[str, Any], data: int = 0) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(data))


def tensor(*shape: object, dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, 0]}


def test_shards_that_the_index_names_are_counted_exactly(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    put_tensors(tmp_path / "model-1.safetensors", {"a.weight": tensor(10, 10), "a.bias": tensor(10)}, data=220)
    put_tensors(tmp_path / "model-2.safetensors", {"b.weight": tensor(5), "scalar": tensor()}, data=10)
    put_tensors(tmp_path / "stray.safetensors", {"c.weight": tensor(1000)})
    put(
        tmp_path / "model.safetensors.index.json",
        {"weight_map": {"a": "model-1.safetensors", "a2": "model-1.safetensors", "b": "model-2.safetensors"}},
    )
    found = detect(tmp_path)
    assert (found.parameters, found.parameters_from, found.problems) == (115, "weights", ())
    sizes = [(tmp_path / f"model-{n}.safetensors").stat().st_size for n in (1, 2)]
    assert found.weight_bytes == sum(sizes)


def test_without_an_index_every_file_counts_but_no_weights_twice(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    put_tensors(tmp_path / "consolidated.safetensors", {"a": tensor(100)})
    assert detect(tmp_path).parameters == 100
    put_tensors(tmp_path / "model.safetensors", {"a": tensor(100)})
    assert detect(tmp_path).parameters == 100


def test_weights_below_the_configuration_are_found(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    put_tensors(tmp_path / "weights" / "model.safetensors", {"a": tensor(7)})
    assert detect(tmp_path).parameters == 7


@pytest.mark.parametrize("place", ["", "safetensors", "pytorch_model", "model", "a/b"])
def test_where_the_configuration_may_be(tmp_path: Path, place: str) -> None:
    put(tmp_path / place / "config.json", LLAMA)
    assert detect(tmp_path).model_type == "llama"


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    for place, kind in (("z", "deep"), ("model", "third"), ("safetensors", "second"), ("", "first")):
        put(tmp_path / place / "config.json", {**LLAMA, "model_type": kind})
        assert detect(tmp_path).model_type == kind
    put(tmp_path / "z" / "model_index.json", {"_class_name": "FluxPipeline"})
    assert detect(tmp_path).model_type == "diffusers"


def test_other_weights_than_safetensors_have_a_size_and_no_headers(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(5000))
    (tmp_path / "training_args.bin").write_bytes(bytes(100))
    found = detect(tmp_path)
    assert (found.weight_bytes, found.parameters_from) == (5000, "formula")


def test_a_pipeline_is_told_by_its_index_and_counted_by_its_parts(tmp_path: Path) -> None:
    index = {
        "_class_name": "FluxPipeline",
        "_diffusers_version": "0.30.0",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": {"library": "transformers", "type": "T5EncoderModel"},
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "image_encoder": [None, None],
        "feature_extractor": None,
    }
    put(tmp_path / "model_index.json", index)
    for count, part in enumerate(("text_encoder", "text_encoder_2", "transformer", "vae"), 1):
        put(tmp_path / part / "config.json", {"model_type": "x", "max_position_embeddings": 77})
        put_tensors(tmp_path / part / "model.safetensors", {"a.weight": tensor(10**count)})
    found = detect(tmp_path)
    assert (found.parameters, found.parameters_from, found.context_length) == (11110, "weights", 77)
    assert (found.format, found.framework, found.format_version) == ("diffusers", "diffusers", "0.30.0")
    assert found.capabilities == ("TEXT_TO_IMAGE",)
    assert found.pipeline is not None
    assert found.pipeline.class_name == "FluxPipeline"
    assert found.pipeline.components["text_encoder_2"] == ("transformers", "T5EncoderModel")
    assert found.pipeline.components["image_encoder"] == ("", "") == found.pipeline.components["feature_extractor"]
    filled = fill(model().spec, found)
    assert filled.diffusion_pipeline is not None
    assert filled.diffusion_pipeline["vae"] == {"library": "diffusers", "type": "AutoencoderKL"}
    assert "text_encoder_2" in filled.diffusion_pipeline["additionalComponents"]
    (tmp_path / "vae" / "config.json").unlink()
    found = detect(tmp_path)
    assert found.parameters is None
    assert "vae has no configuration" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "", "not valid JSON"),
        ("config.json", "[1, 2]", "no JSON object"),
        ("config.json", '{"model_type": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ("config.json", '{"a": ' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("config.json", '{"hidden_size": ' + "9" * 5000 + "}", "not valid JSON"),
        ("config.json", '{"a": "' + "x" * 50_000_000 + '"}', "larger than 4194304 bytes"),
        ("other.json", "{}", "no config.json and no model_index.json in"),
    ],
    ids=["empty", "list", "deep-list", "deep-object", "long-number", "50MB", "absent"],
)
def test_a_configuration_that_cannot_be_read_is_a_reason(tmp_path: Path, name: str, content: str, reason: str) -> None:
    put(tmp_path / name, content)
    found = detect(tmp_path)
    assert not found.known
    assert reason in found.problems[0]


@pytest.mark.parametrize(
    ("adapter", "rank"),
    [
        ({"peft_type": "LORA", "r": 16}, 16),
        ({"r": 8, "rank_pattern": {"q_proj": 64, "k_proj": 4}}, 64),
        ({"rank_pattern": {"q_proj": 32}}, 32),
        ({"r": "16"}, None),
        ({"r": True}, None),
        ({"r": -1}, None),
        ({"r": 10**40}, None),
        ({"r": 16, "rank_pattern": ["x"]}, 16),
        ({"r": 1.5}, None),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_the_rank_of_an_adapter(tmp_path: Path, adapter: dict[str, Any], rank: int | None, beside: bool) -> None:
    put(tmp_path / "adapter_config.json", json.dumps(adapter))
    put(tmp_path / "adapter_model.safetensors", "x")
    if beside:  # Some trainers put the model's configuration next to it.
        put(tmp_path / "config.json", json.dumps(LLAMA))
    found = detect(tmp_path)
    assert found.lora_rank == rank
    assert json.loads(found.to_json()).get("loraRank") == rank
    assert (found.model_type == "llama") is beside


def test_numbers_that_are_none_are_not_there(tmp_path: Path) -> None:
    odd = ["NaN", "Infinity", "-Infinity", "1e999", "1e300", "-5", "0", "true", '"7"', "[4096]", "{}", "null", "1.5"]
    for value in odd:
        text = json.dumps({**LLAMA, "hidden_size": "HERE", "num_hidden_layers": "HERE", "quantization_config": "HERE"})
        put(tmp_path / "config.json", text.replace('"HERE"', value))
        found = detect(tmp_path)
        assert (found.model_type, found.hidden_size, found.layers) == ("llama", None, None), value
        assert found.context_length == 2048


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"a": tensor(2**40, 2**40)}, "impossible shape"),
        ({"a": tensor(True)}, "impossible shape"),
        ({"a": tensor("3")}, "impossible shape"),
        ({"a": tensor(-1)}, "impossible shape"),
        ({"a": {"shape": 3}}, "without a shape"),
        ({"a": 3}, "without a shape"),
        ({f"a.{n}x": tensor(1) for n in range(2001)}, "too many kinds"),
    ],
)
def test_headers_that_make_no_sense_are_not_counted_and_the_formula_is(
    tmp_path: Path, tensors: dict[str, Any], reason: str
) -> None:
    put(tmp_path / "config.json", LLAMA)
    put_tensors(tmp_path / "model.safetensors", tensors)
    found = detect(tmp_path)
    assert found.parameters_from == "formula"
    assert reason in found.problems[0]


def test_empty_tensors_hold_no_parameters_and_count_as_such(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    put_tensors(tmp_path / "model.safetensors", {"a.weight": tensor(5), "b.weight": tensor(3, 0), "c.bias": tensor(0)})
    detected = detect(tmp_path)
    assert (detected.parameters, detected.parameters_from, detected.problems) == (5, "weights", ())


SCALED = {
    "a.weight": tensor(10, 10, dtype="F8_E4M3"),
    "a.weight_scale": tensor(10, 1, dtype="F32"),
    "a.input_scale": tensor(),
    "k_proj.k_scale": tensor(1, dtype="F32"),
    "norm.weight": tensor(10),
}


@pytest.mark.parametrize(
    ("side", "content", "method"),
    [
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "modelopt"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt"),
        # Nothing states it, but most weights have eight bits.
        ("other.json", {}, "fp8"),
    ],
)
def test_scale_tensors_are_no_parameters_wherever_the_quantization_is_stated(
    tmp_path: Path, side: str, content: dict[str, Any], method: str
) -> None:
    put(tmp_path / "config.json", LLAMA)
    put(tmp_path / side, content)
    put_tensors(tmp_path / "model.safetensors", SCALED, data=150)
    detected = detect(tmp_path)
    assert (detected.parameters, detected.quantization, detected.quantization_method) == (110, "fp8", method)
    assert detected.weight_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_packed_weights_of_four_bits_are_counted_by_a_side_file(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    put(tmp_path / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    packed = {
        "a.weight": tensor(10, 5, dtype="U8"),
        "a.weight_scale": tensor(10, 1, dtype="F8_E4M3"),
        "a.weight_scale_2": tensor(),
    }
    put_tensors(tmp_path / "model.safetensors", packed)
    detected = detect(tmp_path)
    assert (detected.parameters, detected.quantization, detected.quantization_method) == (100, None, "nvfp4")
    # Two layers, two heads of 16 with keys and values, one byte each.
    assert detected.kv_bytes_per_token == 2 * 2 * 2 * 16


ENCODER = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "max_position_embeddings": 8194}
DECODER = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
POOLING = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.mark.parametrize(
    ("config", "files", "capability", "context"),
    [
        (DECODER, {"modules.json": POOLING}, "EMBEDDING", 2048),
        (DECODER, {"1_Pooling/config.json": {"pooling_mode_lasttoken": True}}, "EMBEDDING", 2048),
        (DECODER, {"config_sentence_transformers.json": {"similarity_fn_name": "cosine"}}, "EMBEDDING", 2048),
        (DECODER, {"config_sentence_transformers.json": {"model_type": "SentenceTransformer"}}, "EMBEDDING", 2048),
        (DECODER, {"modules.json": POOLING, "sentence_bert_config.json": {"max_seq_length": 512}}, "EMBEDDING", 512),
        (ENCODER, {"sentence_bert_config.json": {"max_seq_length": 8192}}, "EMBEDDING", 8192),
        (
            {**ENCODER, "position_embedding_type": "absolute"},
            {"tokenizer_config.json": {"model_max_length": 8192}},
            "EMBEDDING",
            8192,
        ),
        (DECODER, {"config_sentence_transformers.json": {"model_type": "CrossEncoder"}}, "TEXT_RERANK", 2048),
        (
            DECODER,
            {"modules.json": [*POOLING[:1], {"type": "sentence_transformers.cross_encoder.modules.LogitScore"}]},
            "TEXT_RERANK",
            2048,
        ),
        ({**DECODER, "architectures": ["Qwen2ForSequenceClassification"]}, {}, "TEXT_RERANK", 2048),
        ({**LLAMA, "architectures": ["LlamaModel"]}, {}, "EMBEDDING", 2048),
        ({**ENCODER, "architectures": ["T5EncoderModel"], "model_type": "t5"}, {}, "EMBEDDING", 8194),
        (DECODER, {"modules.json": "not a list"}, "TEXT_TO_TEXT", 2048),
        (DECODER, {"modules.json": [{"type": "sentence_transformers.models.Transformer"}]}, "TEXT_TO_TEXT", 2048),
    ],
)
def test_embedding_models_and_rerankers_by_files_of_sentence_transformers(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], capability: str, context: int
) -> None:
    put(tmp_path / "config.json", config)
    for name, content in files.items():
        put(tmp_path / name, content)
    detected = detect(tmp_path)
    assert (detected.capabilities, detected.context_length) == ((capability,), context)
    assert detected.embedding is (capability == "EMBEDDING")
    assert (detected.kv_bytes_per_token is None) is detected.embedding


@pytest.mark.parametrize(
    ("text_config", "context"),
    [({}, 77), ({"model_type": "clip_text_model", "hidden_size": 768, "max_position_embeddings": 248}, 248)],
)
def test_clip_makes_embeddings_of_texts_and_pictures(tmp_path: Path, text_config: dict[str, Any], context: int) -> None:
    config = {"model_type": "clip", "architectures": ["CLIPModel"], "vision_config": {"hidden_size": 1024}}
    put(tmp_path / "config.json", {**config, "text_config": text_config})
    detected = detect(tmp_path)
    assert (detected.capabilities, detected.vision, detected.embedding) == (("EMBEDDING",), True, True)
    assert (detected.context_length, detected.kv_bytes_per_token) == (context, None)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x01", struct.pack("<Q", 2**63), struct.pack("<Q", 1000) + b"{}", struct.pack("<Q", 2) + b"[]"],
)
def test_damaged_headers_are_reasons(tmp_path: Path, content: bytes) -> None:
    put(tmp_path / "config.json", LLAMA)
    (tmp_path / "model.safetensors").write_bytes(content)
    found = detect(tmp_path)
    assert found.parameters_from == "formula"
    assert "parameters are not counted: 'model.safetensors'" in found.problems[0]


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "model-9.safetensors"}}, "is not there"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "is not there"),
        ({"weight_map": {"a": 5}}, "is not there"),
        ({"weight_map": []}, "names no files"),
        ([], "is no JSON object"),
    ],
)
def test_an_index_that_names_what_is_not_there(tmp_path: Path, index: object, reason: str) -> None:
    folder = tmp_path / "model"
    put(folder / "config.json", LLAMA)
    put(folder / "model.safetensors.index.json", index)
    put_tensors(folder / "model.safetensors", {"a": tensor(5)})
    put_tensors(tmp_path / "secret.safetensors", {"a": tensor(5)})
    found = detect(folder)
    assert found.parameters_from == "formula"
    assert reason in found.problems[0]


def test_links_lead_nowhere_else_and_pipes_are_not_opened(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "models" / "one"
    put(store / "blob", LLAMA)
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to(store / "blob")
    found = detect(folder)
    assert not found.known
    assert "leads out" in found.problems[0]
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert not detect(folder).known
    (tmp_path / "models" / "two").symlink_to(store)
    put(store / "config.json", LLAMA)
    # The folder itself may be a link: whoever names it has looked at it.
    assert detect(tmp_path / "models" / "two").model_type == "llama"


def test_a_folder_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    found = detect(tmp_path / "none")
    assert any("No such file" in text for text in found.problems)


def test_folders_that_contain_themselves_and_very_many_files_end(tmp_path: Path) -> None:
    put(tmp_path / "config.json", LLAMA)
    (tmp_path / "again").symlink_to(tmp_path)
    deep = tmp_path
    for _ in range(20):
        deep = deep / "d"
    put(deep / "model_index.json", {"_class_name": "FluxPipeline"})
    assert detect(tmp_path).model_type == "llama"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    [
        *sorted(LLAMA),
        "quantization_config",
        "vision_config",
        "text_config",
        "layer_types",
        "transformers_version",
        "vae",
        "_class_name",
        "num_experts",
        "_diffusers_version",
        "rope_scaling",
        "attn_config",
        "head_dim",
        "kv_lora_rank",
        "num_nextn_predict_layers",
        "decoder_sparse_step",
        "mlp_only_layers",
        "first_k_dense_replace",
        "sliding_window",
        "hybrid_override_pattern",
        "attn_type_list",
        "attn_layer_period",
        "num_kv_shared_layers",
        "block_configs",
        "thinker_config",
        "sliding_window_pattern",
        "linear_attn_config",
        "cla_share_factor",
        "use_cla",
    ]
)
_TYPES = st.sampled_from(
    ["llama", "gemma3", "qwen3_moe", "deepseek_v3", "gpt_oss", "bert", "mixtral", "llava", "new", "jamba"]
)


@settings(max_examples=300, deadline=None)
@given(
    config=st.dictionaries(_KEYS, _JSON, max_size=12),
    kind=_TYPES,
    elements=st.dictionaries(
        st.tuples(st.text(max_size=9), st.sampled_from(["BF16", "I32", "U8"])), st.integers(0, 2**60), max_size=3
    ),
    file=st.sampled_from(["config.json", "model_index.json"]),
)
def test_no_configuration_does_harm_and_facts_survive_their_travel(
    config: dict[str, Any], kind: str, elements: dict[tuple[str, str], int], file: str
) -> None:
    config = {"model_type": kind, **config}
    found = interpret(Files(file, {file: config}, {"": Weights(elements, 5)}, ("a long story " * 50,) * 20))
    text = found.to_json()
    assert len(text.encode()) <= MAX_JSON
    back = Facts.model_validate_json(text)
    left = {"problems", "pipeline"}
    assert back.model_dump(exclude=left) == found.model_dump(exclude=left)
    assert found.problems[: len(back.problems)] == back.problems
    fill(model().spec, found)
    fit(found, 80 * 2**30)


def test_the_largest_facts_fit_into_a_termination_message() -> None:
    long = "m" * 64
    found = Facts(
        **dict.fromkeys(("model_type", "architecture", "format", "format_version", "framework", "dtype"), long),
        **dict.fromkeys(("parameters", "weight_bytes", "kv_bytes_per_token", "layers", "heads", "kv_heads"), 10**16),
        **dict.fromkeys(("kv_window_bytes_per_token", "sliding_window"), 10**16),
        **dict.fromkeys(("head_size", "hidden_size", "vocabulary", "experts", "context_length"), 10**16),
        framework_version=long,
        quantization=long,
        quantization_method=long,
        parameters_from="formula",
        capabilities=(long,) * 8,
        vision=True,
        embedding=True,
        pipeline=Pipeline(class_name=long, components={f"{n:064}": (long, long) for n in range(16)}),
        problems=tuple(f"{n}" * 160 for n in range(8)),
    )
    assert len(found.to_json().encode()) <= MAX_JSON


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON"),
        ('{"layers": -1}', "layers"),
        ('{"layers": "1"}', "layers"),
        ('{"modelType": "' + "x" * 65 + '"}', "modelType"),
        ("[1]", "should be an object"),
    ],
)
def test_facts_that_are_none_say_so(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Facts.model_validate_json(text)


def test_what_a_newer_version_has_found_beside_is_passed_over() -> None:
    assert Facts.model_validate_json('{"layers": 3, "futureFact": [1]}') == Facts(layers=3)


def model(**spec: Any) -> BaseModel:
    return BaseModel.parse({"metadata": {"name": "m"}, "spec": {"storage": {"storageUri": "hf://a/b"}, **spec}})


FOUND = Facts(
    model_type="llama",
    architecture="LlamaForCausalLM",
    format="safetensors",
    format_version="1.0.0",
    framework="transformers",
    framework_version="4.46.0",
    parameters=8_030_261_248,
    context_length=8192,
    quantization="fp8",
    capabilities=("TEXT_TO_TEXT",),
    weight_bytes=16_060_522_496,
    kv_bytes_per_token=131072,
    kv_heads=8,
)


def test_empty_fields_of_a_spec_are_filled() -> None:
    spec = fill(model().spec, FOUND)
    shown = spec.model_dump(by_alias=True, exclude_none=True)
    assert shown.pop("storage")["storageUri"] == "hf://a/b"
    assert shown.pop("modelConfiguration")["parameter_count"] == "8.03B"
    assert shown == {
        "modelFormat": {"name": "safetensors", "version": "1.0.0"},
        "modelType": "llama",
        "modelFramework": {"name": "transformers", "version": "4.46.0"},
        "modelArchitecture": "LlamaForCausalLM",
        "quantization": "fp8",
        "modelParameterSize": "8.03B",
        "modelCapabilities": ["TEXT_TO_TEXT"],
        "maxTokens": 8192,
    }


def test_what_the_user_has_written_stands() -> None:
    given_spec = model(
        modelFormat={"name": "pytorch"},
        modelFramework={"name": "transformers"},
        modelType="mine",
        modelArchitecture="Mine",
        quantization="int4",
        modelParameterSize="7B",
        modelCapabilities=["CHAT"],
        maxTokens=100,
        modelConfiguration={"mine": 1},
    ).spec
    spec = fill(given_spec, FOUND)
    # A version is that of the format which was found, and of no other.
    assert spec.model_format == given_spec.model_format
    assert spec.model_framework is not None
    assert spec.model_framework.version == "4.46.0"
    same = spec.model_copy(update={"model_framework": given_spec.model_framework})
    assert same == given_spec
    assert fill(model().spec, Facts()) == model().spec


@pytest.mark.parametrize(
    ("device", "devices", "tokens", "fits", "room"),
    [
        (24, 1, 1, True, (24 * 2**30 - 19_272_626_996) // 131072),
        (16, 1, 1, False, 0),
        (16, 2, 8192, True, (32 * 2**30 - 19_272_626_996) // 131072),
        (24, 1, 10**6, False, (24 * 2**30 - 19_272_626_996) // 131072),
        # Sixteen devices hold every one of eight key-value heads twice.
        (24, 16, 1, True, (384 * 2**30 - 19_272_626_996) // 262144),
    ],
)
def test_whether_a_model_fits_and_what_is_left_for_its_cache(
    device: int, devices: int, tokens: int, fits: bool, room: int
) -> None:
    found = fit(FOUND, device * 2**30, devices, tokens)
    assert found.fits is fits
    assert found.reason.startswith("weights take 17.9 GiB of")
    assert ("too much" if room == 0 else f"the cache holds {room} tokens") in found.reason


def test_of_an_unknown_model_nothing_is_said() -> None:
    assert fit(Facts(), 2**30).fits is None
    assert "the cache of a token is not known" in fit(Facts(weight_bytes=100), 2**30).reason
