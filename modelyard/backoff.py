"""Exponential back-off: how long to wait after failures in a row. Pure; the caller counts failures and draws jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """A delay of ``first`` seconds, ``factor`` times as long after every further failure, up to ``longest``."""

    first: float
    longest: float = math.inf
    factor: float = 2.0

    def delay(self, failures: int, jitter: float = 1.0) -> float:
        """Return the seconds to wait after this many failures in a row, times ``jitter``; 0 before any failure."""
        # The power stays within what a float holds.
        return min(self.longest, self.first * self.factor ** min(failures - 1, 60)) * jitter if failures > 0 else 0.0
