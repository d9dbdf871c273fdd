"""Tails of the Poisson distribution for many rows: what a bounded queue needs for percentiles of its wait.

P(at most q - 1 events | mean) is the regularised upper incomplete gamma function; few terms are summed, many are
integrated numerically.
"""

from __future__ import annotations

import numpy as np

from modelyard.autoscaling.sizing.profiles import FloatArray

SUMMED = 128
"""Up to this many terms are added up; the integral is exact to rounding only beyond."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def log_factorial(count: FloatArray) -> FloatArray:
    """log(count!) for whole counts, by Stirling's series above 16."""
    small = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, 17.0)))])
    n = np.maximum(count, 16.0)
    series = 1 / (12 * n) - 1 / (360 * n**3) + 1 / (1260 * n**5)
    large = n * np.log(n) - n + 0.5 * np.log(2 * np.pi * n) + series
    return np.where(count <= 16, small[np.minimum(count, 16).astype(np.int64)], large)


def log_probability(count: FloatArray, mean: FloatArray) -> FloatArray:
    """Logarithm of the Poisson probability of exactly ``count`` events; ``mean`` above 0."""
    return count * np.log(mean) - mean - log_factorial(count)


def fewer_than(terms: FloatArray, mean: FloatArray) -> FloatArray:
    """Probability of fewer than ``terms`` events (whole, at least 1) of a Poisson variable with ``mean`` > 0."""
    result = np.empty(len(terms))
    few = terms <= SUMMED
    if few.any():
        q, m = terms[few], mean[few]
        counts = np.arange(q.max())
        logs = log_probability(np.broadcast_to(counts, (len(q), len(counts))), m[:, None])
        result[few] = np.where(counts < q[:, None], np.exp(logs), 0.0).sum(axis=1)
    many = ~few
    if many.any():
        result[many] = _integrated(terms[many], mean[many])
    return np.clip(result, 0.0, 1.0)


def _integrated(terms: FloatArray, mean: FloatArray) -> FloatArray:
    """The incomplete gamma function as the integral of its density over the lighter side of the mean."""
    spread = np.sqrt(terms)
    right = mean > terms  # integrate the tail beyond, else what is before
    start = np.where(right, mean, np.maximum(0.0, np.minimum(mean, terms) - 12.0 * spread))
    end = np.where(right, np.maximum(mean, terms) + 12.0 * spread, mean)
    x = start[:, None] + (end - start)[:, None] * (0.5 + 0.5 * _NODES)
    q = terms[:, None]
    with np.errstate(divide="ignore"):
        density = np.exp((q - 1) * np.log(x) - x - log_factorial(terms - 1)[:, None])
    area = (density @ _WEIGHTS) * 0.5 * (end - start)
    below: FloatArray = np.where(right, area, 1.0 - area)
    return below
