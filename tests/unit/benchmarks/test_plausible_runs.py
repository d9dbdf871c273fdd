"""Figures of a run that cannot be true: which they are, who refuses them, and that no profile is fitted to them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from benchmark_world import Benchmarks, run
from hypothesis import given, strategies as st
from onboarded import FAST, request, runs
from test_program_records import asked, program_file

from modelyard.autoscaling.sizing.fit import FitError
from modelyard.benchmarks.measuring.profiles import points
from modelyard.benchmarks.measuring.results import BenchmarkResults, RunRecord
from modelyard.benchmarks.records import records
from modelyard.benchmarks.records.program import MeasureError
from modelyard.benchmarks.records.values import LatencySpread, MeasuredRun
from modelyard.onboarding.planning.choose import choose, engine_speed


def flat(seconds: float) -> LatencySpread:
    return LatencySpread.model_validate(dict.fromkeys(LatencySpread.model_fields, seconds))


def figures(first: float, between: float, tokens: int = 100, /, **more: Any) -> MeasuredRun:
    """A run of 200 requests, four at a time, each as long as its tokens take."""
    latency = first + (tokens - 1) * between
    given: dict[str, Any] = {
        "latency": flat(latency),
        "ttft": flat(first),
        "itl": flat(between),
        "output_tokens": tokens,
    }
    seconds = 200 * latency / 4
    given |= {"seconds": seconds, "requests_rate": 200 / seconds, "output_rate": 200 * tokens / seconds}
    return run(f"D(100,{tokens})", 4, **given).model_copy(update=more)


IMPOSSIBLE = [
    ({"itl": 0.000_05}, "no engine is as fast; answers arrive in one piece"),
    ({"itl": 0.0}, "no engine is as fast"),
    ({"latency": flat(0.5), "ttft": flat(0.5)}, "no engine is as fast"),
    ({"latency": flat(0.5), "ttft": flat(0.501), "itl": 0.02}, "no engine is as fast"),
    ({"latency": flat(1.0)}, "do not take the 900 ms from TTFT to the end"),
    ({"latency": flat(0.05)}, "TTFT of 100 ms exceeds the whole latency of 50 ms"),
    ({"seconds": 20.0, "requests_rate": 10.0, "output_rate": 900.0}, "200 requests of 2.08e+03 ms, 4 at a time"),
    ({"requests_rate": 4.0}, "requests/s for 104 s are more than its 200 requests"),
    ({"output_rate": 500.0}, "500 output tokens/s are more than its requests have"),
    ({"ttft": LatencySpread(mean=0.1, p50=0.3, p90=0.1, p95=0.1, p99=0.1)}, "percentiles of its TTFT are not in order"),
]


@pytest.mark.parametrize(("change", "why"), IMPOSSIBLE)
def test_figures_that_cannot_be_true_are_named(change: dict[str, Any], why: str) -> None:
    assert figures(0.1, 0.02).unusable == ""
    itl = change.get("itl", 0.02)
    measured = figures(0.1, itl, **{name: value for name, value in change.items() if name != "itl"})
    assert why in measured.implausible
    assert measured.unusable == measured.implausible
    assert measured.model_copy(update={"failed": 50}).unusable.startswith("50 of 200 requests failed")


@given(
    st.floats(0.001, 100),
    st.floats(0.000_2, 1),
    st.integers(2, 5000),
    st.floats(0, 1),
)
def test_what_an_engine_can_measure_is_never_refused(ttft: float, itl: float, tokens: int, cut: float) -> None:
    """Whatever its speed, and whatever share of the last requests a run's end has cut off."""
    measured = figures(ttft, itl, tokens)
    answered = 200 - round(3 * cut)
    assert measured.implausible == ""
    assert measured.model_copy(update={"requests": answered}).implausible == ""


def test_one_token_and_no_stream_say_nothing_of_a_stream() -> None:
    assert (
        figures(0.1, 0.02, latency=flat(0.1), output_tokens=1.0, scenario="D(100,50)", output_rate=1.0).unusable == ""
    )
    assert run("E(64)", 2, ttft=None, itl=None, output_rate=0.0, requests_rate=4.0).unusable == ""


def answers(whole: int, streamed: int, **more: Any) -> dict[str, Any]:
    """A file of the program: so many answers in one piece, so many token by token."""
    pieces = [{"error_code": None, "num_output_tokens": 5, "output_latency": 0.000_2, **more}] * whole
    others = [{"error_code": None, "num_output_tokens": 5, "output_latency": 0.8}] * streamed
    return program_file(whole + streamed) | {"individual_request_metrics": [*pieces, *others]}


@pytest.mark.parametrize(
    ("whole", "streamed", "refused"), [(20, 80, False), (21, 79, True), (10, 0, True), (50, 50, True)]
)
def test_answers_in_one_piece_are_counted_one_by_one(whole: int, streamed: int, refused: bool) -> None:
    """The program leaves those that came within a millisecond out of its ITL, which is then that of the others."""
    if not refused:
        assert records.measured(asked(), answers(whole, streamed), "t").failed == 0
        return
    with pytest.raises(MeasureError, match=f"{whole} of {whole + streamed} answers arrived in one piece") as error:
        records.measured(asked(), answers(whole, streamed), "t")
    assert (error.value.reason, error.value.retryable) == ("StreamBuffered", False)


def test_a_short_or_failed_answer_is_no_buffered_one() -> None:
    assert records.measured(asked(), answers(10, 10, num_output_tokens=1), "t").failed == 0
    hostile = [None, {"num_output_tokens": "5", "output_latency": 0.0}, {"num_output_tokens": 9}]
    records.check_stream(asked(), {"individual_request_metrics": hostile})


def test_figures_that_cannot_be_true_leave_no_run() -> None:
    with pytest.raises(MeasureError, match=r"the figures cannot be true: .*measure again") as error:
        records.measured(asked(), program_file(run_duration=0.1), "t")
    assert error.value.reason == "ImplausibleResult"


def test_a_report_with_figures_that_cannot_be_true_ends_the_benchmark_with_the_reason() -> None:
    fleet = Benchmarks()
    fleet.benchmark()
    fleet.step()
    fleet.ends(itl=flat(0.000_05))
    fleet.step()
    assert fleet.said["state"] == "Failed"
    assert re.search("ImplausibleResult: .*no engine is as fast", fleet.said["failureMessage"])


def test_no_profile_is_fitted_to_them() -> None:
    good = runs(FAST)
    buffered = [one.model_copy(update={"ttft": one.latency, "itl": flat(0.000_05)}) for one in good]
    said: list[str] = []
    mixed = BenchmarkResults("b", tuple(RunRecord(run=one) for one in (*good[:3], buffered[3])))
    assert [point.concurrency for point in points(mixed, said.append)] == [1, 8, 16]
    assert "run D(100,50) at 32 of b is left out: 50 tokens arrived within 0 ms of the first" in said[0]
    with pytest.raises(FitError, match="no run can be used; the last one: 50 tokens"):
        points(BenchmarkResults("b", tuple(RunRecord(run=one) for one in buffered)), said.append)
    with pytest.raises(FitError, match=r"arrive in one piece"):
        engine_speed(buffered)
    verdict = choose(request(), {"fast": buffered, "slow": good})
    assert [one.candidate.runtime for one in verdict.assessed if one.problem] == ["fast"]
