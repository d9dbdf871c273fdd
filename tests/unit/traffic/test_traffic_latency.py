"""Summing up what clients saw."""

import math

import numpy as np
import pytest

from modelyard.traffic.clients.replay import ReplaySettings, RequestResult, columns
from modelyard.traffic.traces.latency import SLO, Ending, Latency, percentiles


def ok(index, at, ttft, itl=0.01, variant="v", **more):
    e2e = ttft + 9 * (itl or 0)
    tokens = 1 if itl is None else 10
    return RequestResult(
        index, at, Ending.OK, "pod", variant, 1, ttft=ttft, itl=itl, e2e=e2e, output_tokens=tokens, **more
    )


def test_percentiles_interpolate_between_order_statistics():
    of_101 = percentiles(np.arange(101.0))
    assert (of_101.p50, of_101.p95, of_101.p99) == pytest.approx((50, 95, 99))
    two = percentiles(np.array([3.0, math.nan, 1.0]))
    assert (two.p50, two.p95) == pytest.approx((2.0, 2.9))
    one = percentiles(np.array([4.0]))
    assert (one.p50, one.p99) == (4, 4)
    assert math.isnan(percentiles(np.array([math.nan])).p50)


def test_what_clients_saw_is_that_of_the_answered():
    results = [
        ok(0, 0.0, 0.1),
        ok(1, 9.9, 0.3, itl=0.02),
        RequestResult(2, 12.0, Ending.BROKEN, "pod", "a", 2, ttft=99.0),
        RequestResult(3, 13.0, Ending.NO_ENDPOINT),
    ]
    seen = Latency.of(columns(results), SLO())
    assert (seen.requests, seen.answered) == (4, 2)
    assert seen.ttft.p50 == pytest.approx(0.2)
    assert seen.itl.p50 == pytest.approx(0.015)
    nothing = Latency.of(columns([]), SLO())
    assert nothing.requests == 0
    assert math.isnan(nothing.ttft.p50)


def test_attainment_counts_failures_as_misses():
    results = [
        ok(0, 0, 0.2, 0.010),
        ok(1, 0, 0.4, 0.010),
        ok(2, 0, 0.2, 0.050),
        ok(3, 0, 0.2, None),
        RequestResult(4, 0, Ending.BROKEN),
    ]
    seen = Latency.of(columns(results), SLO(0.3, 0.02))
    assert (seen.attainment, seen.ttft_attainment, seen.itl_attainment) == (2 / 5, 3 / 5, 3 / 5)
    assert math.isnan(Latency.of(columns([]), SLO()).attainment)


@pytest.mark.parametrize("name", ["time_compression", "endpoint_wait", "request_timeout", "refresh_interval"])
def test_senseless_settings_are_refused(name):
    with pytest.raises(ValueError, match=name):
        ReplaySettings("m", **{name: 0})
