"""The parameters of the replay flow, and what it makes of them before anything runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from deployments.bootstrap import closed
from flows.forms import ADVANCED, arguments, flat
from flows.parameters import ReplayParameters
from flows.replay import replay as replay_flow
from modelyard.replay.backtest.history import requested_past
from modelyard.replay.backtest.scenario import read_scenario
from modelyard.replay.settings import Gaps

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "config/samples/plan/manifests.yaml"
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
PAST = {
    "trace": None, "minutes": None, "namespace": "chat", "model": "m", "begin": "2026-01-31T08:00Z",
    "end": "2026-01-31T09:00+00:00",
}  # fmt: skip
PAST_ADVANCED = {name: value for name, value in PAST.items() if name not in ReplayParameters.first}


def given(**changes: Any) -> dict[str, Any]:
    document = {"manifests": [str(MANIFESTS)], "trace": str(TRACE), "minutes": 2}
    return {name: value for name, value in {**document, **changes}.items() if value is not None}


def test_the_form_offers_and_checks_every_field() -> None:
    schema = closed(parameter_schema(replay_flow).model_dump())
    advanced = schema["definitions"]["Advanced"]["properties"]
    for shown in (schema["properties"], advanced):
        assert all(field.get("description") for field in shown.values())
    assert {*schema["properties"], *advanced} - {ADVANCED} == set(ReplayParameters.model_fields)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(given())
    validator.validate({**given(trace=None), ADVANCED: PAST_ADVANCED})
    for wrong in (given(rates=[0]), given(polices=["default"]), given(slo_ttft=0), given(advanced={"parallel": 0})):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


@pytest.mark.parametrize("name", ["minutes", "start", "prompt_scale", "output_scale", "diurnal", "slo_ttft", "engine"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), "inf", "nan"])
def test_no_number_is_without_end_or_none_at_all(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        ReplayParameters.model_validate(given(**{name: {"alpha": value} if name == "engine" else value}))


def test_reports_of_two_rates_have_folders_of_their_own() -> None:
    rates = [1, 1.5, 1.00001, 0.1]
    found = ReplayParameters.model_validate(given(rates=rates, out="here"))
    assert len(set(found.places().values())) == len(rates)
    for same in ([1, 1.0], [1.0000001, 1.0000002]):
        with pytest.raises(ValidationError, match="rates"):
            ReplayParameters.model_validate(given(rates=same))


def test_the_form_shows_first_what_matters_and_the_rest_in_one_group() -> None:
    shown = parameter_schema(replay_flow).model_dump()["properties"]
    by_position = sorted(shown, key=lambda name: shown[name]["position"])
    assert by_position == [*ReplayParameters.first, ADVANCED]
    assert len(by_position) <= 12, "two screens of the UI"
    groups = [field for field in shown.values() if any("$ref" in one for one in field.get("anyOf", ()))]
    assert [group["default"] for group in groups] == [None], "and what is unset is closed"


def test_a_flow_is_given_what_the_command_line_is_under_the_same_names() -> None:
    """Its form has them in a group; what is said there and what is not means the same."""
    whole = ReplayParameters.model_validate(given(seed=7, fleet={"scale_down_delay": 240}, rates=[1, 2]))
    keywords = arguments(whole)
    assert keywords[ADVANCED]["seed"] == 7
    assert run_in(keywords) == whole
    some = {**given(rates=[1, 2]), ADVANCED: {"seed": 7, "fleet": {"scale_down_delay": 240}}}
    assert run_in(replay_flow.validate_parameters(some)) == whole
    assert run_in(replay_flow.validate_parameters(given())) == ReplayParameters.model_validate(given())


def run_in(keywords: dict[str, Any]) -> ReplayParameters:
    """What a flow's function gets of these keywords."""

    @flat(ReplayParameters)
    async def told(parameters: ReplayParameters) -> ReplayParameters:
        return parameters

    return asyncio.run(told(**keywords))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": None}, "either a trace or a Prometheus"),
        ({**PAST, "trace": str(TRACE)}, "either a trace or a Prometheus"),
        ({"manifests": None}, "manifests, or give them as manifest_text"),
        ({"policies": ["clairvoyant"]}, "name a policy to compare with it"),
        ({"policies": ["hpa:heat=2"]}, "--policy hpa:heat=2: unknown: heat"),
        ({"policies": ["guess"]}, "--policy guess: unknown"),
        ({"rates": [1, 1.0]}, "each only once"),
        ({"columns": "when=T"}, "--columns when=T"),
        ({**PAST, "end": "2026-01-31T08:00Z"}, "must be at least one step"),
        ({"artifact_key": "Two Words"}, "should match pattern"),
    ],
)
def test_parameters_that_cannot_work_are_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ReplayParameters.model_validate(given(**changes))


def test_a_history_is_asked_for_in_utc() -> None:
    request = requested_past(ReplayParameters.model_validate(given(**PAST, gaps="zero")), 0.0)
    assert (request.end - request.start, request.start % 3600, request.gaps) == (3600, 0, Gaps.ZERO)


async def test_the_scenario_is_that_of_the_files_or_the_text() -> None:
    files = ReplayParameters.model_validate(given(prompt_scale=2))
    text = ReplayParameters.model_validate(given(prompt_scale=2, manifests=None, manifest_text=MANIFESTS.read_text()))
    first, source, warnings = await read_scenario(files)
    second, _, _ = await read_scenario(text)
    assert first.fleet.variants == second.fleet.variants
    assert [str(spec.key) for spec in first.fleet.variants] == ["chat/llama-8b-h100", "chat/llama-8b-l40s"]
    assert source == str(TRACE)
    assert not warnings
    assert first.trace.duration == 120
    plain, _, _ = await read_scenario(ReplayParameters.model_validate(given()))
    assert first.trace.prompt.sum() == pytest.approx(2 * plain.trace.prompt.sum())
    assert len(first.at_rate(3)) == 3 * len(first.trace)
