"""The demonstration's checks, costs and chart: functional claims decide, gaps stay gaps."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deployments.demo import charts, report
from deployments.demo.observations import Gap, Moment, Sample, changes, replica_minutes
from deployments.demo.report import Outcome, checks
from deployments.demo.scenario import PAIRS, SERVICE, Copy, Scenario
from modelyard.traffic.latency import Ending
from modelyard.traffic.replay import RequestResult

SCENARIO = Scenario()
STEP = 0.2
"""Minutes of the trace between samples."""
WHY = "load rising; a replica takes 1.2 req/s"
PAIR = PAIRS[0]


def observed(number: int, l40s: int = 1, h100: int = 1, why: str = WHY) -> Sample:
    counts = {"llama-l40s": l40s, "llama-h100": h100}
    return Sample(number * STEP, 5.0, counts, counts, counts, 0.5, 0.0, {"llama-l40s": why})


UP_AND_DOWN: list[Moment] = [observed(number, 1 + (20 <= number < 60)) for number in range(100)]
DOWN: list[Moment] = [observed(number, 7 if number < 60 else 3) for number in range(100)]
AT_MINIMUM: list[Moment] = [observed(number, 3, 0) for number in range(100)]
STEADY: list[Moment] = [observed(number, 7) for number in range(100)]


def answered(count: int = 2000, **more: Any) -> list[RequestResult]:
    fields: dict[str, Any] = {"attempts": 1, "ttft": 0.3, "itl": 0.05, "e2e": 5.0, **more}
    return [RequestResult(number, number / 2, Ending.OK, output_tokens=100, **fields) for number in range(count)]


def failed(count: int) -> list[RequestResult]:
    return [RequestResult(number, number / 2, Ending.BROKEN, error="stream ended") for number in range(count)]


def with_gap(start: int, end: int) -> list[Moment]:
    return [
        Gap(moment.minute, moment.load) if start <= number < end else moment
        for number, moment in enumerate(UP_AND_DOWN)
    ]


@pytest.mark.parametrize(
    ("copy", "moments", "results", "wrong"),
    [
        (PAIR, UP_AND_DOWN, answered(), []),
        (PAIR, UP_AND_DOWN, answered(late=3.0), []),
        (PAIR, UP_AND_DOWN, [*answered(1999), *failed(1)], ["1 failed: stream ended"]),
        (PAIR, UP_AND_DOWN, [], ["0 of 0 requests"]),
        (PAIR, DOWN, answered(), ["scaled up 0 times and down 1 time (peak 8 replicas, 4 at the end)"]),
        (PAIR, STEADY, answered(), ["scaled up 0 times and down 0 times"]),
        (PAIR, [], answered(), ["peak 0 replicas", "explains"]),
        (
            PAIR,
            [observed(0), observed(1, 2, why=""), observed(2)],
            answered(),
            ["explains each scaling decision (2)"],
        ),
        (SERVICE, DOWN, answered(), []),
        (SERVICE, AT_MINIMUM, answered(), []),
        (SERVICE, STEADY, answered(), ["minimum 3"]),
        (SERVICE, [observed(0, 4, why="idle"), observed(1, 3, why="idle")], answered(), ["measured profile"]),
    ],
)
def test_functional_claims_decide_and_name_their_values(
    copy: Copy, moments: list[Moment], results: list[RequestResult], wrong: list[str]
) -> None:
    false = [claim for claim, passed in checks(Outcome(copy, moments, results)) if not passed]
    assert len(false) == len(wrong), false
    for claim, text in zip(false, wrong, strict=True):
        assert claim.startswith(f"{copy.label}: ")
        assert text in claim


def test_a_gap_is_not_the_previous_value() -> None:
    moments = with_gap(30, 32)
    whole, seen = (replica_minutes(given, SCENARIO.longest_gap)["llama-l40s"] for given in (UP_AND_DOWN, moments))
    # Nobody looked from sample 29 to sample 32: three steps with two replicas.
    assert seen == pytest.approx(whole - 3 * 2 * STEP)
    assert changes(moments) == changes(UP_AND_DOWN)
    assert [(change.before, change.after) for change in changes(moments)] == [(1, 2), (2, 1)]
    assert replica_minutes([observed(0), observed(99)], SCENARIO.longest_gap) == {}, "too long between two samples"


def test_the_comparison_has_a_row_for_each_fleet() -> None:
    outcomes = [Outcome(copy, UP_AND_DOWN, answered(ttft=ttft)) for copy, ttft in ((PAIR, 0.3), (SERVICE, 3.0))]
    text = Console(file=(printed := io.StringIO()), width=200)
    text.print(report.comparison(outcomes, SCENARIO))
    rows = [line for line in printed.getvalue().splitlines() if "2,000" in line]
    assert len(rows) == 2
    assert "demo (saturation)" in rows[0]
    assert "100.0%" in rows[0]
    assert "0.0%" in rows[1]


def test_latencies_of_each_minute_are_those_of_requests_due_in_it() -> None:
    results = [*answered(200, ttft=0.2), *(RequestResult(n, n / 2, Ending.TIMEOUT) for n in range(200, 240))]
    minutes, ttft, itl = charts.by_minute(Outcome(PAIR, UP_AND_DOWN, results))
    assert list(minutes) == [0, 1]
    assert ttft == pytest.approx([0.2, 0.2])
    assert itl == pytest.approx([4.8 / 99, 4.8 / 99])
    _, none, _ = charts.by_minute(Outcome(PAIR, UP_AND_DOWN, failed(10)))
    assert math.isnan(none[0]), "no answer, no latency"
    assert np.array_equal(charts.by_minute(Outcome(PAIR, UP_AND_DOWN, []))[0], [])


def test_the_chart_shows_fleets_side_by_side_with_gaps(tmp_path: Path) -> None:
    from matplotlib import pyplot

    outcomes = [
        Outcome(copy, moments, answered()) for copy, moments in zip(PAIRS, (with_gap(30, 32), UP_AND_DOWN), strict=True)
    ]
    charts.draw(outcomes, SCENARIO, tmp_path / "traffic.png")
    assert (tmp_path / "traffic.png").read_bytes().startswith(b"\x89PNG")
    figure, axes = pyplot.subplots(len(charts.PANELS), 1)
    charts._column(outcomes[0], SCENARIO, axes)
    drawn = axes[1].lines[0].get_ydata()
    assert np.isnan(drawn[30:32]).all()
    assert not np.isnan(drawn[29])
    pyplot.close(figure)
