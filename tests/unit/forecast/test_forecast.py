"""The load expected ahead: rises that are clear are seen, nothing else is, and damaged history does no harm."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from modelyard.autoscaling.variants.forecast import MIN_POINTS, expected

T0 = 1_700_000_000.0
STEP = 15.0


def line(start: float, per_second: float, points: int = 21, step: float = STEP) -> list[tuple[float, float]]:
    return [(T0 + i * step, start + per_second * i * step) for i in range(points)]


def scattered(rates: list[float], share: float, seed: int) -> list[tuple[float, float]]:
    noise = random.Random(seed)
    return [(T0 + i * STEP, rate * (1 + noise.uniform(-share, share))) for i, rate in enumerate(rates)]


RISING = line(10, 0.04)
"""From 10 to 22 requests/s within 300 s."""


def test_the_line_is_carried_on():
    found = expected(RISING, 22.0, 100, 2.0)
    assert found.rate == pytest.approx(26.0)
    assert found.factor == pytest.approx(26 / 22)
    assert found.rising
    assert found.why == "load rose by 12 requests/s within 300 s"


def test_the_limit_holds_and_is_told():
    found = expected(line(1, 0.1), 31.0, 300, 1.5)
    assert (found.factor, found.rate) == (1.5, 46.5)
    assert "at most 1.5 times" in found.why


def test_the_trend_is_not_carried_on_for_longer_than_it_was_seen():
    assert expected(RISING, 22.0, 1e6, 100.0) == expected(RISING, 22.0, 300.0, 100.0)


def test_a_dip_of_the_present_rate_does_not_enlarge_the_growth():
    assert expected(RISING, 2.0, 100, 10.0).factor == pytest.approx(expected(RISING, 22.0, 100, 10.0).factor)


@pytest.mark.parametrize(
    ("history", "rate", "horizon", "limit", "why"),
    [
        ((), 5.0, 100, 2.0, "only 0 usable points"),
        (RISING[: MIN_POINTS - 1], 5.0, 100, 2.0, "only 5 usable points"),
        ([(T0, float(i)) for i in range(20)], 5.0, 100, 2.0, "only 1 usable points"),
        ([(t, math.nan) for t, _ in RISING], 5.0, 100, 2.0, "only 0 usable points"),
        ([(t, math.inf) for t, _ in RISING], 5.0, 100, 2.0, "only 0 usable points"),
        ([(t, -rate) for t, rate in RISING], 5.0, 100, 2.0, "only 0 usable points"),
        ([*RISING[:15], *((t + 500, r) for t, r in RISING[15:18])], 22.0, 100, 2.0, "has a gap, and only 3 points"),
        (RISING, math.nan, 100, 2.0, "not known or zero"),
        (RISING, 0.0, 100, 2.0, "not known or zero"),
        (RISING, 22.0, 0, 2.0, "nothing is planned ahead"),
        (RISING, 22.0, math.nan, 2.0, "nothing is planned ahead"),
        (RISING, 22.0, 100, 1.0, "nothing is planned ahead"),
        (line(22, 0.0), 22.0, 100, 2.0, "the load is not rising"),
        (line(22, -0.04), 22.0, 100, 2.0, "the load is not rising"),
        (line(0.2, 0.001), 0.5, 100, 2.0, "no more than chance"),
        (line(10_000, 0.5), 10_150.0, 100, 2.0, "hardly rises"),
    ],
)
def test_no_growth_and_why(history, rate, horizon, limit, why):
    found = expected(history, rate, horizon, limit)
    assert found.factor == 1.0
    assert found.rate == rate or math.isnan(rate)
    assert why in found.why


@pytest.mark.parametrize("seed", range(10))
def test_scatter_is_no_trend_and_does_not_hide_one(seed):
    assert not expected(scattered([50.0] * 21, 0.3, seed), 50, 120, 2.0).rising
    found = expected(scattered([rate * 5 for _, rate in RISING], 0.04, seed), 110, 120, 2.0)
    assert found.factor == pytest.approx(1 + 0.2 * 120 / 110, rel=0.08)


def test_a_swing_is_no_trend():
    swing = [(T0 + i * STEP, 20 + 10 * math.sin(i)) for i in range(21)]
    assert not expected(swing, 20, 100, 2.0).rising
    upwards = [(t, r + 0.02 * (t - T0)) for t, r in swing]
    assert expected(upwards, 25, 100, 2.0).why == "the load goes up and down"


@pytest.mark.parametrize("ago", [5, 7, 10, 15])
def test_a_step_is_no_trend(ago):
    step = [(T0 + i * STEP, 40.0 if i > 20 - ago else 20.0) for i in range(21)]
    assert not expected(step, 40, 100, 2.0).rising


def test_a_rise_that_ended_is_forgotten():
    flat = [22.0] * 20
    factors = []
    for passed in range(0, 20, 2):
        rates = ([rate for _, rate in RISING] + flat)[passed : passed + 21]
        factors.append(expected(list(zip((t for t, _ in RISING), rates, strict=True)), 22, 100, 2.0).factor)
    assert factors[0] > 1.15
    assert factors == sorted(factors, reverse=True)
    assert factors[4:] == [1.0] * 6


def test_only_what_follows_a_gap_counts():
    old = [(t - 2000, 500.0) for t, _ in RISING]
    assert expected([*old, *RISING], 22, 100, 2.0) == expected(RISING, 22, 100, 2.0)


def test_single_missing_points_do_no_harm():
    damaged = [(t, math.nan if i in (3, 9, 10) else rate) for i, (t, rate) in enumerate(RISING)]
    assert expected(damaged, 22, 100, 2.0).factor == pytest.approx(expected(RISING, 22, 100, 2.0).factor)


def test_a_long_history_is_thinned_without_changing_the_trend():
    assert expected(line(10, 0.04, 301, 1.0), 22, 100, 2.0).factor == pytest.approx(26 / 22)


POINT = st.tuples(
    st.one_of(st.integers(0, 300).map(lambda n: T0 + n), st.floats()),
    st.one_of(st.floats(0, 1000), st.floats()),
)


@given(st.lists(POINT, max_size=30), st.one_of(st.floats(0, 1e6), st.floats()), st.floats(), st.floats(1, 10))
def test_never_below_now_never_above_the_limit(history, rate, horizon, limit):
    found = expected(history, rate, horizon, limit)
    assert 1.0 <= found.factor <= limit
    assert found.why
    if math.isfinite(rate) and rate >= 0:
        assert rate <= found.rate <= rate * limit * (1 + 1e-12)


@given(st.permutations(RISING), st.integers(1, 21))
def test_order_and_repetition_do_not_matter(shuffled, again):
    found = expected([*shuffled, *shuffled[:again]], 22, 100, 2.0)
    assert found == expected(RISING, 22, 100, 2.0)


@given(st.floats(0.1, 300), st.floats(0.1, 300))
def test_further_ahead_is_never_less(near, far):
    near, far = sorted((near, far))
    assert expected(RISING, 22, near, 3.0).factor <= expected(RISING, 22, far, 3.0).factor
