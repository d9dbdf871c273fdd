"""A model's configuration, read leniently: what has the wrong type or no sensible size is not there. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config")
_MAX_NUMBER = 2**40

HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
VOCABULARY = ("vocab_size", "padded_vocab_size")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


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


def mapping(value: object) -> Mapping[str, Any]:
    """The object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


class Config:
    """The top level of a configuration, and behind it that of the language model inside."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.levels = (raw, *(found for key in _NESTED if (found := mapping(raw.get(key)))))

    def number(self, *names: str) -> int:
        """The first of these that is a positive number, here or in the language model; else 0."""
        return next((found for level in self.levels for name in names if (found := whole(level.get(name)))), 0)

    def inner(self, *names: str) -> int:
        """``number``, but of the language model before the top level."""
        levels = (*self.levels[1:], self.raw)
        return next((found for level in levels for name in names if (found := whole(level.get(name)))), 0)

    def text(self, *names: str) -> str:
        """The first of these that is text, here or in the language model."""
        return next((found for level in self.levels for name in names if (found := text(level.get(name)))), "")

    def flag(self, name: str, default: bool = False) -> bool:
        """The first of these that is true or false."""
        found = (level[name] for level in self.levels if isinstance(level.get(name), bool))
        return next(found, default)

    def part(self, name: str) -> Mapping[str, Any]:
        """The first of these that is an object with something in it."""
        return next((found for level in self.levels if (found := mapping(level.get(name)))), {})

    def listed(self, name: str) -> list[Any]:
        """The first of these that is a list with something in it."""
        return next((found for level in self.levels if isinstance(found := level.get(name), list) and found), [])

    @property
    def type(self) -> str:
        """``model_type``, or the class of a pipeline's component."""
        return text(self.raw.get("model_type")) or text(self.raw.get("_class_name"))

    @property
    def architecture(self) -> str:
        """The first of the architectures as stated."""
        stated = self.raw.get("architectures")
        return text(stated[0]) if isinstance(stated, list) and stated else ""

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.number(*HIDDEN)

    @property
    def layers(self) -> int:
        """Layers of the language model."""
        return self.number(*LAYERS)

    @property
    def heads(self) -> int:
        """Attention heads of a layer."""
        return self.number(*HEADS)

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a layer; a compressed (latent) cache is one."""
        if self.number("kv_lora_rank"):
            return 1
        attention = mapping(self.raw.get("attn_config"))
        return self.number(*KV_HEADS) or whole(attention.get("kv_n_heads")) or self.heads

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        heads = self.heads
        return self.number("head_dim", "kv_channels") or (self.hidden // heads if heads else 0)

    @property
    def vocabulary(self) -> int:
        """Tokens in the vocabulary."""
        return self.number(*VOCABULARY)

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return self.number(*EXPERTS) or whole(mapping(self.raw.get("ffn_config")).get("moe_num_experts"))

    @property
    def quantization(self) -> Mapping[str, Any]:
        """How the weights are quantized, as the configuration says."""
        return self.part("quantization_config") or self.part("compression_config")
