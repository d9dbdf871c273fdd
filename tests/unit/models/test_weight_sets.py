"""One set of weights of each repository: copies are left out, parts never, and the choice is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from modelyard.models.detection import detect
from modelyard.models.download import node
from modelyard.models.download.filters import FileRules, choose
from modelyard.models.sources import SourceFile
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.weight_sets import NoSuchWeights, choose_weights

GB = 10**9
Sizes = dict[str, int]


def shards(stem: str, count: int, size: float, suffix: str = "safetensors", first: int = 1) -> Sizes:
    return {f"{stem}-{first + i:05d}-of-{count:05d}.{suffix}": int(size * GB / count) for i in range(count)}


def left_out(files: Sizes, weights: str = "") -> set[str]:
    return set(choose_weights(files, weights).left_out)


SMALL = {"config.json": 1000, "tokenizer.json": 10**7}
INDEX = {"model.safetensors.index.json": 30_000}
MISTRAL = {**SMALL, "params.json": 200, "consolidated.safetensors": 14_500_000_000, **shards("model", 3, 14.5), **INDEX}
# Sizes as published on the model hub, read in November 2026.
WHISPER = {
    **SMALL,
    "flax_model.msgpack": 6_170_000_000,
    "model.fp32-00001-of-00002.safetensors": 4_990_000_000,
    "model.fp32-00002-of-00002.safetensors": 1_180_000_000,
    "model.safetensors": 3_090_000_000,
    "model.safetensors.index.fp32.json": 118_000,
    "pytorch_model.bin": 3_090_000_000,
}
MISTRAL_SMALL = {**SMALL, "consolidated.safetensors": 47_100_000_000, **shards("model", 10, 47.1), **INDEX}
GPT_OSS = {
    **SMALL,
    **INDEX,
    "metal/model.bin": 13_750_886_400,
    "model-00000-of-00002.safetensors": 4_792_272_488,
    "model-00001-of-00002.safetensors": 4_798_702_184,
    "model-00002-of-00002.safetensors": 4_170_342_232,
    "original/config.json": 400,
    "original/dtypes.json": 13_000,
    "original/model.safetensors": 13_761_000_000,
}
LLAMA = {
    **SMALL,
    **shards("model", 4, 16),
    **INDEX,
    "original/consolidated.00.pth": 16 * GB,
    "original/params.json": 200,
    "original/tokenizer.model": 2_000_000,
}
QUANTS = {f"Llama-{name}.gguf": int(size * GB) for name, size in {"Q4_K_M": 4.9, "Q8_0": 8.5, "F16": 16}.items()}
SPLIT = shards("BF16/Llama-BF16", 2, 16, "gguf")
PIPELINE = {
    "model_index.json": 600,
    "flux1-dev.safetensors": 24 * GB,
    "ae.safetensors": GB // 3,
    **{f"transformer/{name}": size for name, size in shards("diffusion_pytorch_model", 3, 24).items()},
    "vae/diffusion_pytorch_model.safetensors": GB // 6,
    "vae/diffusion_pytorch_model.fp16.safetensors": GB // 12,
    "text_encoder/model.safetensors": GB // 4,
    "text_encoder/flax_model.msgpack": GB // 4,
}
EMBEDDING = {
    **SMALL,
    "model.safetensors": 90_900_000,
    "pytorch_model.bin": 90_900_000,
    "tf_model.h5": 91_000_000,
    "rust_model.ot": 90_900_000,
    "onnx/model.onnx": 90_400_000,
    "onnx/model_O1.onnx": 90_400_000,
    "onnx/model_qint8_avx512.onnx": 23_000_000,
    "openvino/openvino_model.bin": 90_300_000,
    "openvino/openvino_model.xml": 211_000,
    "2_Dense/pytorch_model.bin": 1_000_000,
    "training_args.bin": 5_000,
}


@pytest.mark.parametrize(
    ("files", "copies"),
    [
        pytest.param(MISTRAL, {"consolidated.safetensors"}, id="A3 consolidated next to shards"),
        pytest.param(MISTRAL_SMALL, {"consolidated.safetensors"}, id="Mistral-Small-24B-Instruct-2501"),
        pytest.param(LLAMA, {"original/consolidated.00.pth"}, id="A3 original"),
        pytest.param(GPT_OSS, {"metal/model.bin", "original/model.safetensors"}, id="A3 gpt-oss-20b: metal, original"),
        pytest.param(
            WHISPER, WHISPER.keys() - SMALL.keys() - {"model.safetensors"}, id="whisper-large-v3: precision, formats"
        ),
        pytest.param(
            {**SMALL, **QUANTS, **SPLIT},
            {*SPLIT, "Llama-Q8_0.gguf", "Llama-F16.gguf"},
            id="A3 several GGUF quantizations, one in a folder",
        ),
        pytest.param(
            {"x-IQ2_M.gguf": 3, "x-Q6_K.gguf": 6, "x-Q5_K_M.gguf": 5, "mmproj-x-F32.gguf": 2, "mmproj-x-F16.gguf": 1},
            {"x-IQ2_M.gguf", "x-Q6_K.gguf", "mmproj-x-F32.gguf"},
            id="GGUF without the preferred quantization, with an image encoder",
        ),
        pytest.param(
            PIPELINE,
            {
                *("flux1-dev.safetensors", "ae.safetensors", "text_encoder/flax_model.msgpack"),
                "vae/diffusion_pytorch_model.fp16.safetensors",
            },
            id="pipeline: single-file copies and variants, no component",
        ),
        pytest.param(
            EMBEDDING,
            EMBEDDING.keys() - SMALL.keys() - {"model.safetensors", "2_Dense/pytorch_model.bin"},
            id="embedding model: exports, but not its modules",
        ),
        pytest.param(
            {
                "config.json": 1,
                "pytorch_model.bin": 14 * GB,
                "consolidated.00.pth": 7 * GB,
                "consolidated.01.pth": 7 * GB,
            },
            {"consolidated.00.pth", "consolidated.01.pth"},
            id="no safetensors: what engines load",
        ),
        pytest.param(
            {"m.Q4_K_S.gguf": 4, "m.Q8_0.gguf.part1of2": 4, "m.Q8_0.gguf.part2of2": 4, "m.i1-Q6_K.gguf": 6},
            {"m.Q8_0.gguf.part1of2", "m.Q8_0.gguf.part2of2", "m.i1-Q6_K.gguf"},
            id="GGUF in pieces",
        ),
        pytest.param(
            {"clip_l.safetensors": 2, "t5xxl_fp16.safetensors": 98, "t5xxl_fp8_e4m3fn.safetensors": 49},
            {"t5xxl_fp8_e4m3fn.safetensors"},
            id="precisions behind a dash",
        ),
        pytest.param(
            {**shards("model", 2, 16), **shards("model", 4, 16), "model-00001-of-00009.safetensors": GB},
            {"model-00001-of-00009.safetensors"},
            id="series of shards: the incomplete one; of two whole ones neither",
        ),
        pytest.param(
            {"model.safetensors": 16 * GB, **shards("model", 4, 16), **INDEX},
            {"model.safetensors"},
            id="one file and shards with an index",
        ),
        pytest.param(
            {"model.safetensors": 16 * GB, "checkpoint-500/model.safetensors": 16 * GB, "global_step500/x.pt": 99 * GB},
            {"checkpoint-500/model.safetensors", "global_step500/x.pt"},
            id="checkpoints of a training",
        ),
        pytest.param(
            {"fp16/model.safetensors": 16 * GB, "int4/model.safetensors": 4 * GB, "fp16/config.json": 1},
            {"int4/model.safetensors"},
            id="folders of precisions",
        ),
        pytest.param(
            {**shards("model", 2, 16), **{f"consolidated-0000{i}-of-00002.safetensors": 8 * GB for i in (1, 2)}}
            | {"consolidated.safetensors.index.json": 9, **INDEX},
            {f"consolidated-0000{i}-of-00002.safetensors" for i in (1, 2)} | {"consolidated.safetensors.index.json"},
            id="consolidated in shards goes with its index",
        ),
    ],
)
def test_one_set_of_weights_is_chosen(files: Sizes, copies: set[str]) -> None:
    choice = choose_weights(files)
    assert choice.left_out == copies
    assert choice.message.startswith("weights: ")
    assert "left out as copies" in choice.message
    assert len(choice.message) <= 300


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({**SMALL, "params.json": 1, "consolidated.safetensors": 25 * GB}, id="only consolidated"),
        pytest.param({"params.json": 1, "consolidated.00.pth": 8 * GB, "consolidated.01.pth": 8 * GB}, id="only pth"),
        pytest.param(
            {**SMALL, **shards("pytorch_model", 2, 16, "bin"), "pytorch_model.bin.index.json": 9}, id="only bin"
        ),
        pytest.param({"model-Q8_0.gguf": 8 * GB}, id="only GGUF"),
        pytest.param(shards("Q2_K/model-Q2_K", 3, 99, "gguf"), id="only GGUF, split in a folder"),
        pytest.param({**shards("model", 2, 22), **INDEX, "spk_dict.pt": 259_000}, id="speakers of an omni model"),
        pytest.param(
            {"pytorch_model.bin": 13 * GB, "adapter_model.safetensors": 20_000_000}, id="adapter by its model"
        ),
        pytest.param(
            {"encoder_model.onnx": GB, "decoder_model.onnx": GB, "decoder_model.onnx_data": GB}, id="onnx parts"
        ),
        pytest.param({"talker/model.safetensors": GB, "model.safetensors": 7 * GB}, id="folder of unknown meaning"),
        pytest.param({"H100/rank0.engine": GB, "H100/rank1.engine": GB}, id="engines"),
        pytest.param({"config.json": 1}, id="no weights"),
        pytest.param({}, id="nothing"),
    ],
)
def test_nothing_that_is_needed_is_left_out(files: Sizes) -> None:
    assert choose_weights(files) == (frozenset(), "")


@pytest.mark.parametrize(
    ("files", "weights", "kept"),
    [
        (MISTRAL, "consolidated", {"consolidated.safetensors"}),
        (MISTRAL, "Safetensors", {*shards("model", 3, 1), *INDEX}),
        (GPT_OSS, "metal", {"metal/model.bin"}),
        (GPT_OSS, "original", {"original/model.safetensors"}),
        (LLAMA, "original", {"original/consolidated.00.pth"}),
        ({**SMALL, **QUANTS, **SPLIT}, "q8_0", {"Llama-Q8_0.gguf"}),
        ({**SMALL, **QUANTS, **SPLIT}, "BF16", {*SPLIT}),
        (WHISPER, "fp32", {name for name in WHISPER if "fp32" in name}),
        (WHISPER, "bin", {"pytorch_model.bin"}),
        (
            PIPELINE,
            "fp16",
            {
                *(name for name in PIPELINE if name.startswith("transformer/")),
                *("vae/diffusion_pytorch_model.fp16.safetensors", "text_encoder/model.safetensors"),
            },
        ),
        (EMBEDDING, "onnx", {"onnx/model.onnx", "2_Dense/pytorch_model.bin"}),
        ({**LLAMA, **QUANTS}, "gguf", {"Llama-Q4_K_M.gguf"}),
    ],
)
def test_the_parameter_weights_chooses_another_set(files: Sizes, weights: str, kept: set[str]) -> None:
    small = {name for name in files if name.endswith((".json", ".model")) and ".index" not in name}
    assert files.keys() - small - left_out(files, weights) == kept
    assert left_out(files, "all") == set()


def test_a_set_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(NoSuchWeights, match=r"no set 'q9_x', only gguf F16 .*, gguf Q8_0 .*, gguf Q4_K_M"):
        choose_weights(QUANTS, "Q9_X")
    with pytest.raises(FetchError, match=r"correct storage\.parameters\.weights") as refused:
        choose([SourceFile("model.safetensors", 1, "")], FileRules(weights="gguf"))
    assert (refused.value.reason, refused.value.retryable) == ("NoSuchWeights", False)


def test_explicit_filters_win_over_the_choice() -> None:
    files = [SourceFile(name, size, name) for name, size in MISTRAL.items()]

    def names(**rules: object) -> set[str]:
        return {file.name for file in choose(files, FileRules(**rules)).files}  # type: ignore[arg-type]

    assert names(include=("*.safetensors",)) == {*shards("model", 3, 1), "consolidated.safetensors"}
    assert names(include=("*.safetensors",), weights="consolidated") == {"consolidated.safetensors"}
    assert "consolidated.safetensors" in names(exclude=("model*",))
    assert names(all_formats=True) == MISTRAL.keys()
    assert choose(files, FileRules(include=("*.json",))).weights == ""


@given(
    st.dictionaries(
        st.from_regex(
            r"((original|unet|Q4_K_M|checkpoint-5|2_Dense)/)?(model|consolidated|x-Q8_0|pytorch_model|model_index|a)"
            r"(-0000[12]-of-00002)?(\.fp16)?\.(safetensors|bin|gguf|pth|onnx|json|safetensors\.index\.json)",
            fullmatch=True,
        ),
        st.sampled_from((10**6, 5 * GB, 14 * GB)),
        max_size=12,
    )
)
def test_a_choice_is_stable_and_keeps_weights_where_there_are_any(files: Sizes) -> None:
    first = choose_weights(files)
    kept = {name: size for name, size in files.items() if name not in first.left_out}
    assert choose_weights(kept).left_out == set()
    assert first.left_out <= files.keys()
    weights = {name for name in files if name.endswith((".safetensors", ".bin", ".gguf", ".pth", ".onnx"))}
    assert bool(weights & kept.keys()) == bool(weights)


@given(st.dictionaries(st.text(max_size=30), st.integers(0, 10**15), max_size=8), st.text(max_size=10))
def test_any_names_are_taken(files: Sizes, weights: str) -> None:
    if not weights.strip():
        assert choose_weights(files, weights).left_out <= files.keys()
        return
    try:
        message = choose_weights(files, weights).message
    except NoSuchWeights as refused:
        message = str(refused)
    assert len(message) < 1000


def safetensors(path: Path, parameters: int) -> None:
    """Write a file with one tensor of 16 bits an element."""
    tensor = {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}
    header = json.dumps({"model.weight": tensor}).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * parameters))


def test_in_a_folder_that_is_only_looked_at_each_parameter_counts_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        safetensors(tmp_path / name, 100)
    expected = detect(tmp_path)
    assert expected.parameters == 200
    for copy in ("consolidated.safetensors", "original/model.safetensors", "model.fp16.safetensors"):
        safetensors(tmp_path / copy, 200)
    (tmp_path / "m-Q8_0.gguf").write_bytes(bytes(400))
    assert detect(tmp_path) == expected
    report = node.Report()
    request = node.FetchRequest(f"local://{tmp_path}", tmp_path.parent, str(tmp_path), "clusterbasemodel.m")
    node.fetch(request, report, node.Progress(lambda line: None))
    assert report.facts["parameters"] == 200
