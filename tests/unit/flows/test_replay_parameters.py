"""The parameters of the replay flow, and what it makes of them before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from deployments.bootstrap import closed
from flows.foreground import main
from flows.parameters import ReplayParameters
from flows.replay import replay as replay_flow
from modelyard.replay.scenario import read_scenario
from modelyard.replay.settings import Gaps

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "config/samples/plan/manifests.yaml"
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
PAST = {
    "trace": None, "minutes": None, "namespace": "chat", "model": "m", "begin": "2026-01-31T08:00Z",
    "end": "2026-01-31T09:00+00:00",
}  # fmt: skip


def given(**changes: Any) -> dict[str, Any]:
    document = {"manifests": [str(MANIFESTS)], "trace": str(TRACE), "minutes": 2}
    return {name: value for name, value in {**document, **changes}.items() if value is not None}


def test_the_form_offers_and_checks_every_field() -> None:
    schema = closed(parameter_schema(replay_flow).model_dump())
    assert all(field.get("description") for field in schema["properties"].values())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(given())
    validator.validate(given(**PAST))
    for wrong in (given(rates=[0]), given(polices=["default"]), given(slo_ttft=0), given(parallel=0)):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


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
    request = ReplayParameters.model_validate(given(**PAST, gaps="zero")).past(0.0)
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


def test_the_command_refuses_what_the_form_would(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replay", "--parameters", '{"rates": [-1]}']) == 2
    assert "error: rates.0: Input should be greater than 0" in capsys.readouterr().err
    assert main(["replay", "--parameters", f"@{tmp_path}/none.json"]) == 2
    assert "error: --parameters:" in capsys.readouterr().err
