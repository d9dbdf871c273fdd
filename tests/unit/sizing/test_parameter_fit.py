"""Performance parameters from benchmark runs, and which runs to measure."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from modelyard.autoscaling.sizing.experiment import TIGHT, PlannedRun, doubt, next_run, promised, smallest
from modelyard.autoscaling.sizing.fit import Fit, FitError, Point, fit, implausible


def engine(
    n: float, prompt: float, parameters: tuple[float, float, float, float], noise: random.Random | None = None
) -> Point:
    alpha, beta, gamma, delta = parameters
    off = (noise.gauss(1, 0.1), noise.gauss(1, 0.1)) if noise else (1.0, 1.0)
    return Point(n, prompt, 128, (gamma + delta * prompt * n) * off[0], (alpha + beta * n) * off[1])


def estimates(found: Fit) -> tuple[float, ...]:
    return tuple(one.estimate for one in (found.alpha, found.beta, found.gamma, found.delta))


P = (9.0, 0.1, 30.0, 0.004)


def test_two_runs_give_the_documented_formulas() -> None:
    found = fit([Point(1, 256, 128, 31, 9.4), Point(48, 256, 128, 79, 14.2)], one_length=True)
    assert estimates(found) == pytest.approx((9.297872, 0.102128, 29.978723, 0.003989), abs=6e-7)
    assert math.isnan(found.alpha.low)
    assert any("measure 4" in warning for warning in found.warnings)
    assert any("64 or 1024 tokens is missing" in warning for warning in found.warnings)


loads = st.lists(st.tuples(st.integers(1, 512), st.sampled_from((128, 1024))), min_size=4, max_size=8, unique=True)


@given(loads, st.floats(1, 50), st.floats(1e-3, 2), st.floats(1, 300), st.floats(1e-4, 0.1))
def test_exact_measurements_are_recovered(
    runs: list[tuple[int, int]], alpha: float, beta: float, gamma: float, delta: float
) -> None:
    parameters = (alpha, beta, gamma, delta)
    runs = [*runs, (1, 128), (600, 1024)]
    found = fit([engine(n, prompt, parameters) for n, prompt in runs])
    assert estimates(found) == pytest.approx(parameters, rel=1e-5, abs=1e-6)
    assert found.itl.r_squared == pytest.approx(1)
    assert found.ranges["concurrency"] == (1, 600)


def test_intervals_hold_the_truth_and_narrow_with_more_runs() -> None:
    held, widths = 0, {}
    for count in (2, 16):
        for seed in range(50):
            noise = random.Random(seed)
            runs = smallest(64, (128, 1024)) * count
            found = fit([engine(*run, P, noise) for run in runs])
            pairs = zip((found.alpha, found.beta, found.gamma, found.delta), P, strict=True)
            held += sum(one.low <= true <= one.high for one, true in pairs)
            widths[count, seed] = found.alpha.half_width
    assert held >= 0.85 * 400
    assert sum(widths[16, seed] < widths[2, seed] for seed in range(50)) >= 45


def test_outliers_move_little_and_are_told() -> None:
    noise = random.Random(7)
    runs = [engine(*run, P, noise) for run in smallest(64, (128, 1024)) * 10]
    for index in range(0, 40, 7):
        runs[index] = runs[index]._replace(ttft=runs[index].ttft * 5, itl=runs[index].itl * 5)
    found = fit(runs)
    assert estimates(found) == pytest.approx(P, rel=0.25)
    assert any("outliers" in warning for warning in found.warnings)


def test_three_in_ten_wrong_runs_move_little_and_are_told() -> None:
    for seed in range(20):
        noise = random.Random(seed)
        runs = [engine(*run, P, noise) for run in smallest(64, (128, 1024)) * 10]
        for index in noise.sample(range(40), 12):
            off = noise.choice((0.3, 3))
            runs[index] = runs[index]._replace(ttft=runs[index].ttft * off, itl=runs[index].itl * off)
        found = fit(runs)
        assert estimates(found) == pytest.approx(P, rel=0.35)
        assert sum("outliers" in warning for warning in found.warnings) == 2


def test_slightly_negative_parameters_become_zero() -> None:
    flat = ((1, 30.0, 10.0), (8, 29.9, 9.98), (16, 30.1, 9.97), (32, 29.8, 9.99))
    found = fit([Point(n, 128, 128, ttft, itl) for n, ttft, itl in flat], one_length=True)
    assert (found.beta.estimate, found.delta.estimate) == (0, 0)
    assert found.alpha.estimate == pytest.approx(9.985, abs=0.01)
    steep = ((1, 1.0, 10.0), (2, 4.0, 10.1), (3, 7.0, 10.2), (4, 10.0, 10.3))
    found = fit([Point(n, 10, 128, ttft, itl) for n, ttft, itl in steep], one_length=True)
    assert found.gamma.estimate == 0
    assert any(warning.startswith("gamma was negative") for warning in found.warnings)
    assert any("off a straight line" in warning for warning in found.warnings)


def test_runs_beyond_the_batch_are_left_out_and_the_usable_batch_is_measured() -> None:
    runs = [engine(n, prompt, P) for n in (1, 16, 32, 64) for prompt in (128, 1024)]
    queued = [Point(128, prompt, 128, 5000, 9 + 6.4) for prompt in (128, 1024)]
    found = fit(runs + queued, max_batch=64, kv_tokens=1000, startup=30.0)
    assert estimates(found) == pytest.approx(P)
    assert (found.usable_batch, found.kv_tokens, found.startup) == (64, 1000, 30.0)
    assert fit(runs + queued).usable_batch == 64


def point(n: float = 1, prompt: float = 256, ttft: float = 31, itl: float = 9.4) -> Point:
    return Point(n, prompt, 128, ttft, itl)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([point()], "1 different concurrency"),
        ([point(), point(prompt=1024)], "alpha from beta.*batch limit \\(which must be 2 or more\\)"),
        ([], "0 different concurrency"),
        ([point(), point(48, ttft=79, itl=14.2)], "about 256 tokens.*64 or 1024 tokens is missing"),
        ([point(), point(48, prompt=270, ttft=79, itl=14.2)], "about 270 tokens"),
        ([point(prompt=0), point(48)], "prompt_tokens is 0"),
        ([point(itl=math.nan), point(48)], "concurrency 1: itl is nan"),
        ([point(ttft=0), point(48)], "ttft is 0"),
        ([point(0.5), point(48)], "at least 1 request"),
        ([point(itl=14.2), point(48), point(1, 1024, 40, 14.2)], "ITL falls by 34%"),
    ],
)
def test_measurements_that_determine_nothing(runs: list[Point], message: str) -> None:
    with pytest.raises(FitError, match=message):
        fit(runs)


def test_one_outlier_refuses_nothing() -> None:
    runs = [engine(n, prompt, P) for n in (1, 16, 32, 64) for prompt in (128, 1024)]
    runs[0] = runs[0]._replace(itl=200.0)
    assert fit(runs).beta.estimate == pytest.approx(0.1, rel=0.1)


def test_sets_of_mixed_sources_look_implausible() -> None:
    (warning,) = implausible(6.958, 0.042, 5.2, 0.1, 512, 128)
    assert "6559 ms" in warning
    assert implausible(22.619, 0.181, 226.19, 0.018, 512, 128) == ()
    assert implausible(7.5, 0.05, 12, 0.002, 96, 512) == ()
    assert "no time" in implausible(0, 0, 12, 0.002, 96, 512)[-1]


@given(st.integers(2, 1024), st.integers(1, 1000), st.integers(2, 8))
def test_the_smallest_plan_determines_everything(max_batch: int, short: int, times: int) -> None:
    plan = smallest(max_batch, (short, short * times))
    assert len(plan) <= 4
    assert estimates(fit([engine(*run, P) for run in plan])) == pytest.approx(P, rel=1e-4)


def test_plans_that_determine_nothing() -> None:
    with pytest.raises(ValueError, match="max_batch is 1"):
        smallest(1, (128, 1024))
    with pytest.raises(ValueError, match="at least twice"):
        smallest(8, (128, 200))


def test_runs_are_added_until_the_intervals_are_tight() -> None:
    noise = random.Random(3)
    plan = smallest(64, (128, 1024))
    runs = [engine(*run, P, noise) for run in plan]
    while (wanted := next_run(fit(runs), plan)) is not None and len(runs) < 400:
        assert wanted in plan
        runs.append(engine(*wanted, P, noise))
    assert max(doubt(fit(runs)).values()) <= TIGHT
    assert next_run(fit([engine(*run, P) for run in plan]), plan) is None


def test_what_more_runs_would_narrow_is_known_before_they_are_made() -> None:
    noise = random.Random(4)
    plan = smallest(64, (128, 1024)) * 2
    runs = [engine(*run, P, noise) for run in plan]
    assert promised(fit(runs), ()) == pytest.approx(doubt(fit(runs)))
    before, expected = doubt(fit(runs)), promised(fit(runs), plan * 3)
    after = doubt(fit(runs + [engine(*run, P, noise) for run in plan * 3]))
    for name, share in expected.items():
        assert share < before[name] / 2
        assert share == pytest.approx(after[name], rel=0.6)


def test_the_next_run_is_where_the_doubtful_parameter_shows() -> None:
    noise = random.Random(5)
    plan = smallest(64, (128, 1024))
    exact = [engine(*run, P) for run in plan * 2]
    found = fit([one._replace(itl=one.itl * noise.gauss(1, 0.1)) for one in exact])
    worst = max(doubt(found), key=lambda name: doubt(found)[name])
    assert next_run(found, plan) == {"alpha": PlannedRun(1, 128), "beta": PlannedRun(64, 128)}[worst]
    found = fit([one._replace(ttft=one.ttft * noise.gauss(1, 0.1)) for one in exact])
    worst = max(doubt(found), key=lambda name: doubt(found)[name])
    assert next_run(found, plan) == {"gamma": PlannedRun(1, 128), "delta": PlannedRun(32, 1024)}[worst]
