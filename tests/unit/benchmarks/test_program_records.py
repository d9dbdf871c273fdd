"""What the program leaves behind, whole, damaged and hostile; what it holds of a run, and what it may not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from modelyard.benchmarks.measuring.measure import failed, fitted
from modelyard.benchmarks.records import records
from modelyard.benchmarks.records.program import MeasureError
from modelyard.benchmarks.records.values import Measurement, Output
from modelyard.objects.limits import TERMINATION_MESSAGE_BYTES

SPREAD = {"mean": 2.0, "p50": 1.0, "p90": 3.0, "p95": 4.0, "p99": 5.0}
FIGURES = {"ttft": 0.1, "tpot": 0.1, "e2e_latency": 0.5, "num_input_tokens": 5.0, "num_output_tokens": 2.5}
"""Of a run, as shares of ``SPREAD``."""


def asked(**changes: Any) -> Measurement:
    given: dict[str, Any] = {
        **dict.fromkeys(("reference", "service", "backend", "url", "model", "tokenizer"), "x"),
        "task": "text-to-text",
        "scenario": "D(10,5)",
        "concurrency": 2,
        "minutes": 1,
        "requests": 10,
        "output": Output(uri="s3://bench", folder="f"),
    }
    return Measurement(**{**given, **changes})


def program_file(answered: int = 10, *codes: int | None, **changes: Any) -> dict[str, Any]:
    stats = {name: {part: share * of for part, of in SPREAD.items()} for name, share in FIGURES.items()}
    seconds = 0.5 * (answered + len(codes)) or 1.0
    figures = {"scenario": "D(10,5)", "run_duration": seconds, "mean_output_throughput_tokens_per_s": 10.0}
    figures["stats"] = stats
    requests = [{"error_code": None}] * answered + [{"error_code": code, "error_message": "why"} for code in codes]
    return {"aggregated_metrics": {**figures, **changes}, "individual_request_metrics": requests}


def test_a_run_is_what_the_file_says() -> None:
    run = records.measured(asked(), program_file(), "2026-01-01T00:00:00Z")
    assert (run.requests, run.failed, run.requests_rate, run.output_rate) == (10, 0, 2.0, 10.0)
    assert run.ttft is not None
    assert (run.ttft.p95, run.latency.p50) == (0.4, 0.5)
    embedded = records.measured(asked(task="text-to-embeddings"), program_file(), "2026-01-01T00:00:00Z")
    assert (embedded.ttft, embedded.itl) == (None, None)


@pytest.mark.parametrize(
    ("answered", "codes", "lost", "reason", "retryable"),
    [
        (99, [500], 0, None, False),
        (98, [500, 500], 0, "TooManyErrors", True),
        (99, [], 1, None, False),
        (98, [500], 1, "TooManyErrors", True),
        (90, [429] * 10, 0, "TooManyErrors", True),
        (90, [404] * 10, 0, "TooManyErrors", False),
        (0, [503] * 9, 0, "EndpointFailing", True),
        (0, [401] * 9, 0, "EndpointRefused", False),
        (0, [], 5, "EndpointFailing", True),
        (0, [], 0, "EndpointFailing", True),
    ],
)
def test_errors_are_counted_here_whatever_the_program_says(
    answered: int, codes: list[int], lost: int, reason: str | None, retryable: bool
) -> None:
    file = program_file(answered, *codes, error_rate=0.0)
    if reason is None:
        assert records.measured(asked(), file, "", lost).failed == len(codes) + lost
        return
    with pytest.raises(MeasureError) as refused:
        records.measured(asked(), file, "", lost)
    assert (refused.value.reason, refused.value.retryable) == (reason, retryable)


def damaged(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    file = program_file()
    place: Any = file
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return file


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("aggregated_metrics",), None, "no aggregated_metrics"),
        (("aggregated_metrics", "stats"), [], "no stats"),
        (("aggregated_metrics", "stats", "ttft"), None, "no ttft"),
        (("aggregated_metrics", "stats", "tpot", "p95"), None, "p95 is missing .of tpot."),
        (("aggregated_metrics", "stats", "tpot", "p95"), float("nan"), "p95 is nan"),
        (("aggregated_metrics", "stats", "tpot", "p95"), float("inf"), "p95 is inf"),
        (("aggregated_metrics", "stats", "tpot", "p95"), -1, "p95 is -1"),
        (("aggregated_metrics", "stats", "tpot", "p95"), True, "p95 is True"),
        (("aggregated_metrics", "stats", "tpot", "p95"), "x" * 1000, "p95 is 'xxx"),
        (("aggregated_metrics", "run_duration"), 0, "no duration"),
        (("aggregated_metrics", "scenario"), "D(1,2)", "another scenario"),
        (("individual_request_metrics",), {}, "no individual_request_metrics"),
    ],
)
def test_a_figure_that_is_missing_or_none_is_no_measurement(path: tuple[str, ...], value: Any, says: str) -> None:
    with pytest.raises(MeasureError, match=says) as refused:
        records.measured(asked(), damaged(path, value), "")
    assert refused.value.reason == "ResultInvalid"
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "\xff"])
def test_a_file_that_is_no_object_of_numbers_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(MeasureError) as refused:
        records.load(file)
    assert refused.value.reason == "ResultInvalid"


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with file.open("wb") as opened:
        opened.truncate(records.LARGEST_FILE + 1)
    with pytest.raises(MeasureError) as refused:
        records.load(file)
    assert refused.value.reason == "ResultTooLarge"


def test_requests_of_any_shape_are_errors_or_answers() -> None:
    file = {"individual_request_metrics": [{"error_code": None}, {"error_code": "x"}, 5, None, {"error_code": 500}]}
    answered, codes, _ = records.failures(file, lost=2)
    assert (answered, codes) == (1, Counter({-1: 3, 0: 2, 500: 1}))
    assert records.told(codes) == "3 x error in the stream, 2 x unreadable, 1 x 500"


def test_no_secret_is_left_in_what_is_stored() -> None:
    file = {
        "cmd": "genai-bench --model-api-key verysecret",
        "auth_config": {"api_key": "sk-..."},
        "deep": [{"error_message": "Bearer verysecret is wrong", "verysecret": 1, "n": 2.5, "none": None}],
    }
    cleaned = records.cleaned(file, ("verysecret",))
    assert "verysecret" not in json.dumps(cleaned)
    assert (cleaned["cmd"], cleaned["auth_config"]) == ("", {})
    assert cleaned["deep"][0] == {"error_message": "Bearer *** is wrong", "***": 1, "n": 2.5, "none": None}


def test_a_report_fits_into_a_termination_message() -> None:
    report = failed(MeasureError("EndpointFailing", 'ü"' * 4000 + "verysecret"), ("verysecret",))
    body = fitted(report)
    assert len(body.encode()) <= TERMINATION_MESSAGE_BYTES
    assert json.loads(body)["reason"] == "EndpointFailing"
    assert "verysecret" not in body
