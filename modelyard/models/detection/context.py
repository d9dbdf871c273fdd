"""Tokens that a request and its answer may have together, by the rule of vLLM. Pure.

The smallest of the lengths that a configuration states counts (``model_max_length`` alone where it is stated), or the
class's default where it states none. RoPE scaling then works as in vLLM's ``_get_and_verify_max_len``: ``yarn`` starts
from ``original_max_position_embeddings``, and every type but ``llama3`` and ``longrope`` multiplies by ``factor``. The
length of Gemma 3 is final. Of ``longrope`` models it is the long one, which vLLM serves when ``--max-model-len`` asks
for it. Models that pool read no more than their tokenizer and sentence-transformers files allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.models.detection.config import Config, mapping, text, whole

_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
_SAME_LENGTH = frozenset({"llama3", "longrope", "su", "default", "mrope"})
"""Types of RoPE scaling that leave the length as it is. The last two scale nothing."""
_FINAL = ("gemma3", "gemma3n")
"""Families whose length includes the scaling already."""


def context_length(config: Config) -> int:
    """Return the context length in tokens, 0 where nothing states one."""
    length = _stated(config)
    if not length or config.family in _FINAL:
        return length
    factor = 1.0
    for rope in _ropes(config):
        kind = text(rope.get("rope_type")) or text(rope.get("type")) or "default"
        if kind in _SAME_LENGTH:
            continue
        if kind.endswith("yarn"):
            length = whole(rope.get("original_max_position_embeddings")) or length
        factor = _factor(rope.get("factor")) or factor
    return whole(int(length * factor))


def pooling_length(config: Config, length: int, sentence: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> int:
    """Return the context length of a model that pools: ``sentence`` is its sentence_bert_config.json."""
    if limit := whole(sentence.get("max_seq_length")):
        return limit
    absolute = text(config.raw.get("position_embedding_type")) == "absolute"
    limit = whole(tokenizer.get("model_max_length")) if absolute else 0
    return min(length, limit) if length and limit else length


def _stated(config: Config) -> int:
    for level in config.levels:
        if limit := whole(level.get("model_max_length")):
            return limit
        lengths = [length for key in _KEYS if (length := whole(level.get(key)))]
        if lengths:
            return min(lengths)
        if level is config.levels[0]:
            is_deepseek_vl = config.type.startswith("deepseek_vl")
            if default := 4096 if is_deepseek_vl else config.number("max_position_embeddings"):
                return default
    return 0


def _ropes(config: Config) -> Iterator[Mapping[str, Any]]:
    for level in config.levels:
        for key in ("rope_scaling", "rope_parameters"):
            rope = mapping(level.get(key))
            if not rope:
                continue
            yield from [inner for inner in rope.values() if isinstance(inner, Mapping)] or [rope]
            return


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= 10**6 else 0.0
