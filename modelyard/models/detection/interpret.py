"""Facts from what was read of a model's folder. Pure; nothing here raises for what the files say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from modelyard.models.detection import capabilities, parameters
from modelyard.models.detection.config import Config, mapping, text
from modelyard.models.detection.context import context_length, pooling_length
from modelyard.models.detection.facts import MAX_COUNT, Facts, Pipeline, bounded_problems, name
from modelyard.models.detection.files import (
    ADAPTER,
    CONFIG,
    MODULES,
    PIPELINE_INDEX,
    QUANTIZATION_FILES,
    SENTENCE_FILES,
    TOKENIZER,
    Files,
    Weights,
)
from modelyard.models.detection.kv_cache import Cache, cache
from modelyard.models.detection.quantization import Quantization, read_quantization

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
_CACHE_BITS = 16
"""Bits of an element of the KV cache: engines run models of 32 bits at 16."""
_PIPELINE_PARTS = ("text_encoder", "vae")


def interpret(files: Files) -> Facts:
    """What the files say."""
    problems = list(files.problems)
    document = files.documents.get(files.config_path or "")
    if document is None:
        return Facts(problems=bounded_problems(problems))
    if PurePosixPath(files.config_path or "").name == PIPELINE_INDEX:
        return _pipeline(files, document, problems)
    if PurePosixPath(files.config_path or "").name == ADAPTER:
        return Facts(lora_rank=_rank(document), problems=bounded_problems(problems))
    return _model(files, document, problems)


def _rank(document: Mapping[str, Any]) -> int | None:
    """Return the largest rank of an adapter: modules may have one of their own."""
    patterns = document.get("rank_pattern")
    given = (document.get("r"), *(patterns.values() if isinstance(patterns, Mapping) else ()))
    return _count(max((rank for rank in given if type(rank) is int), default=0))


def _model(files: Files, raw: Mapping[str, Any], problems: list[str]) -> Facts:
    config = Config(raw)
    kind, stated = config.type, config.architecture
    if not kind:
        problems.append(f"{files.config_path}: model_type is missing, so only what every type says was read")
    sentence = _documents(files, (*SENTENCE_FILES, MODULES))
    weights = files.weights.get("", Weights())
    # A GGUF model sees with an image encoder in a file of its own.
    vision = weights.has_encoder if weights.gguf else capabilities.has_vision(config)
    reranker = capabilities.is_reranker(config, sentence)
    embedding = not reranker and capabilities.is_embedding(config, sentence)
    quantization = read_quantization(config.quantization, _documents(files, QUANTIZATION_FILES))
    if weights.gguf:
        quantization = Quantization(method=weights.gguf)
    elif not quantization.method and parameters.is_mostly_fp8(weights.elements):
        quantization = Quantization("fp8", "fp8", 8.0)
    dtype = config.text("torch_dtype", "dtype").removeprefix("torch.")
    count, source = _parameters(config, weights, bool(quantization.method or quantization.scheme), problems)
    weight_bytes = weights.size or (round(count * _element_bytes(dtype, quantization)) if count else 0)
    length = context_length(config)
    if embedding or reranker:
        tokenizer = files.documents.get(_beside(files, TOKENIZER), {})
        length = pooling_length(config, length, sentence.get("sentence_bert_config.json", {}), tokenizer)
    kept = Cache() if embedding else cache(config, (quantization.cache_bits or _CACHE_BITS) / 8)
    return Facts(
        model_type=_name(kind),
        architecture=_name(stated or _ARCHITECTURES.get(kind, "")),
        format="gguf" if weights.gguf else "safetensors",
        format_version=None if weights.gguf else "1.0.0",
        framework="llama.cpp" if weights.gguf else "transformers",
        framework_version=None if weights.gguf else _name(config.text("transformers_version")),
        parameters=count or None,
        parameters_from=source,
        context_length=length or None,
        quantization=quantization.published or None,
        quantization_method=_name(quantization.method),
        dtype=_name(dtype),
        capabilities=capabilities.of_model(config, vision, embedding, reranker),
        vision=vision,
        embedding=embedding,
        weight_bytes=_count(weight_bytes),
        kv_bytes_per_token=_count(kept.full or kept.windowed),
        kv_window_bytes_per_token=_count(kept.windowed) if kept.full else None,
        sliding_window=_count(kept.window),
        layers=_count(config.layers),
        heads=_count(config.heads),
        kv_heads=_count(config.kv_heads),
        head_size=_count(config.head_size),
        hidden_size=_count(config.hidden),
        vocabulary=_count(config.vocabulary),
        experts=_count(config.experts),
        lora_rank=_rank(files.documents.get(_beside(files, ADAPTER), {})),
        problems=bounded_problems(problems),
    )


def _documents(files: Files, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    return {name: document for name in names if (document := files.documents.get(_beside(files, name))) is not None}


def _beside(files: Files, other: str) -> str:
    place = (files.config_path or "").rpartition("/")[0]
    return f"{place}/{other}" if place else other


def _name(found: str) -> str | None:
    return name(found) or None


def _count(found: int) -> int | None:
    return found if 0 < found <= MAX_COUNT else None


def _parameters(
    config: Config, weights: Weights, is_quantized: bool, problems: list[str]
) -> tuple[int, parameters.Source | None]:
    exact = parameters.counted(weights.elements, config, is_quantized)
    if 0 < exact <= MAX_COUNT:
        return exact, "weights"
    if (estimate := parameters.estimated(config)) is not None:
        return estimate
    problems.append("the configuration says too little to work out the number of parameters")
    return 0, None


def _element_bytes(dtype: str, quantization: Quantization) -> float:
    if quantization.bits:
        return quantization.bits / 8
    return next((size for known, size in _ELEMENT_BYTES.items() if dtype.startswith(known)), 4.0)


def _pipeline(files: Files, index: Mapping[str, Any], problems: list[str]) -> Facts:
    cls = text(index.get("_class_name"))
    if not cls:
        problems.append(f"{files.config_path}: _class_name is missing")
    keys = [key for key in index if not key.startswith("_")][:16]
    components = {name(key): _component(index[key]) for key in keys if name(key)}
    needed = ["transformer" if "transformer" in index else "unet", *_PIPELINE_PARTS]
    present = {key for key, (library, _) in components.items() if library}
    needed += [key for key in present if key in files.weights and key not in needed]
    count = 0
    for key in needed:
        weights = files.weights.get(key)
        if weights is None or not weights.elements:
            problems.append(f"parameters are not counted: {key} has no configuration or no readable weights")
            count = 0
            break
        component = Config(files.documents.get(_beside(files, f"{key}/{CONFIG}"), {}))
        count += parameters.counted(weights.elements, component, bool(component.quantization))
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
        context_length=context_length(encoder) or None,
        capabilities=able,
        vision=True,
        weight_bytes=_count(size),
        pipeline=Pipeline(class_name=name(cls), components=components),
        problems=bounded_problems(problems),
    )


def _component(value: object) -> tuple[str, str]:
    if isinstance(value, list) and len(value) == 2:
        return name(text(value[0])), name(text(value[1]))
    found = mapping(value)
    return name(text(found.get("library"))), name(text(found.get("type")) or text(found.get("_class_name")))
