"""Header of a GGUF file: metadata, and the elements of its tensors by type. Pure but for the stream it is given.

Source: the GGUF specification of ggml (versions 2 and 3): magic, version, counts, typed metadata, then name, shape,
type and offset of each tensor, all little-endian. Every length is untrusted: the stream is read in pieces up to a
limit, and long arrays (vocabularies) are skipped, of which only the length is kept.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAX_HEADER = 64 * 2**20
"""Bytes of a header; vocabularies of 260,000 tokens with their merges take some 10 MB."""
MAX_TENSORS = 100_000
_MAX_METADATA = 10_000
_MAX_TEXT = 1000
_MAX_ARRAY = 10_000
_MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**60
"""Elements of a tensor: more are a forgery."""
_CHUNK = 2**18

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_FIRST_TYPES = (
    *("F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K"),
    *("Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S"),
    *("IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"),
)
_TENSOR_TYPES = dict(enumerate(_FIRST_TYPES)) | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
_LABEL = re.compile(r"[-._/]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*|TQ\d\w*))(?=[-.])", re.IGNORECASE)


class GgufError(Exception):
    """The file is no GGUF file that can be read. The message says why."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata by key (arrays too long to keep are their length), and elements of all tensors by type."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    """Bytes that were read."""


def read_gguf(stream: BinaryIO) -> GgufHeader:
    """Read the header. Raises ``GgufError``."""
    reader = _Reader(stream)
    if reader.take(4) != b"GGUF":
        raise GgufError("does not begin with GGUF")
    version = reader.scalar("I")
    if version not in (2, 3):
        raise GgufError(f"has version {version}; 2 and 3 can be read")
    tensors, pairs = reader.scalar("Q"), reader.scalar("Q")
    if tensors > MAX_TENSORS or pairs > _MAX_METADATA:
        raise GgufError(f"states {tensors} tensors and {pairs} metadata values, more than a model has")
    metadata = {}
    for _ in range(pairs):
        key = reader.text()
        metadata[key] = reader.value(reader.scalar("I"))
    elements: Counter[str] = Counter()
    for _ in range(tensors):
        reader.text()
        dimensions = reader.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"has a tensor of {dimensions} dimensions")
        count = 1
        for _ in range(dimensions):
            count = min(count * reader.scalar("Q"), MAX_ELEMENTS)
        kind = reader.scalar("I")
        reader.scalar("Q")
        elements[_TENSOR_TYPES.get(kind, f"type {kind}")] += count
    return GgufHeader(metadata, elements, MAX_HEADER - reader.left)


def quantization_label(path: str, elements: Mapping[str, int]) -> str:
    """Return the quantization in a file's name (``Q4_K_M``), else the type of most of its elements."""
    if labels := _LABEL.findall(f"/{path}"):
        return str(labels[-1]).upper()
    return max(elements, key=lambda kind: elements[kind], default="")


def as_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata under the names of a configuration file. The length includes any RoPE scaling."""
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or not kind:
        return {}
    names = {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "rope.dimension_count": "qk_rope_head_dim",
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "vocab_size": "vocab_size",
    }
    found = {name: metadata.get(f"{kind}.{suffix}") for suffix, name in names.items()}
    tokens = {"vocab_size": metadata.get("tokenizer.ggml.tokens")}
    return {"model_type": kind, **tokens, **{name: value for name, value in found.items() if value is not None}}


class _Reader:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0
        self.left = MAX_HEADER

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._buffer):
            self._fill(count)
        start, self._at = self._at, self._at + count
        return self._buffer[start : self._at]

    def _fill(self, count: int) -> None:
        rest = self._buffer[self._at :]
        if count - len(rest) > self.left:
            raise GgufError(f"has a header of more than {MAX_HEADER} bytes")
        pieces = [rest]
        have = len(rest)
        while have < count:
            piece = self._stream.read(min(_CHUNK, self.left))
            if not piece:
                raise GgufError("ends within its header")
            pieces.append(piece)
            have += len(piece)
            self.left -= len(piece)
        self._buffer, self._at = b"".join(pieces), 0

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()[:_MAX_TEXT]
        if kind != _ARRAY:
            raise GgufError(f"has a metadata value of unknown type {kind}")
        inner, count = self.scalar("I"), self.scalar("Q")
        if inner in _SCALARS:
            code = _SCALARS[inner]
            data = self.take(count * struct.calcsize(f"<{code}"))
            return list(struct.unpack(f"<{count}{code}", data)) if count <= _MAX_ARRAY else count
        if inner != _TEXT:
            raise GgufError(f"has an array of unknown type {inner}")
        if count > MAX_HEADER // 8:
            raise GgufError(f"has an array of {count} texts")
        for _ in range(count):
            self.take(self.scalar("Q"))
        return count
