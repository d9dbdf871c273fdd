"""Parameters of models that mix attention with other kinds of layers, from their configuration. Pure.

One function for each family counts the weights of its layers as its published implementation has them (transformers
5.24.0). The results were compared with the published sizes: Nemotron 3 Nano 31.6B, Jamba Mini 52B, MiniMax-Text-01
456B, Qwen3.5 27B and 397B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modelyard.models.detection.config import WIDTH, Config
from modelyard.models.detection.kv_cache import MAX_LAYERS, cached_layers

_LETTERS = {"mamba": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E", "linear_attention": "M"}


def hybrid_parameters(config: Config) -> int:
    """Return the parameters of a hybrid language model; 0 for a family without a formula or with too little stated."""
    count = _FAMILIES.get(config.family)
    if count is None or not (config.hidden and config.heads and config.vocabulary and config.layers <= MAX_LAYERS):
        return 0
    layers = count(config)
    ends = 1 if config.flag("tie_word_embeddings") else 2
    return layers + config.hidden + ends * config.vocabulary * config.hidden if layers else 0


def _attention(config: Config) -> int:
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    return 2 * config.hidden * (queries + keys)


def _nemotron_h(config: Config) -> int:
    """Mamba 2, attention, feed-forward and experts are layers of their own, each with one norm."""
    pattern = config.value("hybrid_override_pattern")
    if not isinstance(pattern, str):
        pattern = "".join(_LETTERS.get(str(kind), "?") for kind in config.listed("layers_block_type"))
    h, state, groups = config.hidden, config.number("ssm_state_size"), config.number("n_groups")
    heads = config.number("mamba_num_heads")
    inner, mixed = heads * config.number("mamba_head_dim"), 2 * groups * state
    if not (inner and mixed and pattern) or set(pattern) - set("M*-E"):
        return 0
    convolution = (inner + mixed) * (config.number("conv_kernel") + 1)
    mamba = h * (2 * inner + mixed + heads) + convolution + 3 * heads + inner + inner * h
    latent = config.number("moe_latent_size")
    experts, width = config.experts, config.number("moe_intermediate_size")
    shared = config.number("n_shared_experts") * config.number("moe_shared_expert_intermediate_size")
    sparse = experts * (2 * (latent or h) * width + h + 1) + 2 * h * shared + 2 * h * latent
    sizes = {"M": mamba, "*": _attention(config), "-": 2 * h * config.number(*WIDTH), "E": sparse}
    return sum(sizes[letter] + h for letter in pattern[:MAX_LAYERS])


def _jamba(config: Config) -> int:
    """Mamba or attention, then one feed-forward network or experts."""
    h, width, experts = config.hidden, config.number(*WIDTH), config.experts
    inner = (config.number("mamba_expand") or 2) * h
    state, kernel = config.number("mamba_d_state") or 16, config.number("mamba_d_conv") or 4
    rank = config.number("mamba_dt_rank") or -(-h // 16)
    mamba = 3 * h * inner + inner * (kernel + 1) + (inner + 1) * (rank + 2 * state) + inner * (rank + state + 2)
    period = config.number("expert_layer_period") or 2
    offset = config.number("expert_layer_offset") if config.value("expert_layer_offset") is not None else 1
    total = 0
    for layer, kind in enumerate(cached_layers(config)):
        is_sparse = bool(experts) and layer % period == offset
        total += mamba if kind == "none" else _attention(config)
        total += (experts * h * (3 * width + 1) if is_sparse else 3 * h * width) + 2 * h
    return total


def _minimax(config: Config) -> int:
    """Attention or lightning attention with a gate, then experts."""
    h, queries = config.hidden, config.heads * config.head_size
    experts = config.experts * h * (3 * config.number(*WIDTH) + 1)
    lightning = 5 * h * queries + queries
    kinds = cached_layers(config)
    return sum((lightning if kind == "none" else _attention(config)) + experts + 2 * h for kind in kinds)


def _qwen(config: Config) -> int:
    """Gated attention or a gated delta network, then a feed-forward network or experts."""
    h, heads = config.hidden, config.number("linear_num_value_heads")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    value = config.number("linear_value_head_dim")
    values = heads * value
    if not (keys and values):
        return 0
    delta = 2 * h * (keys + values + heads) + (2 * keys + values) * config.number("linear_conv_kernel_dim")
    delta += 2 * heads + value + values * h
    attention = _attention(config) + h * config.heads * config.head_size + 2 * config.head_size
    forward = 3 * h * config.number(*WIDTH)
    if experts := config.experts:
        shared = config.number("shared_expert_intermediate_size")
        forward = experts * h * (3 * config.number("moe_intermediate_size") + 1) + 3 * h * shared + h
    return sum((delta if kind == "none" else attention) + forward + 2 * h for kind in cached_layers(config))


_FAMILIES: Mapping[str, Callable[[Config], int]] = {
    "nemotron_h": _nemotron_h,
    "jamba": _jamba,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
    "qwen3_next": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
}
