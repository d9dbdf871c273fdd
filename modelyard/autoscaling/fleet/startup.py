"""Learning a pod's time from creation to Ready: head-room plans that far ahead, a scaling may take twice as long."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from modelyard.objects import Pod

_LONGEST = 7200.0
_TOLERANCE = 0.2
_NOT_A_START = 5.0
"""A pod this many times slower than the fastest has not started slowly, it has lost and regained its readiness."""


def learn_startup(known: float | None, pods: Sequence[Pod]) -> float | None:
    """The start-up time in seconds after looking at ``pods``; the known one unless it is off by more than a fifth.

    The lower median of ready pods, never unready or unschedulable. The tolerance keeps the memory from changing often.
    """
    times = sorted(
        [pod.ready_since - pod.created for pod in pods if pod.ready_since is not None and not pod.unschedulable]
    )
    times = times[bisect_left(times, 0.0) : bisect_right(times, _LONGEST)]
    if not times:
        return known
    starts = bisect_right(times, _NOT_A_START * max(times[0], 1.0))
    usual = times[(starts - 1) // 2]
    if known is not None and abs(usual - known) <= _TOLERANCE * known + 1:
        return known
    return float(round(usual))
