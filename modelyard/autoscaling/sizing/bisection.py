"""The documented search for the highest rate within a latency target, with its defects: published mode of ``sizing``.

WVA SLO reference, "Sizing: highest rate within targets", steps 1 to 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from modelyard.autoscaling.sizing.chain import measures
from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray, Profiles
from modelyard.autoscaling.sizing.states import Chain
from modelyard.autoscaling.sizing.within import BlockSolution

TOLERANCE = 1e-6
MOST_STEPS = 100

Latency = Callable[[FloatArray, IntArray], FloatArray]


def bisected(
    profiles: Profiles, chain: Chain, ttft: FloatArray, itl: FloatArray, low: FloatArray, high: FloatArray
) -> BlockSolution:
    """Search both targets (ms, 0 for none) between the rates ``low`` and ``high`` (per ms) of valid rows."""

    def at(rate: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        found = measures(profiles.take(rows), chain.at(rate, rows), published=True)
        return found.ttft, found.itl

    everything = np.arange(len(low))
    low_ttft, low_itl = at(low, everything)
    high_ttft, high_itl = at(high, everything)
    rate_ttft, ttft_met = _search(lambda x, rows: at(x, rows)[0], ttft, low, high, low_ttft, high_ttft)
    rate_itl, itl_met = _search(lambda x, rows: at(x, rows)[1], itl, low, high, low_itl, high_itl)
    return BlockSolution(rate_ttft, rate_itl, ttft_met, itl_met, low_ttft, low_itl)


def _search(
    latency: Latency, target: FloatArray, low: FloatArray, high: FloatArray, at_low: FloatArray, at_high: FloatArray
) -> tuple[FloatArray, BoolArray]:
    given = target > 0
    is_low, is_high = given & _near(at_low, target), given & _near(at_high, target)
    rising = at_low < at_high
    beyond = np.where(rising, target > at_high, target < at_high)
    short = np.where(rising, target < at_low, target > at_low)
    met = ~(given & ~is_low & ~is_high & short)
    rate = np.where(is_low, low, high)
    rows = np.flatnonzero(given & ~is_low & ~is_high & ~beyond & ~short)
    left, right = low[rows], high[rows]
    middle = 0.5 * (left + right)
    for _ in range(MOST_STEPS):
        if not len(rows):
            break
        middle = 0.5 * (left + right)
        value = latency(middle, rows)
        rate[rows] = middle
        more = ~_near(value, target[rows])
        go_right = (value < target[rows]) == rising[rows]
        left, right = np.where(go_right, middle, left)[more], np.where(go_right, right, middle)[more]
        rows = rows[more]
    return rate, met


def _near(value: FloatArray, target: FloatArray) -> BoolArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        close: BoolArray = np.abs(value - target) <= TOLERANCE * target
        return close
