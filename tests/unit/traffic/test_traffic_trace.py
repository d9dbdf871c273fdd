"""Reading and shaping traces: what works, and what is refused with file, line and column."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from modelyard.traffic.copies import Copies
from modelyard.traffic.traces.trace import Trace, TraceInputError, from_rates, parse_columns, read_trace

SHIPPED = Path(__file__).resolve().parents[3] / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_trace() -> None:
    trace = read_trace(SHIPPED)
    assert len(trace) == 19_366
    assert trace.at[0] == 0
    assert (np.diff(trace.at) >= 0).all()
    assert trace.prompt.max() == 14_050
    assert trace.output.max() == 1000
    assert 5.4 < trace.rate < 5.6


@pytest.mark.parametrize(
    ("text", "at", "prompt"),
    [
        (HEADER + "2026-01-01 00:00:10,5,6\n2026-01-01 00:00:12.5,7,8\n", [0, 2.5], [5, 7]),
        (HEADER + "100,5,6\n98.5,7,8\n", [0, 1.5], [7, 5]),
        (HEADER + "-3,5,6\n4,7,8\n", [0, 7], [5, 7]),
        (HEADER + "2026-01-01T01:00:00+01:00,5,6\n2026-01-01T00:00:01Z,7,8\n", [0, 1], [5, 7]),
        (HEADER + "0,5,6\n\n90000,0,8\n", [0, 90000], [5, 1]),
        ("\ufeff" + HEADER + "0, 5 ,6\n", [0], [5]),
        ("a, GeneratedTokens ,ContextTokens,TIMESTAMP\nx,6,5,1\n", [0], [5]),
    ],
    ids=["iso", "unsorted seconds", "negative seconds", "zones", "gap, blank line, zero", "mark and spaces", "columns"],
)
def test_what_can_be_read(tmp_path: Path, text: str, at: list[float], prompt: list[int]) -> None:
    trace = read_trace(write(tmp_path, text))
    assert trace.at.tolist() == at
    assert trace.prompt.tolist() == prompt
    assert trace.duration == at[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (HEADER, "no requests"),
        ("time,prompt\n1,2\n", "no column TIMESTAMP, ContextTokens, GeneratedTokens; found: time, prompt; .*--columns"),
        (HEADER + "1,2,3\n2,x,3\n", "line 3: ContextTokens 'x' is not a whole number"),
        (HEADER + "1,2,3\n2,4,2.5\n", "line 3: GeneratedTokens '2.5' is not a whole number"),
        (HEADER + "1,2,3\n\n2,-4,2\n3,-1,2\n", r"line 4: ContextTokens '-4' is negative \(and 1 more rows\)"),
        (HEADER + "1,,3\n", "line 2: ContextTokens '' is missing"),
        (HEADER + "1,2,inf\n", "line 2: GeneratedTokens 'inf' is not a whole number"),
        (HEADER + "1,2,99999999999\n", "line 2: GeneratedTokens .* more than a thousand million"),
        (HEADER + "1,2,3\nsoon,2,3\n", "line 3: TIMESTAMP 'soon' is not a number of seconds"),
        (HEADER + "2026-01-01,2,3\nsoon,2,3\n", "line 3: TIMESTAMP 'soon' is not a time"),
        (HEADER + "1,2,3\ninf,2,3\n", "line 3: TIMESTAMP 'inf' is not a number of seconds"),
        ('"' + HEADER, "not a CSV|no column"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceInputError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TraceInputError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceInputError, match="directory"):
        read_trace(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"TIMESTAMP\xff\xfe,ContextTokens\n")
    with pytest.raises(TraceInputError, match="not a CSV file in UTF-8"):
        read_trace(tmp_path / "b.csv")


def test_other_columns_and_models(tmp_path: Path) -> None:
    path = write(tmp_path, "t,in,out,which\n1,2,3,b\n0,4,5,a\n")
    trace = read_trace(path, parse_columns("time=t, prompt=in,output=out,model=which"))
    assert trace.models == ("a", "b")
    assert trace.model is not None
    assert trace.model.tolist() == [0, 1]
    assert trace.prompt.tolist() == [4, 2]
    with pytest.raises(TraceInputError, match="write time=NAME"):
        parse_columns("when=t")


def steady(count: int = 6000, duration: float = 600.0) -> Trace:
    at = np.arange(count) * (duration / count)
    return Trace(at, np.full(count, 100), np.full(count, 50), duration)


@pytest.mark.parametrize("rate", [0.3, 1.0, 2.0, 3.7])
def test_scaling_the_rate_keeps_the_course(rate: float) -> None:
    scaled = steady().scaled(rate=rate, seed=1)
    assert len(scaled) == pytest.approx(6000 * rate, rel=0.05)
    assert scaled.duration == 600
    assert (np.diff(scaled.at) >= 0).all()
    assert scaled.at.min() >= 0
    assert scaled.at.max() <= 600
    halves = np.histogram(scaled.at, [0, 300, 600])[0]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)
    again = steady().scaled(rate=rate, seed=1)
    assert np.array_equal(scaled.at, again.at)


def test_copies_are_other_requests_unless_they_are_to_clump() -> None:
    """Each request of a trace has a size of its own here, so that one sees which was repeated."""
    steps = np.arange(600)
    trace = Trace(steps.astype(float), steps + 1, steps + 1001, 600.0)
    mixed = trace.scaled(rate=10, seed=3)
    clumped = trace.scaled(rate=10, seed=3, copies=Copies.CLUMPED)
    assert (mixed.output - mixed.prompt == 1000).all(), "prompt and output stay together"
    assert (np.abs(mixed.at - (mixed.prompt - 1)) <= 90 + 1e-9).all(), "moved by 30 s, with a size within a minute"
    assert (np.abs(clumped.at - (clumped.prompt - 1)) <= 0.5 + 1e-9).all()
    assert set(np.bincount(clumped.prompt)[1:]) == {10}
    assert len(set(np.bincount(mixed.prompt)[1:])) > 5
    # Neither heaps up at the ends nor thins out there.
    assert (np.abs(np.histogram(mixed.at, 20, (0, 600))[0] - 300) < 80).all()


def test_scaling_sizes_leaves_at_least_one_token() -> None:
    scaled = steady().scaled(prompt=0.001, output=2.5)
    assert set(scaled.prompt) == {1}
    assert set(scaled.output) == {125}
    with pytest.raises(TraceInputError, match="rate: the factor must be"):
        steady().scaled(rate=0)


def test_a_stretch() -> None:
    part = steady().stretch(2, 3)
    assert part.duration == 180
    assert len(part) == 1800
    assert part.at[0] == pytest.approx(0)
    assert steady().stretch(7).duration == 180
    for start, minutes in ((-1, 2), (8, 3), (0, 0), (10, 1)):
        with pytest.raises(TraceInputError, match="do not lie within the trace of 10 minutes"):
            steady().stretch(start, minutes)


def test_a_day_has_its_top_in_the_afternoon_and_the_same_mean() -> None:
    day = steady().over_days(24, seed=2)
    assert day.duration == 86_400
    assert len(day) == pytest.approx(24 * 36_000, rel=0.01)
    hours = np.histogram(day.at, np.arange(25) * 3600)[0]
    assert 14 <= int(hours.argmax()) <= 15
    assert 2 <= int(hours.argmin()) <= 3
    assert hours.max() / hours.min() == pytest.approx(4, rel=0.05)
    assert len(steady().over_days(0.05)) > 0
    with pytest.raises(TraceInputError, match="--diurnal"):
        steady().over_days(0)


def test_a_trace_from_rates() -> None:
    trace = from_rates([0, 100, 200, 300], [5, 0, 20], 300, 80, seed=1)
    counts = np.histogram(trace.at, [0, 100, 200, 300])[0]
    assert counts[0] == pytest.approx(500, rel=0.15)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(2000, rel=0.1)
    assert trace.prompt.mean() == pytest.approx(300, rel=0.1)
    assert trace.duration == 300
    for edges, rates, message in (
        ([0, 1], [1, 2], "edges"),
        ([0, 1, 1], [1, 2], "edges"),
        ([0, 60, 120], [1, float("nan")], "from 60 s to 120 s"),
        ([0, 60], [-1], "from 0 s to 60 s"),
    ):
        with pytest.raises(TraceInputError, match=message):
            from_rates(edges, rates, 10, 10)


def test_a_long_trace_is_read_in_order(tmp_path: Path) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = (f"{(begin + timedelta(seconds=n)).isoformat()},{n % 99},7\n" for n in range(20_000, 0, -1))
    trace = read_trace(write(tmp_path, HEADER + "".join(rows)))
    assert trace.at.tolist() == list(range(20_000))
