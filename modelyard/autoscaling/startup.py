"""Learning how long a variant's pods take from creation to Ready. Called by ``records`` for every variant."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.fleet import Pod

_LONGEST = 7200.0
_TOLERANCE = 0.2


def learn_startup(known: float | None, pods: Sequence[Pod]) -> float | None:
    """The start-up time in seconds after looking at ``pods``; the known one unless it is off by more than a fifth.

    The fastest of the ready pods: one that lost and regained readiness looks like a slow start, and must not decide.
    The tolerance keeps the memory from changing with every pod.
    """
    times = [pod.ready_since - pod.created for pod in pods if pod.ready_since is not None]
    if not times:
        return known
    fastest = min(times)
    if not 0 <= fastest <= _LONGEST or (known is not None and abs(fastest - known) <= _TOLERANCE * known + 1):
        return known
    return float(round(fastest))
