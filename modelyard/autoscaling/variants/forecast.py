"""What load to expect when a new replica would be ready: a robust trend over the last minutes, or no growth at all.

A load counts as rising only when four things agree: later rates are above earlier ones in most pairs, the rise stands
out of the scatter, it is more than chance makes of that many requests, and it is still going on. Everything else,
damaged data above all, gives the present rate and says why. No clock: times only have to be in seconds of one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, isfinite, sqrt
from statistics import median
from typing import NamedTuple

MIN_POINTS = 6
"""Fewer points of history are no trend."""
_MOST_POINTS = 40
"""Longer histories are averaged down to this many points: the slopes of all pairs are looked at."""
_GAP = 3.5
"""A pause of more than this many usual intervals ends the history that counts."""
_PAIRS_RISING = 0.8
_OVER_SCATTER = 3.0
_OVER_CHANCE = 3.0
_LEAST_RISE = 0.05
"""Share of the present rate below which a rise is not worth planning for."""
_STILL_RISING = 0.3
"""The youngest third rises at least by this share of the trend."""
_BELIEVABLE = 1e12
"""Times and rates beyond this are damaged, as are infinite ones and NaN."""
_NORMAL = 1.4826
"""Median absolute deviation to standard deviation, for normally distributed scatter."""
History = Sequence[tuple[float, float]]
"""(time in seconds, requests per second)."""


class Forecast(NamedTuple):
    """Requests per second expected at the horizon, its ratio to the present rate (at least 1), and why, for people."""

    rate: float
    factor: float
    why: str

    @property
    def rising(self) -> bool:
        return self.factor > 1.0


def expected(history: History, now_rate: float, horizon: float, limit: float) -> Forecast:
    """The rate expected ``horizon`` seconds ahead, by Theil-Sen slope; never below ``now_rate``, never an error.

    ``limit`` caps the factor. The trend is not carried on for longer than it has been seen.
    Source: WVA SLO reference, 'What the project demonstrated' (size for the growth over the start-up time).
    """
    if not (isfinite(now_rate) and now_rate > 0):
        return Forecast(now_rate, 1.0, "the present rate is not known or zero")
    if not (horizon > 0 and limit > 1 and isfinite(horizon)):
        return Forecast(now_rate, 1.0, "nothing is planned ahead")
    points, problem = _usable(history)
    if problem:
        return Forecast(now_rate, 1.0, problem)
    slope, problem = _clear_rise(points, now_rate)
    if problem:
        return Forecast(now_rate, 1.0, problem)
    span = points[-1][0] - points[0][0]
    ahead = min(horizon, span)
    level = max(now_rate, median(rate - slope * (time - points[-1][0]) for time, rate in points))
    factor = min(limit, 1.0 + slope * ahead / level)
    rate = now_rate * factor
    why = f"load rose by {slope * span:.3g} requests/s within {span:.0f} s"
    if factor == limit:
        why += f"; planned for at most {limit:g} times the load"
    return Forecast(rate, factor, why)


def _usable(history: History) -> tuple[list[tuple[float, float]], str]:
    """One rate per time, in order; or what is wrong with the history."""
    points = [(round(time, 3), rate) for time, rate in history if abs(time) < _BELIEVABLE and 0 <= rate < _BELIEVABLE]
    if any(before[0] >= after[0] for before, after in pairwise(points)):
        by_time: dict[float, list[float]] = {}
        for time, rate in points:
            by_time.setdefault(time, []).append(rate)
        points = [(time, fsum(rates) / len(rates)) for time, rates in sorted(by_time.items())]
    if len(points) < MIN_POINTS:
        return [], f"only {len(points)} usable points of load history, {MIN_POINTS} are needed"
    usual = median(after[0] - before[0] for before, after in pairwise(points))
    start = 0
    for i, (before, after) in enumerate(pairwise(points), start=1):
        if after[0] - before[0] > _GAP * usual:
            start = i
    if len(points) - start < MIN_POINTS:
        return [], f"the load history has a gap, and only {len(points) - start} points after it"
    return _thinned(points[start:]), ""


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    size = -(-len(points) // _MOST_POINTS)
    if size == 1:
        return points
    # From the end, so that the newest bin is full.
    first = len(points) % size
    bins = [points[:first], *(points[i : i + size] for i in range(first, len(points), size))]
    return [(fsum(t for t, _ in b) / len(b), fsum(r for _, r in b) / len(b)) for b in bins if b]


def _clear_rise(points: list[tuple[float, float]], now_rate: float) -> tuple[float, str]:
    """(slope in requests/s per second, ""), or (0, why the load does not count as rising)."""
    third = len(points) // 3
    early = fsum(rate for _, rate in points[:third]) / third
    late = fsum(rate for _, rate in points[-third:]) / third
    if late <= early:
        return 0.0, "the load is not rising"
    span = points[-1][0] - points[0][0]
    # A count of requests scatters by its square root, however smooth the rate over sliding windows looks.
    if (late - early) * sqrt(span / 3) < _OVER_CHANCE * sqrt(late + early):
        return 0.0, "the rise is no more than chance makes of so few requests"
    slopes = _slopes(points)
    if sum(1 for slope in slopes if slope > 0) < _PAIRS_RISING * len(slopes):
        return 0.0, "the load goes up and down"
    # Not for ever after a rise, or a mere step, has ended: what is youngest has to rise as well.
    slope = min(median(slopes), median(_slopes(points[len(points) // 2 :])))
    youngest = median(_slopes(points[-max(3, third) :]))
    if slope * span < _LEAST_RISE * now_rate or youngest < _STILL_RISING * slope:
        return 0.0, "the load hardly rises any more"
    residuals = [rate - slope * time for time, rate in points]
    middle = median(residuals)
    scatter = _NORMAL * median(abs(residual - middle) for residual in residuals)
    if slope * span < _OVER_SCATTER * scatter:
        return 0.0, "the rise does not stand out of the scatter"
    return slope, ""


def _slopes(points: list[tuple[float, float]]) -> list[float]:
    return [
        (later_rate - rate) / (later_time - time)
        for i, (time, rate) in enumerate(points)
        for later_time, later_rate in points[i + 1 :]
    ]
