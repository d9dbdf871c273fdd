"""Layers that keep a cache of keys and values, and its bytes for each token. Pure.

Engines keep a cache for attention layers alone: Mamba, linear attention, convolutions and mixtures of a hybrid model
have none that grows. A layer with a window (sliding or chunked attention) keeps the last tokens only. Each family
states in its own way which layer is which; ``cached_layers`` reads all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from modelyard.models.detection.config import Config, mapping, text, whole

Kind = Literal["full", "window", "none"]

_WITHOUT_ATTENTION = (
    *("linear", "mamba", "conv", "recurrent", "rwkv", "ssm", "moe", "mlp", "delta", "gdn", "kda", "lightning", "cross"),
    *("mlstm", "slstm", "identity", "no_op", "ffn"),
)
_WINDOWED = ("sliding", "chunked", "local", "swa")
_LOCAL = "LS"
"""Letters of a ``sliding_window_pattern`` (such as LLLG) for layers with a window."""

_INTERVALS = {
    family: interval
    for interval, families in {
        2: ("gemma2", "vaultgemma", "gpt_oss", "t5gemma"),
        4: ("cohere2", "cohere2_moe", "olmo3", "exaone4", "exaone_moe", "llama4", "afmoe"),
        5: ("gemma3n",),
        6: ("gemma3", "gemma4", "gemma4_unified", "t5gemma2", "embedding_gemma2", "diffusion_gemma"),
    }.items()
    for family in families
}
"""Every n-th layer has full attention, the others a window. Source: transformers 5.24.0."""
_INTERVAL_KEYS = ("sliding_window_pattern", "no_rope_layer_interval", "global_attn_every_n_layers", "layer_switch")
_LINEAR_INTERVALS = {"qwen3_next": 4, "qwen3_5": 4, "qwen3_5_moe": 4, "olmo_hybrid": 4, "bailing_hybrid": 6}
"""Every n-th layer has full attention, the others linear attention."""
_WINDOW_SWITCHED = frozenset(
    {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"}
    | {"qwen3_omni_moe", "mimo", "smollm3"}
)
"""Families that state a window which only counts with ``use_sliding_window``."""
_ONLY_STATE = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm"})
_ENCODERS = frozenset(
    ("electra", "mpnet", "clip", "siglip", "roberta", "xlm", "splade", "esm", "vit", "wav", "hubert", "dinov")
) | {"camembert"}
"""Words of the types of models without a decoder: every token sees all others, so there is nothing to keep."""
_COMPRESSED = frozenset({"deepseek_v4", "deepseek_v41", "deepseek_ref"})
MAX_LAYERS = 10_000
_INDEX_GROUP = 128
"""Elements of an indexer's key that share a scale of four bytes (vLLM's cache of DeepSeek V3.2)."""


class Cache(NamedTuple):
    """Bytes of one token's cache in full layers and in those with a window (tokens). 0: none, or too little known."""

    full: int = 0
    windowed: int = 0
    window: int = 0


def cached_layers(config: Config) -> list[Kind]:
    """Return the kind of each layer, in order, without those that use another layer's cache."""
    kinds = _kinds(config)
    if shared := config.number("num_kv_shared_layers"):
        kinds = kinds[: max(len(kinds) - shared, 0)]
    if config.flag("use_cla") and (factor := config.number("cla_share_factor")):
        kinds = kinds[::factor]
    return kinds


def has_other_layers(config: Config) -> bool:
    """Report whether some layers are no attention layers, so that formulas for transformers do not count them."""
    return config.family in _ONLY_STATE or config.family == "falcon_h1" or "none" in _kinds(config)


def is_encoder(family: str) -> bool:
    """Report whether models of this family have no decoder, and so no cache."""
    words = set(re.split(r"[^a-z]+", family.lower()))
    return "decoder" not in words and ("bert" in family.lower() or not words.isdisjoint(_ENCODERS))


def cache(config: Config, element: float) -> Cache:
    """Return the cache of one token; ``element`` is the bytes of one number in it."""
    family = config.family.lower()
    if family in _ONLY_STATE or family in _COMPRESSED or is_encoder(family):
        return Cache()
    kinds, window = cached_layers(config), _window(config)
    if not window:
        kinds = ["full" if kind == "window" else kind for kind in kinds]
    if per_layer := _listed_heads(config):
        of_head = 2 * config.head_size * element
        limited_heads = sum(h for h, kind in zip(per_layer, kinds, strict=False) if kind == "window")
        full_heads = sum(per_layer) - limited_heads
        return Cache(round(full_heads * of_head), round(limited_heads * of_head), window if limited_heads else 0)
    full, limited = kinds.count("full"), kinds.count("window")
    windowed = limited * _elements(config, is_windowed=True) * element
    unlimited = full * _elements(config, is_windowed=False) * element + _index_bytes(config)
    return Cache(round(unlimited), round(windowed), window if round(windowed) else 0)


def _elements(config: Config, is_windowed: bool) -> int:
    """Numbers that one layer keeps of one token: keys and values of all heads, or one compressed vector."""
    if config.is_latent:
        return config.head_size
    heads, size = config.kv_heads, config.head_size
    values = size
    if config.family.startswith("mimo_v2"):
        values = config.number("v_head_dim") or size
        if is_windowed:
            heads = config.number("swa_num_key_value_heads") or heads
            size = config.number("swa_head_dim") or size
            values = config.number("swa_v_head_dim") or values
    elif config.family.startswith("gemma4") and not is_windowed:
        size = values = config.number("global_head_dim") or 2 * size
        if config.flag("attention_k_eq_v"):
            heads = config.number("num_global_key_value_heads") or heads
    return heads * (size + values)


def _index_bytes(config: Config) -> int:
    """Bytes of the keys by which a sparse attention finds its tokens (DeepSeek V3.2, GLM-5), one byte a number."""
    size = config.number("index_head_dim")
    if not size or not config.is_latent:
        return 0
    types = config.listed("indexer_types")
    layers = sum(kind != "shared" for kind in types) if types else config.layers
    return layers * (size + size // _INDEX_GROUP * 4)


def _listed_heads(config: Config) -> list[int]:
    """Key-value heads of each layer where they differ; empty where one number counts for all."""
    if blocks := config.listed("block_configs"):
        heads = config.heads
        heads_by_layer = []
        for block in blocks:
            attention = mapping(mapping(block).get("attention"))
            group = whole(attention.get("n_heads_in_group"))
            is_skipped = attention.get("no_op") is True or attention.get("replace_with_linear") is True
            heads_by_layer.append(heads // group if group and not is_skipped else 0)
        return heads_by_layer
    listed = config.listed("num_key_value_heads") or config.listed("num_kv_heads")
    return [whole(heads) for heads in listed[: config.layers or None]]


def _window(config: Config) -> int:
    """Tokens that a layer with a window keeps; 0 where none does, or the window is no shorter than the context."""
    if config.family in _WINDOW_SWITCHED and not config.flag("use_sliding_window"):
        return 0
    if config.flag("use_sliding_window", True) is False:
        return 0
    chunks = ("attention_chunk_size",) if config.family == "llama4" else ()
    window = config.number(*chunks, "sliding_window", "attention_window_size", "sliding_window_size")
    context = config.number("max_position_embeddings")
    return 0 if context and window >= context else window


def _kinds(config: Config) -> list[Kind]:
    layers = config.layers if config.layers <= MAX_LAYERS else 0
    for key in ("layer_types", "layers_block_type", "block_types", "_block_types"):
        if named := config.listed(key):
            kinds = [_by_name(kind) for kind in named]
            if "block_types" in key and layers:
                kinds = (kinds * (layers // len(kinds) + 1))[:layers]
                # The attention of these hybrids (RecurrentGemma) is local.
                kinds = ["window" if kind == "full" else kind for kind in kinds]
            return kinds[: layers or None]
    pattern = config.value("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return ["full" if letter == "*" else "none" for letter in pattern[:MAX_LAYERS]]
    if marks := config.listed("attn_type_list"):
        return ["none" if mark == 0 else "full" for mark in marks]
    if marks := config.listed("hybrid_layer_pattern"):
        return ["window" if mark == 1 else "full" for mark in marks]
    if (chosen := _listed_attention(config)) is not None:
        return ["full" if layer in chosen else "none" for layer in range(layers)]
    return _by_rule(config, layers)


def _by_name(kind: object) -> Kind:
    name = text(kind).lower()
    if any(part in name for part in _WITHOUT_ATTENTION):
        return "none"
    return "window" if any(part in name for part in _WINDOWED) else "full"


def _listed_attention(config: Config) -> set[int] | None:
    """Numbers of the layers with attention, counted from 0; ``None`` where the configuration lists none."""
    for key in ("attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids", "attention_layers_idx"):
        if listed := config.listed(key):
            return _numbers(listed)
    counted_from_1 = config.part("linear_attn_config").get("full_attn_layers")
    if isinstance(counted_from_1, list):
        return {number - 1 for number in _numbers(counted_from_1[:MAX_LAYERS])}
    if crossing := config.listed("cross_attention_layers"):
        # These keep the image, not the text.
        return set(range(min(config.layers, MAX_LAYERS))) - _numbers(crossing)
    return None


def _numbers(listed: Iterable[object]) -> set[int]:
    return {item for item in listed if isinstance(item, int) and not isinstance(item, bool)}


def _by_rule(config: Config, layers: int) -> list[Kind]:
    family = config.family
    if family in ("jamba", "zamba") or config.number("attn_layer_period"):
        period = config.number("attn_layer_period") or (6 if family == "zamba" else 8)
        stated = config.value("attn_layer_offset")
        offset = stated if isinstance(stated, int) and not isinstance(stated, bool) else 4
        begin: list[Kind] = ["none", "none", "full"] if family == "zamba" else []
        rest = range(max(layers - len(begin), 0))
        following: list[Kind] = ["full" if layer % period == offset else "none" for layer in rest]
        return (begin + following)[:layers]
    interval = config.number("full_attention_interval", "layer_group_size") or _LINEAR_INTERVALS.get(family, 0)
    if interval:
        return ["none" if (layer + 1) % interval else "full" for layer in range(layers)]
    if step := config.number("mamba_step") if family.startswith("plamo") else 0:
        if layers <= step // 2:
            return ["full" if layer == layers - 1 else "none" for layer in range(layers)]
        return ["full" if layer % step == step // 2 else "none" for layer in range(layers)]
    if not _window(config):
        return ["full"] * layers
    if marks := config.listed("no_rope_layers"):
        return ["full" if mark == 0 else "window" for mark in marks[:layers]]
    pattern = config.value("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return ["window" if pattern[layer % len(pattern)].upper() in _LOCAL else "full" for layer in range(layers)]
    interval = config.number(*_INTERVAL_KEYS) or _INTERVALS.get(family, 0)
    if interval:
        return ["window" if (layer + 1) % interval else "full" for layer in range(layers)]
    if family in _WINDOW_SWITCHED or config.number("max_window_layers"):
        first = config.number("max_window_layers") or 28
        return ["window" if layer >= first else "full" for layer in range(layers)]
    return ["window"] * layers
