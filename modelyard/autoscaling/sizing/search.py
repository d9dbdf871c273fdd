"""Finding where an increasing function crosses zero, for many rows at once and with few evaluations.

Every evaluation costs a pass over the state space, so derivatives are used: inverse cubic interpolation between the
bracket's ends, else Newton, else bisection, the bracket always kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray

Function = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]
"""From points and their rows to values and derivatives; values may be infinite, derivatives unknown (NaN)."""

MOST_STEPS = 80
NEAR = 1e-7
"""Distance from the root at which one more Newton step, not evaluated, is as good as exact."""


class Edge(NamedTuple):
    """One end of the brackets: points, values, derivatives, each of shape (n,)."""

    at: FloatArray
    value: FloatArray
    slope: FloatArray

    def take(self, rows: IntArray | BoolArray) -> Edge:
        return Edge(self.at[rows], self.value[rows], self.slope[rows])

    def moved(self, where: BoolArray, to: Edge) -> Edge:
        return Edge(*(np.where(where, new, old) for new, old in zip(to, self, strict=True)))


def find(function: Function, low: Edge, high: Edge, guess: FloatArray) -> FloatArray:
    """The points where ``function`` is 0, for rows with ``low.value < 0 < high.value`` at ``low.at < high.at``.

    ``guess`` is tried first, if inside. The error is far below ``NEAR`` squared times the relative curvature.
    """
    found = np.full(len(guess), np.nan)
    rows = np.arange(len(guess))
    inside = (guess > low.at) & (guess < high.at)
    point = np.where(inside, guess, _next(low, high, guess, slow=np.zeros(len(guess), dtype=bool)))
    width = high.at - low.at
    for _ in range(MOST_STEPS):
        if not len(rows):
            break
        value, slope = function(point, rows)
        here = Edge(point, value, slope)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = point - value / slope
        negative = value < 0
        low, high = low.moved(negative, here), high.moved(~negative, here)
        new_width = high.at - low.at
        step = np.abs(newton - point)
        close = (step <= NEAR) | (value == 0)
        stuck = new_width <= 4e-15 * np.maximum(np.abs(point), 1.0)
        done = close | stuck
        if done.any():
            best = np.where(close & (newton >= low.at) & (newton <= high.at), newton, point)
            found[rows[done]] = best[done]
            more = ~done
            rows, low, high = rows[more], low.take(more), high.take(more)
            newton, new_width, width = newton[more], new_width[more], width[more]
        point = _next(low, high, newton, slow=new_width > 0.5 * width)
        width = new_width
    found[rows] = 0.5 * (low.at + high.at)
    return found


def _next(low: Edge, high: Edge, newton: FloatArray, slow: BoolArray) -> FloatArray:
    width = high.at - low.at
    with np.errstate(all="ignore"):
        rise = high.value - low.value
        t = -low.value / rise
        u = 1.0 - t
        # the inverse function's cubic through both ends with both derivatives
        cubic = (
            low.at * (1 + 2 * t) * u * u
            + rise / low.slope * t * u * u
            + high.at * t * t * (3 - 2 * t)
            - rise / high.slope * t * t * u
        )
        margin = 1e-3 * width * slow
        usable = (cubic > low.at + margin) & (cubic < high.at - margin)
        point = np.where(usable, cubic, newton)
        usable = (point > low.at + margin) & (point < high.at - margin)
    return np.where(usable, point, 0.5 * (low.at + high.at))
