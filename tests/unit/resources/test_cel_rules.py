"""The rules in the generated CRDs, evaluated here: not every API server that tests run on evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_rules import rules, violated
from celpy import CELEvalError
from jsonschema import Draft7Validator
from resource_cases import BAD, DELETE, GOOD, SAMPLES, Case, patched, sample

FOLDER = Path(__file__).parents[3] / "config" / "crd"
CRDS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")]
SCHEMAS: dict[str, dict[str, Any]] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in CRDS
}
BY_RULE = [case for case in BAD if case.server == "cel"]
WHERE = ("spec", "spec.decoder", "spec.endpoint", "spec.rules[0].targetModels[0]")
UNIONS = [
    case
    for case in BAD
    if case.server == "schema" and case.field in WHERE and case.changes.get(case.field) is not DELETE
]
RENAMED = patched("modelroute", {"spec.modelName": "another"})


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.yaml")))
def test_a_sample_breaks_no_rule_when_created_or_kept(name: str) -> None:
    manifest = sample(name)
    assert violated(SCHEMAS[manifest["kind"]], manifest) == []
    assert violated(SCHEMAS[manifest["kind"]], manifest, manifest) == []


@pytest.mark.parametrize("case", BY_RULE, ids=lambda case: case.name)
def test_a_bad_manifest_breaks_a_rule(case: Case) -> None:
    assert violated(SCHEMAS[case.kind], case.manifest())


@pytest.mark.parametrize(("name", "changes"), GOOD)
def test_the_other_side_of_a_bound_breaks_nothing(name: str, changes: dict[str, Any]) -> None:
    manifest = patched(name, changes)
    schema = SCHEMAS[manifest["kind"]]
    assert violated(schema, manifest) == []
    assert [error.message for error in Draft7Validator(schema).iter_errors(manifest)] == []


def test_a_routes_model_keeps_its_name() -> None:
    schema = SCHEMAS["ModelRoute"]
    (broken,) = violated(schema, RENAMED, sample("modelroute"))
    assert "oldSelf.modelName" in broken
    assert violated(schema, RENAMED) == []


def broken_by(case: Case) -> list[str]:
    """Nothing where the schema refuses a value before any rule can be evaluated on it."""
    with suppress(CELEvalError):
        return violated(SCHEMAS[case.kind], case.manifest())
    return []


def test_every_rule_is_broken_by_some_case() -> None:
    broken = {(case.kind, rule) for case in BAD for rule in broken_by(case)}
    broken |= {("ModelRoute", rule) for rule in violated(SCHEMAS["ModelRoute"], RENAMED, sample("modelroute"))}
    assert {(kind, rule) for kind, schema in SCHEMAS.items() for rule in rules(schema)} == broken


@pytest.mark.parametrize("case", UNIONS, ids=lambda case: case.name)
def test_a_rule_is_not_hidden_by_the_schema_that_says_the_same(case: Case) -> None:
    """An API server evaluates no rule on an object that lacks a required field; of ``not`` it goes on."""
    refusals = {error.validator for error in Draft7Validator(SCHEMAS[case.kind]).iter_errors(case.manifest())}
    assert refusals == {"not"}
    assert broken_by(case)


def test_a_variant_without_a_target_is_told_so_first() -> None:
    (told,) = {
        validation["message"]
        for validation in SCHEMAS["VariantAutoscaling"]["properties"]["spec"]["x-kubernetes-validations"]
        if validation["rule"] in violated(SCHEMAS["VariantAutoscaling"], {"spec": {"modelID": "m"}})
    }
    assert told.startswith("neither form is complete - give scaleTargetRef")


def paths(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The path of every rule that has one, with the schema that the rule is in."""
    yield from ((schema, one["fieldPath"]) for one in schema.get("x-kubernetes-validations", ()) if "fieldPath" in one)
    more = (schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict))
    for child in (*schema.get("properties", {}).values(), *more):
        yield from paths(child)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_rules_point_at_fields_that_there_are(kind: str) -> None:
    for schema, path in paths(SCHEMAS[kind]):
        inside = schema
        for name in path.removeprefix(".").split("."):
            inside = inside.get("properties", {}).get(name) or inside["additionalProperties"]
        assert inside


def test_every_rule_about_one_field_points_at_it() -> None:
    pointed = sorted({path for schema in SCHEMAS.values() for _, path in paths(schema)})
    assert {".minReplicas", ".period", ".spec.backends", ".additionalRequestParams.temperature"} <= set(pointed)
    assert all(path.startswith(".") for path in pointed)
