"""GGUF repositories: a configuration next to several quantizations, or nothing but GGUF files; headers that lie."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.models.detection import detect, files
from modelyard.models.detection.gguf import GgufError, as_config, quantization_label, read_gguf

CASE = Path(__file__).resolve().parents[2] / "data" / "models" / "llama-gguf" / "config.json"
U32, F32, BOOL, TEXT, ARRAY, U64 = 4, 6, 7, 8, 9, 10
Q4_K, F32_TENSOR = 12, 0


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind: int, content: Any) -> bytes:
    if kind == TEXT:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], content)


def gguf(
    metadata: dict[str, tuple[int, Any]], tensors: dict[str, tuple[tuple[int, ...], int]], version: int = 3
) -> bytes:
    """A file's header, as the specification has it."""
    pieces = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, (kind, content) in metadata.items():
        pieces += [text(key), struct.pack("<I", kind), value(kind, content)]
    for name, (shape, kind) in tensors.items():
        pieces += [text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)]
    return b"".join(pieces)


METADATA: dict[str, tuple[int, Any]] = {
    "general.architecture": (TEXT, "llama"),
    "general.file_type": (U32, 15),
    "llama.context_length": (U32, 131072),
    "llama.embedding_length": (U32, 4096),
    "llama.block_count": (U32, 32),
    "llama.attention.head_count": (U32, 32),
    "llama.attention.head_count_kv": (U32, 8),
    "llama.rope.freq_base": (F32, 500000.0),
    "tokenizer.ggml.add_bos_token": (BOOL, True),
    "tokenizer.ggml.tokens": (ARRAY, (TEXT, ["a", "bb", "ccc"])),
    "tokenizer.ggml.scores": (ARRAY, (F32, [0.0, 1.0, 2.0])),
}
TENSORS = {"blk.0.attn_q.weight": ((4096, 4096), Q4_K), "blk.0.attn_norm.weight": ((4096,), F32_TENSOR)}
PARAMETERS = 4096 * 4096 + 4096
FILE = gguf(METADATA, TENSORS)


def test_gguf_next_to_a_configuration_is_one_quantization(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CASE.read_bytes())
    for label in ("Q2_K", "Q4_K_M", "Q8_0"):
        (tmp_path / f"llama-3.1-8b-{label}.gguf").write_bytes(FILE + bytes(len(label)))
    detected = detect(tmp_path)
    assert (detected.format, detected.format_version, detected.framework) == ("gguf", None, "llama.cpp")
    assert (detected.quantization, detected.quantization_method) == (None, "Q4_K_M")
    assert detected.capabilities == ("TEXT_TO_TEXT",)
    assert (detected.weight_bytes, detected.parameters, detected.parameters_from) == (
        len(FILE) + 6,
        PARAMETERS,
        "weights",
    )
    assert (detected.context_length, detected.kv_bytes_per_token) == (131072, 131072)


def test_gguf_without_a_configuration_describes_itself(tmp_path: Path) -> None:
    folder = tmp_path / "UD-Q5_K_XL"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"m-UD-Q5_K_XL-0000{number}-of-00002.gguf").write_bytes(FILE if number == 1 else gguf({}, TENSORS))
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (tmp_path / "README.md").write_text("a model")
    detected = detect(tmp_path)
    assert (detected.model_type, detected.architecture, detected.format) == ("llama", "LlamaForCausalLM", "gguf")
    assert (detected.layers, detected.heads, detected.kv_heads, detected.head_size, detected.vocabulary) == (
        32,
        32,
        8,
        128,
        3,
    )
    assert (detected.context_length, detected.kv_bytes_per_token, detected.parameters) == (
        131072,
        131072,
        2 * PARAMETERS,
    )
    assert detected.quantization_method == "UD-Q5_K_XL"
    # The image encoder next to it.
    assert detected.capabilities == ("IMAGE_TEXT_TO_TEXT",)


def test_safetensors_come_before_gguf(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CASE.read_bytes())
    header = json.dumps({"a.weight": {"dtype": "BF16", "shape": [7], "data_offsets": [0, 14]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(FILE)
    detected = detect(tmp_path)
    assert (detected.format, detected.parameters, detected.quantization_method) == ("safetensors", 7, None)


def test_key_value_heads_of_each_layer(tmp_path: Path) -> None:
    metadata = {**METADATA, "llama.attention.head_count_kv": (ARRAY, (U32, [0, 8, 0, 4] * 8))}
    (tmp_path / "m-Q8_0.gguf").write_bytes(gguf(metadata, TENSORS))
    assert detect(tmp_path).kv_bytes_per_token == 8 * 12 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends within its header"),
        (b"GGML" + FILE[4:], "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (FILE[:60], "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 1), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "more than"),
        (gguf({"a": (ARRAY, (TEXT, []))}, {})[:-8] + struct.pack("<Q", 2**60), "texts"),
        (gguf({"a": (ARRAY, (U64, []))}, {})[:-8] + struct.pack("<Q", 2**60), "more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 1000), "dimensions"),
    ],
)
def test_headers_that_lie_are_reasons(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(GgufError, match=reason):
        read_gguf(io.BytesIO(content))
    (tmp_path / "config.json").write_bytes(CASE.read_bytes())
    (tmp_path / "m-Q4_0.gguf").write_bytes(content)
    detected = detect(tmp_path)
    assert (detected.format, detected.quantization_method, detected.parameters_from) == ("gguf", "Q4_0", "formula")
    assert reason in detected.problems[0]


def test_headers_of_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        name = f"m-Q4_K_M-0000{number}-of-00004.gguf"
        (tmp_path / name).write_bytes(gguf(METADATA, {"t.weight": ((10,), Q4_K)}))
    assert detect(tmp_path).parameters == 40
    monkeypatch.setattr(files, "MAX_HEADERS", 2 * len(gguf(METADATA, {"t.weight": ((10,), Q4_K)})))
    facts = detect(tmp_path)
    assert facts.parameters_from != "weights"
    assert any("00003-of-00004.gguf' brings the headers to more than" in problem for problem in facts.problems)


def test_only_a_damaged_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    detected = detect(tmp_path)
    assert not detected.known
    assert "ends within its header" in detected.problems[0]


@given(st.binary(max_size=300), st.integers(0, len(FILE)))
def test_no_content_does_harm(noise: bytes, at: int) -> None:
    try:
        header = read_gguf(io.BytesIO(FILE[:at] + noise + FILE[at:]))
    except GgufError:
        return
    as_config(header.metadata)
    assert quantization_label("m", header.elements) in {*header.elements, ""}
