"""Percentiles of TTFT: the wait in the queue as the distribution it has, not only its mean.

An accepted request that finds N + i requests waits for i + 1 departures at the rate of a full batch, an Erlang time;
its wait is the mixture of these over what it may find. The prefill that follows is the mean one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from modelyard.autoscaling.sizing.chain import covered, effective_concurrency
from modelyard.autoscaling.sizing.profiles import FloatArray, Profiles
from modelyard.autoscaling.sizing.search import Edge, find
from modelyard.autoscaling.sizing.states import Occupancy, geometric
from modelyard.autoscaling.sizing.tail import fewer_than, log_probability


def ttft_percentile(profiles: Profiles, rates: ArrayLike, percent: float) -> FloatArray:
    """TTFT in ms of ``percent`` of the accepted requests at ``rates`` (requests/s), shape (n,); NaN as of ``analyse``.
    Raises ValueError unless 0 < percent < 100."""
    check_percent(percent)
    result = np.full(len(profiles), np.nan)
    for rows, part, chain, found in covered(profiles.repaired(), rates):
        batch = effective_concurrency(part, found)
        result[rows] = wait_percentile(found, chain.full_rate, chain.queue, percent) + part.prefill(batch)
    return result


def wait_percentile(found: Occupancy, full_rate: FloatArray, queue: FloatArray, percent: float) -> FloatArray:
    """Wait in ms that ``percent`` of the accepted requests stay within; 0 where that many find a free place."""
    allowed = np.log1p(-percent / 100.0)
    none = geometric(found.ratio, queue)[0]
    with np.errstate(divide="ignore"):
        some = found.log_full + np.log(none)
    wait = np.zeros(len(some))
    rows = np.flatnonzero(some > allowed)
    if not len(rows):
        return wait
    # with an endless queue the wait of those who wait is exponential, and longer
    longest = (found.log_full - np.log1p(-found.ratio) - allowed)[rows] / (full_rate * (1 - found.ratio))[rows]

    def excess(at: FloatArray, which: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[FloatArray, FloatArray]:
        picked = rows[which]
        log_share, slope, _ = log_exceeding(at, found.ratio[picked], full_rate[picked], queue[picked])
        return allowed - found.log_full[picked] - log_share, -slope

    count = len(rows)
    unknown = np.full(count, np.nan)
    low = Edge(np.zeros(count), (allowed - some)[rows], unknown)
    high = Edge(longest * (1 + 1e-9) + 1e-12, np.full(count, np.inf), unknown)
    wait[rows] = find(excess, low, high, longest)
    return wait


def log_exceeding(
    time: FloatArray, ratio: FloatArray, full_rate: FloatArray, queue: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Logarithm of the sum over i < queue of ratio^i P(Erlang(i + 1, full_rate) > time), and its two derivatives.

    Times the probability of finding exactly N, the sum is the probability to wait longer than ``time`` (ms, above
    0). The derivatives are by time and by the logarithm of the arrival rate at fixed time.
    """
    mean, full_mean = ratio * full_rate * time, full_rate * time
    gap = 1.0 - ratio
    decay = np.exp(mean - full_mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        arrived = decay * fewer_than(queue, mean)
        cut = ratio**queue * fewer_than(queue, full_mean)
        total = (arrived - cut) / gap
        last = decay * np.exp(log_probability(queue - 1, mean))
        by_rate = (mean * (arrived - last) - queue * cut) / gap + ratio / gap * total
        return np.log(np.maximum(total, 0.0)), -full_rate * arrived / total, by_rate / total


def check_percent(percent: float) -> None:
    """ValueError unless the percentile can be computed."""
    if not 0 < percent < 100:
        raise ValueError(f"percentile is {percent}; give a percentage above 0 and below 100, such as 95")
