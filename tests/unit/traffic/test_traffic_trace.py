"""Reading, cutting and scaling a trace."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.traffic.trace import Trace, TraceError, TraceRequest, read_trace

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "azure-llm-inference-2023-conversation.csv"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder, text):
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_trace_is_read(tmp_path):
    path = write(
        tmp_path,
        "\ufeffGeneratedTokens,TIMESTAMP,ContextTokens\n7,2023-11-16 18:15:46.6805900,374\n\n"
        "0,2023-11-16 18:15:50.9951690,0\n3,2023-11-16 18:15:50.9951690+00:00,5\n",
    )
    trace = read_trace(path)
    assert [request[1:] for request in trace.requests] == [(374, 7), (1, 1), (5, 3)]
    assert [request.at for request in trace.requests] == pytest.approx([0, 4.314579, 4.314579], abs=1e-5)
    assert trace.duration == trace.requests[-1].at


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column TIMESTAMP, ContextTokens, GeneratedTokens; found: nothing"),
        ("TIMESTAMP,ContextTokens\n", "no column GeneratedTokens; found: TIMESTAMP, ContextTokens"),
        (HEADER, "no requests"),
        (HEADER + "2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,1,1\n", "line 3: TIMESTAMP 2023-11-16 18:00:00 is bef"),
        (HEADER + "2023-11-16 18:00:01,-4,1\n", "line 2: ContextTokens is negative: -4"),
        (HEADER + "2023-11-16 18:00:01,4,x\n", "line 2: GeneratedTokens is not a whole number: 'x'"),
        (HEADER + "noon,4,1\n", "line 2: TIMESTAMP is not a time: 'noon'"),
        (HEADER + "2023-11-16 18:00:01,4\n", "line 2: 2 values"),
    ],
)
def test_a_bad_file_is_explained(tmp_path, text, words):
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path, text))
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_recorded_hour():
    trace = read_trace(DATA)
    assert len(trace.requests) == 19_366
    assert 3480 < trace.duration < 3540
    assert sum(r.prompt_tokens for r in trace.requests) / 19_366 == pytest.approx(1154.7, abs=0.05)
    assert sum(r.output_tokens for r in trace.requests) / 19_366 == pytest.approx(211.13, abs=0.05)
    # Ten stretches of six minutes are the whole: nothing is lost or doubled at the cuts.
    parts = [trace.stretch(start, 6).requests for start in range(0, 54, 6)]
    parts.append(trace.stretch(54, 5).requests)
    assert sum(map(len, parts)) == 19_366


TRACE = Trace(tuple(TraceRequest(float(i), 10 * i + 10, i + 1) for i in range(181)), 180.0)


def test_a_stretch_counts_time_from_its_own_start():
    part = TRACE.stretch(1, 0.5)
    assert part.duration == 30
    assert part.requests[0] == TraceRequest(0.0, 610, 61)
    assert part.requests[-1] == TraceRequest(29.0, 900, 90)
    assert part.rate == 1.0


@pytest.mark.parametrize(("start", "minutes"), [(-1, 1), (0, 0), (2, 1.5), (3, 1)])
def test_a_stretch_outside_the_trace_is_refused(start, minutes):
    with pytest.raises(ValueError, match="does not lie within the trace of 3 min"):
        TRACE.stretch(start, minutes)


@pytest.mark.parametrize(("rate", "least", "most"), [(0.25, 25, 65), (1, 181, 181), (2, 362, 362), (2.5, 420, 485)])
def test_rate_scales_the_number_of_requests(rate, least, most):
    scaled = TRACE.scaled(rate=rate, seed=4)
    assert least <= len(scaled.requests) <= most
    assert scaled.duration == TRACE.duration
    assert scaled == TRACE.scaled(rate=rate, seed=4)


def test_copies_stay_near_their_original_and_do_not_come_as_one():
    scaled = TRACE.scaled(rate=3)
    counts = Counter(request.prompt_tokens for request in scaled.requests)
    assert set(counts.values()) == {3}
    assert all(abs(request.at - (request.prompt_tokens - 10) / 10) <= 0.5 for request in scaled.requests)
    assert len({request.at for request in scaled.requests}) > 400


@given(st.floats(0.1, 5), st.floats(0.01, 10), st.floats(0.01, 10), st.one_of(st.none(), st.integers(2, 500)))
def test_scaled_traces_are_in_order_and_valid(rate, prompt, output, limit):
    scaled = TRACE.scaled(rate=rate, prompt=prompt, output=output, max_tokens=limit)
    times = [request.at for request in scaled.requests]
    assert times == sorted(times)
    for request in scaled.requests:
        assert 0 <= request.at <= TRACE.duration
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert limit is None or request.prompt_tokens + request.output_tokens <= limit


def test_the_prompt_is_cut_before_the_output():
    (request,) = Trace((TraceRequest(0, 100, 50),), 1).scaled(max_tokens=60).requests
    assert request[1:] == (10, 50)
    (request,) = Trace((TraceRequest(0, 100, 50),), 1).scaled(max_tokens=20).requests
    assert request[1:] == (1, 19)


@pytest.mark.parametrize("change", [{"rate": 0}, {"prompt": -1}, {"output": float("nan")}, {"max_tokens": 1}])
def test_senseless_scales_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        TRACE.scaled(**change)
