"""Which files are fetched: weight formats, patterns, engines of one accelerator, names that are fit for a disk."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.models.delivery.jobs import short_accelerator
from modelyard.models.download.filters import FileRules, choose
from modelyard.models.sources import SourceFile
from modelyard.models.storage.errors import FetchError


def names(*given: str, prefix: str = "", **rules: object) -> list[str]:
    files = [SourceFile(name, 1, prefix + name) for name in given]
    return [file.name for file in choose(files, FileRules(**rules)).files]  # type: ignore[arg-type]


def test_safetensors_come_instead_of_other_formats_of_the_same_weights() -> None:
    given = (
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "tokenizer.model",
    )
    assert names(*given) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert names(*given, all_formats=True) == sorted(given)
    assert names(*given, include=("*.json", "*.bin")) == ["config.json", "pytorch_model.bin"]


def test_other_formats_are_fetched_where_there_are_no_safetensors() -> None:
    assert names("a.bin", "config.json") == ["a.bin", "config.json"]
    assert names("unet/w.safetensors", "unet/w.bin", "vae/w.bin") == ["unet/w.safetensors", "vae/w.bin"]
    assert names("m-Q4.gguf", "m-Q8.gguf", exclude=("*Q8*",)) == ["m-Q4.gguf"]


def test_engines_of_the_node_s_accelerator_only() -> None:
    engines = ("H100/rank0.engine", "A100/rank0.engine", "config.json")
    assert names(*engines, accelerator="H100") == ["H100/rank0.engine"]
    assert names("rank0.engine", prefix="models/H100/", accelerator="H100") == ["rank0.engine"]
    with pytest.raises(FetchError, match="none of 3 files is wanted") as caught:
        names(*engines, accelerator="L4")
    assert caught.value.reason == "NothingToFetch"


@pytest.mark.parametrize(
    ("instance", "short"),
    [
        ("BM.GPU.H100.8", "H100"),
        ("BM.GPU4.A100.8", "A100"),
        ("p5.48xlarge", "H100"),
        ("p4d.24xlarge", "A100"),
        ("Standard_ND96", "Standard_ND96"),
    ],
)
def test_short_names_of_accelerators(instance: str, short: str) -> None:
    assert short_accelerator(instance) == short


def test_what_is_listed_twice_or_negative_is_refused() -> None:
    with pytest.raises(FetchError, match="listed twice"):
        names("a", "a")
    with pytest.raises(FetchError, match="is a file and a folder"):
        names("a/b/c", "a/b")
    with pytest.raises(FetchError, match="-1 bytes"):
        choose([SourceFile("a", -1, "a")], FileRules())


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_no_chosen_name_leads_anywhere_else(given: list[str]) -> None:
    try:
        chosen = choose([SourceFile(name, 1, name) for name in given], FileRules()).files
    except FetchError:
        return
    for file in chosen:
        parts = file.name.split("/")
        assert "" not in parts
        assert ".." not in parts
        assert "." not in parts
        assert "\x00" not in file.name
