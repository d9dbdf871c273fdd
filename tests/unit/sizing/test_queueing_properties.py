"""What must hold for any profile, load and target."""

from __future__ import annotations

import numpy as np
import pytest
from examples import few
from hypothesis import assume, given, strategies as st
from naive_chain import latencies, naive
from one_row import min_rates

from modelyard.autoscaling.published import sizing as documented
from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.chain import analyse, max_rates
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.autoscaling.sizing.states import Chain, geometric

positive = st.floats(0.1, 50)
maybe = st.just(0.0) | st.floats(1e-3, 5)
profile = st.tuples(
    positive,
    maybe,
    st.just(0.0) | st.floats(0.1, 200),
    st.just(0.0) | st.floats(1e-5, 0.2),
    st.integers(1, 24),
    st.just(0.0) | st.floats(1, 2000),
    st.sampled_from([1.0, 2.0]) | st.floats(1, 500),
).filter(lambda row: bool(Profiles.of([row]).valid[0]))
share = st.floats(0.01, 0.999)
percent = st.sampled_from([None, 50.0, 95.0, 99.0])


@given(profile.filter(lambda row: row[4] <= 8), share)
def test_arrays_agree_with_the_chain_state_by_state(row: tuple[float, ...], part: float) -> None:
    profiles = Profiles.of([row])
    rate = float(part * max_rates(profiles)[0])
    base, slope, batch = profiles.service_base[0], profiles.service_slope[0], int(row[4])
    expected = naive(float(base), float(slope), batch, 10 * batch, rate)
    found = analyse(profiles, rate)
    assert found.throughput[0] == pytest.approx(expected.throughput, rel=1e-10)
    assert found.in_system[0] == pytest.approx(expected.in_system, rel=1e-10)
    assert found.in_service[0] == pytest.approx(expected.in_service, rel=1e-10)
    assert found.wait[0] == pytest.approx(expected.wait, rel=1e-9, abs=1e-300)
    assert found.loss[0] == pytest.approx(expected.probabilities[-1], rel=1e-9, abs=1e-300)
    if slope > 0:
        assert found.effective_concurrency[0] == pytest.approx(expected.seen, rel=1e-10)
        published = documented.analyse(profiles, rate)
        if row[5] > 0 and row[6] > 1:
            assert published.effective_concurrency[0] == pytest.approx(expected.seen, rel=1e-6, abs=1e-6 / slope)


def test_a_fleet_of_all_batches_is_sized_as_the_reference_sizes_each_row() -> None:
    """Issue 9, A6: many rows are searched together, each to the rate at which the plain chain crosses its target."""
    random = np.random.default_rng(9)
    batches = [2, 3, 8, 9, 31, 64, 65, 130, 256, *random.integers(1, 300, 30).tolist()]
    rows = [
        (7.5 * s, 4.8 * s / n, 12 * s, 0.2 * s / n, n, random.uniform(64, 2048), random.uniform(32, 768))
        for n, s in zip(batches, random.uniform(0.5, 3, len(batches)), strict=True)
    ]
    top = max_rates(profiles := Profiles.of(rows))
    at_ttft, at_itl = (top * random.uniform(0.05, 0.998, len(rows)) for _ in range(2))
    aims = [(latencies(row, x)[0], latencies(row, y)[1]) for row, x, y in zip(rows, at_ttft, at_itl, strict=True)]
    found = size(profiles, Targets.of([(*aim, 0) for aim in aims]))
    np.testing.assert_allclose(found.rate_ttft, at_ttft, rtol=1e-8)
    np.testing.assert_allclose(found.rate_itl, at_itl, rtol=1e-8)
    for row, rate, ttft, itl in zip(rows, found.offered, found.ttft, found.itl, strict=True):
        assert (ttft, itl) == pytest.approx(latencies(row, rate), rel=1e-9)


@given(profile, share, share)
def test_more_load_never_helps(row: tuple[float, ...], one: float, other: float) -> None:
    profiles = Profiles.of([row, row])
    found = analyse(profiles, np.sort([one, other]) * max_rates(profiles))
    for values in (found.ttft, found.itl, found.utilisation, found.throughput):
        assert np.isnan(values).all() or values[1] >= values[0] * (1 - 1e-10)


def targets_for(profiles: Profiles, reach: float) -> tuple[float, float]:
    """A TTFT and an ITL part of the way from the lowest to the highest latency."""
    low, high = analyse(profiles, min_rates(profiles)), analyse(profiles, max_rates(profiles))
    ttft = low.ttft[0] * (high.ttft[0] / low.ttft[0]) ** reach if low.ttft[0] > 0.01 else high.ttft[0] * reach
    return float(ttft), float(np.nan_to_num(low.itl[0] + (high.itl[0] - low.itl[0]) * reach))


@given(profile, st.floats(0.001, 1.2), st.floats(1, 3), percent)
def test_a_tighter_target_never_gives_a_higher_rate(
    row: tuple[float, ...], reach: float, looser: float, percentile: float | None
) -> None:
    ttft, itl = targets_for(Profiles.of([row]), reach)
    assume(ttft > 1e-3)
    found = size(
        Profiles.of([row] * 4),
        Targets.of(
            [(ttft, itl, 0), (looser * ttft, itl, 0), (ttft, looser * itl, 0), (looser * ttft, looser * itl, 0)]
        ),
        percentile=percentile,
    )
    rate = np.where(found.feasible, found.rate, 0)
    slack = 1 - 1e-7
    assert rate[1] >= rate[0] * slack
    assert rate[2] >= rate[0] * slack
    assert rate[3] >= max(rate[1], rate[2]) * slack
    assert (found.fallback_rate > 0).all()


@given(profile, st.lists(st.floats(0.3, 3), min_size=2, max_size=8), st.floats(0.3, 100), percent)
def test_no_tighter_target_gives_a_higher_rate_feasible_or_not(
    row: tuple[float, ...], multiples: list[float], other: float, percentile: float | None
) -> None:
    idle = analyse(Profiles.of([row]), min_rates(Profiles.of([row])))
    itl, ttft = float(np.nan_to_num(idle.itl[0])), float(idle.ttft[0])
    assume(ttft > 1e-3)
    tightest_last = sorted(multiples, reverse=True)
    count = len(tightest_last)
    for rows in (
        [(m * ttft, other * itl, 0.0) for m in tightest_last],
        [(other * ttft, m * itl, 0.0) for m in tightest_last],
        [(0.0, m * itl, 0.0) for m in tightest_last],
    ):
        found = size(Profiles.of([row] * count), Targets.of(rows), percentile=percentile)
        rates = found.fallback_rate
        assert (rates[1:] <= rates[:-1] * (1 + 1e-7)).all()
        known = found.feasible
        assert (rates[known] >= found.rate[known] * (1 - 1e-9)).all()


def test_a_target_only_an_idle_replica_meets_does_not_order_a_thousand_times_too_many() -> None:
    p = (7.5, 0.05, 12.0, 0.002, 96, 512, 256)
    exact = size(Profiles.of([p]), Targets.of([(500, 7.5501, 0)]))
    assert exact.feasible[0]
    assert exact.rate[0] < 0.01
    assert exact.fallback_rate[0] > 3
    assert exact.fallback_rate[0] == pytest.approx(
        float(size(Profiles.of([p]), Targets.of([(500, 7.4, 0)])).fallback_rate[0]), rel=1e-6
    )


@given(profile, st.floats(0.001, 1.2), percent)
def test_the_rate_is_within_its_targets_and_none_higher_is(
    row: tuple[float, ...], reach: float, percentile: float | None
) -> None:
    ttft, itl = targets_for(Profiles.of([row]), reach)
    assume(ttft > 1e-3)
    profiles = Profiles.of([row])
    found = size(profiles, Targets.of([(ttft, itl, 0)]), percentile=percentile)
    assume(bool(found.feasible[0]))
    assert found.ttft[0] <= ttft * (1 + 1e-6)
    assert itl == 0 or np.isnan(found.itl[0]) or found.itl[0] <= itl * (1 + 1e-6)
    binding, top = found.binding[0], max_rates(profiles)[0]
    if binding == "TTFT":
        assert found.ttft[0] == pytest.approx(ttft, rel=1e-6)
    elif binding == "ITL":
        assert found.itl[0] == pytest.approx(itl, rel=1e-6)
    else:
        assert found.offered[0] == pytest.approx(top)


@few
@given(st.lists(st.tuples(profile, st.floats(0.001, 1.2)), min_size=1, max_size=12), st.randoms(), percent)
def test_rows_do_not_depend_on_each_other(
    rows: list[tuple[tuple[float, ...], float]], random: object, percentile: float | None
) -> None:
    targets = [(*targets_for(Profiles.of([row]), reach), 0.0) for row, reach in rows]
    together = size(Profiles.of([row for row, _ in rows]), Targets.of(targets), percentile=percentile)
    order = list(range(len(rows))) * 2  # every row twice
    random.shuffle(order)  # type: ignore[attr-defined]
    mixed = size(
        Profiles.of([rows[i][0] for i in order]), Targets.of([targets[i] for i in order]), percentile=percentile
    )
    assert mixed.binding.tolist() == together.binding[order].tolist()
    for name in ("rate_ttft", "rate_itl", "rate", "ttft", "itl", "fallback_rate"):
        np.testing.assert_allclose(getattr(mixed, name), getattr(together, name)[order], rtol=1e-7)


@given(st.sampled_from([0.5, 0.999, 1 - 1e-6, 1 - 1e-9, 1.0, 1 + 1e-9]), st.integers(0, 400))
def test_sums_of_the_queue_at_any_ratio(ratio: float, terms: int) -> None:
    j = np.arange(terms)
    none, one, none_slope, one_slope, last = (
        float(values[0]) for values in geometric(np.array([ratio]), np.array([float(terms)]))
    )
    assert none == pytest.approx(np.sum(ratio**j), rel=1e-9)
    assert one == pytest.approx(np.sum((j + 1) * ratio**j), rel=1e-7)
    assert none_slope == pytest.approx(np.sum(j * ratio**j), rel=1e-4)
    assert one_slope == pytest.approx(np.sum((j + 1) * j * ratio**j), rel=1e-2)
    assert last == pytest.approx(ratio**terms, rel=1e-9)


@given(profile, share)
def test_derivatives_are_those_of_the_values(row: tuple[float, ...], part: float) -> None:
    profiles = Profiles.of([row])
    chain = Chain(profiles.service_base, profiles.service_slope, profiles.max_batch, profiles.queue_limit)
    rate, step = part * 0.999 * chain.full_rate, 1e-5
    here, before, after = (chain.at(rate * np.exp(x)) for x in (0.0, -step, step))
    assert here.seen_slope[0] == pytest.approx((after.seen[0] - before.seen[0]) / (2 * step), rel=1e-4, abs=1e-8)
    growth = np.log(after.wait[0] / before.wait[0]) / (2 * step)
    assert here.wait_slope[0] == pytest.approx(here.wait[0] * growth, rel=1e-4)
    assert here.log_full_slope[0] == pytest.approx((after.log_full[0] - before.log_full[0]) / (2 * step), rel=1e-4)
