"""A model's configuration, read leniently: a value of the wrong type or of no sensible size counts as absent. Pure.

Configurations nest: the language model of a vision, audio or omni model has an object of its own, in which values that
equal the class's defaults are left out. A value is therefore looked up as engines do: in the innermost language model,
then in its defaults, then in the levels around it. ``null`` is a statement: it switches a default off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.models.detection.defaults import DEFAULTS, INNER_TYPES
from modelyard.objects import mapping as mapping

_NESTED = (
    *("thinker_config", "text_config", "llm_config", "language_config", "language_model_config", "lm_config"),
    *("llm_cfg", "text_model_config", "decoder_config", "decoder", "text_cfg", "vlm_config"),
)
"""Objects of a configuration that describe the language model inside, the one that answers."""
_MAX_NESTING = 3
_MAX_NUMBER = 2**40
_MAX_LIST = 10_000

HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
LAYERS = (
    *("decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "num_hidden_layers", "num_layers"),
    *("n_layer", "n_layers", "num_transformer_layers"),
)
"""Keys for the number of layers; of an encoder and a decoder, the decoder's counts: its layers answer."""
HEADS = (
    *("decoder_attention_heads", "decoder_num_attention_heads", "num_attention_heads", "n_head", "n_heads"),
    *("num_heads", "attention_heads"),
)
KV_HEADS = (
    *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    *("attn_num_key_value_heads", "decoder_num_key_value_heads"),
)
HEAD_SIZE = ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head", "d_kv", "attn_head_dim")
WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "decoder_ffn_dim")
VOCABULARY = ("vocab_size", "padded_vocab_size")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_ALWAYS_DEFAULT = frozenset({"max_position_embeddings", "head_dim", "sliding_window", "num_kv_shared_layers"})
"""Defaults that also count for a whole model, which states the others or else says too little to guess."""

NO_LATENT_CACHE = frozenset({"minicpm3"})
"""Types with compressed keys and values whose cache engines keep uncompressed all the same (vLLM)."""


def whole(value: object) -> int:
    """A positive whole number of a sensible size, else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return 0
    return int(value) if 0 < value <= _MAX_NUMBER else 0


def text(value: object) -> str:
    """The text without space around it, else nothing."""
    return value.strip() if isinstance(value, str) else ""


class Config:
    """A configuration and the language model inside it."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.levels = tuple(reversed(list(_levels(raw, 0))))
        """From the innermost language model outwards."""
        self.text_type = _text_type(self.levels)
        self.family = self.text_type.removesuffix("_text")
        defaults = DEFAULTS.get(self.text_type, {})
        nested = len(self.levels) > 1 and bool(self.levels[0] or defaults)
        self._defaults = {key: value for key, value in defaults.items() if nested or key in _ALWAYS_DEFAULT}
        if "num_key_value_heads" in defaults and any(whole(raw.get(name)) for name in HEADS):
            self._defaults["num_key_value_heads"] = defaults["num_key_value_heads"]

    def number(self, *names: str) -> int:
        """The first of these names with a positive number, in the order of the module's first lines; else 0."""
        inner = self.levels[0]
        if value := next((value for name in names if (value := whole(inner.get(name)))), 0):
            return value
        switched_off = any(name in inner for name in names)
        if not switched_off and (value := next((self._defaults[name] for name in names if name in self._defaults), 0)):
            return value
        return next((value for level in self.levels[1:] for name in names if (value := whole(level.get(name)))), 0)

    def is_stated(self, *names: str) -> bool:
        return any(whole(level.get(name)) for level in self.levels for name in names)

    def text(self, *names: str) -> str:
        """The first of these that is text, in the whole model or in the language model."""
        return next(
            (value for level in reversed(self.levels) for name in names if (value := text(level.get(name)))), ""
        )

    def value(self, name: str) -> object:
        """The value as stated, of the innermost level that has one that is not null."""
        return next((level[name] for level in self.levels if level.get(name) is not None), None)

    def flag(self, name: str, default: bool = False) -> bool:
        """The first of these that is true or false, from the whole model inwards."""
        return next((level[name] for level in reversed(self.levels) if isinstance(level.get(name), bool)), default)

    def part(self, name: str) -> Mapping[str, Any]:
        """The first of these that is an object with something in it, from the language model outwards."""
        return next((value for level in self.levels if (value := mapping(level.get(name)))), {})

    def listed(self, name: str) -> list[Any]:
        """The first of these that is a list with something in it, cut to what layers can be."""
        lists = (level.get(name) for level in self.levels)
        return next((value[:_MAX_LIST] for value in lists if isinstance(value, list) and value), [])

    @property
    def type(self) -> str:
        """``model_type``, or the class of a pipeline's component."""
        return text(self.raw.get("model_type")) or text(self.raw.get("_class_name"))

    @property
    def architecture(self) -> str:
        stated = self.raw.get("architectures")
        return text(stated[0]) if isinstance(stated, list) and stated else ""

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.number(*HIDDEN)

    @property
    def layers(self) -> int:
        """Layers of the language model; those listed by name where their number is not stated."""
        layers = self.number(*LAYERS) or len(self.listed("layers_block_type") or self.listed("layer_types"))
        # Each layer of LongCat-Flash has two attention layers.
        return 2 * layers if self.family.startswith("longcat_flash") and self.is_stated("num_layers") else layers

    @property
    def heads(self) -> int:
        """Attention heads of a layer; the most of any where they differ."""
        return self.number(*HEADS) or max(map(whole, self.listed("num_attention_heads")), default=0)

    @property
    def is_latent(self) -> bool:
        """Keys and values are kept as one compressed vector of all heads (multi-head latent attention)."""
        return bool(self.number("kv_lora_rank")) and self.family not in NO_LATENT_CACHE

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a layer; the most of any where they differ. A compressed (latent) cache is one."""
        if self.is_latent or self._is_multi_query:
            return 1
        attention = self.part("attn_config")
        per_layer = max(map(whole, self.listed("num_key_value_heads") or self.listed("num_kv_heads")), default=0)
        return self.number(*KV_HEADS) or whole(attention.get("kv_n_heads")) or per_layer or self._grouped or self.heads

    @property
    def _grouped(self) -> int:
        """Key-value heads of the block configurations of nemotron-nas, which state heads of a group."""
        groups = [
            whole(mapping(mapping(block).get("attention")).get("n_heads_in_group"))
            for block in self.listed("block_configs")
        ]
        return max((self.heads // group for group in groups if group), default=0)

    @property
    def _is_multi_query(self) -> bool:
        if self.family in ("falcon", "RefinedWeb", "RefinedWebModel"):
            return self.flag("multi_query", self.family == "falcon") and not self.flag("new_decoder_architecture")
        if self.family == "gpt_bigcode":
            return self.flag("multi_query", True)
        return self.family == "mpt" and text(self.part("attn_config").get("attn_type")) == "multiquery_attention"

    @property
    def head_size(self) -> int:
        """Width of an attention head in the cache; of a compressed (latent) cache that of its one vector."""
        if self.is_latent:
            return self.number("kv_lora_rank") + self.number("qk_rope_head_dim")
        if self.number("kv_lora_rank"):
            return self.number("qk_nope_head_dim") + self.number("qk_rope_head_dim")
        heads = self.heads
        # Zamba's attention reads two streams side by side.
        streams = 2 if self.family in ("zamba", "zamba2") else 1
        return self.number(*HEAD_SIZE) or (streams * self.hidden // heads if heads else 0)

    @property
    def has_encoder(self) -> bool:
        """An encoder of texts or sounds in front of the decoder, with layers of its own (Whisper, T5, BART)."""
        return self.flag("is_encoder_decoder") or self.is_stated(
            "decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers"
        )

    @property
    def vocabulary(self) -> int:
        return self.number(*VOCABULARY)

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return self.number(*EXPERTS) or whole(self.part("ffn_config").get("moe_num_experts"))

    @property
    def quantization(self) -> Mapping[str, Any]:
        """Quantization as the configuration states it: of the whole model, else of its language model."""
        keys = ("quantization_config", "compression_config")
        stated = (mapping(level.get(key)) for level in reversed(self.levels) for key in keys)
        return next(filter(None, stated), {})


def _levels(raw: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    yield raw
    if depth < _MAX_NESTING:
        inner = next((raw[key] for key in _NESTED if isinstance(raw.get(key), Mapping)), None)
        yield from _levels(inner, depth + 1) if inner is not None else ()


def _text_type(levels: tuple[Mapping[str, Any], ...]) -> str:
    stated = text(levels[0].get("model_type")) or text(levels[0].get("_class_name"))
    if len(levels) == 1:
        # Some files have the language model's values next to those of the whole model.
        return INNER_TYPES.get(stated, stated)
    around = text(levels[1].get("model_type"))
    return stated or INNER_TYPES.get(around, around)
