"""Engine command lines as people write them."""

from __future__ import annotations

import pytest

from modelyard.autoscaling.variants.tokens.capacity import derived_limit
from modelyard.autoscaling.variants.tokens.engine_arguments import EngineArguments, parse_engine_arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), EngineArguments()),
        (("vllm", "serve", "m", "--max-num-seqs=64"), EngineArguments(max_sequences=64)),
        (("--max_num_seqs", "64", "--max-num-batched-tokens", "2048"), EngineArguments(0.9, 16, "auto", 1, 64, 2048)),
        (("--gpu-memory-utilization=0.85", "--block_size", "32"), EngineArguments(0.85, 32)),
        (("--kv-cache-dtype", "fp8", "-tp", "4"), EngineArguments(kv_cache_dtype="fp8", tensor_parallel=4)),
        (("--num-gpu-blocks-override=1000",), EngineArguments(blocks=1000)),
        (("--max-model-len", "32k"), EngineArguments(max_model_len=32_000)),
        (("--max-model-len", "32K"), EngineArguments(max_model_len=32_768)),
        (("--enable-chunked-prefill", "--max-num-seqs", "8"), EngineArguments(max_sequences=8, chunked_prefill=True)),
        (("--enable-chunked-prefill=false",), EngineArguments(chunked_prefill=False)),
        (("--no-enable-chunked-prefill",), EngineArguments(chunked_prefill=False)),
        (
            ("sh", "-c", "exec vllm serve m --max-num-seqs 32 \\\n  --block-size=8"),
            EngineArguments(0.9, 8, "auto", 1, 32),
        ),
        (("sh", "-c", "VLLM_USE_V1=0 vllm serve --max-model-len 4096"), EngineArguments(max_model_len=4096, v1=False)),
        (("VLLM_USE_V1=0", "vllm", "serve", "m"), EngineArguments(v1=False)),
        (("VLLM_USE_V1=0", "sh", "-c", "VLLM_USE_V1=1 vllm serve m"), EngineArguments()),
        (("sh", "-c", "vllm serve --max-num-seqs 16 --name 'unbalanced"), EngineArguments(max_sequences=16)),
        (("--max-num-seqs", "many", "--gpu-memory-utilization", "7", "--block-size", "-3"), EngineArguments()),
        (("--max-num-seqs", "--block-size", "8"), EngineArguments(block_size=8)),
        (("--max-num-seqs", "inf"), EngineArguments()),
        (("--max-num-seqs", "8", "--max-num-seqs", "9"), EngineArguments(max_sequences=9)),
    ],
)
def test_parsed(arguments, expected):
    assert parse_engine_arguments(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (EngineArguments(batched_tokens=2000), 2000),
        (EngineArguments(), 8192),
        (EngineArguments(v1=False, chunked_prefill=True, max_model_len=9000), 2048),
        (EngineArguments(v1=False, max_model_len=9000), 9000),
        (EngineArguments(v1=False, max_model_len=1000), 2048),
        (EngineArguments(v1=False), 2048),
    ],
)
def test_effective_batched_tokens(arguments, tokens):
    assert arguments.effective_batched_tokens == tokens


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (EngineArguments(max_sequences=8, max_model_len=99), True),
        (EngineArguments(batched_tokens=8192), True),
        (EngineArguments(batched_tokens=4096), False),
        (EngineArguments(gpu_memory_utilisation=0.8), False),
        (EngineArguments(block_size=32), False),
        (EngineArguments(kv_cache_dtype="fp8"), False),
        (EngineArguments(tensor_parallel=2), False),
        (EngineArguments(blocks=100), False),
    ],
)
def test_compatible(other, same):
    assert EngineArguments().compatible(other) is same
    assert other.compatible(EngineArguments()) is same


@pytest.mark.parametrize(
    ("batched", "sequences", "prompt", "output", "limit"),
    [(2048, 256, 500, 100, 140_800), (8192, 64, 100, 200, 12_800), (8192, 64, 100, 0, None)],
)
def test_documented_estimates(batched, sequences, prompt, output, limit):
    arguments = EngineArguments(max_sequences=sequences, batched_tokens=batched)
    assert derived_limit(arguments, prompt, output) == limit
