"""An engine's speed from what it does: from one load, from several, from another engine, and from nonsense."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from modelyard.autoscaling.memory.variants import SLOMemory
from modelyard.autoscaling.sizing.learning import LEAST, MOST, OVERHEAD, LearntSpeed, SpeedObservation, observe
from modelyard.autoscaling.sizing.stalls import Sizes

PROMPT, OUTPUT = 1000.0, 200.0
SIZES = Sizes(np.array([PROMPT]), np.array([1.0]))
L40S = (22.6, 0.18, 0.105)


def served(
    speed: tuple[float, float, float], load: float, prompt: float = PROMPT, output: float = OUTPUT
) -> SpeedObservation:
    """What an engine shows that is busy for this share of the time with more than its empty steps."""
    alpha, beta, delta = speed
    rate = load / (beta * output + delta * prompt)
    itl = alpha / (1 - load)
    step = itl * (1 - rate * delta * prompt)
    waits = rate * delta * prompt / (1 - rate * delta * prompt) * (delta * prompt + step) / 2
    return SpeedObservation(1000 * rate, prompt, output, OVERHEAD + delta * prompt + 1.5 * step + waits, itl)


def learnt(*seen: SpeedObservation) -> LearntSpeed:
    known = LearntSpeed()
    for one in seen:
        known = observe(known, one, SIZES)
    return known


speeds = st.tuples(st.floats(3, 60), st.floats(0.004, 0.012), st.floats(0.002, 0.008)).map(
    lambda s: (s[0], s[0] * s[1], s[0] * s[2])
)


@given(speeds, st.lists(st.floats(0.05, 0.8), min_size=LEAST, max_size=12))
def test_what_a_request_costs_is_found_from_any_loads(speed, loads):
    alpha, beta, _, delta = learnt(*(served(speed, load) for load in loads)).speed
    assert beta * OUTPUT + delta * PROMPT == pytest.approx(speed[1] * OUTPUT + speed[2] * PROMPT, rel=0.3)
    assert alpha == pytest.approx(speed[0], rel=0.3)


def test_loads_that_differ_tell_the_step_from_what_requests_add():
    alpha, beta, gamma, delta = learnt(*(served(L40S, load) for load in (0.1, 0.3, 0.5, 0.7, 0.2, 0.6))).speed
    assert (alpha, beta, delta) == pytest.approx(L40S, rel=0.06)
    assert gamma == OVERHEAD


def test_other_sizes_of_requests_change_nothing():
    mixed = [served(L40S, 0.4), served(L40S, 0.4, 3000.0, 100.0), served(L40S, 0.2, 500.0, 400.0), served(L40S, 0.6)]
    assert learnt(*mixed).speed[::3] == pytest.approx((L40S[0], L40S[2]), rel=0.15)


def test_little_says_nothing_yet():
    assert learnt(*[served(L40S, 0.3)] * (LEAST - 1)).speed is None


def test_a_drift_is_followed_and_old_observations_fade():
    known = learnt(*[served(L40S, 0.3)] * 200)
    assert known.seen == pytest.approx(MOST)
    slower = tuple(1.3 * value for value in L40S)
    for _ in range(2 * MOST):
        known = observe(known, served(slower, 0.3), SIZES)
    assert known.speed[0] == pytest.approx(slower[0], rel=0.06)


H100 = (7.0, 0.045, 0.028)


@pytest.mark.parametrize(("before", "after"), [(L40S, H100), (H100, L40S)])
def test_another_engine_is_told_when_it_is_seen_twice(before, after):
    """A speed that was told is never none again: nothing would be aimed at until then."""
    known = learnt(*[served(before, 0.3)] * MOST)
    once = observe(known, served(after, 0.3), SIZES)
    assert once.speed == pytest.approx(known.speed, rel=0.01)
    twice = observe(once, served(after, 0.3), SIZES)
    assert twice.speed[0] == pytest.approx(after[0], rel=0.1)
    assert twice.speed[3] == pytest.approx(after[2], rel=0.1)


def test_one_odd_stretch_is_forgotten():
    known = learnt(*[served(L40S, 0.3)] * MOST)
    slow = tuple(1.8 * value for value in L40S)
    for _ in range(3):
        known = observe(observe(known, served(slow, 0.3), SIZES), served(L40S, 0.3), SIZES)
        assert known.speed == pytest.approx((*L40S[:2], OVERHEAD, L40S[2]), rel=0.25)


def test_prompts_of_next_to_nothing_leave_a_memory_that_can_be_read_again():
    seen = SpeedObservation(2e-7, 2e-7, 200.0, 9e6, 20.0)
    known = LearntSpeed()
    for _ in range(3 * MOST):
        known = observe(known, seen, SIZES)
    assert (
        SLOMemory.model_validate_json(
            SLOMemory(speed=LearntSpeed()).model_copy(update={"speed": known}).model_dump_json()
        ).speed
        == known
    )


@pytest.mark.parametrize("field", SpeedObservation._fields)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-300])
def test_nonsense_teaches_nothing_or_something_finite(field, value):
    known = learnt(*[served(L40S, 0.3)] * LEAST)
    found = observe(known, served(L40S, 0.3)._replace(**{field: value}), SIZES)
    assert found == known or all(0 <= part < 1e15 for part in found)
