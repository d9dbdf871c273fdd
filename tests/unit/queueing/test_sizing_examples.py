"""The worked sizing examples of the SLO reference, in both modes."""

from __future__ import annotations

import pytest

from modelyard.autoscaling.queueing.sizing import size_one

P = (7.5, 0.05, 12.0, 0.002, 96, 512.0, 256.0)
TOP = 29.5380
TABLE = [
    # TTFT, ITL, TPS, rate_ttft, rate_itl, rate_tps, throughput, ttft, itl, utilisation, binding
    (500, 10, 0, 28.3232, 18.7510, TOP, 18.7510, 63.200, 10.0, 0.5104, "ITL"),
    (500, 0, 0, 28.3232, TOP, TOP, 28.3232, 500.0, 12.0104, 0.9344, "TTFT"),
    (100, 0, 0, 25.3201, TOP, TOP, 25.3201, 100.0, 11.3148, 0.7848, "TTFT"),
    (0, 9, 0, TOP, 12.4053, TOP, 12.4053, 42.720, 9.0, 0.3021, "ITL"),
    (500, 40, 0, 28.3232, TOP, TOP, 28.3232, 500.0, 12.0104, 0.9344, "TTFT"),
    (500, 10, 3000, 28.3232, 18.7510, 26.5842, 18.7510, 63.200, 10.0, 0.5104, "ITL"),
]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("row", TABLE)
def test_highest_rates_within_targets(row: tuple[float, ...], published: bool) -> None:
    ttft, itl, tps, rate_ttft, rate_itl, rate_tps, throughput, at_ttft, at_itl, utilisation, binding = row
    found = size_one(*P, ttft=ttft, itl=itl, tps=tps, published=published)
    assert found.feasible
    assert found.binding == binding
    assert (found.rate_ttft, found.rate_itl, found.rate_tps) == pytest.approx((rate_ttft, rate_itl, rate_tps), rel=1e-5)
    assert found.rate == found.fallback_rate == pytest.approx(throughput, rel=1e-5)
    assert (found.ttft, found.itl) == pytest.approx((at_ttft, at_itl), rel=1e-5)
    assert found.utilisation == pytest.approx(utilisation, abs=1e-4)
