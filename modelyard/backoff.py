"""Exponential back-off: how long to wait after failures in a row. Pure; the caller counts failures and draws jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST_STEPS = 60
"""Steps after which the delay stops growing, so that the power of no count of failures overflows."""


@dataclass(frozen=True)
class Backoff:
    """A delay of ``first`` seconds, ``factor`` times as long after every further failure, up to ``longest``.

    >>> [Backoff(10, longest=30).delay(failures) for failures in range(5)]
    [0.0, 10.0, 20.0, 30, 30]
    """

    first: float
    longest: float = math.inf
    factor: float = 2.0

    def delay(self, failures: int, jitter: float = 1.0) -> float:
        """Return the seconds to wait after this many failures in a row, times ``jitter``; 0 before any failure."""
        if failures < 1:
            return 0.0
        return min(self.longest, self.first * self.factor ** min(failures - 1, _MOST_STEPS)) * jitter
