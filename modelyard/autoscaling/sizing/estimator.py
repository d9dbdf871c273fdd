"""Learning performance parameters online: an extended Kalman filter on observed TTFT and ITL.

Functional: the state goes in and comes out as the plain tuples kept with the resource (``SLOMemory``). WVA SLO
reference, "Online". One operating point cannot determine three parameters: the estimate follows the observed
latencies, and becomes the engine's own parameters only as load and request sizes vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from modelyard.autoscaling.sizing.iteration import Parameters, from_batch, predict
from modelyard.autoscaling.sizing.profiles import FloatArray

INITIAL = Parameters(5.0, 0.05, 5e-5)
"""Where to start when nothing is known."""
SPREAD = 0.15
"""Standard deviation of the start, and of what a parameter may drift per update, as a share of the start."""
ERROR, QUANTILE = 0.5, 1.96
"""An observation is within ``ERROR`` of the truth, as a share, with the probability of ``QUANTILE`` deviations."""
GATE = 7.378
"""Normalised innovation squared that 97.5 % of honest observations stay below (chi-square, two values)."""
UNGATED = 5
"""First updates, which are taken without the gate."""
RESTART = 5
"""After so many rejected observations in a row it is not they that are outliers."""
STEP = 0.01
BOUND = 10.0
FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class Observation:
    """What an engine did: requests per second, batch limit, mean tokens, mean TTFT and ITL in ms. All above 0."""

    rate: float
    max_batch: int
    prompt_tokens: float
    output_tokens: float
    ttft: float
    itl: float


@dataclass(frozen=True, slots=True)
class EstimatorState:
    """Parameters, their covariance row by row (9 numbers), and the observations taken."""

    estimate: tuple[float, ...]
    covariance: tuple[float, ...]
    updates: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """The state afterwards and what happened. A rejected observation leaves it as it was; ``reason`` says why."""

    state: EstimatorState
    accepted: bool
    reason: str = ""


def start(initial: Parameters = INITIAL) -> EstimatorState:
    """A filter that has seen nothing."""
    return EstimatorState(tuple(initial), tuple(_drift(initial).ravel().tolist()), 0)


def resume(
    estimate: tuple[float, ...], covariance: tuple[float, ...], updates: int, initial: Parameters = INITIAL
) -> EstimatorState:
    """The filter as it was remembered, or a fresh one when nothing usable was."""
    numbers = (*estimate, *covariance)
    usable = len(estimate) == 3 and len(covariance) == 9 and all(math.isfinite(x) for x in numbers)
    if not usable or min(estimate) <= 0 or min(covariance[::4]) < 0:
        return start(initial)
    return EstimatorState(tuple(estimate), tuple(covariance), updates)


def update(state: EstimatorState, observation: Observation, *, initial: Parameters = INITIAL) -> Update:
    """One observation into the filter.

    ``initial`` sets the scale of drift and the bounds (a tenth to ten times of it). The noise of an observation is
    taken relative to the observation itself: relative to constants, the filter would be deaf to small latencies.
    Observations the model has no value for, outliers and updates that would leave
    a parameter negative are rejected, never an error.
    """
    for name in ("rate", "max_batch", "prompt_tokens", "output_tokens", "ttft", "itl"):
        value = getattr(observation, name)
        if not (math.isfinite(value) and value > 0):
            return Update(state, False, f"{name} is {value}; an update needs a number above 0")
    x = np.array(state.estimate)
    covariance = np.array(state.covariance).reshape(3, 3) + _drift(initial)
    observed = np.array([observation.ttft, observation.itl])
    expected, jacobian = _linearised(x, observation)
    if not (np.isfinite(expected).all() and np.isfinite(jacobian).all()):
        return Update(
            state, False, f"the model cannot carry {observation.rate:g} requests/s with parameters near its own"
        )
    noise = np.diag((ERROR / QUANTILE * observed) ** 2)
    innovation = observed - expected
    spread = jacobian @ covariance @ jacobian.T + noise
    nis = float(innovation @ np.linalg.solve(spread, innovation))
    if state.updates >= UNGATED and not nis < GATE:
        return Update(state, False, f"outlier: normalised innovation squared {nis:.2f}, gate {GATE}")
    gain = np.linalg.solve(spread, jacobian @ covariance).T
    moved = x + gain @ innovation
    if (moved <= 0).any() or not np.isfinite(moved).all():
        return Update(state, False, "a parameter would not stay above 0")
    start_at = np.array(initial)
    moved = np.clip(moved, np.maximum(start_at / BOUND, FLOOR), np.maximum(start_at * BOUND, FLOOR))
    left = (np.eye(3) - gain @ jacobian) @ covariance
    left = 0.5 * (left + left.T)
    taken = EstimatorState(tuple(moved.tolist()), tuple(left.ravel().tolist()), state.updates + 1)
    return Update(taken, True)


def restart(observation: Observation, *, initial: Parameters = INITIAL) -> EstimatorState | None:
    """A filter made from the observation alone, for when what was known explains nothing any more.

    The first guess puts the batch in by Little's law, unlike ``from_observation``, which would have a busy engine
    carry nothing; the observation is then taken as often as there are ungated updates. ``initial`` bounds the
    parameters as in ``update``. ``None`` where no parameters explain the observation.
    """
    usable = (observation.rate, observation.ttft, observation.itl, observation.prompt_tokens, observation.output_tokens)
    if not all(math.isfinite(value) and value > 0 for value in usable):
        return None
    guess = from_batch(
        observation.rate,
        observation.max_batch,
        observation.ttft,
        observation.itl,
        observation.prompt_tokens,
        observation.output_tokens,
    )
    middle = np.array(initial)
    bounded = np.clip(np.array(guess), np.maximum(middle / BOUND, FLOOR), np.maximum(middle * BOUND, FLOOR))
    state = EstimatorState(tuple(bounded.tolist()), start(initial).covariance, 0)
    for _ in range(UNGATED):
        found = update(state, observation, initial=initial)
        if not found.accepted:
            return None
        state = found.state
    return state


def _drift(initial: Parameters) -> FloatArray:
    drift: FloatArray = np.diag((SPREAD * np.array(initial)) ** 2)
    return drift


def _linearised(x: FloatArray, seen: Observation) -> tuple[FloatArray, FloatArray]:
    """(TTFT, ITL) at the parameters, and the derivatives by central differences; NaN where there is no value."""
    points = np.vstack([x, x + np.diag(STEP * x), x - np.diag(STEP * x)])
    found = predict(points, seen.rate, seen.max_batch, seen.prompt_tokens, seen.output_tokens)
    values = np.stack([found.ttft, found.itl], axis=1)
    jacobian = ((values[1:4] - values[4:7]) / (2.0 * STEP * x)[:, None]).T
    return values[0], jacobian
