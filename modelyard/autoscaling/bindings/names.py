"""What a metric's name says about how its values join: added up, averaged, or the largest. For all who join.

Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

RATIO_SUFFIXES = ("_utilization", "_usage", "_ratio", "_percent", "_saturation", "_perc")
"""Endings of metrics that are shares, in any case of letters. ``_perc`` is how vLLM spells its cache usage."""


def is_ratio(name: str) -> bool:
    """Whether the values of this metric must be averaged; all others add up (a ``_rate`` too)."""
    return name.lower().endswith(RATIO_SUFFIXES)


LATENCY_SUFFIXES = ("_latency", "_seconds", "_milliseconds", "_ms")
"""Endings of gauges that are times: of several the largest counts, for no sum of them has a meaning."""


def is_latency(name: str) -> bool:
    """Whether a gauge of this name is a time; a counter of seconds is not, its rate adds up."""
    return name.lower().endswith(LATENCY_SUFFIXES)
