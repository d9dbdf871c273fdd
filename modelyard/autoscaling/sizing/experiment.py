"""Which runs to measure for a profile: the fewest that determine it, and the next one while it is not known well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.fit import Fit, Line, student

TIGHT = 0.05
"""Half an interval, as a share of the latency that its parameter decides, below which nothing more is measured."""


class PlannedRun(NamedTuple):
    """One run to measure: requests in flight, tokens of each prompt."""

    concurrency: int
    prompt_tokens: int


def smallest(max_batch: int, lengths: tuple[int, int]) -> tuple[PlannedRun, ...]:
    """Runs at 1 and all of the batch limit with the shorter prompts, at a quarter and half of it with the longer ones.

    With these all four parameters are determined, and the lines are seen to be straight or not. All places with long
    prompts would tell least: there it is luck which prompts an engine computes together. Raises ValueError for
    a batch of less than 2 and lengths that are too much alike.
    """
    short, long = sorted(lengths)
    if max_batch < 2:
        raise ValueError(f"max_batch is {max_batch}; beta and delta show from 2 on")
    if short < 1 or 2 * short > long:
        raise ValueError(f"prompts of {short} and {long} tokens: the longer must have at least twice the shorter's")
    batches = 1, max(1, max_batch // 4), max(1, max_batch // 2), max_batch
    runs = (PlannedRun(batch, length) for batch, length in zip(batches, (short, long, long, short), strict=True))
    return tuple(dict.fromkeys(runs))


def doubt(found: Fit) -> dict[str, float]:
    """For each parameter half its interval, as a share of the latency it decides: alpha and gamma of an idle engine,
    beta and delta at the highest measured load. Infinite where there is no interval."""
    loads = [point.concurrency for point in found.points], [p.concurrency * p.prompt_tokens for p in found.points]
    shares = {}
    for names, line, load in (("alpha beta", found.itl, loads[0]), ("gamma delta", found.ttft, loads[1])):
        ends = min(load), max(load)
        for name, parameter, factor, at in zip(names.split(), line[:2], (1.0, ends[1]), ends, strict=True):
            latency = line.intercept.estimate + line.slope.estimate * at
            half = parameter.half_width * factor
            shares[name] = math.inf if math.isnan(half) or latency <= 0 else half / latency
    return shares


def promised(found: Fit, runs: Sequence[PlannedRun]) -> dict[str, float]:
    """What ``doubt`` would be with these runs too, if they are off the lines as those that there are. Where that is the
    line's fault and no noise, it stays large, however much is measured."""
    shares = doubt(found)
    for names, line in ((("alpha", "beta"), found.itl), (("gamma", "delta"), found.ttft)):
        each = [*(point[:2] for point in found.points), *(run[:2] for run in runs)]
        loads = [batch * (prompt if line is found.ttft else 1) for batch, prompt in each]
        now, then = _widths(loads[: len(found.points)], line), _widths(loads, line)
        shares |= {name: shares[name] * new / old for name, old, new in zip(names, now, then, strict=True)}
    return shares


def _widths(loads: Sequence[float], line: Line) -> tuple[float, ...]:
    """Half the intervals of intercept and slope, for a typical residual of 1, from latencies at these loads."""
    load = np.array(loads, dtype=np.float64)
    weights = np.maximum(line.intercept.estimate + line.slope.estimate * load, 1e-12) ** -2
    total, mean = weights.sum(), np.average(load, weights=weights)
    spread = max(float(weights @ (load - mean) ** 2), 1e-30)  # of loads that are all the same, anything is better
    often = student(max(1, len(load) - 2))
    return often * math.sqrt(1 / total + mean**2 / spread), often / math.sqrt(spread)


def next_run(found: Fit, runs: Sequence[PlannedRun], tight: float = TIGHT) -> PlannedRun | None:
    """The run that narrows the most doubtful parameter, None when all intervals are tight: an intercept is narrowed at
    the lowest load, a slope at the highest."""
    shares = doubt(found)
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] <= tight:
        return None

    def load(run: PlannedRun) -> float:
        return run.concurrency * (run.prompt_tokens if worst in ("gamma", "delta") else 1)

    return (min if worst in ("alpha", "gamma") else max)(runs, key=load)
