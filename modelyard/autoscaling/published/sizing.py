"""The queueing model and the search for the highest rate within latency targets as documented, defects included.

Gamma is subtracted even without a prompt, a service time that does not depend on the batch gives the batch limit as
concurrency, a single output token has an ITL, parameters are not clamped; there is no cap and no percentile. WVA SLO
reference, "Effective concurrency, ITL and TTFT" and "Sizing: highest rate within targets", steps 1 to 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from modelyard.autoscaling.sizing import (
    HIGHEST,
    LOWEST,
    TPS_SHARE,
    BlockSolution,
    BoolArray,
    FloatArray,
    IntArray,
    Measures,
    Occupancy,
    Profiles,
    Sizing,
    Targets,
    analysed,
    assembled,
    binding_of,
    by_block,
    chain_of,
    measured,
)

TOLERANCE = 1e-6
MOST_STEPS = 100

Latency = Callable[[FloatArray, IntArray], FloatArray]


def analyse(profiles: Profiles, rates: ArrayLike) -> Measures:
    """Predicted measures of each row at its rate."""
    return analysed(profiles, rates, measures)


def measures(profiles: Profiles, found: Occupancy) -> Measures:
    """From the state sums of valid rows to the measures."""
    service = found.in_service / (found.rate * (1.0 - found.loss))
    steps = profiles.output_tokens - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = (service - (profiles.gamma + profiles.alpha * steps)) / (profiles.prefill_slope + profiles.beta * steps)
    batch = np.where(np.isnan(batch), found.in_service, batch)  # 0/0: rounding decides in the reference
    clamped = np.clip(batch, 0.0, profiles.max_batch)
    return measured(profiles, found, clamped, profiles.decode(clamped))


def size(profiles: Profiles, targets: Targets) -> Sizing:
    """The highest rate of each row within its targets."""
    return by_block(profiles, targets, _block)


def _block(profiles: Profiles, targets: Targets) -> Sizing:
    chain = chain_of(profiles)
    low = LOWEST / (profiles.service_base + profiles.service_slope)
    high = HIGHEST * chain.full_rate

    def at(rate: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        found = measures(profiles.take(rows), chain.at(rate, rows))
        return found.ttft, found.itl

    everything = np.arange(len(low))
    low_ttft, low_itl = at(low, everything)
    high_ttft, high_itl = at(high, everything)
    rate_ttft, ttft_met = _search(lambda x, rows: at(x, rows)[0], targets.ttft, low, high, low_ttft, high_ttft)
    rate_itl, itl_met = _search(lambda x, rows: at(x, rows)[1], targets.itl, low, high, low_itl, high_itl)
    solved = BlockSolution(rate_ttft, rate_itl, ttft_met, itl_met, low_ttft, low_itl)
    tps = np.where(targets.tps > 0, TPS_SHARE * high, high)
    limits = [rate_ttft, rate_itl, tps, high]
    offered = np.minimum.reduce(limits)
    best = measures(profiles, chain.at(offered))
    binding, feasible = binding_of(offered, high, limits, solved), ttft_met & itl_met
    return assembled(solved, tps, offered, best.throughput, best.ttft, best.itl, best.utilisation, binding, feasible)


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
