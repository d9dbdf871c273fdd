"""Names and bucket bounds of the histograms that vLLM (V1 engine, 0.11 and later) and SGLang expose.

Keys are the attributes of ``EngineStats``; bounds are seconds or tokens, written as the engines print them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

VLLM_HISTOGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "ttft": ("vllm:time_to_first_token_seconds", "Time to first token, queueing included."),
    "itl": ("vllm:inter_token_latency_seconds", "Time between two tokens of a request."),
    "tpot": ("vllm:request_time_per_output_token_seconds", "Mean time per output token of a request."),
    "e2e": ("vllm:e2e_request_latency_seconds", "Time from arrival to the last token."),
    "queue": ("vllm:request_queue_time_seconds", "Time in the waiting queue."),
    "inference": ("vllm:request_inference_time_seconds", "Time in the running batch."),
    "prefill": ("vllm:request_prefill_time_seconds", "Time in prefill."),
    "decode": ("vllm:request_decode_time_seconds", "Time in decode."),
    "prompt_tokens": ("vllm:request_prompt_tokens", "Prompt tokens of a request."),
    "generation_tokens": ("vllm:request_generation_tokens", "Generated tokens of a request."),
    "max_generation_tokens": ("vllm:request_max_num_generation_tokens", "Longest generation of a request."),
    "max_tokens": ("vllm:request_params_max_tokens", "The max_tokens parameter of a request."),
    "n": ("vllm:request_params_n", "The n parameter of a request."),
    "iteration_tokens": ("vllm:iteration_tokens_total", "Tokens processed in one engine step."),
}

SGLANG_HISTOGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "ttft": ("sglang:time_to_first_token_seconds", "Time to first token, queueing included."),
    "itl": ("sglang:inter_token_latency_seconds", "Time between two tokens of a request."),
    "e2e": ("sglang:e2e_request_latency_seconds", "Time from arrival to the last token."),
    "queue": ("sglang:queue_time_seconds", "Time in the waiting queue."),
}

_VLLM_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_VLLM_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_VLLM_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_VLLM_ITERATION = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

_SGLANG_TTFT = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
)  # fmt: skip
_SGLANG_TOKEN = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_SGLANG_QUEUE = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
)  # fmt: skip


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to ``limit``."""
    bounds: list[float] = []
    for exponent in count():
        for mantissa in (1, 2, 5):
            value = mantissa * 10**exponent
            if value > limit:
                return tuple(bounds)
            bounds.append(float(value))
    raise AssertionError("unreachable: count() has no end")


def vllm_buckets(max_model_len: int) -> Mapping[str, Sequence[float]]:
    """vLLM's bucket bounds; those of token numbers reach up to ``max_model_len``."""
    tokens = one_two_five(max_model_len)
    return {
        "ttft": _VLLM_TTFT,
        "itl": _VLLM_TOKEN,
        "tpot": _VLLM_TOKEN,
        "e2e": _VLLM_REQUEST,
        "queue": _VLLM_REQUEST,
        "inference": _VLLM_REQUEST,
        "prefill": _VLLM_REQUEST,
        "decode": _VLLM_REQUEST,
        "prompt_tokens": tokens,
        "generation_tokens": tokens,
        "max_tokens": tokens,
        "max_generation_tokens": tokens,
        "n": (1.0, 2.0, 5.0, 10.0, 20.0),
        "iteration_tokens": _VLLM_ITERATION,
    }


def sglang_buckets() -> Mapping[str, Sequence[float]]:
    """SGLang's bucket bounds. The per-stage times use those of the queue time."""
    return {
        "ttft": _SGLANG_TTFT,
        "itl": _SGLANG_TOKEN,
        "e2e": (*_SGLANG_TTFT, 600.0, 1200.0, 1800.0, 2400.0),
        "queue": _SGLANG_QUEUE,
        "prefill": _SGLANG_QUEUE,
        "decode": _SGLANG_QUEUE,
    }
