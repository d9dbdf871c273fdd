"""What an engine is like: the speed of its hardware and the limits of its scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

MAX_BODY: Final = 32 * 1024 * 1024
"""Bytes of the body of a request."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Speed and limits of one engine.

    ``alpha``, ``beta``, ``gamma``, ``delta`` are the ``perfParms`` of a VariantAutoscaling, in **milliseconds** (ms, ms
    per sequence, ms, ms per prompt token): see ``core`` for how they become step times. ``kv_cache_tokens`` is rounded
    down to whole blocks. ``max_model_len`` (prompt + output) defaults to the KV cache and may not exceed it, so that
    any accepted request can finish alone. ``max_waiting`` bounds the queue (``None``: unbounded, as in vLLM).
    ``prefix_hit_ratio`` is the share of each prompt found in the prefix cache (whole blocks; saves prefill time, not
    cache). ``prefix_segment``, in tokens and a multiple of ``block_size``, gives the engine a real prefix cache
    instead: prompts share what begins alike, in segments of that size (0: none). ``jitter`` is the relative standard
    deviation of a step's time, clamped to 0.3 .. 1.7 of the mean.
    Raises ``ValueError`` naming the field.
    """

    alpha: float = 7.0
    beta: float = 0.05
    gamma: float = 15.0
    delta: float = 0.03
    max_num_seqs: int = 256
    kv_cache_tokens: int = 400_000
    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    max_waiting: int | None = None
    prefix_hit_ratio: float = 0.0
    prefix_segment: int = 0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta", "prefix_hit_ratio", "jitter"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, not {value!r}")
        if self.alpha + self.beta <= 0:
            raise ValueError("alpha + beta must be > 0: a decode step must take time")
        for name in ("max_num_seqs", "block_size", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, not {getattr(self, name)!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be >= max_num_seqs "
                f"({self.max_num_seqs}): every running sequence takes one token of each step"
            )
        if self.kv_cache_tokens < self.block_size:
            raise ValueError(f"kv_cache_tokens ({self.kv_cache_tokens}) must hold a block of {self.block_size} tokens")
        if self.max_model_len is not None and not 2 <= self.max_model_len <= self.kv_capacity:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) must be between 2 and the KV cache's {self.kv_capacity} tokens"
            )
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ValueError(f"max_waiting must be >= 0, not {self.max_waiting!r}")
        if self.prefix_segment < 0 or self.prefix_segment % self.block_size:
            raise ValueError(
                f"prefix_segment ({self.prefix_segment}) must be 0 or a multiple of block_size ({self.block_size})"
            )
        if self.prefix_segment and self.prefix_hit_ratio:
            raise ValueError("prefix_hit_ratio must be 0 where prefix_segment gives a real prefix cache")
        if self.prefix_hit_ratio > 1:
            raise ValueError(f"prefix_hit_ratio must be <= 1, not {self.prefix_hit_ratio!r}")

    @property
    def num_blocks(self) -> int:
        """KV cache blocks."""
        return self.kv_cache_tokens // self.block_size

    @property
    def kv_capacity(self) -> int:
        """Tokens that the KV cache's whole blocks hold."""
        return self.num_blocks * self.block_size

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and output together."""
        return self.max_model_len if self.max_model_len is not None else self.kv_capacity


# An 8-billion-parameter model in BF16 on one card, rounded. α: reading 16 GB of weights at the card's memory bandwidth
# plus launch overhead; β: attention over about a thousand tokens of context per sequence; δ: 16 GFLOP per prompt token
# at a realistic share of peak; γ: tokenization and request handling. KV: 90 % of memory less weights and activations at
# 128 KiB per token. They give the per-card order and size of published single-stream figures.
PROFILES: Final = {
    "l40s": EngineConfig(alpha=22.6, beta=0.18, gamma=25.0, delta=0.105, kv_cache_tokens=180_000, max_model_len=32_768),
    "a100": EngineConfig(alpha=11.5, beta=0.09, gamma=20.0, delta=0.065, kv_cache_tokens=400_000, max_model_len=32_768),
    "h100": EngineConfig(alpha=7.0, beta=0.045, gamma=15.0, delta=0.028, kv_cache_tokens=400_000, max_model_len=32_768),
}


def profiled(name: str, given: Mapping[str, Any]) -> EngineConfig:
    """The profile with the ``given`` fields in place. Raises ``ValueError`` naming the field at fault."""
    profile = PROFILES[name]
    if "max_model_len" not in given and profile.max_model_len is not None:
        # The profile's limit must not get in the way of a smaller cache.
        free = replace(profile, **given, max_model_len=None)
        return replace(free, max_model_len=min(profile.max_model_len, free.kv_capacity))
    return replace(profile, **given)
