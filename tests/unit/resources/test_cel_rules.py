"""The rules in the generated CRDs, evaluated here: not every API server that tests run on evaluates them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_rules import rules, violated
from celpy import CELEvalError
from resource_cases import BAD, SAMPLES, Case, patched, sample

FOLDER = Path(__file__).parents[3] / "config" / "crd"
CRDS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")]
SCHEMAS: dict[str, dict[str, Any]] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in CRDS
}
BY_RULE = [case for case in BAD if case.server == "cel"]
RENAMED = patched("modelroute", {"spec.modelName": "another"})


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.yaml")))
def test_a_sample_breaks_no_rule_when_created_or_kept(name: str) -> None:
    manifest = sample(name)
    assert violated(SCHEMAS[manifest["kind"]], manifest) == []
    assert violated(SCHEMAS[manifest["kind"]], manifest, manifest) == []


@pytest.mark.parametrize("case", BY_RULE, ids=lambda case: case.name)
def test_a_bad_manifest_breaks_a_rule(case: Case) -> None:
    assert violated(SCHEMAS[case.kind], case.manifest())


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
