"""The highest rates within latency targets of a block of replicas: the repaired search.

Both latencies rise with the load for parameters that are not negative, so each target has one crossing; it is searched
over the logarithm of the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.percentile import log_exceeding, wait_percentile
from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray, Profiles
from modelyard.autoscaling.sizing.search import Edge, find
from modelyard.autoscaling.sizing.states import Chain, Occupancy

EQUAL = 1e-9
"""Relative difference below which two latencies are the same."""
NEAREST = 1.05
"""The nearest target worth sizing for, as a multiple of the lowest reachable value. That value itself is reached by an
almost idle replica only, at a thousandth of its capacity; and no profile is accurate to less than these 5 %."""
LIGHT = 8
"""States that matter at the lowest rate: each weighs at most a thousandth of the one before."""

Excess = Callable[[Occupancy, IntArray, FloatArray], tuple[FloatArray, FloatArray]]
"""How far a latency is above its target: from the chain at some rates, the rows and their targets to a value that is
0 at the target, and its derivative by the logarithm of the rate."""


class BlockSolution(NamedTuple):
    """Per row: highest rates within each latency target (per ms), whether it can be met, and the lowest latencies."""

    rate_ttft: FloatArray
    rate_itl: FloatArray
    ttft_met: BoolArray
    itl_met: BoolArray
    best_ttft: FloatArray
    best_itl: FloatArray


def within_targets(
    profiles: Profiles,
    chain: Chain,
    ttft: FloatArray,
    itl: FloatArray,
    low: FloatArray,
    high: FloatArray,
    percentile: float | None,
) -> BlockSolution:
    """Search both targets (ms, 0: none) between two rates (per ms); ``NEAREST`` stands in for an unreachable one."""
    idle, busy = chain.at(low, states=LIGHT), chain.at(high)
    best_itl = profiles.decode(idle.seen)
    wait = idle.wait if percentile is None else wait_percentile(idle, chain.full_rate, chain.queue, percentile)
    best_ttft = profiles.prefill(idle.seen) + wait
    paces = profiles.output_tokens > 1  # a single token has no interval to the next

    def search(
        excess: Excess, target: FloatArray, best: FloatArray, guess: Callable[[FloatArray], FloatArray]
    ) -> tuple[FloatArray, BoolArray]:
        """The highest rate with the target, or with the nearest feasible one, and whether the target itself is met."""
        everything = np.arange(len(target))
        given = target > 0
        met = ~given | (target >= best * (1.0 - EQUAL))
        aim = np.where(given, np.where(met, target, NEAREST * best), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):  # rows without a target aim at infinity
            below, below_slope = excess(idle, everything, aim)
            above, above_slope = excess(busy, everything, aim)
            flat = above - below <= EQUAL
        all_of_it = ~given | (above <= 0) | (flat & (below <= EQUAL))
        least = ~all_of_it & (below >= -EQUAL)
        rate = np.where(least, low, high)
        rows = np.flatnonzero(~all_of_it & ~least)
        if len(rows):
            aimed = aim[rows]

            def function(at: FloatArray, which: IntArray) -> tuple[FloatArray, FloatArray]:
                picked = rows[which]
                return excess(chain.at(np.exp(at), picked), picked, aimed[which])

            with np.errstate(divide="ignore", invalid="ignore"):
                first = np.log(guess(aim))[rows]
            begin = Edge(np.log(low[rows]), below[rows], below_slope[rows])
            end = Edge(np.log(high[rows]), above[rows], above_slope[rows])
            rate[rows] = np.exp(find(function, begin, end, first))
        return rate, met

    excess = _mean_excess(profiles.alpha, profiles.beta, waits=False)
    rate_itl, itl_met = search(excess, np.where(paces, itl, 0.0), best_itl, _itl_guess(profiles))
    excess = _mean_excess(profiles.prefill_base, profiles.prefill_slope, waits=True)
    if percentile is not None:
        excess = _percentile_excess(profiles, chain, percentile)
    rate_ttft, ttft_met = search(excess, ttft, best_ttft, _ttft_guess(profiles, chain, percentile))
    return BlockSolution(rate_ttft, rate_itl, ttft_met, itl_met, best_ttft, np.where(paces, best_itl, np.nan))


def _mean_excess(base: FloatArray, slope: FloatArray, waits: bool) -> Excess:
    def excess(found: Occupancy, rows: IntArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
        wait, wait_slope = (found.wait, found.wait_slope) if waits else (0.0, 0.0)
        latency = wait + base[rows] + slope[rows] * found.seen
        return np.log(latency / target), (wait_slope + slope[rows] * found.seen_slope) / latency

    return excess


def _percentile_excess(profiles: Profiles, chain: Chain, percent: float) -> Excess:
    """By the probability of a TTFT above the target, which needs no inner search for the percentile itself."""
    base, slope = profiles.prefill_base, profiles.prefill_slope
    allowed = np.log1p(-percent / 100.0)

    def excess(found: Occupancy, rows: IntArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
        left = target - base[rows] - slope[rows] * found.seen
        usable = (left > 0) & np.isfinite(left)
        time = np.where(usable, left, 1.0)
        log_share, by_time, by_rate = log_exceeding(time, found.ratio, chain.full_rate[rows], chain.queue[rows])
        value = np.where(usable, found.log_full + log_share - allowed, np.where(left > 0, -np.inf, np.inf))
        turn = found.log_full_slope + by_rate - by_time * slope[rows] * found.seen_slope
        return value, np.where(usable, turn, np.nan)

    return excess


def _itl_guess(profiles: Profiles) -> Callable[[FloatArray], FloatArray]:
    """While nobody waits, the batch is the arrival rate times its own service time, plus the request itself."""

    def guess(target: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            batch = (target - profiles.alpha) / profiles.beta
            rate: FloatArray = (batch - 1.0) / (profiles.service_base + profiles.service_slope * batch)
            return rate

    return guess


def _ttft_guess(profiles: Profiles, chain: Chain, percent: float | None) -> Callable[[FloatArray], FloatArray]:
    """Prefill alone as far as the batch goes; beyond, as if every request waited."""
    weight = 1.0 if percent is None else -np.log1p(-percent / 100.0)

    def guess(target: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            batch = (target - profiles.prefill_base) / profiles.prefill_slope
            free = (batch - 1.0) / (profiles.service_base + profiles.service_slope * batch)
            left = target - profiles.prefill(chain.batch)
            full = chain.full_rate - weight / left
            rate: FloatArray = np.where(left > 0, np.maximum(full, 0.5 * chain.full_rate), free)
            return np.minimum(rate, 0.95 * chain.full_rate)

    return guess
