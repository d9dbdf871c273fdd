"""Capacity by command line, if no replica reports. Source: WVA saturation reference, 'Engine arguments'."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

_V1 = re.compile(r"^VLLM_USE_V1=(.*)$")
_SUFFIXES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ALIASES = {"tp": "tensor-parallel-size"}


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """The arguments that matter, with the engine's defaults; ``None`` is not given."""

    gpu_memory_utilisation: float = 0.9
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    tensor_parallel: int = 1
    max_sequences: int = 256
    batched_tokens: int | None = None
    max_model_len: int | None = None
    blocks: int | None = None
    chunked_prefill: bool | None = None
    v1: bool = True

    @property
    def effective_batched_tokens(self) -> int:
        if self.batched_tokens is not None:
            return self.batched_tokens
        if self.v1:
            return 8192
        return 2048 if self.chunked_prefill else max(self.max_model_len or 0, 2048)

    @property
    def kv_tokens(self) -> int | None:
        """Size of the KV cache in tokens where the arguments fix it."""
        return None if self.blocks is None else self.blocks * self.block_size

    def compatible(self, other: EngineArguments) -> bool:
        """Whether replicas with either have the same capacity on the same accelerator."""
        return self._capacity == other._capacity

    @property
    def _capacity(self) -> tuple[object, ...]:
        return (
            self.gpu_memory_utilisation,
            self.block_size,
            self.kv_cache_dtype,
            self.tensor_parallel,
            self.blocks,
            self.effective_batched_tokens,
        )


@lru_cache(maxsize=4096)
def parse_engine_arguments(arguments: tuple[str, ...]) -> EngineArguments:
    """Read a command, also in ``sh -c``; the unreadable keeps defaults. V1 unless the last ``VLLM_USE_V1`` is 0."""
    words, v1 = list(_words(arguments)), True
    given: dict[str, str] = {}
    switched: set[str] = set()
    for i, word in enumerate(words):
        if generation := _V1.match(word):
            v1 = generation[1] != "0"
        if not word.startswith("-") or word.strip("-") == "":
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        name = _ALIASES.get(name, name)
        following = words[i + 1] if i + 1 < len(words) else ""
        if equals:
            given[name] = value
        elif following and not following.startswith("-"):
            given[name] = following
        switched.add(name)
    default = EngineArguments()
    chunked: bool | None = False if "no-enable-chunked-prefill" in switched else None
    if chunked is None and "enable-chunked-prefill" in switched:
        chunked = given.get("enable-chunked-prefill", "true").lower() not in ("false", "0")
    return EngineArguments(
        _read(given, "gpu-memory-utilization", _fraction) or default.gpu_memory_utilisation,
        _read(given, "block-size", _count) or default.block_size,
        given.get("kv-cache-dtype", default.kv_cache_dtype),
        _read(given, "tensor-parallel-size", _count) or default.tensor_parallel,
        _read(given, "max-num-seqs", _count) or default.max_sequences,
        _read(given, "max-num-batched-tokens", _count),
        _read(given, "max-model-len", _count),
        _read(given, "num-gpu-blocks-override", _count),
        chunked,
        v1,
    )


def _words(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if not any(character.isspace() for character in argument):
            yield argument
            continue
        text = argument.replace("\\\n", " ")
        try:
            yield from shlex.split(text)
        except ValueError:  # an unbalanced quote; the shell would not take it either
            yield from text.split()


def _read(given: dict[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    try:
        return parse(given[name]) if name in given else None
    except ValueError:
        return None


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    """With the engine's suffixes: ``32k`` is 32 000, ``32K`` 32 768."""
    factor = _SUFFIXES.get(text[-1:], 1)
    value = float(text[:-1] if factor != 1 else text) * factor
    if not math.isfinite(value) or value < 1:
        raise ValueError(text)
    return int(value)
