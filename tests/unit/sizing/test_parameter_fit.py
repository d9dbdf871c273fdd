"""Performance parameters from benchmark levels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.autoscaling.sizing.fit import FitError, Level, fit, implausible


def test_two_levels_give_the_documented_formulas() -> None:
    found = fit([Level(1, 31, 9.4), Level(48, 79, 14.2)], 256)
    assert (found.beta, found.alpha) == pytest.approx((0.102128, 9.297872), abs=6e-7)
    assert (found.delta, found.gamma) == pytest.approx((0.003989, 29.978723), abs=5e-7)
    assert found.itl_residuals == pytest.approx((0, 0), abs=1e-9)
    assert found.ttft_residuals == pytest.approx((0, 0), abs=1e-9)
    assert any("measure 4" in warning for warning in found.warnings)


levels = st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True)


@given(levels, st.floats(0, 50), st.floats(1e-3, 2), st.floats(0, 300), st.floats(1e-4, 0.1), st.floats(1, 4096))
def test_exact_measurements_are_recovered(
    counts: list[int], alpha: float, beta: float, gamma: float, delta: float, prompt: float
) -> None:
    found = fit([Level(n, gamma + delta * prompt * n, alpha + beta * n) for n in counts], prompt)
    assert (found.alpha, found.beta) == pytest.approx((alpha, beta), rel=1e-6, abs=1e-6)
    assert (found.gamma, found.delta) == pytest.approx((gamma, delta), rel=1e-6, abs=1e-5)


def test_noise_shows_in_the_residuals() -> None:
    noise = (0.3, -0.3, -0.3, 0.3)
    runs = [Level(n, 20 + 0.5 * n, 10 + 0.1 * n + e) for n, e in zip((1, 16, 32, 64), noise, strict=True)]
    found = fit(runs, 128)
    assert found.alpha == pytest.approx(10, rel=0.05)
    assert sum(found.itl_residuals) == pytest.approx(0, abs=1e-9)
    assert max(map(abs, found.itl_residuals)) == pytest.approx(0.3, rel=0.5)
    assert found.warnings == ()


def test_slightly_negative_slopes_become_zero() -> None:
    found = fit([Level(1, 30.0, 10.0), Level(8, 29.9, 9.98), Level(16, 30.1, 9.97), Level(32, 29.8, 9.99)], 128)
    assert (found.beta, found.delta) == (0, 0)
    assert found.alpha == pytest.approx(9.985)
    assert sum("taken as 0" in warning for warning in found.warnings) == 2


def test_negative_intercepts_become_zero() -> None:
    found = fit([Level(1, 1.0, 10.0), Level(2, 4.0, 10.1), Level(3, 7.0, 10.2), Level(4, 10.0, 10.3)], 10)
    assert found.gamma == 0
    assert found.delta == pytest.approx((1 + 8 + 21 + 40) / 30 / 10)
    assert any(warning.startswith("gamma was negative") for warning in found.warnings)
    assert any("off a straight line" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("runs", "prompt", "message"),
    [
        ([Level(1, 31, 9.4)], 256, "1 different concurrency"),
        ([Level(1, 31, 9.4), Level(1, 32, 9.5)], 256, "batch limit \\(which must be 2 or more\\)"),
        ([], 256, "0 different concurrency"),
        ([Level(1, 31, 9.4), Level(48, 79, 14.2)], 0, "prompt_tokens is 0"),
        ([Level(1, 31, math.nan), Level(48, 79, 14.2)], 256, "concurrency 1: itl is nan"),
        ([Level(1, 0, 9.4), Level(48, 79, 14.2)], 256, "ttft is 0"),
        ([Level(0.5, 31, 9.4), Level(48, 79, 14.2)], 256, "at least 1 request"),
        ([Level(1, 31, 14.2), Level(48, 79, 9.4)], 256, "ITL falls by 4.8 ms"),
    ],
)
def test_measurements_that_determine_nothing(runs: list[Level], prompt: float, message: str) -> None:
    with pytest.raises(FitError, match=message):
        fit(runs, prompt)


def test_sets_of_mixed_sources_look_implausible() -> None:
    (warning,) = implausible(6.958, 0.042, 5.2, 0.1, 512, 128)
    assert "6559 ms" in warning
    assert implausible(22.619, 0.181, 226.19, 0.018, 512, 128) == ()
    assert implausible(7.5, 0.05, 12, 0.002, 96, 512) == ()
    assert "no time" in implausible(0, 0, 12, 0.002, 96, 512)[-1]
