"""Facts from what was read of a model's folder. Pure; nothing here raises for what the files say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from modelyard.models.detection import capabilities, parameters
from modelyard.models.detection.config import Config, mapping, text, whole
from modelyard.models.detection.facts import MAX_COUNT, Facts, Pipeline, bounded_problems, name
from modelyard.models.detection.files import CONFIG, PIPELINE_INDEX, Files, Weights

_FORMAT = ("safetensors", "1.0.0")
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "mllama": "MllamaForConditionalGeneration",
    "mistral": "MistralModel",
    "mixtral": "MixtralForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "janus": "JanusMultiModalityCausalLM",
    "multi_modality": "JanusMultiModalityCausalLM",
    "deepseek_vl_v2": "DeepseekVLV2ForCausalLM",
}
_ELEMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "float8": 1.0, "int4": 0.5}
_CACHE_ELEMENT = 2
"""Bytes of an element of the KV cache: engines run models of 32 bits at 16."""
_PIPELINE_PARTS = ("text_encoder", "vae")


def interpret(files: Files) -> Facts:
    """What the files say."""
    problems = list(files.problems)
    document = files.documents.get(files.config_path or "")
    if document is None:
        return Facts(problems=bounded_problems(problems))
    if PurePosixPath(files.config_path or "").name == PIPELINE_INDEX:
        return _pipeline(files, document, problems)
    return _model(files, document, problems)


def _model(files: Files, raw: Mapping[str, Any], problems: list[str]) -> Facts:
    config = Config(raw)
    kind, stated = config.type, config.architecture
    if not kind:
        problems.append(f"{files.config_path}: model_type is missing, so only what every type says was read")
    sentence = files.documents.get(_beside(files, "config_sentence_transformers.json"))
    vision = capabilities.has_vision(config)
    embedding = capabilities.is_embedding(config, sentence)
    method, published = _quantization(config)
    dtype = config.text("torch_dtype", "dtype").removeprefix("torch.")
    weights = files.weights.get("", Weights())
    count, source = _parameters(config, weights, problems)
    weight_bytes = weights.size or (round(count * _element_bytes(dtype, method, published)) if count else 0)
    version = config.text("transformers_version")
    return Facts(
        model_type=_name(kind),
        architecture=_name(stated or _ARCHITECTURES.get(kind, "")),
        format=_FORMAT[0],
        format_version=_FORMAT[1],
        framework="transformers",
        framework_version=_name(version),
        parameters=count or None,
        parameters_from=source,
        context_length=_context(config) or None,
        quantization=published or None,
        quantization_method=_name(method),
        dtype=_name(dtype),
        capabilities=capabilities.of_model(config, vision, embedding),
        vision=vision,
        embedding=embedding,
        weight_bytes=_count(weight_bytes),
        kv_bytes_per_token=None if embedding else _count(_kv_bytes(config)),
        layers=_count(config.layers),
        heads=_count(config.heads),
        kv_heads=_count(config.kv_heads),
        head_size=_count(config.head_size),
        hidden_size=_count(config.hidden),
        vocabulary=_count(config.vocabulary),
        experts=_count(config.experts),
        problems=bounded_problems(problems),
    )


def _beside(files: Files, other: str) -> str:
    place = (files.config_path or "").rpartition("/")[0]
    return f"{place}/{other}" if place else other


def _name(found: str) -> str | None:
    return name(found) or None


def _count(found: int) -> int | None:
    return found if 0 < found <= MAX_COUNT else None


def _parameters(config: Config, weights: Weights, problems: list[str]) -> tuple[int, parameters.Source | None]:
    exact = parameters.counted(weights.elements, config)
    estimate = parameters.estimated(config)
    if 0 < exact <= MAX_COUNT:
        return exact, "weights"
    if estimate is None:
        problems.append("the configuration says too little to work out the number of parameters")
        return 0, None
    return estimate


def _quantization(config: Config) -> tuple[str, str]:
    """The method as the files name it, and its published word, which only ``int4`` and ``fp8`` are."""
    found = config.quantization
    method = text(found.get("quant_method")) or text(found.get("quant_algo")) or text(found.get("format"))
    detail = " ".join((method, text(found.get("format")), text(found.get("quant_algo")))).lower()
    return method, "int4" if "int4" in detail else "fp8" if "fp8" in detail else ""


def _element_bytes(dtype: str, method: str, published: str) -> float:
    if published == "int4" or method.lower() in ("awq", "gptq", "mxfp4"):
        return _ELEMENT_BYTES["int4"]
    if published == "fp8":
        return _ELEMENT_BYTES["float8"]
    return next((size for known, size in _ELEMENT_BYTES.items() if dtype.startswith(known)), 4.0)


def _context(config: Config) -> int:
    """Tokens of a request and its answer. Each family calls it something else."""
    kind, raw = config.type, config.raw
    usual = config.number("max_position_embeddings")
    if kind in ("qwen", "qwen2", "qwen3", "qwen3_moe"):
        return config.number("seq_length") or usual
    if kind == "baichuan":
        return config.number("model_max_length") or usual
    if kind == "chatglm":
        return config.number("seq_length") or usual
    if kind == "dbrx":
        return config.number("max_seq_len") or usual
    if kind in ("gemma3", "gemma3_text"):
        window, factor = config.number("sliding_window"), whole(config.part("rope_scaling").get("factor"))
        return usual or (window * factor if window and factor else window or 8192)
    if kind.startswith("deepseek_vl"):
        return config.inner("max_position_embeddings") or 4096
    if "vision_config" in raw:
        return config.inner("max_position_embeddings")
    return usual or config.number("max_sequence_length", "n_positions", "max_seq_len", "seq_length")


def _kv_bytes(config: Config) -> int:
    """Bytes of the cache for one token in all layers that keep one."""
    layers = config.layers
    kinds = config.listed("layer_types")[:10_000]
    if kinds:
        layers = sum(isinstance(kind, str) and "attention" in kind and "linear" not in kind for kind in kinds)
    elif interval := config.number("full_attention_interval"):
        layers //= interval
    scheme = mapping(config.quantization.get("kv_cache_scheme"))
    element = 1 if whole(scheme.get("num_bits")) == 8 else _CACHE_ELEMENT
    if compressed := config.number("kv_lora_rank"):
        return layers * (compressed + config.number("qk_rope_head_dim")) * element
    return layers * 2 * config.kv_heads * config.head_size * element


def _pipeline(files: Files, index: Mapping[str, Any], problems: list[str]) -> Facts:
    cls = text(index.get("_class_name"))
    if not cls:
        problems.append(f"{files.config_path}: _class_name is missing")
    components = {}
    for key in [key for key in index if not key.startswith("_")][:16]:
        if name(key):
            components[name(key)] = _component(index[key])
    needed = ["transformer" if "transformer" in index else "unet", *_PIPELINE_PARTS]
    present = {key for key, (library, _) in components.items() if library}
    needed += [key for key in present if key in files.weights and key not in needed]
    found = [files.weights.get(key) for key in needed]
    count = 0
    for weights, key in zip(found, needed, strict=True):
        if weights is None or not weights.elements:
            problems.append(f"parameters are not counted: {key} has no configuration or no readable weights")
            count = 0
            break
        count += parameters.counted(
            weights.elements, Config(files.documents.get(_beside(files, f"{key}/{CONFIG}"), {}))
        )
    size = sum(weights.size for weights in files.weights.values())
    encoder = Config(files.documents.get(_beside(files, f"text_encoder/{CONFIG}"), {}))
    able = capabilities.of_pipeline(cls)
    if not able:
        problems.append(f"what a pipeline of class {cls!r} can do is not known")
    version = text(index.get("_diffusers_version"))
    return Facts(
        model_type="diffusers",
        architecture=_name(cls),
        format="diffusers",
        format_version=_name(version),
        framework="diffusers",
        framework_version=_name(version),
        parameters=_count(count),
        parameters_from="weights" if _count(count) else None,
        context_length=_context(encoder) or None,
        capabilities=able,
        vision=True,
        weight_bytes=_count(size),
        pipeline=Pipeline(class_name=name(cls), components=components),
        problems=bounded_problems(problems),
    )


def _component(value: object) -> tuple[str, str]:
    """Library and class of a component, written as a pair or as an object; empty for one that is absent."""
    if isinstance(value, list) and len(value) == 2:
        return name(text(value[0])), name(text(value[1]))
    found = mapping(value)
    return name(text(found.get("library"))), name(text(found.get("type")) or text(found.get("_class_name")))
