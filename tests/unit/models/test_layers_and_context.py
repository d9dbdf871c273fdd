"""Context lengths by the engines' rules of RoPE scaling, layers that keep a cache, and what the cache costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.models.detection import CacheCost, Facts, cache_cost, fit
from modelyard.models.detection.config import Config
from modelyard.models.detection.context import context_length
from modelyard.models.detection.files import Files, Weights
from modelyard.models.detection.interpret import interpret
from modelyard.models.detection.kv_cache import cached_layers

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}
LAYER = 2 * 8 * 128 * 2
"""Bytes of a token in one layer of it."""


def facts(config: dict[str, Any]) -> Facts:
    return interpret(Files("config.json", {"config.json": config}, {"": Weights()}))


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        (None, 32768),
        ({"rope_type": "default"}, 32768),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 32768),
        ({"rope_type": "linear", "factor": 4.0}, 131072),
        ({"type": "dynamic", "factor": 2}, 65536),
        ({"type": "dynamic", "alpha": 1000.0, "factor": 1.0}, 32768),
        # yarn starts from the original length, whether the file states the long or the short one.
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
        ({"rope_type": "yarn", "factor": 4.0}, 131072),
        ({"rope_type": "deepseek_yarn", "factor": 8.0, "original_max_position_embeddings": 2048}, 16384),
        # These state the long one.
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}, 32768),
        ({"type": "su", "long_factor": [1.0]}, 32768),
        # By type of layer.
        (
            {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}},
            262144,
        ),
        # No factor that can be used.
        ({"rope_type": "linear", "factor": "8"}, 32768),
        ({"rope_type": "linear", "factor": -1}, 32768),
        ({"rope_type": "linear", "factor": float("inf")}, 32768),
        ({"rope_type": "linear", "factor": float("nan")}, 32768),
        ({"rope_type": "linear", "factor": 10**400}, 32768),
        ({"rope_type": "linear", "factor": True}, 32768),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_context_of_rope_scaling(rope: object, context: int, key: str) -> None:
    assert context_length(Config({**LLAMA, key: rope})) == context
    nested = {"model_type": "voxtral", "text_config": {**LLAMA, key: rope}}
    assert context_length(Config(nested)) == context


@pytest.mark.parametrize(
    ("config", "context"),
    [
        # The smallest of what is stated, but model_max_length alone.
        ({**LLAMA, "max_sequence_length": 2048}, 2048),
        ({**LLAMA, "model_type": "cohere", "model_max_length": 131072, "max_position_embeddings": 8192}, 131072),
        # The class's default.
        ({"model_type": "falcon", "num_attention_heads": 71}, 2048),
        ({"model_type": "gemma2"}, 8192),
        ({"model_type": "mllama", "text_config": {"vocab_size": 1}}, 131072),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "whisper", "max_target_positions": 448, "max_source_positions": 1500}, 448),
        ({"model_type": "bart"}, 1024),
        ({"model_type": "t5", "n_positions": 512}, 512),
        ({"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "max_position_embeddings": 8192}}, 8192),
        (
            {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": {"max_position_embeddings": 65536}}},
            65536,
        ),
        (
            {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2", "max_position_embeddings": 40960}},
            40960,
        ),
        ({"model_type": "vision-encoder-decoder", "decoder": {"model_type": "mbart"}}, 1024),
        ({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}}, 32768),
        ({"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, 131072),
        # Unknown types have no default.
        ({"model_type": "mine"}, 0),
    ],
)
def test_context_of_nested_configurations_and_defaults(config: dict[str, Any], context: int) -> None:
    assert context_length(Config(config)) == context


@pytest.mark.parametrize(
    ("config", "head_size", "heads"),
    [
        (LLAMA, 128, 8),
        ({**LLAMA, "head_dim": None}, 128, 8),
        ({**LLAMA, "head_dim": 64}, 64, 8),
        # Gemma's heads are wider than the hidden size over their number.
        ({"model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}, 256, 8),
        # null switches the default off.
        ({"model_type": "gemma", "hidden_size": 3072, "num_attention_heads": 16, "head_dim": None}, 192, 16),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}, 128, 8),
        ({"model_type": "zamba2", "hidden_size": 2560, "num_attention_heads": 32}, 160, 32),
        ({"model_type": "t5", "d_model": 512, "num_heads": 6, "d_kv": 64}, 64, 6),
        ({"model_type": "whisper", "d_model": 1280, "decoder_attention_heads": 20}, 64, 20),
        ({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}, 64, 1),
        (
            {
                "model_type": "falcon",
                "hidden_size": 8192,
                "num_attention_heads": 128,
                "num_kv_heads": 8,
                "new_decoder_architecture": True,
            },
            64,
            8,
        ),
        ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48}, 128, 1),
        ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "multi_query": False}, 128, 48),
        ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"kv_n_heads": 8}}, 128, 8),
        (
            {
                "model_type": "minicpm3",
                "num_attention_heads": 40,
                **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"), 32),
            },
            64,
            40,
        ),
    ],
)
def test_head_sizes_and_key_value_heads(config: dict[str, Any], head_size: int, heads: int) -> None:
    detected = Config(config)
    assert (detected.head_size, detected.kv_heads) == (head_size, heads)


FOUR_OF_32 = ["mamba"] * 7 + ["attention"]


@pytest.mark.parametrize(
    ("config", "full", "windowed"),
    [
        ({}, 32, 0),
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, 16, 0),
        ({"layer_types": ["conv", "conv", "full_attention", "conv"] * 8}, 8, 0),
        ({"layers_block_type": FOUR_OF_32 * 4}, 4, 0),
        ({"layers_block_type": ["hybrid", "mamba"] * 16}, 16, 0),
        ({"hybrid_override_pattern": "M-M*E" * 6 + "MM"}, 6, 0),
        ({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4}, 4, 0),
        ({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 0}, 4, 0),
        ({"model_type": "zamba", "num_hidden_layers": 76}, 13, 0),
        ({"attn_type_list": [0] * 7 + [1], "num_hidden_layers": 8}, 1, 0),
        ({"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}, 3, 0),
        ({"model_type": "lfm2", "full_attn_idxs": [2, 5, 8]}, 3, 0),
        ({"model_type": "zamba2", "hybrid_layer_ids": [6, 12]}, 2, 0),
        ({"model_type": "qwen3_next"}, 8, 0),
        ({"full_attention_interval": 8}, 4, 0),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3]}},
            2,
            0,
        ),
        ({"model_type": "falcon_h1"}, 32, 0),
        ({"model_type": "mamba2"}, 0, 0),
        ({"model_type": "plamo2", "mamba_step": 2}, 16, 0),
        ({"model_type": "mllama", "text_config": {**LLAMA, "cross_attention_layers": [3, 8, 13, 18]}}, 28, 0),
        # Shared caches.
        ({"num_kv_shared_layers": 12}, 20, 0),
        ({"model_type": "longcat_flash", "num_hidden_layers": None, "num_layers": 14}, 28, 0),
        ({"use_cla": True, "cla_share_factor": 2}, 16, 0),
        # Windows.
        ({"sliding_window": 4096}, 0, 32),
        ({"sliding_window": None}, 32, 0),
        ({"sliding_window": 32768}, 32, 0),
        ({"model_type": "mistral", "sliding_window": 4096}, 0, 32),
        ({"model_type": "mistral"}, 0, 32),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 32, 0),
        ({"model_type": "qwen2", "sliding_window": 4096}, 32, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 28, 4),
        ({"model_type": "gemma2", "sliding_window": 4096}, 16, 16),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 4}, 8, 24),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 5, 27),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 12}, 4, 16),
        ({"model_type": "cohere2", "sliding_window": 4096}, 8, 24),
        ({"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}, 8, 24),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, 8, 24),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0] * 16}, 16, 16),
        ({"model_type": "gpt_oss", "sliding_window": 128}, 16, 16),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "recurrent", "attention"]}, 0, 10),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 256}, 16, 16),
    ],
)
def test_kv_bytes_of_layers_that_keep_a_cache(config: dict[str, Any], full: int, windowed: int) -> None:
    config = config if "text_config" in config else {**LLAMA, "head_dim": 128, **config}
    detected = facts(config)
    # Where all layers have a window, a token's bytes are theirs.
    assert detected.kv_bytes_per_token == ((full or windowed) * LAYER or None)
    assert detected.kv_window_bytes_per_token == (windowed * LAYER if full and windowed else None)
    assert (detected.sliding_window is None) is (windowed == 0)


def test_kv_bytes_of_layers_that_differ() -> None:
    blocks = [{"attention": {"n_heads_in_group": 8}}, {"attention": {"no_op": True, "n_heads_in_group": None}}]
    assert facts({**LLAMA, "num_key_value_heads": None, "block_configs": blocks * 16}).kv_bytes_per_token == (
        16 * 2 * 4 * 128 * 2
    )
    assert facts({**LLAMA, "num_key_value_heads": [8, 0, 4, 0] * 8}).kv_bytes_per_token == 8 * 12 * 2 * 128 * 2
    # Encoders see all tokens at once: there is nothing to keep.
    for kind in ("modernbert", "xlm-roberta", "clip_text_model", "siglip2_text_model"):
        assert facts({**LLAMA, "model_type": kind, "architectures": ["X"]}).kv_bytes_per_token is None
    assert facts({**LLAMA, "model_type": "vita_qwen2", "architectures": ["X"]}).kv_bytes_per_token == 32 * LAYER


def test_kv_bytes_of_an_encoder_and_a_decoder_are_the_decoders() -> None:
    whisper = {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 4}
    detected = facts({**whisper, "decoder_attention_heads": 20, "num_hidden_layers": 32})
    assert (detected.layers, detected.kv_bytes_per_token) == (4, 4 * 2 * 1280 * 2)
    # No formula counts the encoder.
    assert facts({**whisper, "decoder_attention_heads": 20, "vocab_size": 51866, "ffn_dim": 5120}).parameters is None
    t5 = {"model_type": "t5", "d_model": 1024, "num_layers": 24, "num_decoder_layers": 12, "num_heads": 16, "d_kv": 64}
    assert facts(t5).kv_bytes_per_token == 12 * 2 * 16 * 64 * 2


def test_layers_without_end_take_no_memory() -> None:
    assert cached_layers(Config({**LLAMA, "num_hidden_layers": 2**39})) == []
    assert len(cached_layers(Config({"hybrid_override_pattern": "*" * 10**6}))) == 10_000


COSTS = st.tuples(st.integers(1, 10**6), st.integers(0, 100), st.integers(1, 5000), st.integers(0, 10**6)).map(
    lambda numbers: cache_cost(
        Facts(
            kv_bytes_per_token=numbers[0],
            kv_window_bytes_per_token=numbers[0] * numbers[1] // 100,
            sliding_window=numbers[2],
            context_length=numbers[3],
        )
    )
)


@given(cost=COSTS, room=st.integers(0, 10**12))
def test_a_cache_holds_the_most_tokens_that_fit(cost: CacheCost, room: int) -> None:
    tokens = cost.tokens_in(room)
    assert cost.bytes_for(tokens) <= room
    if not (cost.token == cost.windowed and not cost.context):
        assert cost.bytes_for(tokens + 1) > room


def test_windowed_layers_are_bounded_where_memory_is_asked() -> None:
    gemma = Facts(
        weight_bytes=10 * 2**30,
        kv_bytes_per_token=65_536,
        kv_window_bytes_per_token=327_680,
        sliding_window=1024,
        context_length=131_072,
        kv_heads=8,
    )
    # 8 layers keep 131072 tokens, 40 keep 1024: 8.3 GiB, where 48 GiB were asked for all of them.
    needed = 12 * 2**30 + 131_072 * 65_536 + 1024 * 327_680
    assert [fit(gemma, memory, tokens=131_072).fits for memory in (needed - 1, needed)] == [False, True]
    # Sixteen devices keep every head twice.
    needed = (12 * 2**30 + 2 * 393_216) // 16
    assert [fit(gemma, memory, devices=16, tokens=1).fits for memory in (needed - 1, needed)] == [False, True]
