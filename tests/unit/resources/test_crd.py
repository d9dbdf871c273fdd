"""The generated CRDs: fresh, the same every time, structural, and explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from modelyard.resources import KINDS, Resource
from modelyard.resources.base import Part
from modelyard.resources.crd import crd, file_name, main, render, structural_schema

FOLDER = Path(__file__).parents[3] / "config" / "crd"
ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside ``schema``, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def root(kind: type[Resource]) -> dict[str, Any]:
    schema: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_checked_in_files_are_fresh() -> None:
    assert main(["--check", "--out", str(FOLDER)]) == 0


def test_check_names_stale_missing_and_left_over_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--out", str(tmp_path), "--check"]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(file_name(kind) for kind in KINDS.values())
    (tmp_path / names[0]).unlink()
    (tmp_path / names[1]).write_text("changed", encoding="utf-8")
    (tmp_path / "left-over.yaml").write_text("", encoding="utf-8")
    assert main(["--out", str(tmp_path), "--check"]) == 1
    reported = capsys.readouterr().err
    assert all(name in reported for name in (names[0], names[1], "left-over.yaml"))
    assert names[2] not in reported
    assert not (tmp_path / names[0]).exists(), "--check writes nothing"


@ALL
def test_rendering_is_deterministic_without_anchors(kind: type[Resource]) -> None:
    assert render(kind) == render(kind)
    assert "&id" not in render(kind)


@ALL
def test_small_enough_for_client_side_apply(kind: type[Resource]) -> None:
    assert len(render(kind)) < 256 * 1024, "kubectl apply keeps a copy in an annotation of at most 256 KiB"


@ALL
def test_schema_is_structural(kind: type[Resource]) -> None:
    for path, node in nodes(root(kind)):
        assert not {"$ref", "title", "nullable", "const", "$defs", "exclusiveMinimum"} & node.keys(), path
        if not node.get("x-kubernetes-int-or-string"):
            assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert ("properties" in node) + ("additionalProperties" in node) < 2, path
        for keyword in ("anyOf", "oneOf"):
            for option in node.get(keyword, ()):
                assert node.get("x-kubernetes-int-or-string") or "type" not in option, path


@ALL
def test_every_field_is_explained_in_words(kind: type[Resource]) -> None:
    for path, node in nodes(root(kind)):
        if path and not path.endswith("[]") and not path.startswith(".metadata"):
            assert len(node.get("description", "")) > 7, path


@ALL
def test_defaults_in_the_schema_are_told_in_the_description(kind: type[Resource]) -> None:
    for path, node in nodes(root(kind)):
        if "default" in node:
            assert f"Default: {node['default']}." in node["description"], path


@ALL
def test_rules_are_in_the_schema(kind: type[Resource]) -> None:
    messages = {rule["message"] for _, node in nodes(root(kind)) for rule in node.get("x-kubernetes-validations", ())}
    wanted = {rule.text for part in (kind, *parts(kind)) for rule in part.invariants if rule.cel is not None}
    assert messages == wanted
    assert all(len(message) <= 2048 and "\n" not in message for message in messages)


@ALL
def test_what_rules_walk_over_is_bounded(kind: type[Resource]) -> None:
    """API servers refuse a CRD whose rules could cost too much; they judge by the declared sizes."""
    for path, node in nodes(root(kind)):
        for rule in node.get("x-kubernetes-validations", ()):
            walked = re.findall(r"self\.(\w+)\.(?:all|exists|exists_one|map)\(| in self\.(\w+)\)", rule["rule"])
            for name in {first or second for first, second in walked}:
                assert "maxItems" in node["properties"][name] or name == "additionalRequestParams", f"{path}.{name}"
            for name in re.findall(r"self\.(\w+)(?:\['\w+'\])?\.matches\(", rule["rule"]):
                text = node["properties"][name]
                assert "maxLength" in text.get("additionalProperties", text), f"{path}.{name}"


def parts(model: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> set[type[Part]]:
    """Every ``Part`` below a model."""
    seen = set() if seen is None else seen
    for info in model.model_fields.values():
        stack: list[Any] = [info.annotation]
        while stack:
            annotation = stack.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                if annotation not in seen:
                    seen.add(annotation)
                    parts(annotation, seen)
            else:
                stack.extend(getattr(annotation, "__args__", ()))
    return {model for model in seen if issubclass(model, Part)}


def test_a_union_of_types_cannot_be_written() -> None:
    class Loose(Part):
        value: int | str = Field(description="Either.")

    with pytest.raises(ValueError, match=r"Loose\.value: alternatives of type"):
        structural_schema(Loose)


def test_an_exclusive_bound_cannot_be_written() -> None:
    class Open(Part):
        value: int = Field(gt=0, description="Above zero.")

    with pytest.raises(ValueError, match=r"Open\.value: use ge and le"):
        structural_schema(Open)


PUBLISHED_COLUMNS = {
    "VariantAutoscaling": {"Accelerator", "CurrentReplicas", "Optimized", "Why"},
    "AutoscalingPolicyBinding": {"Min", "Max", "Why"},
    "FineTunedWeight": {"Version", "CompartmentID"},
    "InferenceService": {"Prev", "Latest"},
    "ServingRuntime": {"ModelFramework", "ModelFrameworkVersion", "Images"},
    "ClusterServingRuntime": {"ModelFramework", "ModelFrameworkVersion", "Images"},
}


@ALL
def test_columns_of_the_published_definitions_and_ours_are_there(kind: type[Resource]) -> None:
    assert {column.name for column in kind.columns} >= PUBLISHED_COLUMNS.get(kind.kind, set())


@ALL
def test_a_column_shows_no_first_item_for_a_list(kind: type[Resource]) -> None:
    """A server prints the first match alone: only columns of published runtimes, whose status nobody writes, may."""
    lists = {column.name for column in kind.columns if "[*]" in column.path}
    assert lists <= {"ModelFormat", "ModelFramework", "ModelFrameworkVersion", "Architecture"}
    assert not lists or kind.kind in ("ServingRuntime", "ClusterServingRuntime")
