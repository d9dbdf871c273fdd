"""Worked numbers of the SLO reference that span modules: state probabilities, the knee, a whole fleet's candidates."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from one_row import analyse_one, size_one

from modelyard.autoscaling.sizing.chain import max_rates
from modelyard.autoscaling.sizing.profiles import Profiles

P = (7.5, 0.05, 12.0, 0.002, 96, 512, 256)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(6.0, (0.393703, 0.342521, 0.174686, 0.089090)), (10.0, (0.211411, 0.306546, 0.260564, 0.221479))],
)
def test_state_probabilities_by_hand(rate: float, expected: tuple[float, ...]) -> None:
    """Four states (N = 2, Q = 1): loss, mean in system, throughput and their sum determine all of them."""
    found = analyse_one(10, 2, 20, 0.05, 2, 100, 11, rate, queue_limit=1)
    p3 = found.loss
    left = np.array([[1.0, 2.0], [1 / 145, 2 / 170]])
    p1, p2 = np.linalg.solve(left, [found.in_system - 3 * p3, found.throughput / 1000 - 2 / 170 * p3])
    assert (1 - p1 - p2 - p3, p1, p2, p3) == pytest.approx(expected, abs=1e-6)


def test_the_knee_of_profile_p() -> None:
    """The last row: 99.9 % of the highest rate, where waiting is all there is."""
    top = float(max_rates(Profiles.of([P]))[0])
    assert top == pytest.approx(29.53797, rel=1e-6)
    found = analyse_one(*P, 29.5084)
    assert found.throughput == pytest.approx(29.4987, rel=1e-5)
    assert (found.in_service, found.effective_concurrency) == pytest.approx((95.6472, 95.6821), rel=1e-5)
    assert (found.prefill, found.itl, found.utilisation) == pytest.approx((109.98, 12.2841, 0.9963), rel=1e-4)
    assert (found.wait, found.ttft, found.response) == pytest.approx((10950.3, 11060.3, 14192.7), rel=1e-3)
    assert found.loss == pytest.approx(3.3e-4, rel=0.02)


ON = {
    ("m7", "H100"): (7.5, 0.05, 12, 0.002, 96),
    ("m7", "L40S"): (19, 0.18, 40, 0.006, 48),
    ("m30", "H100"): (14, 0.1, 25, 0.004, 64),
    ("m30", "L40S"): (30, 0.3, 80, 0.012, 32),
}


@pytest.mark.parametrize(
    ("model", "targets", "load", "accelerator", "replicas", "itl", "ttft", "per_minute"),
    [
        ("m7", (500, 30), 2400, "H100", 2, 10.225, 67.8, 1699.4),
        ("m7", (500, 30), 2400, "L40S", 7, 26.185, 346.2, 352.9),
        ("m30", (1000, 40), 1500, "H100", 3, 18.018, 107.6, 680.1),
        ("m30", (1000, 40), 1500, "L40S", 10, 37.632, 478.0, 161.2),
        ("m7", (2000, 60), 4000, "H100", 3, 10.654, 76.7, 1748.7),
        ("m7", (2000, 60), 4000, "L40S", 11, 26.740, 812.3, 378.6),
        ("m30", (3000, 80), 600, "H100", 1, 19.090, 164.9, 700.6),
        ("m30", (3000, 80), 600, "L40S", 4, 37.632, 478.0, 172.7),
    ],
)
def test_candidates_of_the_worked_fleet(
    model: str,
    targets: tuple[float, float],
    load: float,
    accelerator: str,
    replicas: int,
    itl: float,
    ttft: float,
    per_minute: float,
) -> None:
    """512 + 256 tokens: rate per replica, replicas, and what each then shows at its share of the load."""
    profile = (*ON[model, accelerator], 512, 256)
    sized = size_one(*profile, ttft=targets[0], itl=targets[1], published=True)
    # Printed to one decimal, from single precision.
    assert sized.rate * 60 == pytest.approx(per_minute, abs=0.06)
    assert ceil(load / 60 / sized.rate) == replicas
    at = analyse_one(*profile, load / 60 / replicas)
    assert at.itl == pytest.approx(itl, abs=6e-4)
    assert at.ttft == pytest.approx(ttft, abs=0.06)


def test_the_documented_rounding_of_load_and_tokens_changes_nothing() -> None:
    """2400.04 requests a minute of 511 tokens, what the rounding path makes of it: the same three replicas."""
    sized = size_one(*P[:5], 511, 256, ttft=500, itl=10, published=True)
    assert 2400.04 / 60 / sized.rate == pytest.approx(2.1332, abs=6e-4)
    assert ceil(2400.04 / 60 / sized.rate) == 3
