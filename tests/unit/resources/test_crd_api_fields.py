"""Every field of the published references is in the generated CRDs, with its type, default and validations.

``tests/data/api-fields.json`` holds the references as data. Where a CRD differs on purpose, the tables of
``crd_deviations`` say so and why; an entry that no longer applies fails too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crd_deviations import ADDED_FIELDS, DEVIATIONS, STRICTER

from modelyard.resources import KINDS
from modelyard.resources.crd import crd

DOCUMENTS = json.loads((Path(__file__).parents[2] / "data" / "api-fields.json").read_text(encoding="utf-8"))

SCALARS = {
    "string": "string",
    "integer": "integer",
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "boolean": "boolean",
    "bool": "boolean",
    "Duration": "string",
    "Time": "string",
    "URL": "string",
    "RestartPolicy": "string",
    "DNSPolicy": "string",
    "PreemptionPolicy": "string",
    "InferenceServiceProtocol": "string",
}
# Types of Kubernetes itself that the models may spell out; every other foreign type is kept as it is.
SPELT_OUT = {"LocalObjectReference", "ObjectReference", "CrossVersionObjectReference", "Condition", "Addressable"}
# Foreign structs that are spread into one of ours.
SPREAD = {"Status": {"observedGeneration": "integer", "conditions": "array", "annotations": "object"}}
KEYWORDS = {
    "Maximum": "maximum",
    "Minimum": "minimum",
    "MaxLength": "maxLength",
    "MinLength": "minLength",
    "MaxItems": "maxItems",
    "MinItems": "minItems",
    "MinProperties": "minProperties",
    "Pattern": "pattern",
    "Enum": "enum",
}
FURTHER = ("maxProperties", "x-kubernetes-list-type")


class Comparison:
    """One reference against the CRDs of its kinds."""

    def __init__(self, document: dict[str, Any]) -> None:
        # The registry reference uses ModelMatch, which the networking reference defines.
        borrowed = DOCUMENTS[1]["types"] if document is DOCUMENTS[0] else {}
        self.types: dict[str, Any] = {**borrowed, **document["types"]}
        self.own = {name for name, body in document["types"].items() if body["fields"] and not name.endswith("List")}
        self.group = document["group"].split("/")[0]
        self.kinds: list[str] = document["kinds"]
        self.differences: dict[tuple[str, str], Any] = {}
        self.stricter: set[tuple[str, str]] = set()
        self.added: set[str] = set()
        self.seen: set[str] = set()
        for kind in self.kinds:
            version = crd(KINDS[(self.group, kind)])["spec"]["versions"][0]
            self._struct(kind, version["schema"]["openAPIV3Schema"], skip=("apiVersion", "kind", "metadata"))

    def _struct(self, name: str, node: dict[str, Any], skip: tuple[str, ...] = ()) -> None:
        self.seen.add(name)
        declared = set(skip)
        for owner, field in self._fields(name):
            declared.add(field["name"])
            if field.get("embedded"):  # a foreign struct
                expected = SPREAD.get(field["type"])
                if expected is None:
                    assert node.get("x-kubernetes-preserve-unknown-fields"), f"{name}: keep {field['type']}"
                for spread, kind in (expected or {}).items():
                    declared.add(spread)
                    assert node["properties"][spread]["type"] == kind
                continue
            self._field(owner, field, node)
        for extra in set(node.get("properties", ())) - declared:
            self.added.add(f"{name}.{extra}")

    def _fields(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for field in self.types[name]["fields"]:
            if field.get("embedded") and field["type"] in self.types:
                self.seen.add(field["type"])
                yield from self._fields(field["type"])
            else:
                yield name, field

    def _field(self, owner: str, field: dict[str, Any], parent: dict[str, Any]) -> None:
        path = f"{owner}.{field['name']}"
        node = parent.get("properties", {}).get(field["name"])
        if node is None:
            self.differences[path, "present"] = False
            return
        assert node.get("description"), f"{path} has no description"
        self._required_and_default(path, field, parent, node)
        inner = node
        if field.get("list"):
            assert node["type"] == "array", path
            inner = node["items"]
        elif field.get("map"):
            assert node["type"] == "object", path
            inner = node["additionalProperties"]
        self._validations(path, field, [node] if inner is node else [node, inner])
        self._type(path, field["type"], inner)

    def _required_and_default(
        self, path: str, field: dict[str, Any], parent: dict[str, Any], node: dict[str, Any]
    ) -> None:
        required = field["name"] in parent.get("required", ())
        if field.get("required") and not required and "default" not in node:
            self.differences[path, "required"] = False
        if required and not field.get("required"):
            self.stricter.add((path, "required"))
        expected, default = field.get("default"), node.get("default")
        if expected != (None if default is None else str(default)):
            self.differences[path, "default"] = default

    def _validations(self, path: str, field: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
        wanted = dict(field.get("validations", {}))
        enum = self.types.get(field["type"], {}).get("enum")
        if enum:
            wanted.setdefault("Enum", enum)
        own = field["type"] in ("Duration", "Quantity")  # their notation is a pattern, not a restriction
        for name, keyword in KEYWORDS.items():
            found = [node[keyword] for node in nodes if keyword in node]
            if name in wanted:
                want, got = wanted[name], found[0] if found else None
                if name == "Enum":
                    want, got = sorted(want), sorted(got or ())
                if want != got:
                    self.differences[path, name] = found[0] if found else None
            elif found and not (own and keyword in ("pattern", "maxLength")):
                self.stricter.add((path, keyword))
        self.stricter.update((path, keyword) for keyword in FURTHER for node in nodes if keyword in node)

    def _type(self, path: str, name: str, node: dict[str, Any]) -> None:
        local = self.types.get(name)
        expected = SCALARS.get(name) or (local and local.get("underlying"))
        if expected:
            assert node["type"] == expected, path
        elif name == "Quantity":
            assert node["x-kubernetes-int-or-string"] is True, path
        elif local is not None:
            self._struct(name, node)
        elif name in SPELT_OUT and "properties" in node:
            assert node["type"] == "object", path
        else:
            assert node["type"] == "object", path
            assert node["x-kubernetes-preserve-unknown-fields"] is True, path


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return [Comparison(document) for document in DOCUMENTS]


def test_every_kind_is_in_a_reference() -> None:
    assert {(d["group"].split("/")[0], kind) for d in DOCUMENTS for kind in d["kinds"]} == set(KINDS)


def test_every_type_of_the_references_was_compared(comparisons: list[Comparison]) -> None:
    for comparison in comparisons:
        assert comparison.own - comparison.seen == set()


def test_crds_differ_from_the_references_only_where_listed(comparisons: list[Comparison]) -> None:
    found: dict[tuple[str, str], Any] = {}
    for comparison in comparisons:
        found.update(comparison.differences)
    listed = {key: value for key, (value, _) in DEVIATIONS.items()}
    assert found == listed


def test_fields_beyond_the_references_are_listed(comparisons: list[Comparison]) -> None:
    shared = [c for c in comparisons if c.group == "llmd.ai"]
    found = set().union(*(c.added for c in comparisons if c.group != "llmd.ai"))
    found |= set.intersection(*(c.added for c in shared))  # what neither form has
    assert found == set(ADDED_FIELDS)


def test_restrictions_beyond_the_references_are_listed(comparisons: list[Comparison]) -> None:
    assert set().union(*(c.stricter for c in comparisons)) == set(STRICTER)


@pytest.mark.parametrize("table", [DEVIATIONS, ADDED_FIELDS, STRICTER])
def test_every_entry_gives_a_reason(table: dict[Any, Any]) -> None:
    for key, entry in table.items():
        reason = entry[1] if isinstance(entry, tuple) else entry
        assert len(reason) > 15, key


PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
LIMIT = re.compile(r"^\| (\w+) \| `spec\.([\w.\[\]]+)`[^|]* \| (\d+) (items|characters) \|$", re.MULTILINE)


def test_the_documentation_has_every_limit_on_sizes_of_ours() -> None:
    kinds = {kind.kind: kind for kind in KINDS.values()}
    documented = set()
    for name, path, size, unit in LIMIT.findall(PAGE):
        node = crd(kinds[name])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for step in re.findall(r"\w+|\[\]", path):
            node = node["items"] if step == "[]" else node["properties"][step]
        keyword = "maxItems" if unit == "items" else "maxLength"
        assert node[keyword] == int(size), path
        documented.add((re.findall(r"\w+", path)[-1], keyword))
    ours = {(field.rpartition(".")[2], keyword) for field, keyword in STRICTER}
    assert {one for one in ours if one[1] == "maxItems"} <= documented <= ours
