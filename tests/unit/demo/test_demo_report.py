"""The demonstration's checks, costs and chart: functional claims decide, and what was not observed does not count."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from deployments.demo.observations import Sample, changes, replica_minutes
from deployments.demo.report import Outcome, checks, describe_result, draw, latency_by_minute
from deployments.demo.scenario import VARIANTS, Scenario
from modelyard.traffic.clients.replay import RequestResult
from modelyard.traffic.traces.latency import Ending

SCENARIO = Scenario()
STEP = 0.2
"""Minutes of the trace between samples."""
WHY = "load rising; a replica takes 1.2 req/s"


def observed(number: int, replicas: int, why: str = WHY) -> Sample:
    return Sample(number * STEP, 5.0, replicas, replicas, replicas, 0.5, 0.0, why)


UP_AND_DOWN = [observed(number, 3 + (20 <= number < 60)) for number in range(100)]
DOWN = [observed(number, 7 if number < 60 else 3) for number in range(100)]
AT_MINIMUM = [observed(number, 3) for number in range(100)]
STEADY = [observed(number, 7) for number in range(100)]


def answered(count: int = 2000, **more: Any) -> list[RequestResult]:
    fields: dict[str, Any] = {"attempts": 1, "ttft": 0.3, "itl": 0.05, "e2e": 5.0, **more}
    return [RequestResult(number, number / 2, Ending.OK, output_tokens=100, **fields) for number in range(count)]


def failed(count: int) -> list[RequestResult]:
    return [RequestResult(number, number / 2, Ending.BROKEN, error="stream ended") for number in range(count)]


@pytest.mark.parametrize(
    ("samples", "results", "wrong"),
    [
        (UP_AND_DOWN, answered(), []),
        (UP_AND_DOWN, answered(late=3.0), []),
        (UP_AND_DOWN, [*answered(1999), *failed(1)], ["1 failed: stream ended"]),
        (UP_AND_DOWN, [], ["0 of 0 requests"]),
        (DOWN, answered(), []),
        (AT_MINIMUM, answered(), []),
        (STEADY, answered(), ["up 0 times and down 0 times (peak 7 replicas, 7 at the end, minimum 3)"]),
        ([], answered(), ["measured profile", "peak 0 replicas", "explains"]),
        ([observed(0, 4), observed(1, 3, "")], answered(), ["explains each scaling decision (1)"]),
        ([observed(0, 4, "idle"), observed(1, 3, "idle")], answered(), ["measured profile"]),
    ],
)
def test_functional_claims_decide_and_name_their_values(
    samples: list[Sample], results: list[RequestResult], wrong: list[str]
) -> None:
    false = [claim for claim, passed in checks(Outcome(samples, results)) if not passed]
    assert len(false) == len(wrong), false
    for claim, text in zip(false, wrong, strict=True):
        assert text in claim


def test_what_was_not_observed_costs_nothing() -> None:
    whole = replica_minutes(UP_AND_DOWN, SCENARIO.longest_gap)
    assert whole == pytest.approx((3 * 99 + 40) * STEP)
    seen = UP_AND_DOWN[:30] + UP_AND_DOWN[40:]
    assert replica_minutes(seen, SCENARIO.longest_gap) == pytest.approx(whole - 11 * 4 * STEP)
    assert [(before.desired, after.desired) for before, after in changes(seen)] == [(3, 4), (4, 3)]


def test_cost_and_latencies_are_stated_with_their_targets() -> None:
    text = describe_result(Outcome(UP_AND_DOWN, answered(ttft=3.0)), VARIANTS[1], SCENARIO)
    assert text.startswith("2,000 requests took 67.4 replica-minutes of H100, which cost 11.23. ")
    assert text.endswith(
        "TTFT p95 3.00 s (target 2.5 s), ITL p95 20 ms (target 75 ms): 0.0% of the requests within both targets."
    )


def test_latencies_of_each_minute_are_those_of_requests_due_in_it() -> None:
    results = [*answered(200, ttft=0.2), *(RequestResult(n, n / 2, Ending.TIMEOUT) for n in range(200, 240))]
    ttft, itl = latency_by_minute(results)
    assert ttft == pytest.approx([0.2, 0.2])
    assert itl == pytest.approx([4.8 / 99, 4.8 / 99])
    assert math.isnan(latency_by_minute(failed(10))[0][0]), "no answer, no latency"
    assert latency_by_minute([])[0].size == 0


@pytest.mark.parametrize("samples", [UP_AND_DOWN[:30] + UP_AND_DOWN[40:], []])
def test_the_chart_is_drawn(samples: list[Sample], tmp_path: Path) -> None:
    draw(Outcome(samples, answered()), SCENARIO.longest_gap, tmp_path / "traffic.png")
    assert (tmp_path / "traffic.png").read_bytes().startswith(b"\x89PNG")
