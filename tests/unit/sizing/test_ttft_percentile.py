"""Percentiles of TTFT against the mixture of Erlang waits summed term by term, and against simulated requests."""

from __future__ import annotations

import math
import random
from collections import deque

import numpy as np
import pytest
from naive_chain import waits_longer
from one_row import analyse_one, size_one

from modelyard.autoscaling.sizing.chain import analyse, max_rates
from modelyard.autoscaling.sizing.percentile import ttft_percentile
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.tail import fewer_than, log_factorial

SMALL = (10.0, 2.0, 20.0, 0.05, 2, 100.0, 11.0)
P = (7.5, 0.05, 12.0, 0.002, 96, 512.0, 256.0)


@pytest.mark.parametrize(
    "row", [SMALL, (10.0, 2.0, 20.0, 0.05, 1, 100.0, 11.0), (10.0, 2.0, 20.0, 0.05, 14, 100.0, 11.0)]
)
@pytest.mark.parametrize("part", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_as_many_requests_wait_longer_as_should(row: tuple[float, ...], part: float, percent: float) -> None:
    profiles = Profiles.of([row])
    rate = float(part * max_rates(profiles)[0])
    base, slope, batch = float(profiles.service_base[0]), float(profiles.service_slope[0]), int(row[4])
    wait = float(ttft_percentile(profiles, rate, percent)[0] - analyse(profiles, rate).prefill[0])
    if wait > 0:
        exceeding = waits_longer(base, slope, batch, 10 * batch, rate, wait)
        assert exceeding == pytest.approx(1 - percent / 100, rel=1e-7)
    else:
        assert waits_longer(base, slope, batch, 10 * batch, rate, 1e-9) <= 1 - percent / 100


def simulated_waits(row: tuple[float, ...], rate: float, requests: int) -> np.ndarray:
    """Waits of a queue whose batch leaves at the chain's rates, first come first served."""
    base = Profiles.of([row])
    intercept, slope, batch = float(base.service_base[0]), float(base.service_slope[0]), int(row[4])
    chance, clock, busy = random.Random(11), 0.0, 0
    queue: deque[float] = deque()
    waits: list[float] = []
    while len(waits) < requests:
        leaving = busy / (intercept + slope * busy) if busy else 0.0
        arriving = rate / 1000
        clock += chance.expovariate(arriving + leaving)
        if chance.random() * (arriving + leaving) < arriving:
            if busy < batch:
                busy += 1
                waits.append(0.0)
            elif len(queue) < 10 * batch:
                queue.append(clock)
        elif queue:
            waits.append(clock - queue.popleft())
        else:
            busy -= 1
    return np.array(waits)


def test_simulated_requests_wait_as_predicted() -> None:
    rate = 0.85 * float(max_rates(Profiles.of([SMALL]))[0])
    waits = simulated_waits(SMALL, rate, 60_000)
    predicted = analyse_one(*SMALL, rate)
    assert waits.mean() == pytest.approx(predicted.wait, rel=0.05)
    for percent in (75, 90, 95):
        expected = ttft_percentile(Profiles.of([SMALL]), rate, percent)[0] - predicted.prefill
        assert np.percentile(waits, percent) == pytest.approx(expected, rel=0.08)


def test_percentiles_in_order_and_out_of_range() -> None:
    profiles = Profiles.of([P] * 4)
    rates = [2.0, 26.0, 29.5, 31.0]
    half, most = ttft_percentile(profiles, rates, 50), ttft_percentile(profiles, rates, 95)
    means = analyse(profiles, rates)
    assert half[0] == most[0] == means.ttft[0]  # nobody waits
    assert most[1] > means.ttft[1] > half[1]
    assert most[2] > half[2]
    assert math.isnan(most[3])
    with pytest.raises(ValueError, match="percentile is 0"):
        ttft_percentile(profiles, rates, 0)


def test_sizing_for_a_percentile() -> None:
    mean, p95, p99 = (size_one(*P, ttft=500, percentile=percent) for percent in (None, 95, 99))
    assert mean.rate > p95.rate > p99.rate
    for found, percent in ((p95, 95), (p99, 99)):
        assert found.ttft == pytest.approx(500, rel=1e-9)
        assert ttft_percentile(Profiles.of([P]), found.offered, percent)[0] == pytest.approx(500, rel=1e-9)
    assert size_one(*P, ttft=500, published=True).rate == pytest.approx(mean.rate, rel=1e-5)
    low = size_one(*P, ttft=10, percentile=95)
    assert (low.feasible, low.best_ttft) == (False, pytest.approx(13.025, rel=1e-4))


@pytest.mark.parametrize("terms", [1, 2, 10, 127, 128, 129, 500, 2560])
def test_poisson_tails(terms: int) -> None:
    means = np.array([0.01, 0.5, 0.9, 0.98, 1.0, 1.02, 1.1, 1.4]) * terms
    exact = [math.fsum(math.exp(k * math.log(m) - m - math.lgamma(k + 1)) for k in range(terms)) for m in means]
    found = fewer_than(np.full(len(means), float(terms)), means)
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-13)


def test_log_factorials() -> None:
    counts = np.array([0.0, 1, 5, 16, 17, 100, 5120])
    assert log_factorial(counts) == pytest.approx([math.lgamma(c + 1) for c in counts], rel=1e-13)
