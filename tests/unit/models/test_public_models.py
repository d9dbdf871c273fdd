"""Facts of public models: cases that failed, and models that are widely served, each with the source of its values.

The expected numbers follow the rules of the engines (docs/runtimes.md, "What is known of a model"). Layers, heads and
lengths were compared with the configuration classes of transformers 5.24.0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelyard.models.detection import Facts, detect
from modelyard.models.detection.files import Files, Weights
from modelyard.models.detection.interpret import interpret

DATA = Path(__file__).resolve().parents[2] / "data" / "models"
SERVED = {row["model"]: row for row in json.loads((DATA / "widely-served.json").read_text("utf-8"))}


def facts(config: dict[str, Any], **extra: Any) -> Facts:
    documents = {"config.json": config, **{f"{name}.json": detected for name, detected in extra.items()}}
    return interpret(Files("config.json", documents, {"": Weights()}))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "llama4-maverick-fp8",
            {
                "quantization": "fp8",
                "quantization_method": "compressed-tensors",
                "context_length": 1_048_576,
                "head_size": 128,
                "kv_bytes_per_token": 49_152,
                "kv_window_bytes_per_token": 147_456,
                "sliding_window": 8192,
            },
        ),
        ("llama-fp8-ct", {"quantization": "fp8", "weight_bytes": 8_030_261_248, "parameters": 8_030_261_248}),
        (
            "gemma3-12b",
            {
                "context_length": 131_072,
                "head_size": 256,
                "heads": 16,
                "kv_heads": 8,
                "kv_bytes_per_token": 8 * 2 * 8 * 256 * 2,
                "kv_window_bytes_per_token": 40 * 2 * 8 * 256 * 2,
                "sliding_window": 1024,
            },
        ),
        ("gemma3-4b", {"context_length": 131_072, "head_size": 256, "heads": 8, "kv_heads": 4}),
        ("nemotron-3-nano", {"kv_bytes_per_token": 6144, "layers": 52, "context_length": 262_144}),
        ("jamba-mini", {"kv_bytes_per_token": 16_384, "size": "51.57B"}),
        ("minimax-text-01", {"kv_bytes_per_token": 40_960, "context_length": 10_240_000, "size": "456.09B"}),
        ("qwen2.5-omni-7b", {"context_length": 32_768, "kv_bytes_per_token": 57_344, "vision": True}),
        ("llama-gguf", {"context_length": 131_072, "kv_bytes_per_token": 131_072}),
    ],
)
def test_public_cases_that_failed(case: str, expected: dict[str, Any]) -> None:
    detected = detect(DATA / case)
    assert {name: getattr(detected, name) for name in expected} == expected


# model, context, key-value heads, head size, KV bytes of a token in layers that keep all and in layers with a window,
# quantization in the published words, method, parameters (None: not compared, the excerpt leaves a part out)
EXPECTED = [
    ("meta-llama/Meta-Llama-3.1-8B", 131_072, 8, 128, 131_072, 0, None, None, "8.03B"),
    ("meta-llama/Meta-Llama-3.1-70B", 131_072, 8, 128, 327_680, 0, None, None, "70.55B"),
    ("meta-llama/Meta-Llama-3.1-405B", 131_072, 8, 128, 516_096, 0, None, None, "405.85B"),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", 131_072, 8, 128, 163_840, 0, "fp8", "modelopt", "70.55B"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 131_072, 8, 128, 200_704, 0, None, None, None),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 10_485_760, 8, 128, 49_152, 147_456, None, None, None),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 1_048_576, 8, 128, 49_152, 147_456, None, None, None),
    ("mistralai/Mixtral-8x7B-v0.1", 32_768, 8, 128, 131_072, 0, None, None, "46.7B"),
    ("mistralai/Mixtral-8x22B-v0.1", 65_536, 8, 128, 229_376, 0, None, None, "140.62B"),
    ("Qwen/Qwen3-0.6B", 40_960, 8, 128, 114_688, 0, None, None, "596.05M"),
    ("Qwen/Qwen3-8B", 40_960, 8, 128, 147_456, 0, None, None, "8.19B"),
    ("Qwen/Qwen3-32B", 40_960, 8, 128, 262_144, 0, None, None, "32.76B"),
    ("Qwen/Qwen3-32B-FP8", 40_960, 8, 128, 262_144, 0, "fp8", "fp8", "32.76B"),
    ("Qwen/Qwen3-32B-FP8-Static-PerTensor", 40_960, 8, 128, 131_072, 0, "fp8", "compressed-tensors", "32.76B"),
    ("Qwen/Qwen3-30B-A3B", 40_960, 4, 128, 98_304, 0, None, None, "30.53B"),
    ("Qwen/Qwen3-235B-A22B", 40_960, 4, 128, 192_512, 0, None, None, "235.09B"),
    ("Qwen/Qwen3-235B-A22B-FP8", 40_960, 4, 128, 192_512, 0, "fp8", "fp8", "235.09B"),
    ("nvidia/Qwen3-235B-A22B-NVFP4", 40_960, 4, 128, 96_256, 0, None, "nvfp4", "235.09B"),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 262_144, 8, 128, 253_952, 0, None, None, "480.15B"),
    ("Qwen/Qwen3-VL-8B-Instruct", 262_144, 8, 128, 147_456, 0, None, None, None),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", 262_144, 4, 128, 98_304, 0, None, None, None),
    ("Qwen/Qwen3.5-27B", 262_144, 4, 256, 65_536, 0, None, None, "26.9B"),
    ("Qwen/Qwen3.5-35B-A3B", 262_144, 2, 256, 20_480, 0, None, None, "34.66B"),
    ("Qwen/Qwen3.5-397B-A17B", 262_144, 2, 256, 30_720, 0, None, None, "396.35B"),
    ("deepseek-ai/DeepSeek-V3", 163_840, 1, 576, 70_272, 0, "fp8", "fp8", "684.49B"),
    ("deepseek-ai/DeepSeek-R1", 163_840, 1, 576, 70_272, 0, "fp8", "fp8", "684.49B"),
    ("deepseek-ai/DeepSeek-V3.2", 163_840, 1, 576, 78_324, 0, "fp8", "fp8", "684.49B"),
    ("nvidia/DeepSeek-V3.1-NVFP4", 163_840, 1, 576, 35_136, 0, None, "nvfp4", "684.49B"),
    ("moonshotai/Kimi-K2-Instruct", 131_072, 1, 576, 70_272, 0, "fp8", "fp8", "1.03T"),
    ("moonshotai/Kimi-K2.5", 262_144, 1, 576, 70_272, 0, "int4", "compressed-tensors", "1.03T"),
    ("openai/gpt-oss-20b", 131_072, 8, 64, 24_576, 24_576, None, "mxfp4", "20.91B"),
    ("openai/gpt-oss-120b", 131_072, 8, 64, 36_864, 36_864, None, "mxfp4", "116.83B"),
    ("MiniMaxAI/MiniMax-M2.5", 196_608, 8, 128, 253_952, 0, "fp8", "fp8", "228.69B"),
    ("XiaomiMiMo/MiMo-7B-Base", 32_768, 8, 128, 147_456, 0, None, None, None),
    ("XiaomiMiMo/MiMo-V2-Flash", 262_144, 4, 192, 23_040, 199_680, "fp8", "fp8", "309.43B"),
    ("google/gemma-4-26B-A4B", 262_144, 8, 256, 20_480, 204_800, None, None, None),
    ("zai-org/GLM-5", 202_752, 1, 576, 100_152, 0, None, None, None),
    ("zai-org/GLM-5.2-FP8", 1_048_576, 1, 576, 92_628, 0, "fp8", "fp8", None),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 262_144, 2, 128, 6_144, 0, None, None, "31.58B"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 262_144, 2, 128, 4_096, 0, "fp8", "modelopt", "120.67B"),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", 262_144, 2, 128, 6_144, 0, None, "nvfp4", "549.31B"),
    ("nvidia/Nemotron-H-56B-Base-8K", 8_192, 8, 128, 40_960, 0, None, None, "56.32B"),
    ("meta-llama/Llama-3.2-1B-Instruct", 131_072, 8, 64, 32_768, 0, None, None, "1.24B"),
    ("meta-llama/Llama-3.2-3B-Instruct", 131_072, 8, 128, 114_688, 0, None, None, "3.21B"),
    ("Mistral 7B v0.3", 32_768, 8, 128, 131_072, 0, None, None, "7.25B"),
    ("mistralai/Ministral-3-3B-Reasoning-2512", 262_144, 8, 128, 106_496, 0, None, None, None),
    ("gpt_bigcode (24 layers)", 2_048, 1, 128, 12_288, 0, None, None, None),
    ("microsoft/Phi-3.5-mini-instruct", 131_072, 32, 96, 393_216, 0, None, None, "3.82B"),
    ("microsoft/Phi-3.5-vision-instruct", 131_072, 32, 96, 393_216, 0, None, None, None),
    ("microsoft/Phi-4-mini-instruct", 131_072, 8, 128, 131_072, 0, None, None, "3.84B"),
    ("Qwen/Qwen2.5-3B-Instruct", 32_768, 2, 128, 36_864, 0, None, None, "3.09B"),
    ("Qwen/Qwen2-7B-Instruct", 32_768, 4, 128, 57_344, 0, None, None, "7.62B"),
    ("deepseek-ai/DeepSeek-V2-Lite", 163_840, 1, 576, 31_104, 0, None, None, "15.71B"),
    ("google/gemma-2b", 8_192, 1, 256, 18_432, 0, None, None, "2.51B"),
    ("google/gemma-2-9b-it", 8_192, 8, 256, 172_032, 172_032, None, None, "9.24B"),
    ("google/gemma-2-27b-it", 8_192, 16, 128, 188_416, 188_416, None, None, "27.23B"),
    ("google/gemma-3-1b-it", 32_768, 1, 256, 4_096, 22_528, None, None, "999.89M"),
    ("llava (Llama 2 7B)", 4_096, 32, 128, 524_288, 0, None, None, None),
    ("chatglm (28 layers)", 8_192, 2, 128, 28_672, 0, None, None, None),
    ("Snowflake/snowflake-arctic-embed-m", 512, 12, 64, None, 0, None, None, None),
    ("internlm2_5_7b", 65_536, 8, 128, 131_072, 0, None, None, "7.74B"),
    ("starcoder2 (32 layers)", 16_384, 4, 128, 65_536, 0, None, None, None),
    ("aya-23 (32 layers)", 8_192, 8, 128, 131_072, 0, None, None, "8.03B"),
]


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row[0])
def test_facts_of_widely_served_models(row: tuple[Any, ...]) -> None:
    model, context, kv_heads, head_size, kv_bytes, windowed, word, method, size = row
    source = SERVED[model]
    assert source["source"]
    side = {"hf_quant_config": source["hf_quant_config"]} if "hf_quant_config" in source else {}
    detected = facts(source["config"], **side)
    assert (detected.context_length, detected.kv_heads, detected.head_size) == (context, kv_heads, head_size)
    assert (detected.kv_bytes_per_token, detected.kv_window_bytes_per_token or 0) == (kv_bytes, windowed)
    assert (detected.quantization, detected.quantization_method) == (word, method)
    assert size is None or detected.size == size


def test_every_model_of_the_data_is_expected() -> None:
    assert [row[0] for row in EXPECTED] == list(SERVED)
