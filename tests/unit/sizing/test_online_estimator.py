"""The three-parameter model and its Kalman filter."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from one_row import analyse_one

from modelyard.autoscaling.memory.variants import SLOMemory
from modelyard.autoscaling.sizing.chain import max_rates
from modelyard.autoscaling.sizing.estimator import (
    INITIAL,
    EstimatorState,
    Observation,
    restart,
    resume,
    start,
    update,
)
from modelyard.autoscaling.sizing.iteration import Parameters, equivalent, from_profile, predict
from modelyard.autoscaling.sizing.profiles import Profiles

TRUE = Parameters(6, 0.04, 6e-5)
SEEN = Observation(rate=8, max_batch=64, prompt_tokens=512, output_tokens=256, ttft=38.8216, itl=9.2739)


def truth(rate: float, prompt: float = 512, output: float = 256) -> tuple[float, float]:
    found = predict(np.array([TRUE]), rate, 64, prompt, output)
    return float(found.ttft[0]), float(found.itl[0])


@pytest.mark.parametrize(
    ("rate", "itl", "ttft", "in_service", "wait"),
    [(3, 7.1126, 34.499, 5.5447, 0), (8, 9.2739, 38.822, 19.2293, 0), (12, 12.2329, 46.104, 37.9695, 1.364)],
)
def test_three_parameter_model(rate: float, itl: float, ttft: float, in_service: float, wait: float) -> None:
    found = predict(np.array([TRUE]), rate, 64, 512, 256)
    assert (found.itl[0], found.in_service[0]) == pytest.approx((itl, in_service), abs=6e-5)
    assert (found.ttft[0], found.wait[0]) == pytest.approx((ttft, wait), abs=6e-4)


def test_three_parameter_model_has_a_highest_rate() -> None:
    both = predict(np.array([TRUE, TRUE]), 15.2947, 64, 512, 256)
    assert np.isfinite(both.ttft).all()
    assert np.isnan(predict(np.array([TRUE]), 15.2948, 64, 512, 256).ttft).all()
    assert np.isnan(predict(np.array([TRUE]), 0, 64, 512, 256).ttft).all()


def five() -> EstimatorState:
    state = start()
    for _ in range(5):
        taken = update(state, SEEN)
        assert taken.accepted
        state = taken.state
    return state


def test_noise_relative_to_the_observation() -> None:
    state = five()
    assert state.estimate == pytest.approx((5.6439, 0.044095, 5.084e-5), rel=2e-5)
    found = predict(np.array([state.estimate]), 8, 64, 512, 256)
    assert (found.ttft[0], found.itl[0]) == pytest.approx((40.226, 8.933), abs=6e-4)


def test_it_converges_when_load_and_sizes_vary() -> None:
    chance, state = random.Random(3), start()
    for _ in range(150):
        rate, prompt, output = chance.uniform(1, 9), chance.uniform(64, 900), chance.uniform(64, 400)
        ttft, itl = truth(rate, prompt, output)
        if math.isnan(ttft):
            continue
        state = update(state, Observation(rate, 64, prompt, output, ttft, itl)).state
    for load in (2.0, 6.0, 10.0):
        learnt = predict(np.array([state.estimate]), load, 64, 512, 256)
        assert (learnt.ttft[0], learnt.itl[0]) == pytest.approx(truth(load), rel=0.03)


@pytest.mark.parametrize("name", ["rate", "max_batch", "prompt_tokens", "output_tokens", "ttft", "itl"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_incomplete_observations_change_nothing(name: str, value: float) -> None:
    state = five()
    taken = update(state, replace(SEEN, **{name: value}))
    assert (taken.accepted, taken.state) == (False, state)
    assert taken.reason.startswith(f"{name} is {value}")


def test_outliers_are_rejected_after_the_first_updates() -> None:
    wild = replace(SEEN, ttft=4000.0, itl=0.5)
    assert update(start(), wild).accepted
    state = five()
    taken = update(state, wild)
    assert (taken.accepted, taken.state) == (False, state)
    assert "outlier" in taken.reason


def test_a_rate_the_model_cannot_carry_is_a_rejected_update() -> None:
    taken = update(start(), replace(SEEN, rate=1000.0))
    assert (taken.accepted, taken.state) == (False, start())
    assert "cannot carry 1000 requests/s" in taken.reason


def test_parameters_stay_within_bounds() -> None:
    state = start()
    for _ in range(60):
        taken = update(state, replace(SEEN, rate=0.2, ttft=2.0, itl=0.3))
        state = taken.state
    assert all(first / 10 <= value <= first * 10 for value, first in zip(state.estimate, INITIAL, strict=True))


def test_the_state_fits_what_a_variant_remembers() -> None:
    state = five()
    memory = SLOMemory(estimate=state.estimate, covariance=state.covariance, updates=state.updates)
    again = SLOMemory.model_validate_json(memory.model_dump_json())
    assert resume(again.estimate, again.covariance, again.updates) == state
    for broken in ((), (1.0,), (math.nan, 1.0, 1.0), (-1.0, 1.0, 1.0)):
        assert resume(broken, state.covariance, 5) == start()
    assert resume(state.estimate, (1.0,), 5) == start()


@pytest.mark.parametrize("rate", [3, 8, 12])
def test_equivalent_profile_predicts_the_same(rate: float) -> None:
    row = (*equivalent(TRUE, 512, 256), 64, 512, 256)
    assert max_rates(Profiles.of([row]))[0] == pytest.approx(15.2947, rel=1e-5)
    found = analyse_one(*row, rate)
    assert (found.ttft, found.itl) == pytest.approx(truth(rate), rel=0.005)


@pytest.mark.parametrize(("prompt", "output"), [(0, 200), (512, 1), (0, 1)])
def test_equivalent_profile_keeps_capacity_for_odd_sizes(prompt: float, output: float) -> None:
    row = (*equivalent(TRUE, prompt, output), 64, prompt, output)
    highest = float(max_rates(Profiles.of([row]))[0])
    assert np.isfinite(predict(np.array([TRUE]), highest * (1 - 1e-9), 64, prompt, output).ttft[0])
    assert np.isnan(predict(np.array([TRUE]), highest * (1 + 1e-9), 64, prompt, output).ttft[0])


@pytest.mark.parametrize(
    "profile", [(7.5, 0.05, 12, 0.002), (20.58, 0.41, 30, 0.004), (10, 0, 20, 0.01), (0.1, 5, 0, 0)]
)
def test_starting_from_a_profile(profile: tuple[float, float, float, float]) -> None:
    found = from_profile(*profile, 512, 256)
    assert min(found) > 0
    alpha, beta, _, _ = equivalent(found, 512, 256)
    if profile[1] > 0 and profile[0] > 1:
        assert (alpha, beta) == pytest.approx(profile[:2], rel=1e-6)
    assert "cannot carry" not in update(start(found), replace(SEEN, rate=0.05), initial=found).reason


@pytest.mark.parametrize("busy", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("true", [TRUE, Parameters(30, 0.02, 1e-5), Parameters(3, 0.15, 2e-4)])
@pytest.mark.parametrize(("prompt", "output"), [(512, 256), (40, 500), (3000, 20)])
def test_a_restart_explains_what_was_seen_at_any_load(
    true: Parameters, busy: float, prompt: float, output: float
) -> None:
    rates = np.geomspace(0.001, 1000, 400)
    highest = max(r for r in rates if np.isfinite(predict(np.array([true]), float(r), 64, prompt, output).itl[0]))
    rate = float(busy * highest)
    real = predict(np.array([true]), rate, 64, prompt, output)
    seen = Observation(rate, 64, prompt, output, float(real.ttft[0]), float(real.itl[0]))
    state = restart(seen, initial=Parameters(8, 0.05, 5e-5))
    assert state is not None
    found = predict(np.array([state.estimate]), rate, 64, prompt, output)
    assert (found.ttft[0], found.itl[0]) == pytest.approx((seen.ttft, seen.itl), rel=0.4)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_no_restart_from_nothing(wrong: float) -> None:
    assert restart(replace(SEEN, itl=wrong)) is None
