"""Quantiles between two looks. Source: Kthena autoscaler reference, "Quantile of a difference"."""

from __future__ import annotations

from math import ceil, isinf
from typing import NamedTuple


class Buckets(NamedTuple):
    """A cumulative histogram: observations up to each bound, bounds rising, the last one usually infinite."""

    observations: float
    buckets: tuple[tuple[float, float], ...]


EMPTY = Buckets(0.0, ())


def quantile_of_difference(now: Buckets, past: Buckets = EMPTY, percentile: int = 95) -> float:
    """Interpolated percentile of the observations that ``now`` has and ``past`` has not; 0 without observations.

    The infinite bucket counts as twice the last bound. Raises ValueError for a percentile outside 1 to 100, and for
    histograms that do not belong together (a restart in between, other bounds): the metric is not available then.
    """
    if not 1 <= percentile <= 100:
        raise ValueError(f"percentile {percentile} is outside 1 to 100")
    total = now.observations - past.observations
    if total < 0:
        raise ValueError(f"the count fell from {past.observations:g} to {now.observations:g}")
    if total == 0:
        return 0.0
    if past.buckets and [bound for bound, _ in past.buckets] != [bound for bound, _ in now.buckets]:
        raise ValueError(f"the buckets changed from {len(past.buckets)} to {len(now.buckets)}, or their bounds did")
    before = [cumulative for _, cumulative in past.buckets] or [0.0] * len(now.buckets)
    rank = ceil(total * percentile / 100)
    low = lowest = 0.0
    for (bound, cumulative), earlier in zip(now.buckets, before, strict=True):
        highest = cumulative - earlier
        if highest < lowest:
            raise ValueError(f"fewer observations up to {bound:g} than below it")
        upper = 2 * low if isinf(bound) else bound
        if highest > lowest and rank <= highest:
            return upper - (highest - rank) * (upper - low) / (highest - lowest)
        low, lowest = upper, highest
    raise ValueError(f"the buckets hold {lowest:g} of {total:g} observations")
