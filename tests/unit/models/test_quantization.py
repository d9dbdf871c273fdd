"""How weights are quantized: what files state, and the words of runtimes that mean it."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.models.detection import is_asked_for, weight_bits
from modelyard.models.detection.quantization import BITS, WORDS, normal, read_quantization


def groups(bits: int, kind: str, **extra: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **extra}}}}


CT = {"quant_method": "compressed-tensors"}
MODELOPT = {"producer": {"name": "modelopt", "version": "0.29.0"}}


@pytest.mark.parametrize(
    ("stated", "published", "method", "bits"),
    [
        ({}, "", "", 0),
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8", "fp8", 8),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", "fbgemm_fp8", 8),
        # compressed-tensors is a container: groups state the scheme.
        ({**CT, "format": "float-quantized", **groups(8, "float")}, "fp8", "compressed-tensors", 8),
        ({**CT, "format": "naive-quantized", **groups(8, "float", strategy="tensor")}, "fp8", "compressed-tensors", 8),
        ({**CT, "format": "pack-quantized", **groups(4, "int", group_size=128)}, "int4", "compressed-tensors", 4),
        ({**CT, "format": "marlin-24", **groups(4, "int")}, "int4", "compressed-tensors", 4),
        ({**CT, "format": "pack-quantized", **groups(8, "int")}, "", "int8", 8),
        ({**CT, "format": "int-quantized", **groups(8, "int")}, "", "int8", 8),
        ({**CT, "format": "nvfp4-pack-quantized", **groups(4, "float", group_size=16)}, "", "nvfp4", 4.5),
        ({**CT, "format": "mxfp4-pack-quantized", **groups(4, "float", group_size=32)}, "", "mxfp4", 4.25),
        ({**CT, "config_groups": {"FP8_DYNAMIC": ["Linear"]}}, "fp8", "compressed-tensors", 8),
        ({**CT, "config_groups": {"W4A16": ["Linear"]}}, "int4", "compressed-tensors", 4),
        ({**CT, "format": "float-quantized"}, "fp8", "compressed-tensors", 8),
        ({"format": "pack-quantized", **groups(4, "int")}, "int4", "compressed-tensors", 4),
        ({"quant_method": "compressed_tensors", **groups(8, "float")}, "fp8", "compressed_tensors", 8),
        # Layers that differ: the scheme with the fewest bits, and the mean of them.
        (
            {
                **CT,
                "config_groups": {
                    "a": {"targets": ["x", "y", "z"], "weights": {"num_bits": 8, "type": "float"}},
                    "b": {"targets": ["w"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
                },
            },
            "",
            "nvfp4",
            (3 * 8 + 4.5) / 4,
        ),
        # ModelOpt.
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "modelopt", 8),
        ({**MODELOPT, "quantization": {"quant_algo": "FP8"}}, "fp8", "modelopt", 8),
        ({**MODELOPT, "quantization": {"quant_algo": "FP8_PB_WO"}}, "fp8", "modelopt", 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "", "nvfp4", 4.5),
        ({"quant_method": "modelopt_fp4"}, "", "modelopt_fp4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "int4", "modelopt", 4),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}},
            },
            "",
            "nvfp4",
            6.25,
        ),
        # Methods with a word of their own keep it.
        ({"quant_method": "awq", "bits": 4}, "", "awq", 4),
        ({"quant_method": "gptq", "bits": 4}, "", "gptq", 4),
        ({"quant_method": "gptq", "bits": 8}, "", "gptq-8bit", 8),
        ({"quant_method": "gptq", "bits": 3}, "", "gptq", 3),
        ({"quant_method": "auto-round", "bits": 4}, "", "auto-round", 4),
        ({"quant_method": "int4-awq"}, "int4", "int4-awq", 4),
        ({"quant_method": "mxfp4"}, "", "mxfp4", 4.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "", "bitsandbytes", 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "", "bitsandbytes-8bit", 8),
        # Others are read by their details.
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", "quark", 8),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "", "mxfp4", 4.25),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
            "int4",
            "torchao",
            4,
        ),
        ({"quant_method": "quanto", "weights": "int8"}, "", "int8", 8),
        ({"quant_method": "aqlm"}, "", "aqlm", 0),
        ({"quant_method": {"a": 1}, "config_groups": [1], "quantized_layers": 3, "format": 5}, "", "", 0),
    ],
)
def test_quantization_that_a_configuration_states(
    stated: dict[str, Any], published: str, method: str, bits: float
) -> None:
    detected = read_quantization(stated, {})
    assert (detected.published, detected.method, detected.bits) == (published, method, pytest.approx(bits))


@pytest.mark.parametrize(
    ("stated", "side", "expected"),
    [
        ({}, {"hf_quant_config.json": {**MODELOPT, "quantization": {"quant_algo": "FP8"}}}, ("fp8", "modelopt", 8, 0)),
        (
            {},
            {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}},
            ("", "nvfp4", 4.5, 8),
        ),
        ({}, {"hf_quant_config.json": {**MODELOPT, "quantization": {"quant_algo": None}}}, ("", "", 0, 0)),
        ({}, {"quantize_config.json": {"bits": 4, "group_size": 128}}, ("", "gptq", 4, 0)),
        ({}, {"quantize_config.json": {"damp_percent": 0.1}}, ("", "", 0, 0)),
        ({}, {"quant_config.json": {"zero_point": True, "w_bit": 4, "version": "GEMM"}}, ("", "awq", 4, 0)),
        # What the configuration states comes first; the side file adds the cache.
        (
            {**CT, **groups(8, "float")},
            {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}},
            ("fp8", "compressed-tensors", 8, 8),
        ),
        ({**CT, **groups(8, "float"), "kv_cache_scheme": {"num_bits": 8}}, {}, ("fp8", "compressed-tensors", 8, 8)),
    ],
)
def test_quantization_stated_in_side_files(
    stated: dict[str, Any], side: dict[str, Any], expected: tuple[str, str, float, float]
) -> None:
    detected = read_quantization(stated, side)
    assert (detected.published, detected.method, detected.bits, detected.cache_bits) == expected


@pytest.mark.parametrize(
    ("asked", "quantization", "method", "meets"),
    [
        ("fp8", "fp8", "fp8", True),
        ("fp8", "fp8", "fbgemm_fp8", True),
        ("fp8", "fp8", "compressed-tensors", True),
        ("fp8", "fp8", "modelopt", True),
        ("fbgemm_fp8", "fp8", "fbgemm_fp8", True),
        ("fbgemm_fp8", "fp8", "", True),
        ("FP8", "fp8", "", True),
        ("w8a8-fp8", "fp8", "", True),
        ("compressed-tensors", "fp8", "compressed-tensors", True),
        ("modelopt", "fp8", "compressed-tensors", False),
        ("fp8", "fbgemm_fp8", "", True),
        ("fp8", "int4", "", False),
        ("fp8", "", "awq", False),
        ("fp8", "", "mxfp8", False),
        ("int4", "int4", "compressed-tensors", True),
        ("int4", "", "awq", True),
        ("int4", "", "gptq", True),
        ("int4", "", "auto-round", True),
        ("int4", "", "gptq-8bit", False),
        ("int4", "", "nvfp4", False),
        ("w4a16", "int4", "compressed-tensors", True),
        ("awq", "", "awq", True),
        ("awq", "int4", "awq", True),
        ("awq", "int4", "", True),
        ("awq", "", "gptq", False),
        ("awq_marlin", "", "awq", True),
        ("gptq", "", "gptq-8bit", True),
        ("gptq", "", "awq", False),
        ("nvfp4", "", "nvfp4", True),
        ("modelopt_fp4", "", "nvfp4", True),
        ("nvfp4", "", "mxfp4", False),
        ("mxfp4", "", "mxfp4", True),
        ("int8", "", "bitsandbytes", False),
        ("w8a8", "", "int8", True),
        ("bitsandbytes", "", "bitsandbytes-8bit", True),
        ("bnb", "", "bitsandbytes", True),
        ("aqlm", "", "aqlm", True),
        ("aqlm", "", "exl2", False),
        ("fp8", "", "", False),
    ],
)
def test_the_words_of_runtimes_and_of_files_meet(asked: str, quantization: str, method: str, meets: bool) -> None:
    assert is_asked_for(asked, quantization, method) is meets


def test_words_are_normal_and_have_bits() -> None:
    assert all(normal(word) == word for word in WORDS)
    assert {word.scheme for word in WORDS.values()} == BITS.keys()
    assert (weight_bits("fbgemm_fp8"), weight_bits("awq"), weight_bits(""), weight_bits("new")) == (8, 4, 16, 16)
