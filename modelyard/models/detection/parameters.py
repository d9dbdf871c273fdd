"""How many parameters a model has: counted in its weights' headers, by formula, or from a table. Pure.

The formulas count what the layers of a family hold, gated feed-forward networks and grouped queries included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from modelyard.models.detection.config import WIDTH, Config, mapping, text, whole
from modelyard.models.detection.facts import MAX_COUNT
from modelyard.models.detection.files import Kind
from modelyard.models.detection.hybrids import hybrid_parameters
from modelyard.models.detection.kv_cache import has_other_layers

Source = Literal["weights", "formula", "table"]

_PACKED_NAMES = ("qweight", "weight_packed", "blocks")
_BITS = {"I32": 32, "U32": 32, "I64": 64, "U64": 64, "I8": 8, "U8": 8, "I16": 16, "U16": 16}
_NO_PARAMETERS = re.compile(
    r"(^|_)(scales?|scale_inv|scale_\d+|scales_and_zeros)$|^(qzeros|g_idx|perm|absmax|quant_map|nested_\w+|SCB|SZ"
    r"|weight_format|weight_shape|zero_point|weight_zero_point|input_amax|\w*amax|\w+__(nf4|fp4))$"
)
_BUFFERS = frozenset({"inv_freq", "masked_bias", "position_ids", "num_batches_tracked"})


def is_mostly_fp8(elements: Mapping[Kind, int]) -> bool:
    """Report whether most numbers of the weights are 8-bit floating point, whatever the configuration states."""
    return 2 * sum(count for (_, kind), count in elements.items() if kind.startswith("F8_E")) > sum(elements.values())


def counted(elements: Mapping[Kind, int], config: Config, quantized: bool) -> int:
    """Parameters by the headers of the weights: packed ones unpacked, scales and buffers left out."""
    bits = _bits(config)
    total = 0
    for (name, kind), count in elements.items():
        if name in _BUFFERS or kind == "BOOL" or (quantized and _NO_PARAMETERS.search(name)):
            continue
        width = _BITS.get(kind)
        if width is None:
            total += count
        elif name.endswith(_PACKED_NAMES) or (quantized and name == "weight" and kind == "U8" and bits < 8):
            # Several weights in one stored number: eight of four bits in one of 32.
            total += count * width // bits
        elif kind in ("I8", "U8") and quantized:
            total += count
    return total


def _bits(config: Config) -> int:
    """Bits of a packed weight; four where nothing says otherwise. Of groups that differ the fewest are packed."""
    section = config.quantization
    if text(section.get("quant_method")) == "bitsandbytes":
        return 8 if section.get("load_in_8bit") is True else 4
    groups = [mapping(mapping(group).get("weights")) for group in mapping(section.get("config_groups")).values()]
    of_groups = [bits for group in groups[:64] if (bits := whole(group.get("num_bits")))]
    bits = whole(section.get("bits")) or whole(section.get("w_bit")) or min(of_groups, default=4)
    return bits if bits in (1, 2, 3, 4, 8) else 4


def estimated(config: Config) -> tuple[int, Source] | None:
    """Parameters by the configuration alone, and how; ``None`` where it says too little."""
    has_formula = config.type in _FORMULA_FIRST or config.family in _FORMULA_FIRST
    for way in (_formula, _table) if has_formula else (_table, _formula):
        found = way(config)
        if found and found < MAX_COUNT:
            return found, "formula" if way is _formula else "table"
    return None


_TIED = frozenset(
    {"gemma", "gemma2", "gemma3", "cohere", "cohere2", "command-r", "gpt2", "bert", "falcon", "gpt_bigcode"}
    | {"starcoder2"}
)
_QKV_BIASES = frozenset({"qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"})
_QK_NORMS = frozenset({"qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "gemma3"})
_FOUR_NORMS = frozenset({"gemma2", "gemma3"})
_UNGATED = frozenset(
    {"bert", "roberta", "gpt2", "gpt_neox", "phi", "opt", "bloom", "falcon", "starcoder2", "gpt_bigcode"}
)
_FORMULA_FIRST = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "phi3", "phimoe", "qwen2_5_omni"}
    | {"deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "cohere", "command-r", "baichuan", "internlm2", "xverse"}
    | {"llama4", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"}
)


def _formula(config: Config) -> int:
    if has_other_layers(config):
        count = hybrid_parameters(config)
        return count + _vision(config) if count else 0
    h, layers, heads, vocabulary = config.hidden, config.layers, config.heads, config.vocabulary
    kind = config.family
    width = config.number(*WIDTH) or (4 * h if kind in _UNGATED else 0)
    if not (h and layers and heads and vocabulary and (width or config.experts)):
        return 0
    if config.listed("block_configs") or config.has_encoder:
        return 0
    if kind not in _UNGATED and not config.is_stated(*WIDTH, "moe_intermediate_size"):
        return 0
    matrices = 2 if kind in _UNGATED else 3
    attention = _attention(config, h, heads)
    norms = h * (4 if kind in _FOUR_NORMS else 1 if kind in ("cohere", "command-r") else 2)
    sparse, of_expert_layer = _experts(config, h)
    dense = matrices * h * (config.number("intermediate_size_mlp") or width)
    total = layers * (attention + norms) + (layers - sparse) * dense + sparse * of_expert_layer + h
    ends = 1 if config.flag("tie_word_embeddings", kind in _TIED) else 2
    total += ends * vocabulary * h
    if more := config.number("num_nextn_predict_layers"):
        # Each predicts one more token: a layer with experts, two projections into one, norms, and both ends again.
        total += min(more, layers) * (attention + norms + of_expert_layer + 2 * h * h + 3 * h + 2 * vocabulary * h)
    return total + _vision(config)


def _attention(config: Config, h: int, heads: int) -> int:
    kind = config.family
    if compressed := config.number("kv_lora_rank"):
        rope, plain = config.number("qk_rope_head_dim"), config.number("qk_nope_head_dim")
        query = config.number("q_lora_rank")
        of_heads = heads * (plain + rope)
        asked = h * query + query + query * of_heads if query else h * of_heads
        values = config.number("v_head_dim")
        return asked + h * (compressed + rope) + compressed + compressed * heads * (plain + values) + heads * values * h
    size, kv_heads = config.head_size, config.kv_heads
    queries, keys = heads * size, kv_heads * size
    found = 2 * h * queries + 2 * h * keys
    if config.flag("attention_bias") or kind == "gpt_oss":
        found += queries + 2 * keys + h
    elif kind in _QKV_BIASES or config.flag("add_qkv_bias"):
        found += queries + 2 * keys
    found += heads if kind == "gpt_oss" else 0
    return found + (2 * size if kind in _QK_NORMS else 0)


def _experts(config: Config, h: int) -> tuple[int, int]:
    """How many layers have experts, and what the feed-forward part of such a layer holds."""
    experts, layers = config.experts, config.layers
    if not experts:
        return 0, 0
    width = config.number("moe_intermediate_size", "moe_ffn_hidden_size") or config.number(*WIDTH)
    shared = config.number("n_shared_experts", "num_shared_experts") * width
    shared = shared or config.number("shared_expert_intermediate_size")
    if config.family == "llama4":
        shared = width
    found = experts * 3 * h * width + experts * h + 3 * h * shared
    if config.number("shared_expert_intermediate_size"):
        found += h
    if config.family == "gpt_oss":
        found += experts * (2 * width + h) + experts
    if config.text("topk_method") == "noaux_tc":
        found += experts
    if marks := config.listed("moe_layer_freq"):
        return sum(mark == 1 for mark in marks[:layers]), found
    dense = config.number("first_k_dense_replace") or len(config.listed("mlp_only_layers"))
    step = config.number("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    return max(layers - dense, 0) // step, found


def _vision(config: Config) -> int:
    """What looks at pictures, roughly: a transformer with four square matrices and two of its feed-forward width."""
    vision = Config(config.part("vision_config"))
    h = vision.number("embed_dim", "hidden_size", "width")
    layers = vision.number("depth", "num_hidden_layers", "layers")
    width = vision.number("intermediate_size") or int(h * (vision.number("mlp_ratio") or 4))
    return layers * (4 * h * h + 2 * h * width)


_B = 10**9
_EXACT: dict[str, dict[tuple[int, int], float]] = {
    "llama": {(8192, 80): 70, (8192, 82): 70, (16384, 126): 405, (3072, 28): 3, (2048, 16): 1},
    "mllama": {(4096, 40): 11, (8192, 100): 90},
    "mistral": {(4096, 32): 7},
    "qwen": {(4096, 32): 7, (5120, 40): 14, (8192, 80): 72},
    "qwen2": {(3584, 28): 7, (8192, 40): 34, (7680, 64): 72},
    "qwen2_vl": {(1536, 28): 2, (3584, 28): 7, (8192, 80): 72},
    "qwen3": {(2560, 36): 4, (4096, 36): 8},
    "qwen3_moe": {(2048, 48): 30, (4096, 94): 235},
    "gemma": {(2048, 18): 2, (2304, 26): 2.6, (3072, 28): 7, (3584, 42): 9},
    "gemma3": {(5376, 62): 32},
    "phi3": {(3072, 32): 3.8},
    "phi3_v": {(3072, 32): 3.8},
    "phi3small": {(3072, 32): 14, (4096, 32): 7},
    "bert": {(768, 12): 0.11, (1024, 24): 0.34},
    "chatglm": {(4096, 28): 6, (4096, 40): 9},
    "baichuan": {(4096, 32): 7, (5120, 40): 13},
    "cohere": {(8192, 40): 35},
    "dbrx": {(6144, 48): 132},
    "exaone": {(4096, 32): 7.8, (2560, 42): 2.8},
    "internlm": {(4096, 32): 7, (6144, 48): 20, (2048, 24): 1.8},
    "xverse": {(4096, 32): 7, (5120, 40): 13, (6144, 80): 65},
    "minicpm": {(2560, 62): 4, (2304, 40): 2.4, (1536, 52): 1.2},
    "stablelm": {(2560, 32): 3, (2048, 24): 1.6},
    "deepseek_vl": {(1280, 12): 1, (2048, 24): 1.3},
}
_SAME = {"gemma2": "gemma", "gemma3_text": "gemma3", "command-r": "cohere", "internlm2": "internlm"} | {
    "minicpm3": "minicpm",
    "deepseek_vl_v2": "deepseek_vl",
    "deepseek_vl2": "deepseek_vl",
}


def _table(config: Config) -> int:
    """Well-known models by hidden size and layers, in whole thousandths of a billion."""
    kind = _SAME.get(config.type, config.type)
    h, layers, experts = config.hidden, config.layers, config.experts
    found: float = _EXACT.get(kind, {}).get((h, layers), 0)
    if kind == "mixtral":
        found = 46.7
    elif kind == "llama4" and (h, layers) == (5120, 48):
        # With 16 experts 17B are active; what has to be held is all of it.
        found = {16: 109, 128: 402}.get(experts, 0)
    elif kind in ("deepseek_v3", "kimi_k2"):
        found = 685 if kind == "deepseek_v3" else 1026
    elif kind == "gpt_oss" and h == 2880:
        found = {(24, 32): 20.9, (36, 128): 116.8}.get((layers, experts), 0)
    elif kind == "phimoe" and (h, layers, experts) == (4096, 32, 16):
        found = 41.9
    elif kind == "cohere" and h >= 12288 and layers >= 64:
        found = 104
    elif kind == "llava" and config.vocabulary >= 32000:
        found = 7.5 if whole(mapping(config.raw.get("vision_config")).get("num_hidden_layers")) == 24 else 0
    return round(found * 1000) * (_B // 1000)
