"""The way a metric's values join (sum, mean, largest), by what is known of engines, else by the name's ending.

Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

from modelyard.metrics.vocabulary import Join, join_of

RATIO_SUFFIXES = ("_utilization", "_usage", "_ratio", "_percent", "_saturation", "_perc")
"""Endings of metrics that are shares, in any case of letters."""
LATENCY_SUFFIXES = ("_latency", "_seconds", "_milliseconds", "_ms")
"""Endings of gauges that are times: of several the largest counts, for no sum of them has a meaning."""


def is_ratio(name: str) -> bool:
    """Whether the values of this metric must be averaged; all others add up (a ``_rate`` too)."""
    return _known_or_ends(name, Join.MEAN, RATIO_SUFFIXES)


def is_latency(name: str) -> bool:
    """Whether a gauge of this name is a time; a counter of seconds is not, its rate adds up."""
    return _known_or_ends(name, Join.MAX, LATENCY_SUFFIXES)


def _known_or_ends(name: str, join: Join, endings: tuple[str, ...]) -> bool:
    known = join_of(name)
    return name.lower().endswith(endings) if known is None else known is join
