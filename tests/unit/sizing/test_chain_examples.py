"""The worked examples of the performance model, and its special cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from one_row import analyse_one

from modelyard.autoscaling.sizing.chain import analyse, max_rates
from modelyard.autoscaling.sizing.profiles import Profiles

P = (7.5, 0.05, 12.0, 0.002, 96, 512.0, 256.0)
SMALL = (10.0, 2.0, 20.0, 0.05, 2, 100.0, 11.0)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("rate", "loss", "x", "in_system", "b", "r", "s", "w", "n", "prefill", "itl", "ttft", "utilisation"),
    [
        (6, .089090, 5.465461, .959163, .870073, 175.4953, 159.1948, 16.3005, 1.567792, 27.8390, 13.1356, 44.1395,
         .435037),
        (10, .221479, 7.785207, 1.492112, 1.270632, 191.6599, 163.2111, 28.4487, 1.728445, 28.6422, 13.4569, 57.0910,
         .635316),
    ],
)  # fmt: skip
def test_hand_checkable_example(
    rate: float, loss: float, x: float, in_system: float, b: float, r: float, s: float, w: float, n: float,
    prefill: float, itl: float, ttft: float, utilisation: float, published: bool,
) -> None:  # fmt: skip
    found = analyse_one(*SMALL, rate, queue_limit=1, published=published)
    assert (found.throughput, found.in_system, found.in_service) == pytest.approx((x, in_system, b), rel=1e-6)
    assert (found.response, found.service, found.wait) == pytest.approx((r, s, w), rel=3e-6)
    assert (found.effective_concurrency, found.prefill) == pytest.approx((n, prefill), rel=2e-6)
    assert (found.itl, found.ttft) == pytest.approx((itl, ttft), rel=4e-6)
    assert (found.utilisation, found.loss) == pytest.approx((utilisation, loss), rel=6e-6)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("rate", "in_service", "n", "prefill", "wait", "ttft", "itl", "response", "utilisation"),
    [
        (2, 3.9864, 4.9864, 17.106, 0, 17.106, 7.7493, 1993.18, 0.0415),
        (8, 17.4264, 18.4264, 30.869, 0, 30.869, 8.4213, 2178.31, 0.1815),
        (16, 39.7791, 40.7791, 53.758, 0, 53.758, 9.5390, 2486.19, 0.4144),
        (20, 53.5050, 54.5050, 67.813, 0.0009, 67.814, 10.2253, 2675.25, 0.5573),
        (22, 61.1816, 62.1812, 75.674, 0.061, 75.734, 10.6091, 2781.04, 0.6373),
    ],
)
def test_realistic_example(
    rate: float, in_service: float, n: float, prefill: float, wait: float, ttft: float, itl: float, response: float,
    utilisation: float, published: bool,
) -> None:  # fmt: skip
    found = analyse_one(*P, rate, published=published)
    assert found.throughput == pytest.approx(rate, rel=1e-9)
    assert (found.in_service, found.effective_concurrency) == pytest.approx((in_service, n), abs=6e-5)
    assert (found.prefill, found.ttft) == pytest.approx((prefill, ttft), abs=6e-4)
    assert found.wait == pytest.approx(wait, abs=4e-4)
    assert (found.itl, found.utilisation) == pytest.approx((itl, utilisation), abs=6e-5)
    assert found.response == pytest.approx(response, abs=6e-3)


def test_realistic_example_close_to_saturation() -> None:
    """The rate is printed with six digits, and the wait is a thousandfold as sensitive as it."""
    highest = max_rates(Profiles.of([P]))[0]
    found = analyse_one(*P, 0.999 * highest)
    assert (found.throughput, found.in_service) == pytest.approx((29.4987, 95.6472), rel=2e-6)
    assert (found.wait, found.ttft, found.response) == pytest.approx((10950.3, 11060.3, 14192.7), rel=2e-5)
    assert (found.prefill, found.itl) == pytest.approx((109.98, 12.2841), rel=2e-5)
    assert found.loss == pytest.approx(3.3e-4, rel=0.01)


def test_range_of_rates() -> None:
    both = Profiles.of([P, SMALL])
    assert max_rates(both) == pytest.approx([29.53797, 11.752941], rel=1e-6)
    rates = [0.0, -1.0, math.nan, 30.0, math.inf, 29.5379]
    found = analyse(Profiles.of([P] * 6), rates)
    assert np.isnan(found.ttft).tolist() == [True] * 5 + [False]
    assert np.isfinite(analyse(both, max_rates(both)).ttft).all()


def test_without_prompt_gamma_is_not_subtracted() -> None:
    row = (7.5, 0.05, 12.0, 0.002, 96, 0.0, 256.0)
    assert analyse_one(*row, 8, published=True).itl == pytest.approx(8.3605, abs=5e-5)
    assert analyse_one(*row, 8).itl == pytest.approx(8.4076, abs=5e-5)
    assert analyse_one(*row, 8).prefill == 0


def test_service_time_that_does_not_depend_on_the_batch() -> None:
    row = (20.0, 0.0, 5.0, 0.0, 8, 100.0, 50.0)
    found = analyse_one(*row, 4)
    assert found.effective_concurrency == found.in_service
    assert (found.itl, found.prefill) == (20, 5)


def test_a_single_output_token_has_no_interval() -> None:
    row = (7.5, 0.05, 12.0, 0.002, 96, 512.0, 1.0)
    assert math.isnan(analyse_one(*row, 100).itl)
    assert analyse_one(*row, 100).ttft > 13
    assert analyse_one(*row, 100, published=True).itl > 7.5
    alone = analyse_one(7.5, 0.05, 12.0, 0.002, 96, 0.0, 1.0, 100)  # one decode step makes the first token
    assert alone.service == pytest.approx(7.5 + 0.05 * alone.effective_concurrency)


def test_rows_that_describe_no_engine_are_nan_and_leave_the_others_alone() -> None:
    bad = [
        (math.nan, 0.05, 12.0, 0.002, 96, 512.0, 256.0),
        (-7.5, 0.05, 12.0, 0.002, 96, 512.0, 256.0),
        (7.5, -0.05, 12.0, 0.002, 96, 512.0, 256.0),
        (7.5, 0.05, 12.0, 0.002, 0, 512.0, 256.0),
        (7.5, 0.05, 12.0, 0.002, math.nan, 512.0, 256.0),
        (7.5, 0.05, 12.0, 0.002, 96, -1.0, 256.0),
        (7.5, 0.05, 12.0, 0.002, 96, 512.0, 0.5),
        (0.0, 0.0, 0.0, 0.0, 96, 512.0, 256.0),
        (7.5, math.inf, 12.0, 0.002, 96, 512.0, 256.0),
    ]
    found = analyse(Profiles.of([*bad, P]), 8.0)
    assert np.isnan(found.ttft[:-1]).all()
    assert np.isnan(found.throughput[:-1]).all()
    assert found.itl[-1] == pytest.approx(8.4213, abs=5e-5)


def test_noise_of_a_fit_below_zero_counts_as_zero() -> None:
    noisy = analyse_one(7.5, 0.05, 12.0, -1e-5, 96, 512.0, 256.0, 8)
    assert noisy == analyse_one(7.5, 0.05, 12.0, 0.0, 96, 512.0, 256.0, 8)
    assert analyse_one(7.5, 0.05, 12.0, -1e-5, 96, 512.0, 256.0, 8, published=True).prefill < 12


def test_largest_state_space_does_not_overflow() -> None:
    for found in (analyse_one(6.958, 0.042, 5.2, 0.1, 512, 128, 128, 42.0), analyse_one(1, 0, 0, 0, 512, 0, 1000, 500)):
        assert math.isfinite(found.ttft)
        assert 0 < found.utilisation < 1


def test_profiles_need_seven_numbers_a_row() -> None:
    with pytest.raises(ValueError, match="row 1 has 3 values"):
        Profiles.of([P, (1, 2, 3)])
    assert len(Profiles.of([])) == 0
    assert len(analyse(Profiles.of([]), 1.0).ttft) == 0
