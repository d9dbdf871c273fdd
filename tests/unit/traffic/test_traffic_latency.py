"""Summing up what clients saw."""

import pytest

from modelyard.traffic.latency import ALL, Phase, attainment, distribution, summarize
from modelyard.traffic.replay import Outcome, ReplaySettings, RequestResult


def ok(index, at, ttft, itl=0.01, variant="v", **more):
    return RequestResult(
        index, at, Outcome.OK, "pod", variant, 1, ttft=ttft, itl=itl, e2e=ttft + 1, output_tokens=10, **more
    )


def test_percentiles_interpolate_between_order_statistics():
    hundred_and_one = distribution(float(value) for value in range(101))
    assert hundred_and_one.count == 101
    assert hundred_and_one.mean == 50
    values = (
        hundred_and_one.p50,
        hundred_and_one.p90,
        hundred_and_one.p95,
        hundred_and_one.p99,
        hundred_and_one.maximum,
    )
    assert values == pytest.approx((50, 90, 95, 99, 100))
    two = distribution([3.0, None, 1.0])
    assert (two.count, two.mean, two.p50, two.p90) == pytest.approx((2, 2.0, 2.0, 2.8))
    one = distribution([4.0])
    assert (one.count, one.p50, one.p99, one.maximum) == (1, 4, 4, 4)
    assert distribution([None]) is None


def test_results_are_grouped_by_phase_and_variant():
    results = [
        ok(0, 0.0, 0.1, variant="a"),
        ok(1, 9.9, 0.3, variant="b"),
        ok(2, 10.0, 0.5, variant="a", endpoint_queued=True),
        RequestResult(3, 12.0, Outcome.BROKEN, "pod", "a", 2),
        RequestResult(4, 13.0, Outcome.NO_ENDPOINT, endpoint_queued=True),
        ok(5, 99.0, 9.9),
    ]
    summaries = summarize(results, [Phase("calm", 0, 10), Phase("rush", 10, 20)])
    rows = [(s.phase, s.variant, s.requests, s.answered, s.failed) for s in summaries]
    assert rows == [
        ("calm", ALL, 2, 2, 0),
        ("calm", "a", 1, 1, 0),
        ("calm", "b", 1, 1, 0),
        ("rush", ALL, 3, 1, 2),
    ]
    rush = summaries[-1]
    assert rush.outcomes == {Outcome.OK: 1, Outcome.BROKEN: 1, Outcome.NO_ENDPOINT: 1}
    assert (rush.retried, rush.endpoint_queued, rush.output_tokens) == (1, 2, 10)
    assert rush.ttft.maximum == 0.5
    assert summarize(results)[0].requests == 6
    assert summarize([])[0].ttft is None


def test_attainment_counts_failures_as_misses():
    results = [
        ok(0, 0, 0.2, 0.010),
        ok(1, 0, 0.4, 0.010),
        ok(2, 0, 0.2, 0.050),
        ok(3, 0, 0.2, None),
        RequestResult(4, 0, Outcome.BROKEN),
    ]
    assert attainment(results, ttft=0.3, itl=0.02) == 2 / 5
    assert attainment(results, ttft=0.3) == 3 / 5
    assert attainment(results) == 4 / 5
    assert attainment([]) is None


@pytest.mark.parametrize("name", ["time_compression", "endpoint_wait", "request_timeout", "refresh_interval"])
def test_senseless_settings_are_refused(name):
    with pytest.raises(ValueError, match=name):
        ReplaySettings("m", **{name: 0})
