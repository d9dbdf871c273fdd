"""Traffic that policies are compared on. The first half of each is for warming up and tuning; the second half counts.

Times, rates and sizes are drawn by seed. Seed 1 and the shipped hour are what choices were made on; everything else
(``Cell.held_out``) was looked at only for the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modelyard.engine.config import EngineConfig
from modelyard.traffic.latency import SLO
from modelyard.traffic.trace import Trace, read_trace

DATA: Final = Path(__file__).resolve().parent.parent / "data"
HOUR: Final = DATA / "azure-llm-inference-2023-conversation.csv"
DAY: Final = DATA / "servegen-day-small.csv.gz"
Rate = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Requests per second at times in seconds."""

read = lru_cache(maxsize=2)(read_trace)


def conversation(rate: float, seed: int) -> Trace:
    """The shipped hour, at a multiple of its rate."""
    return read(HOUR).scaled(rate=rate, seed=seed)


def day(rate: float, seed: int, begin: float, hours: float, output: float, prompt: float) -> Trace:
    """Hours of the production-like day, at a multiple of its rate and with longer requests."""
    return read(DAY).stretch(begin * 60, hours * 60).scaled(rate=rate, prompt=prompt, output=output, seed=seed)


def drawn(rate: Rate, duration: float, seed: int) -> Trace:
    """A Poisson process of a rate that changes, with sizes of the shipped hour's requests."""
    chance = np.random.default_rng(seed)
    most = float(rate(np.arange(0.0, duration, 1.0)).max())
    at = np.sort(chance.uniform(0, duration, chance.poisson(most * duration)))
    at = at[chance.random(len(at)) * most < rate(at)]
    sizes = read(HOUR)
    index = chance.integers(len(sizes), size=len(at))
    return Trace(at, sizes.prompt[index], sizes.output[index], duration)


def bursts(rate: float, seed: int, hours: float = 3.0) -> Trace:
    """2 x ``rate`` requests per second; four times that, within 30 s, for 3 to 8 minutes; pauses of 1 min +
    exponential(7 min)."""
    chance = np.random.default_rng([seed, 1])
    duration = hours * 3600
    times, levels = [0.0], [1.0]
    now = 0.0
    while now < duration:
        begin = now + 60 + chance.exponential(420)
        now = begin + chance.uniform(180, 480)
        times += [begin, begin + 30, now, now + 30]
        levels += [1.0, 4.0, 4.0, 1.0]
    return drawn(lambda t: 2 * rate * np.interp(t, times, levels), duration, seed)


def waves(rate: float, seed: int, hours: float = 4.0, period: float = 7200.0) -> Trace:
    """A sine with a ninefold swing and a mean of 3 x ``rate`` requests per second."""
    phase = np.random.default_rng([seed, 2]).uniform(0, 2 * math.pi)
    return drawn(lambda t: 3 * rate * (1 + 0.8 * np.sin(2 * math.pi * t / period + phase)), hours * 3600, seed)


def step(rate: float, seed: int, hours: float = 2.0) -> Trace:
    """2 x ``rate`` requests per second, three times that for a fifth of the time in the second half, and back."""
    chance = np.random.default_rng([seed, 3])
    up = hours * 3600 * chance.uniform(0.55, 0.65)
    down = up + hours * 3600 * 0.2
    return drawn(lambda t: 2 * rate * np.where((t >= up) & (t < down), 3.0, 1.0), hours * 3600, seed)


def fluid(trace: Trace, engine: EngineConfig, slo: SLO, width: float) -> NDArray[np.float64]:
    """The load of each interval in engines whose mean ITL would be at its target for ever: what prompts and outputs of
    the requests that came in it cost, prompts delaying those who decode."""
    itl = slo.itl * 1000
    spent = engine.delta * trace.prompt + engine.beta * trace.output
    cost = itl / (itl - engine.alpha) * spent / (1000 * width)
    bins = np.minimum(trace.at // width, max(1, math.ceil(trace.duration / width)) - 1).astype(np.int64)
    return np.bincount(bins, weights=cost, minlength=max(1, math.ceil(trace.duration / width)))
