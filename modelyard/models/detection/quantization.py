"""Quantization: the words of model files, those that runtimes ask for, and the bits of a weight. Pure.

Files name a method (``awq``, ``compressed-tensors``), which for some is only the container of a scheme (8-bit floating
point, 4-bit integers). Runtimes ask for a scheme (``fp8``, ``int4``) or for a method (``awq``). ``WORDS`` has both
sides; ``is_asked_for`` compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from modelyard.models.detection.config import mapping, text, whole

PUBLISHED = ("fp8", "int4")
"""Words that a model's ``spec.quantization`` is filled in with. A runtime that names none is not for such a model."""
BITS = {"fp8": 8.0, "int8": 8.0, "mxfp8": 8.25, "int4": 4.0, "nvfp4": 4.5, "mxfp4": 4.25, "nf4": 4.0}
"""Bits of a weight by scheme. Floating-point schemes of blocks include the blocks' scales."""


class Word(NamedTuple):
    """Meaning of a word: a scheme, and the layout of the weights where the word names one."""

    scheme: str
    layout: str = ""


WORDS: Mapping[str, Word] = {
    **dict.fromkeys(
        (
            *("fp8", "fbgemm_fp8", "float8", "f8", "fp8_e4m3", "fp8_e5m2", "fp8_dynamic", "fp8_static", "fp8_block"),
            *("fp8_w8a8", "w8a8_fp8", "w8a8_float8", "ptpc_fp8", "finegrained_fp8", "deepgemm_fp8", "block_fp8"),
            *("modelopt_fp8", "fp8_pb_wo", "fp8_pb_real", "fp8_per_channel_per_token", "quark_fp8", "float_quantized"),
            *("naive_quantized", "float8_e4m3fn", "fp8_scaled", "compressed_tensors_fp8"),
        ),
        Word("fp8"),
    ),
    **dict.fromkeys(
        (
            *("int4", "w4a16", "w4a16_int4", "w4", "uint4", "pack_quantized", "marlin_24", "int4_wo", "w4a16_asym"),
            *("compressed_tensors_int4", "quark_int4", "int4_weight_only", "torchao_int4"),
        ),
        Word("int4"),
    ),
    **dict.fromkeys(("awq", "awq_marlin", "int4_awq", "w4a16_awq", "awq_int4", "w4a8_awq"), Word("int4", "awq")),
    **dict.fromkeys(("gptq", "gptq_marlin", "gptqmodel", "gptq_int4", "int4_gptq"), Word("int4", "gptq")),
    **dict.fromkeys(("auto_round", "autoround", "intel/auto_round"), Word("int4", "auto_round")),
    "awq_8bit": Word("int8", "awq"),
    "gptq_8bit": Word("int8", "gptq"),
    **dict.fromkeys(
        (
            *("int8", "w8a8", "w8a8_int8", "int8_w8a8", "int_quantized", "w8a16", "smoothquant", "int8_sq", "uint8"),
            *("llm_int8", "compressed_tensors_int8", "quark_int8", "int8_wo", "int8_weight_only"),
        ),
        Word("int8"),
    ),
    **dict.fromkeys(
        (
            *("nvfp4", "modelopt_fp4", "fp4", "nvfp4_pack_quantized", "w4a16_nvfp4", "w4a4_nvfp4", "nvfp4a16"),
            *("modelopt_nvfp4", "nvfp4_awq", "nvfp4_svdquant"),
        ),
        Word("nvfp4"),
    ),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4", "mxfp4_pack_quantized", "ocp_mx_fp4"), Word("mxfp4")),
    **dict.fromkeys(("mxfp8", "modelopt_mxfp8", "mxfp8_quantized"), Word("mxfp8")),
    **dict.fromkeys(("bitsandbytes", "bnb", "nf4", "bnb_4bit", "bitsandbytes_4bit"), Word("nf4", "bitsandbytes")),
    **dict.fromkeys(("bitsandbytes_8bit", "bnb_8bit"), Word("int8", "bitsandbytes")),
}
"""Words by their normal form (lower case, ``_`` for ``-``)."""
_CONTAINERS = frozenset({"compressed_tensors", "modelopt", "modelopt_mixed", "quark", "torchao", "quanto", "humming"})
"""Methods that say nothing of the scheme."""
_MANY_BITS = frozenset({"awq", "gptq", "bitsandbytes"})
_MAX_LAYERS_READ = 100_000


class Quantization(NamedTuple):
    """Quantization of a model's weights; empty for weights that are not quantized."""

    method: str = ""
    """The word of the files; for a container without a published word that of the scheme inside."""
    scheme: str = ""
    bits: float = 0.0
    """Bits of a weight; 0 where they are not known."""
    cache_bits: float = 0.0
    """Bits of a number in the cache of keys and values; 0 where the files do not state them."""

    @property
    def published(self) -> str:
        """The scheme, if it is a published word and the method is not one that runtimes name themselves (``awq``)."""
        word = _word(self.method)
        is_own = word is not None and word.layout and self.scheme not in self.method.lower()
        return self.scheme if self.scheme in PUBLISHED and not is_own else ""


def normal(word: str) -> str:
    """The normal form of a word."""
    return word.strip().lower().replace("-", "_")


def read_quantization(stated: Mapping[str, Any], side: Mapping[str, Mapping[str, Any]]) -> Quantization:
    """Return the quantization that a configuration states, or files next to it (``side``, by name, if they exist)."""
    modelopt = side.get("hf_quant_config.json", {})
    inner = mapping(modelopt.get("quantization")) or modelopt
    section = stated
    if not section and (inner.get("quant_algo") or inner.get("quantized_layers")):
        section = {"quant_method": "modelopt", **inner}
    if not section and (file := side.get("quantize_config.json")):
        section = {"quant_method": "gptq", **file} if whole(file.get("bits")) else {}
    if not section and (file := side.get("quant_config.json")):
        section = {"quant_method": "awq", **file} if whole(file.get("w_bit")) or whole(file.get("bits")) else {}
    if not section:
        return Quantization()
    section = {**section, **mapping(section.get("quantization"))}
    schemes = _schemes(section)
    method, scheme = _method(section), _scheme(section, schemes)
    bits = _stated_bits(section)
    word = _word(method)
    if word is not None and word.layout in _MANY_BITS and word.scheme != "int8" and bits == 8:
        method, scheme = f"{method}-8bit", "int8"
    if normal(method) in _CONTAINERS and scheme and scheme not in PUBLISHED:
        method = scheme
    cache_bits = _cache_bits(section) or _cache_bits(inner)
    return Quantization(method, scheme, _mean_bits(schemes) or _bits(scheme, bits), cache_bits)


def is_asked_for(asked: str, quantization: str, method: str) -> bool:
    """Report whether a runtime's word means how a model is quantized.

    ``quantization`` is the model's word in its spec, ``method`` that of its files; either can be empty. Words for one
    scheme are synonyms. Where both sides name a layout (``awq``, ``gptq``), it has to be the same.
    """
    wanted = _word(asked)
    words = [normal(word) for word in (quantization, method) if word]
    if normal(asked) in words:
        return True
    meanings = [WORDS[word] for word in words if word in WORDS]
    if wanted is None or not meanings:
        return False
    scheme = meanings[0].scheme
    layout = next((meaning.layout for meaning in meanings if meaning.layout and meaning.scheme == scheme), "")
    if wanted.layout and layout:
        return wanted.layout == layout
    return wanted.scheme == scheme


def weight_bits(word: str) -> float:
    """Bits of a weight of a model whose spec has this word; 16 for an unknown one."""
    meaning = _word(word)
    return BITS.get(meaning.scheme if meaning else "", 16.0)


def _method(section: Mapping[str, Any]) -> str:
    method = text(section.get("quant_method"))
    producer = text(mapping(section.get("producer")).get("name"))
    if method.lower() == "fp8" and producer == "modelopt" and section.get("quant_algo"):
        method = "modelopt"
    if not method and (mapping(section.get("config_groups")) or text(section.get("format")).endswith("-quantized")):
        return "compressed-tensors"
    return method or (producer if section.get("quant_algo") else "") or text(section.get("format"))


def _scheme(section: Mapping[str, Any], schemes: Mapping[str, int]) -> str:
    if schemes:
        return min(schemes, key=lambda scheme: (BITS.get(scheme, 16.0), scheme))
    for key in ("quant_algo", "format", "quant_method", "quantization_scheme", "scheme"):
        if (word := _word(text(section.get(key)))) is not None:
            return "int8" if word.scheme == "int4" and _stated_bits(section) == 8 else word.scheme
    exported = mapping(mapping(section.get("global_quant_config")).get("weight"))
    details = (section.get("quant_type"), section.get("weights"), exported.get("dtype"), section.get("quant_method"))
    detail = " ".join(str(other)[:2000].lower() for other in details)
    marks = (("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("int4", "int4"), ("fp8", "fp8"), ("float8", "fp8"))
    return next((scheme for mark, scheme in (*marks, ("int8", "int8"), ("fp4", "mxfp4")) if mark in detail), "")


def _schemes(section: Mapping[str, Any]) -> Counter[str]:
    """Schemes with the number of layers that have them, where layers or groups of layers state their own."""
    counted: Counter[str] = Counter()
    for layer in list(mapping(section.get("quantized_layers")).values())[:_MAX_LAYERS_READ]:
        if (word := _word(text(mapping(layer).get("quant_algo")))) is not None:
            counted[word.scheme] += 1
    if counted or _word(text(section.get("quant_algo"))) is not None:
        return counted
    for name, group in list(mapping(section.get("config_groups")).items())[:64]:
        if isinstance(group, list):  # a preset: its name is the scheme
            word = _word(name)
            scheme, targets = (word.scheme if word else ""), len(group)
        else:
            form = text(mapping(group).get("format")) or text(section.get("format"))
            scheme = _of_weights(mapping(mapping(group).get("weights")), form)
            listed = mapping(group).get("targets")
            targets = len(listed) if isinstance(listed, list) else 0
        if scheme:
            counted[scheme] += max(targets, 1)
    return counted


def _word(name: str) -> Word | None:
    return WORDS.get(normal(name))


def _of_weights(weights: Mapping[str, Any], form: str) -> str:
    bits, kind = whole(weights.get("num_bits")), text(weights.get("type")) or "int"
    if not bits:
        return ""
    if kind == "int":
        return f"int{bits}" if bits in (4, 8) else ""
    scheme = {8: "fp8", 4: "nvfp4"}.get(bits, "")
    is_blocked = f"mxfp{bits}" in form or whole(weights.get("group_size")) == 32
    return f"mxfp{bits}" if scheme and is_blocked else scheme


def _stated_bits(section: Mapping[str, Any]) -> int:
    if section.get("load_in_8bit") is True:
        return 8
    return next((bits for key in ("bits", "w_bit", "num_bits") if (bits := whole(section.get(key)))), 0)


def _bits(scheme: str, stated: int) -> float:
    if scheme in ("int4", "") and stated and stated <= 16:
        return float(stated)
    return BITS.get(scheme, 0.0)


def _mean_bits(schemes: Mapping[str, int]) -> float:
    layers = sum(schemes.values())
    return sum(BITS.get(scheme, 16.0) * count for scheme, count in schemes.items()) / layers if layers else 0.0


def _cache_bits(section: Mapping[str, Any]) -> float:
    if whole(mapping(section.get("kv_cache_scheme")).get("num_bits")) == 8:
        return 8.0
    word = _word(text(section.get("kv_cache_quant_algo")) or text(section.get("kv_cache_scheme")))
    return BITS.get(word.scheme, 0.0) if word else 0.0
