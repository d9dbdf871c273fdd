"""Traffic that policies are compared on. The first half of each is for warming up and tuning; the second half counts.

Times, rates and sizes are drawn by seed. Choices were made on seeds below ``FRESH``; the others, and the workloads that
have no lower ones, were looked at for the report only (``Cell.held_out``).
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
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace, read_trace

DATA: Final = Path(__file__).resolve().parent.parent / "data"
HOUR: Final = DATA / "azure-llm-inference-2023-conversation.csv"
DAY: Final = DATA / "servegen-day-small.csv.gz"
FRESH: Final = 31
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


def step(rate: float, seed: int, hours: float = 2.0, height: float = 3.0) -> Trace:
    """2 x ``rate`` requests per second, ``height`` times that for a fifth of the time in the second half, and back."""
    chance = np.random.default_rng([seed, 3])
    up = hours * 3600 * chance.uniform(0.55, 0.65)
    down = up + hours * 3600 * 0.2
    return drawn(lambda t: 2 * rate * np.where((t >= up) & (t < down), height, 1.0), hours * 3600, seed)


def ramp(rate: float, seed: int, hours: float = 3.0) -> Trace:
    """1.5 x ``rate`` requests per second; in the second half up to five times that in 25 to 45 minutes, and back."""
    chance = np.random.default_rng([seed, 4])
    begin = hours * 3600 * chance.uniform(0.5, 0.55)
    top = begin + chance.uniform(1500, 2700)
    end = top + chance.uniform(1200, 2400)
    return drawn(lambda t: 1.5 * rate * np.interp(t, [begin, top, end], [1.0, 5.0, 1.0]), hours * 3600, seed)


def spikes(rate: float, seed: int, hours: float = 4.0) -> Trace:
    """3 x ``rate`` requests per second, twice that at once for one or two minutes, every 15 to 40 minutes."""
    chance = np.random.default_rng([seed, 5])
    times, levels, now = [0.0], [1.0], 0.0
    while now < hours * 3600:
        begin = now + chance.uniform(900, 2400)
        now = begin + chance.uniform(60, 120)
        times += [begin, begin + 5, now, now + 5]
        levels += [1.0, 2.0, 2.0, 1.0]
    return drawn(lambda t: 3 * rate * np.interp(t, times, levels), hours * 3600, seed)


def fluid(trace: Trace, engine: EngineConfig, slo: SLO, width: float) -> NDArray[np.float64]:
    """The load of each interval in engines whose mean ITL would be at its target for ever: what prompts and outputs of
    the requests that came in it cost, prompts delaying those who decode."""
    itl = slo.itl * 1000
    spent = engine.delta * trace.prompt + engine.beta * trace.output
    cost = itl / (itl - engine.alpha) * spent / (1000 * width)
    bins = np.minimum(trace.at // width, max(1, math.ceil(trace.duration / width)) - 1).astype(np.int64)
    return np.bincount(bins, weights=cost, minlength=max(1, math.ceil(trace.duration / width)))
