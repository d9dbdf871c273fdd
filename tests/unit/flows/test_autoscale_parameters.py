"""The parameter model: limits, the form the UI shows, the command line's way to fill it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import modelyard
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from deployments import foreground
from flows.autoscale import autoscale
from flows.parameters import AutoscaleParameters
from flows.reconcile import reconcile
from flows.replay import replay
from flows.shift import table_key


def fields_of(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every field of a parameter schema and of its models, as (model.field, schema)."""
    return [
        (f"{model}.{name}", field)
        for model, definition in {"": schema, **schema["definitions"]}.items()
        for name, field in definition.get("properties", {}).items()
    ]


@pytest.mark.parametrize("function", [autoscale, reconcile, replay])
def test_every_field_of_the_form_is_explained(function: Any) -> None:
    fields = fields_of(parameter_schema(function).model_dump())
    assert fields
    assert [name for name, field in fields if not field.get("description")] == []


def test_the_form_is_flat_and_holds_limits_and_defaults() -> None:
    schema = parameter_schema(autoscale).model_dump()
    assert {"shift_seconds", "namespaces", "lease_name", "fleet"} <= set(schema["properties"])
    assert schema["definitions"]["FleetSettings"]["additionalProperties"] is False
    assert schema["properties"]["interval_seconds"]["minimum"] > 0
    assert schema["properties"]["interval_seconds"]["default"] == 15
    assert schema["properties"]["shift_seconds"]["default"] == 600
    assert schema["properties"]["lease_name"]["pattern"]
    assert not schema["required"], "an empty form is a valid form"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"interval_seconds": 0}, "interval_seconds"),
        ({"shift_seconds": -1}, "shift_seconds"),
        ({"lease_name": "Not A Name"}, "lease_name"),
        ({"shift_secconds": 60}, "shift_secconds"),
        ({"fleet": {"max_step_up": 0}}, "fleet.max_step_up"),
        ({"namespace": ["a"]}, "namespace"),
    ],
)
def test_wrong_parameters_are_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AutoscaleParameters.model_validate(given)
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [field]


def test_a_shift_must_hold_a_tick() -> None:
    with pytest.raises(ValidationError, match="the shift would end before its first tick"):
        AutoscaleParameters.model_validate({"shift_seconds": 5, "early_end_seconds": 5})
    assert AutoscaleParameters.model_validate({"shift_seconds": 0, "early_end_seconds": 5}).shift_seconds == 0


@pytest.mark.parametrize(
    ("given", "late_by", "stale"),
    [
        pytest.param({}, 0, False, id="on time"),
        pytest.param({}, -0.3, False, id="a little early"),
        pytest.param({}, 594, False, id="late, but its shift is not over"),
        pytest.param({}, 595, True, id="its shift is over"),
        pytest.param({"stale_after_seconds": 30}, 29, False, id="within its own limit"),
        pytest.param({"stale_after_seconds": 30}, 30, True, id="beyond its own limit"),
        pytest.param({"stale_after_seconds": 9000}, 600, True, id="no limit outlives the shift"),
        pytest.param({"shift_seconds": 0}, 59, False, id="one tick, a minute to spare"),
        pytest.param({"shift_seconds": 0}, 61, True, id="one tick, long ago"),
        pytest.param({"shift_seconds": 0, "stale_after_seconds": 600}, 61, True, id="one tick: a minute is the most"),
    ],
)
def test_staleness(given: dict[str, Any], late_by: float, stale: bool) -> None:
    assert AutoscaleParameters.model_validate(given).is_stale(late_by) is stale


@pytest.mark.parametrize(
    ("lease", "what", "key"),
    [
        ("modelyard-autoscale", "decisions", "autoscale-decisions"),
        ("modelyard-autoscale", "plan", "autoscale-plan"),
        ("modelyard-autoscale-team-a", "decisions", "autoscale-team-a-decisions"),
        ("shard7", "decisions", "autoscale-shard7-decisions"),
    ],
)
def test_each_shard_has_its_own_table(lease: str, what: str, key: str) -> None:
    assert table_key("autoscale", lease, what) == key


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> AutoscaleParameters:
    """What the flow would be given: without a Prefect server it does not begin."""
    seen: list[AutoscaleParameters] = []

    async def run(name: str, parameters: AutoscaleParameters) -> int:
        seen.append(parameters)
        return 0

    monkeypatch.setattr(foreground, "run", run)
    done = modelyard("autoscale", *arguments)
    assert done.code == 0, done.err
    return seen[0]


def test_options_fill_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, settings = tmp_path / "parameters.json", tmp_path / "settings.yaml"
    file.write_text(json.dumps({"interval_seconds": 30, "fleet": {"max_step_up": 3, "max_step_down": 2}}))
    settings.write_text("max_step_up: 4\n")
    given = parse(
        monkeypatch,
        *("--parameters", f"@{file}", "--interval", "5", "--dry-run", "-n", "a", "--namespace", "b"),
        *("-l", "team=x", "--prometheus", "http://p:9090", "--lease-name", "l", "--lease-namespace", "n"),
        *("--settings", settings),
    )
    assert (given.interval_seconds, given.shift_seconds) == (5, 600)
    assert (given.lease_name, given.lease_namespace) == ("l", "n")
    assert given.namespaces == ["a", "b"]
    assert (given.label_selector, given.prometheus_url) == ("team=x", "http://p:9090")
    assert (given.fleet.max_step_up, given.fleet.max_step_down, given.fleet.dry_run) == (4, 2, True)


def test_once_is_a_shift_of_zero_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(monkeypatch, "--once").shift_seconds == 0
    assert parse(monkeypatch, "--shift", "60").shift_seconds == 60
    assert parse(monkeypatch) == AutoscaleParameters()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "error: interval_seconds: input should be greater than or equal to 0.2 (found 0.0)"),
        (["--parameters", '{"shift": 1}'], "error: shift: unknown field - write 'shift_seconds', or remove it"),
        (["--parameters", "[]"], "error: --parameters: a JSON object is needed, not list"),
        (["--dry-run", "--parameters", '{"fleet": 5}'], "error: fleet: input should be a valid dictionary"),
        (["--parameters", "@/does/not/exist"], "error: --parameters: [Errno 2]"),
        (["--parameters", "{"], "error: --parameters: Expecting property name"),
    ],
)
def test_unusable_options_end_with_a_line_that_says_why(arguments: list[str], message: str) -> None:
    done = modelyard("autoscale", *arguments)
    assert done.code == 2
    assert done.err.startswith(message)
