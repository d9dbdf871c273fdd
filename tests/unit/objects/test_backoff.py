from __future__ import annotations

import math

import pytest

from modelyard.backoff import Backoff


@pytest.mark.parametrize(("failures", "seconds"), [(-1, 0), (0, 0), (1, 10), (2, 20), (3, 40), (4, 60), (10**9, 60)])
def test_the_delay_doubles_up_to_the_longest(failures: int, seconds: float) -> None:
    assert Backoff(10, longest=60).delay(failures) == seconds


def test_the_factor_and_the_jitter_are_given() -> None:
    assert Backoff(10, factor=3).delay(3) == 90
    assert Backoff(10, longest=60).delay(9, jitter=0.5) == 30


def test_no_count_of_failures_overflows() -> None:
    assert math.isfinite(Backoff(10, factor=3).delay(2**31))
