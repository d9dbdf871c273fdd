"""The demonstration's pace follows what is measured, and its exit code follows the checks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from deployments.demo import pace
from deployments.demo.console import DemoConsole, DemonstrationFailed, run_script
from deployments.demo.pace import LAG_LIMIT, LATENESS_LIMIT, LEAST_SHARE, Lateness, Pace, choose_compression, next_share
from modelyard.traffic.clients.replay import RequestResult
from modelyard.traffic.traces.latency import Ending


@pytest.mark.parametrize(("free_cores", "compression"), [(8.0, 10.0), (0.9, 10.0), (0.6, 6.5), (0.3, 4.0), (0.0, 4.0)])
def test_fewer_free_cores_slow_the_simulation_down_within_bounds(free_cores: float, compression: float) -> None:
    assert choose_compression(free_cores) == compression


def test_the_calibration_counts_cores() -> None:
    assert 0 < pace.measure_free_cores(0.2) <= len(os.sched_getaffinity(0)) + 0.1


def test_traffic_is_thinned_while_late_and_recovers_on_time() -> None:
    share, shares = 1.0, []
    for lag in [2 * LAG_LIMIT] * 10 + [0.6 * LAG_LIMIT] * 3 + [0.0] * 100:
        shares.append(share := next_share(share, lag))
    assert shares[0] == pytest.approx(0.8)
    assert shares[9] == shares[12] == LEAST_SHARE, "never less, and kept while neither late nor on time"
    assert shares[-1] == 1.0


@pytest.mark.parametrize("share", [0.4, 0.75, 1.0])
def test_a_share_is_spread_evenly_over_the_requests(share: float) -> None:
    tempo = Pace(10.0)
    tempo.share = share
    for start in range(0, 5000, 500):
        admitted = sum(tempo.admits(index, 0.0) for index in range(start, start + 500))
        assert admitted == pytest.approx(500 * share, abs=5)
    assert not tempo.admits(0, 10.1), "a second of real time overdue"


def test_latencies_are_marked_indicative_when_requests_were_sent_late() -> None:
    def sent(late: float, planned: int = 100) -> str:
        return str(Lateness.of([RequestResult(number, 0.0, Ending.OK, late=late) for number in range(100)], planned))

    assert sent(0.01).startswith("Latencies are reliable: 95% of requests were sent within 0.01 s")
    assert "of the trace" not in sent(0.01)
    assert "50% of the trace was sent" in sent(0.01, 200)
    assert sent(2 * LATENESS_LIMIT).startswith("Latencies are indicative only: the machine could not keep up")


@contextlib.asynccontextmanager
async def script(results: Sequence[bool], fails: bool, console: DemoConsole) -> AsyncIterator[Sequence[str]]:
    for number, passed in enumerate(results):
        console.check(f"claim [{number}]", passed)
    if fails:
        raise DemonstrationFailed("`kubectl get` exited with code 1")
    yield []


@pytest.mark.parametrize(
    ("results", "fails", "code", "printed"),
    [
        ([True, True], False, 0, "2 checks passed."),
        ([True, False], False, 1, "1 of 2 checks failed."),
        ([True], True, 1, "FAILED  `kubectl get` exited with code 1"),
        ([], False, 1, "Summary"),
    ],
)
def test_the_exit_code_is_the_verdict_of_the_checks(
    results: list[bool], fails: bool, code: int, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(partial(script, results, fails), tmp_path / "out", "demo", keep=False) == code
    shown = capsys.readouterr().out
    assert printed in shown
    assert all(f"claim [{number}]" in shown for number in range(len(results)))
