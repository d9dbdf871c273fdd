"""When a shift ticks: instants on a fixed grid, late ones skipped, never two close together.

Pure arithmetic on a monotonic clock's readings; the caller (``flows.shift``) owns the clock and the sleeping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One instant at which to tick: its number on the grid (from 0) and the clock reading it belongs to."""

    number: int
    instant: float


@dataclass(frozen=True, slots=True)
class Cadence:
    """The grid ``start + k * interval`` (seconds), up to but not including ``end``.

    A tick may begin up to half an interval after its instant. Later than that it is skipped, so two ticks never begin
    less than half an interval apart, and the grid itself never drifts.
    """

    start: float
    interval: float
    end: float

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ValueError(f"interval must be above zero seconds, not {self.interval}")

    def next(self, now: float, after: int = -1) -> Slot | None:
        """The first slot past number ``after`` that is still on time at ``now``; ``None`` when the shift has no more.

        The slot's instant may lie up to half an interval before ``now`` (begin at once) or after it (sleep until then).
        """
        on_time = math.ceil((now - self.start) / self.interval - 0.5)
        number = max(after + 1, on_time, 0)
        instant = self.start + number * self.interval
        return Slot(number, instant) if instant < self.end else None


def shift_cadence(*, now: float, late_by: float, interval: float, shift: float, early_end: float) -> Cadence:
    """The cadence of a shift that should have begun ``late_by`` seconds before ``now`` (negative: it begins later).

    The grid is anchored to the scheduled start, so that successive shifts whose length is a multiple of the interval
    share one grid and a shift that started late still makes room for its successor. A shift of zero seconds is one
    tick, now.
    """
    if shift == 0:
        return Cadence(start=now, interval=interval, end=math.nextafter(now, math.inf))
    start = now - late_by
    return Cadence(start=start, interval=interval, end=start + shift - early_end)
