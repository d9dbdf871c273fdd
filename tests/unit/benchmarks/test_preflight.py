"""What is refused before a benchmark starts anything, by every door: one check for objects, command and onboarding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_world import Benchmarks
from command_line import modelyard
from hypothesis import given, strategies as st

from flows.parameters import OnboardParameters
from modelyard.benchmarks.measuring import measure
from modelyard.benchmarks.records.preflight import (
    FEWEST_OUTPUT_TOKENS,
    check_output,
    check_request_parameters,
    check_scenario,
    scenario_tokens,
)
from modelyard.models.storage.errors import FetchError
from modelyard.workloads.rendering.values import Refusal

SCENARIOS = [
    ("D(100,1)", "1 output token - write 2 or more"),
    ("D(100,0)", "0 output tokens"),
    ("D(0,100)", "prompts without tokens"),
    ("D(100,1000001)", "1000001 is too large"),
    ("N(480,240)/(1,0)", "1 output token"),
    ("N(0,10)/(300,150)", "prompts without tokens"),
    ("U(100,1)", "1 output token"),
    ("U(50,100)/(1,1)", "1 output token"),
    ("U(100,50)/(10,20)", "minimum above its maximum"),
    ("U(50,100)/(20,10)", "minimum above its maximum"),
    ("U(0,0)/(10,20)", "prompts without tokens"),
    ("E(0)", "a document without tokens"),
    ("I(0,512)", "without pixels"),
    ("I(512,512,0)", "no image"),
]
MEASURABLE = [
    "D(1,2)", "D(100,1000000)", "N(480,240)/(300,150)", "N(1,0)/(2,0)", "N(100,50)/(2,300)", "U(1,2)", "U(0,100)/(0,2)",
    "U(7,7)/(2,2)", "E(1)", "I(1,1)", "I(512,512,4)",
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "says"), SCENARIOS)
def test_a_scenario_that_measures_nothing_is_refused(scenario: str, says: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_scenario(scenario, "spec.trafficScenarios")
    assert says in str(refused.value)
    assert str(refused.value).startswith("spec.trafficScenarios: ")


@pytest.mark.parametrize("scenario", MEASURABLE)
def test_a_scenario_that_can_be_measured_is_not(scenario: str) -> None:
    check_scenario(scenario, "x")


@given(st.sampled_from("DNU"), st.lists(st.integers(1, 10**6), min_size=4, max_size=4))
def test_a_text_scenario_is_refused_exactly_where_two_tokens_are_never_asked_for(kind: str, n: list[int]) -> None:
    low, high = sorted(n[2:])
    scenario = {"D": f"D({n[0]},{high})", "N": f"N({n[0]},{n[1]})/({high},{low})"}.get(
        kind, f"U({min(n[:2])},{max(n[:2])})/({low},{high})"
    )
    tokens = scenario_tokens(scenario)
    assert tokens is not None
    assert tokens.fewest_output <= tokens.most_output == high
    if high >= FEWEST_OUTPUT_TOKENS:
        check_scenario(scenario, "x")
        assert tokens.fewest_output >= FEWEST_OUTPUT_TOKENS
    else:
        with pytest.raises(Refusal):
            check_scenario(scenario, "x")


@pytest.mark.parametrize(
    ("parameters", "scenario", "says"),
    [
        ({"max_tokens": "64"}, "D(100,50)", "the scenario says how many tokens"),
        ({"max_completion_tokens": "64"}, "D(100,50)", "the scenario says how many tokens"),
        ({"stream": "true"}, "D(100,50)", "the benchmark sets it itself"),
        ({"stream_options": "{}"}, "D(100,50)", "the benchmark sets it itself"),
        ({"n": "2"}, "D(100,50)", "one answer to each request"),
        ({"best_of": "2"}, "D(100,50)", "one answer to each request"),
        ({"use_beam_search": "true"}, "D(100,50)", "one answer to each request"),
        ({"prompt_logprobs": "1"}, "D(100,50)", "engines refuse it in a stream"),
        ({"min_tokens": "51"}, "D(100,50)", "51 is more than the 50 output tokens"),
        ({"min_tokens": "3"}, "N(480,240)/(300,150)", "more than the 2 output tokens"),
        ({"min_tokens": "-1"}, "D(100,50)", "is no number of tokens"),
        ({"min_tokens": "true"}, "D(100,50)", "is no number of tokens"),
    ],
)
def test_a_request_parameter_that_breaks_the_measurement_is_refused(
    parameters: dict[str, str], scenario: str, says: str
) -> None:
    with pytest.raises(Refusal) as refused:
        check_request_parameters(parameters, [scenario], "spec.")
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"spec.additionalRequestParams.{next(iter(parameters))}: ")


@pytest.mark.parametrize("least", ["0", "50"])
def test_answers_may_be_asked_not_to_end_early(least: str) -> None:
    check_request_parameters({"min_tokens": least, "ignore_eos": "true", "top_p": "0.9"}, ["D(100,50)", "E(5)"])


@pytest.mark.parametrize(
    ("uri", "parameters", "says"),
    [
        ("github://org/repo", {}, "a release is no place for many small files - write s3://"),
        ("hf://org/repo", {}, "results cannot be stored in hf:// - write s3://"),
        ("vendor://a/b/c", {}, "results cannot be stored in vendor://"),
        ("local:///results", {}, "is lost with the pod"),
        ("pvc://bank:results/x", {}, "name one of namespace shop"),
        ("oci://n/ns/b/bucket/o/x", {}, "names no region, without which there is no address - write oci://n/ns@REGION"),
        ("oci://n/ns/b/bucket/o/x", {"region": "eu frankfurt"}, "is no region"),
        ("s3://bucket/x", {"aws_region": "EU_WEST"}, "is no region"),
        ("az://account/container", {"azure_account_name": "My-Account"}, "is no name of an account"),
        (f"gs://bucket/{'x' * 1000}", {}, "write a shorter path"),
        ("S3://bucket/x", {}, "lower case"),
        ("results", {}, "unknown storage type"),
    ],
)
def test_a_place_where_nothing_can_be_stored_is_refused(uri: str, parameters: dict[str, str], says: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_output(uri, parameters, "spec.outputLocation.storageUri", namespace="shop", folder="f" * 200)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "parameters"),
    [
        ("s3://bucket", {}),
        ("s3://bucket@eu-west-1/x", {"aws_region": "eu-central-1"}),
        ("oci://n/ns@eu-frankfurt-1/b/bucket/o/x", {}),
        ("oci://n/ns/b/bucket/o/x", {"region": "eu-frankfurt-1"}),
        ("oci://n/ns/b/bucket/o/x", {"endpoint": "http://minio.store:9000"}),
        ("gs://bucket/x", {}),
        ("az://account/container", {"azure_account_name": "other"}),
        ("pvc://results/x", {}),
        ("pvc://shop:results/x", {}),
    ],
)
def test_a_place_where_results_can_be_stored_is_not(uri: str, parameters: dict[str, str]) -> None:
    check_output(uri, parameters, "results", namespace="shop")


# By every door


def measurement(**changes: Any) -> dict[str, Any]:
    given = dict.fromkeys(("reference", "service", "model"), "ns/b")
    given |= {"backend": "vllm", "url": "http://127.0.0.1:9", "tokenizer": "/none", "task": "text-to-text"}
    output = {"uri": "local:///nowhere", "folder": "first"}
    return {
        **given,
        "scenario": "D(50,20)",
        "concurrency": 4,
        "minutes": 1,
        "requests": 20,
        "output": output,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"scenario": "D(100,1)"}, "MeasurementInvalid", "write 2 or more output tokens"),
        ({"scenario": "U(100,1)"}, "MeasurementInvalid", "write 2 or more output tokens"),
        ({"scenario": "D(100, 20)"}, "MeasurementInvalid", "is no traffic scenario"),
        ({"scenario": "D(100,20)junk"}, "MeasurementInvalid", "is no traffic scenario"),
        ({"scenario": "D(100,20,30)"}, "MeasurementInvalid", "is no traffic scenario"),
        ({"scenario": "E(64)"}, "MeasurementInvalid", "text-to-text takes N, U, D"),
        ({"request_parameters": {"max_tokens": "5"}}, "MeasurementInvalid", "leave it out"),
        ({"output": {"uri": "github://org/repo", "folder": "f"}}, "OutputUnsupported", "write s3://"),
        ({"output": {"uri": "oci://n/ns/b/bucket/o/x", "folder": "f"}}, "OutputUnsupported", "@REGION"),
        ({"concurrency": "many"}, "MeasurementInvalid", "(found 'many'); "),
        ({"concurency": 4}, "MeasurementInvalid", "concurency: unknown field; write 'concurrency'"),
        ({"output": {"url": "local:///x", "folder": "f"}}, "MeasurementInvalid", "output.uri: is required; add it"),
    ],
)
def test_the_command_refuses_with_2_before_anything_is_started_and_leaves_a_report(
    tmp_path: Path, changes: dict[str, Any], reason: str, says: str
) -> None:
    file, report = tmp_path / "run.json", tmp_path / "report.json"
    file.write_text(json.dumps(measurement(**changes)))
    done = modelyard("benchmarks", "measure", "--measurement", file, "--report", report, "--program", "/no/program")
    assert done.code == 2, done.err
    told = json.loads(report.read_text())
    assert (told["outcome"], told["reason"], told["retryable"]) == ("Failed", reason, False)
    assert says in told["message"]


@pytest.mark.parametrize("body", [None, b"\xff\xfe", b"{", b"[]"])
def test_a_measurement_that_cannot_be_read_leaves_a_report(tmp_path: Path, body: bytes | None) -> None:
    file, report = tmp_path / "run.json", tmp_path / "report.json"
    if body is not None:
        file.write_bytes(body)
    done = modelyard("benchmarks", "measure", "--measurement", file, "--report", report)
    assert done.code == 2
    assert json.loads(report.read_text())["reason"] == "MeasurementInvalid"


def test_a_benchmark_job_is_refused_in_its_status_and_no_job_is_made() -> None:
    fleet = Benchmarks()
    fleet.benchmark(trafficScenarios=["D(100,100)", "D(100,1)"])
    fleet.step()
    assert fleet.told("Accepted")[:2] == ("False", "InvalidSpec")
    assert fleet.said["state"] == "Failed"
    assert "D(100,1) asks for 1 output token - write 2 or more output tokens" in fleet.said["failureMessage"]
    assert fleet.jobs() == []


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--output-tokens", "1", "should be greater than or equal to 2"),
        ("--results", "local:///results", "results: a folder of the measuring pod is lost with the pod"),
        ("--results", "github://org/repo@v1", "write s3://, oci://, gs://, az:// or pvc:// instead"),
        ("--results", "hf://org/repo", "results cannot be stored in hf://"),
        ("--results", "oci://n/ns/b/bucket/o/x", "write oci://n/ns@REGION/b/bucket/o/x"),
        ("--results", "pvc://bank:results/x", "name one of namespace shop"),
        ("--results", "pvc://results", "missing path in the claim"),
    ],
)
def test_an_onboarding_is_refused_with_2_before_it_makes_anything(option: str, value: str, says: str) -> None:
    given = {"--output-tokens": "20", "--results": "s3://bucket/x", option: value}
    line = (
        "onboard hf://owner/model --name chat -n shop --candidate fast=H100@10 --rate 10 --prompt-tokens 100 --itl 40"
    )
    typed = [*line.split(), *(part for pair in given.items() for part in pair)]
    for more in ([], ["--dry-run"]):
        done = modelyard(*typed, *more)
        assert done.code == 2
        assert says in " ".join(done.err.split())


def test_a_trace_of_requests_with_one_output_token_is_refused_by_the_flow() -> None:
    """What a trace says is known to the worker alone, and checked before anything is made."""
    form = {"uri": "hf://o/m", "name": "chat", "results": "s3://bucket", "itl": 40, "prices": {"H100": 1}}
    parameters = OnboardParameters.model_validate({**form, "trace": "requests.csv"})
    with pytest.raises(ValueError, match=r"output_tokens[\s\S]*greater than or equal to 2"):
        parameters.asked({"rate": 1.0, "prompt_tokens": 100, "output_tokens": 1})


# What nobody foresaw


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (TypeError("'None' is not an instance of 'str'"), "UnexpectedError", False),
        (OSError(5, "Input/output error"), "UnexpectedError", True),
        (FetchError("Throttled", "slow down", retryable=True), "Throttled", True),
    ],
)
def test_an_exception_that_nobody_foresaw_becomes_a_report_with_its_reason(
    error: Exception, reason: str, retryable: bool
) -> None:
    told = measure.failed(measure.unexpected(error))
    assert (told.outcome, told.reason, told.retryable) == ("Failed", reason, retryable)
    assert (error.args[-1] in told.message) or isinstance(error, FetchError)
    assert ("this is a fault of Modelyard" in told.message) is not isinstance(error, FetchError)


def test_the_command_leaves_a_report_of_an_exception(tmp_path: Path) -> None:
    """A program that the kernel cannot start: nothing of ours expects it."""
    folder = tmp_path / "venv/lib/python3.11/site-packages/genai_bench-0.0.5.dist-info"
    folder.mkdir(parents=True)
    program = tmp_path / "venv/bin/genai-bench"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF no program")
    program.chmod(0o755)
    file, report = tmp_path / "run.json", tmp_path / "report.json"
    (tmp_path / "tokenizer.json").write_text("{}")
    output = {"uri": f"local://{tmp_path}/results", "folder": "f"}
    # Not asked beforehand: the back end is none of OpenAI's.
    file.write_text(json.dumps(measurement(backend="cohere", tokenizer=str(tmp_path), output=output)))
    done = modelyard("benchmarks", "measure", "--measurement", file, "--report", report, "--program", program)
    told = json.loads(report.read_text())
    assert told["reason"] == "UnexpectedError"
    assert "OSError" in told["message"]
    assert done.code == 75
    assert "Traceback" in done.err
