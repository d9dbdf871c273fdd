"""Performance parameters from a benchmark: straight lines through latencies measured at several concurrencies.

WVA SLO reference, "By benchmark": with two levels the lines are the documented two-point formulas, with more they are
least squares with residuals to judge them by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.profiles import FloatArray

SLIGHT = 0.1
"""A latency that falls by less than this share over the measured range is noise on a constant; more is an error."""
POOR = 0.15
"""Residuals above this share of the latency call the straight line into question."""
LONG_PREFILL = 100.0
"""Decode steps that a prefill at full batch may last before the two are unlikely to come from one engine."""


class Level(NamedTuple):
    """One load run: requests in flight, mean TTFT and mean ITL in ms."""

    concurrency: float
    ttft: float
    itl: float


class FitError(ValueError):
    """The measurements do not determine the parameters; the message says what to measure instead."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters in ms, and how well they describe each level.

    Residuals are measured minus fitted, in ms, in the order of the levels. ``warnings`` are for people: too few
    levels, clamped parameters, poor lines, implausible numbers.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float
    itl_residuals: tuple[float, ...]
    ttft_residuals: tuple[float, ...]
    warnings: tuple[str, ...] = ()


def fit(levels: Iterable[Level], prompt_tokens: float) -> Fit:
    """Least squares of ITL = alpha + beta * n and TTFT = gamma + delta * prompt_tokens * n over the levels.

    All parameters are at least 0: a slope or intercept that noise makes slightly negative becomes 0 and the other one
    is fitted again. Raises FitError for values that are not positive numbers, fewer than two different
    concurrencies, no prompt, or a latency that clearly falls with the load.
    """
    runs = list(levels)
    if not (math.isfinite(prompt_tokens) and prompt_tokens > 0):
        raise FitError(f"prompt_tokens is {prompt_tokens}; prefill can only be fitted to runs with a prompt")
    for run in runs:
        for name, value in zip(Level._fields, run, strict=True):
            if not (math.isfinite(value) and value > 0):
                raise FitError(f"level with concurrency {run.concurrency}: {name} is {value}; it must be above 0")
        if run.concurrency < 1:
            raise FitError(f"level with concurrency {run.concurrency}: at least 1 request must be in flight")
    different = len({run.concurrency for run in runs})
    if different < 2:
        raise FitError(
            f"{different} different concurrency level(s); measure at least 1 and the batch limit (which must be 2 or "
            "more), better also a quarter and half of it"
        )
    batch, ttft, itl = np.array(runs, dtype=np.float64).T
    warnings: list[str] = []
    if different < 4:
        warnings.append(f"{different} concurrency levels cannot show whether the lines are straight; measure 4")
    alpha, beta = _line("ITL", batch, itl, ("alpha", "beta"), warnings.append)
    gamma, per_request = _line("TTFT", batch, ttft, ("gamma", "delta"), warnings.append)
    delta = per_request / prompt_tokens
    warnings.extend(implausible(alpha, beta, gamma, delta, int(batch.max()), prompt_tokens))
    return Fit(
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        delta=delta,
        itl_residuals=tuple((itl - (alpha + beta * batch)).tolist()),
        ttft_residuals=tuple((ttft - (gamma + per_request * batch)).tolist()),
        warnings=tuple(warnings),
    )


def implausible(
    alpha: float, beta: float, gamma: float, delta: float, max_batch: int, prompt_tokens: float
) -> tuple[str, ...]:
    """What is suspicious about a parameter set, for people; nothing if it looks sane.

    Sets that mix prefill and decode numbers of different sources predict seconds of prefill beside milliseconds of
    decode.
    """
    prefill = gamma + delta * prompt_tokens * max_batch
    decode = alpha + beta * max_batch
    found = []
    if prefill > LONG_PREFILL * decode:
        found.append(
            f"a prefill of {prompt_tokens:g} tokens at batch {max_batch} would take {prefill:.0f} ms, as long as "
            f"{prefill / decode if decode > 0 else math.inf:.0f} decode steps: were gamma and delta measured on the "
            "same engine as alpha and beta?"
        )
    if alpha + beta <= 0:
        found.append("alpha and beta are both 0: decoding would take no time")
    return tuple(found)


def _line(
    what: str, batch: FloatArray, latency: FloatArray, names: tuple[str, str], warn: Callable[[str], None]
) -> tuple[float, float]:
    """Intercept and slope, neither below 0, and warnings about what was bent to get there."""
    centre, mean = float(batch.mean()), float(latency.mean())
    slope = float((batch - centre) @ (latency - mean)) / float((batch - centre) @ (batch - centre))
    intercept = mean - slope * centre
    if slope < 0:
        fall = -slope * float(batch.max() - batch.min())
        if fall > SLIGHT * mean:
            raise FitError(
                f"{what} falls by {fall:.3g} ms from concurrency {batch.min():g} to {batch.max():g}; more load cannot "
                "make an engine faster: check that runs had equal lengths and were not cached or cut off"
            )
        warn(f"{names[1]} was slightly negative ({slope:.3g} ms per request) and is taken as 0")
        intercept, slope = mean, 0.0
    elif intercept < 0:
        warn(f"{names[0]} was negative ({intercept:.3g} ms) and is taken as 0")
        intercept, slope = 0.0, float(batch @ latency) / float(batch @ batch)
    worst = float(np.max(np.abs(latency - (intercept + slope * batch)) / latency))
    if worst > POOR:
        warn(f"{what} is up to {worst:.0%} off a straight line: the linear model does not describe this engine well")
    return intercept, slope
