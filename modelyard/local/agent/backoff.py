"""How long a container that ended waits before it is started again."""

from __future__ import annotations

FIRST = 10.0
LONGEST = 300.0
FORGOTTEN_AFTER = 600.0
"""Seconds a run must last for the ends before it to be forgotten (twice the longest delay, as the kubelet has it)."""


def restart_delay(failures: int, scale: float = 1.0) -> float:
    """Seconds to wait after the `failures`-th end in a row: 0, then 10, 20, 40, ... up to 300, times `scale`.

    The first restart comes at once, as on a cluster.
    """
    if failures <= 1:
        return 0.0
    # Beyond this power every delay is the longest one.
    return min(LONGEST, FIRST * float(2 ** min(failures - 2, 10))) * scale
