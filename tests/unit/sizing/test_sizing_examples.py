"""The worked sizing examples of the SLO reference, in both modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from one_row import analyse_one, size_one

from modelyard.autoscaling.published import sizing as documented
from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.autoscaling.sizing.within import NEAREST

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


def test_without_targets_the_utilisation_is_capped() -> None:
    published = size_one(*P, published=True)
    assert (published.offered, published.rate) == pytest.approx((TOP, 29.5201), rel=1e-5)
    assert (published.ttft, published.itl, published.utilisation) == pytest.approx((13469.6, 12.2891, 0.9975), rel=1e-4)
    repaired = size_one(*P)
    assert repaired.offered == pytest.approx(0.9 * TOP, rel=1e-5)
    assert published.binding == repaired.binding == "stability"
    assert size_one(*P, utilisation_cap=0.5).offered == pytest.approx(0.5 * TOP, rel=1e-5)
    assert size_one(*P, itl=40).offered == repaired.offered  # an ITL that is never reached does not lift the cap
    assert size_one(*P, tps=1, utilisation_cap=1).binding == "TPS"


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(("ttft", "itl", "binding"), [(10, 10, "TTFT"), (500, 7.5, "ITL"), (10, 7.5, "TTFT")])
def test_targets_below_what_the_hardware_can_do(ttft: float, itl: float, binding: str, published: bool) -> None:
    found = size_one(*P, ttft=ttft, itl=itl, published=published)
    assert (found.feasible, found.binding) == (False, binding)
    assert math.isnan(found.rate)
    assert math.isnan(found.offered)
    assert (found.best_ttft, found.best_itl) == pytest.approx((13.024, 7.55), rel=1e-3)


def test_an_infeasible_target_is_sized_for_the_nearest_feasible_one() -> None:
    found = size_one(*P, ttft=500, itl=7.5)
    nearest = size_one(*P, ttft=500, itl=NEAREST * found.best_itl)
    assert found.fallback_rate == pytest.approx(nearest.rate, rel=1e-6)
    assert found.rate_ttft == pytest.approx(28.3232, rel=1e-5)
    flat = size_one(20, 0, 5, 0.002, 8, 100, 50, itl=15)
    assert flat.fallback_rate == pytest.approx(size_one(20, 0, 5, 0.002, 8, 100, 50).rate)  # no load helps: the cap


@pytest.mark.parametrize(
    ("row", "constant"),
    [((20.0, 0.0, 5.0, 0.01, 8, 100.0, 50.0), 20.0), ((18.0, 2.0, 5.0, 0.01, 1, 100.0, 50.0), 20.0)],
    ids=["no beta", "batch of one"],
)
def test_an_itl_that_does_not_depend_on_load(row: tuple[float, ...], constant: float) -> None:
    all_of_it = size_one(*row)
    for target in (constant, 1.2 * constant):
        found = size_one(*row, itl=target)
        assert (found.feasible, found.offered) == (True, all_of_it.offered)
    assert not size_one(*row, itl=0.75 * constant).feasible


def test_published_search_of_an_itl_that_does_not_depend_on_load() -> None:
    row = (20.0, 0.0, 5.0, 0.01, 8, 100.0, 50.0)
    assert not size_one(*row, itl=24, published=True).feasible
    impossible = size_one(*row, itl=15, published=True)
    assert impossible.feasible
    assert impossible.offered == impossible.rate_tps  # all of it
    equal = size_one(*row, itl=20, published=True)
    assert equal.offered == pytest.approx(
        1000 * 0.001 / (5 + 0.01 * 100 + 49 * 20)
    )  # a thousandth of one request's rate


def test_published_search_stops_within_a_millionth() -> None:
    exact, near = size_one(*P, itl=10), size_one(*P, itl=10, published=True)
    assert near.itl != 10
    assert near.itl == pytest.approx(10, rel=1e-6)
    assert near.offered == pytest.approx(exact.offered, rel=1e-5)
    assert exact.itl == pytest.approx(10, rel=1e-12)


def test_targets_at_the_ends_of_the_range() -> None:
    best, worst = size_one(*P).best_ttft, 1e6
    assert size_one(*P, ttft=best).offered == pytest.approx(0.00051592, rel=1e-4)
    assert size_one(*P, ttft=worst).rate_ttft == pytest.approx(TOP, rel=1e-5)
    assert size_one(*P, ttft=worst).binding == "stability"


def test_no_prompt_and_single_tokens() -> None:
    no_prompt = size_one(7.5, 0.05, 12, 0.002, 96, 0, 256, itl=8.4076)
    assert no_prompt.rate == pytest.approx(8, rel=1e-3)
    assert no_prompt.best_ttft == pytest.approx(0, abs=1e-9)
    single = size_one(7.5, 0.05, 12, 0.002, 96, 512, 1, ttft=40, itl=1)  # an ITL target means nothing here
    assert single.feasible
    assert single.binding == "TTFT"
    assert math.isnan(single.best_itl)


def test_margin_of_the_emulated_walk_through() -> None:
    """Batch limit 4, 178 output tokens, SLO 24/500: without the 95 % margin on the wait, a third more load."""
    row = (20.58, 0.41, 0.0, 0.0, 4, 0.0, 178.0)
    plain, margin = size_one(*row, ttft=500, itl=24), size_one(*row, ttft=500 / 2.9957, itl=24)
    assert plain.binding == margin.binding == "TTFT"
    assert plain.rate / margin.rate == pytest.approx(4 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("arrivals", "ratio", "replicas", "each", "itl", "ttft", "utilisation"),
    [
        (0.3, 0.0003, 1, 0.005, 7.550, 13.034, 0.000),
        (1125, 0.99995, 1, 18.750, 10.000, 63.197, 0.510),
        (1126, 1.0008, 2, 9.383, 8.594, 34.412, 0.218),
        (2400, 2.1332, 3, 13.333, 9.133, 45.441, 0.330),
        (4567.89, 4.0601, 5, 15.226, 9.417, 51.265, 0.389),
    ],
)
def test_replicas_for_a_load(
    arrivals: float, ratio: float, replicas: int, each: float, itl: float, ttft: float, utilisation: float
) -> None:
    rate = size_one(*P, ttft=500, itl=10).rate
    needed = arrivals / 60 / rate
    assert needed == pytest.approx(ratio, rel=2e-5, abs=5e-5)
    assert math.ceil(needed) == replicas
    assert arrivals / 60 / replicas == pytest.approx(each, abs=5e-4)
    found = analyse_one(*P, arrivals / 60 / replicas)
    assert (found.itl, found.ttft, found.utilisation) == pytest.approx((itl, ttft, utilisation), abs=6e-4)


def test_sizing_as_published_gives_the_printed_rate() -> None:
    assert size_one(*P, ttft=500, itl=10, published=True).rate == pytest.approx(18.75100, abs=1e-5)


def test_bad_rows_do_not_disturb_the_others() -> None:
    rows = [P, (math.nan, *P[1:]), (*P[:4], 0, *P[5:]), P, P, P]
    targets = [(500, 10, 0), (500, 10, 0), (500, 10, 0), (-1, 10, 0), (500, math.nan, 0), (500, 9, 0)]
    for search in (size, documented.size):
        found = search(Profiles.of(rows), Targets.of(targets))
        assert found.feasible.tolist() == [True, False, False, False, False, True]
        assert np.isnan(found.rate).tolist() == [False, True, True, True, True, False]
        assert np.isnan(found.fallback_rate).tolist() == [False, True, True, True, True, False]
        assert found.binding.tolist() == ["ITL", "", "", "", "", "ITL"]
        assert found.rate[[0, 5]] == pytest.approx([18.751, 12.4053], rel=1e-5)


def test_options_out_of_range() -> None:
    profiles, targets = Profiles.of([P]), Targets.each(1, ttft=500)
    with pytest.raises(ValueError, match="utilisation_cap is"):
        size(profiles, targets, utilisation_cap=1.5)
    with pytest.raises(ValueError, match="percentile is 100"):
        size(profiles, targets, percentile=100)
    with pytest.raises(ValueError, match="1 profiles but 2 rows"):
        size(profiles, Targets.each(2))
    assert len(size(Profiles.of([]), Targets.of([])).rate) == 0
