"""What a metric's name says about how its values join: added up, or averaged. Used wherever values are combined.

Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

RATIO_SUFFIXES = ("_utilization", "_usage", "_ratio", "_percent", "_saturation", "_perc")
"""Endings of metrics that are shares, in any case of letters. ``_perc`` is how vLLM spells its cache usage."""


def is_ratio(name: str) -> bool:
    """Whether the values of this metric must be averaged; all others add up (a ``_rate`` too)."""
    return name.lower().endswith(RATIO_SUFFIXES)
