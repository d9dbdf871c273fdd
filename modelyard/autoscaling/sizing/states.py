"""The birth-death chain behind one replica: state sums, evaluated for many rows at once.

Requests arrive at a constant rate and leave a batch of b at b / (base + slope * b) per ms; beyond the batch limit N
they wait, at most Q of them. Below N the state weights are exponentials of cumulated logarithms; from N on the ratio
of neighbours is constant and the sums have closed forms. WVA SLO reference, "State probabilities".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from modelyard.autoscaling.sizing.profiles import FloatArray, IntArray

CELLS = 32_768
"""States evaluated together: two arrays of this many doubles stay in a core's own cache."""
BLOCK = 1_048_576
"""States searched together: many, so that the few rows that take longest are few for each."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The chain at one rate per row, seen by the requests that are accepted. Shape (n,), per ms and ms.

    ``seen`` is the mean batch a request finds, itself included, at most N: the batch at which the service time is
    the mean service time. ``log_full`` is the logarithm of the probability of finding exactly N in the system;
    ``ratio`` that of neighbouring states beyond. The slopes are derivatives by the logarithm of the rate.
    """

    rate: FloatArray
    seen: FloatArray
    seen_slope: FloatArray
    wait: FloatArray
    wait_slope: FloatArray
    log_full: FloatArray
    log_full_slope: FloatArray
    ratio: FloatArray
    loss: FloatArray
    in_service: FloatArray


class Chain:
    """Chains of several rows, for any rates. ``base``, ``slope`` in ms, shape (n,); every service time above 0."""

    def __init__(self, base: FloatArray, slope: FloatArray, max_batch: IntArray, queue_limit: IntArray) -> None:
        width = int(max_batch.max(initial=1))
        self.base, self.slope = base, slope
        self.batch = max_batch.astype(np.float64)
        self.queue = queue_limit.astype(np.float64)
        self.full_rate = self.batch / (base + slope * self.batch)
        counts = np.arange(width, dtype=np.float64)
        self.states = np.stack([np.ones(width), counts])
        self.moments = np.stack([np.ones(width), counts, counts**2], axis=1)
        batches = np.arange(1, width + 1, dtype=np.float64)
        # summed[m] = log of s(1)/1 * ... * s(m)/m, so that log weight m = m log(rate) + summed[m]
        self.summed = np.empty((len(base), width))
        self.summed_full = np.empty(len(base))
        last = max_batch - 1
        for piece in _pieces(len(base), width):
            steps = np.multiply.outer(base[piece], 1.0 / batches)
            steps += slope[piece, None]
            with np.errstate(invalid="ignore", divide="ignore"):  # padding only, overwritten below
                np.log(steps, out=steps)
            summed = self.summed[piece]
            summed[:, 0] = 0.0
            np.cumsum(steps[:, :-1], axis=1, out=summed[:, 1:])
            each = np.arange(len(steps))
            self.summed_full[piece] = summed[each, last[piece]] + steps[each, last[piece]]
        if int(max_batch.min(initial=width)) < width:
            self.summed[counts[None, :] >= self.batch[:, None]] = -np.inf

    def at(self, rate: FloatArray, rows: IntArray | None = None, states: int | None = None) -> Occupancy:
        """The chain at ``rate`` (requests per ms, above 0 and below the departure rate at N), one per row.

        ``rows`` picks rows; ``states`` looks at the first states only, for rates so low that others weigh nothing.
        """
        columns = self.full_rate, self.queue, self.batch, self.summed_full, self.base, self.slope
        full, queue, batch, summed_full, base, slope = (c if rows is None else c[rows] for c in columns)
        log_rate = np.log(rate)
        log_top = batch * log_rate + summed_full
        # Weights rise up to here and fall beyond, or the first or the last is the largest.
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = np.nan_to_num(rate * base / (1.0 - rate * slope))
        turn = np.clip(turn, 0.0, batch - 1.0).astype(np.int64)
        at = np.arange(len(turn)) if rows is None else rows
        peak = np.maximum(np.maximum(turn * log_rate + self.summed[at, turn], log_top), 0.0)
        sums = np.empty((len(turn), 3))
        scale = np.stack([-peak, log_rate], axis=1)
        for piece in _pieces(len(turn), min(self.summed.shape[1], states or self.summed.shape[1])):
            weights = scale[piece] @ self.states[:, :states]
            weights += self.summed[at[piece] if rows is not None else piece, :states]
            np.exp(weights, out=weights)
            np.matmul(weights, self.moments[:states], out=sums[piece])
        below, first, second = sums.T
        top = np.exp(log_top - peak)

        ratio = rate / full
        none, one, none_slope, one_slope, last = geometric(ratio, queue)
        tail = top * none
        accepted = below + tail
        accepted_slope = first + top * (batch * none + none_slope)
        seen = (below + first + batch * tail) / accepted
        seen_slope = (first + second + batch * top * (batch * none + none_slope) - seen * accepted_slope) / accepted
        share = top / accepted
        wait = share * one / full
        wait_slope = share * one_slope / full + wait * (batch - accepted_slope / accepted)
        lost = top * last
        everything = accepted + lost
        return Occupancy(
            rate=rate,
            seen=seen,
            seen_slope=seen_slope,
            wait=wait,
            wait_slope=wait_slope,
            log_full=log_top - peak - np.log(accepted),
            log_full_slope=batch - accepted_slope / accepted,
            ratio=ratio,
            loss=lost / everything,
            in_service=(first + batch * (tail + lost)) / everything,
        )


def geometric(
    ratio: FloatArray, terms: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sums over a geometric tail of ``terms`` states.

    Returns the sums of r^j (j from 0) and of j r^(j-1) (j from 1), their derivatives by log r, and r^terms.
    Near ratio 1 the closed forms cancel and the first terms of their expansion stand in.
    """
    log_ratio = np.log(ratio)
    last = np.exp(terms * log_ratio)
    close = np.abs(log_ratio) * np.maximum(terms, 1.0) < 1e-5
    gap = -np.expm1(np.where(close, -1.0, log_ratio))  # 1 - r
    gone = -np.expm1(terms * np.where(close, -1.0, log_ratio))  # 1 - r^terms
    left = terms * np.where(close, 0.0, last)
    none = gone / gap
    one = (none - left) / gap
    none_slope = (ratio * none - left) / gap
    one_slope = (2.0 * ratio * one - (terms + 1.0) * left) / gap
    if close.any():
        x, q = log_ratio[close], terms[close]
        none[close] = q + x * q * (q - 1) / 2
        none_slope[close] = q * (q - 1) / 2 + x * (q - 1) * q * (2 * q - 1) / 6
        one[close] = q * (q + 1) / 2 + x * (q - 1) * q * (q + 1) / 3
        one_slope[close] = (q - 1) * q * (q + 1) / 3
    return none, one, none_slope, one_slope, last


def blocks(max_batch: IntArray) -> Iterator[slice]:
    """Slices of rows sorted by batch limit, each of at most about ``BLOCK`` states and of similar limits."""
    start, rows = 0, len(max_batch)
    while start < rows:
        similar = int(np.searchsorted(max_batch, 2 * max_batch[start], side="right"))
        end = min(similar, start + max(BLOCK // int(max_batch[similar - 1]), 1))
        yield slice(start, end)
        start = end


def _pieces(rows: int, width: int) -> Iterator[slice]:
    step = max(CELLS // width, 1)
    return (slice(start, start + step) for start in range(0, rows, step))
