"""Minimum rates and the time limits that follow from them, on a clock that the caller reads. Pure.

A source that sends one byte every ten seconds never breaks a time-out between two bytes. So bytes are counted over a
window, and a file, a listing and a whole delivery have time limits that grow with their size.
"""

from __future__ import annotations

from collections import deque

REQUEST_BYTES = 128 << 10
"""Bytes that a completed request counts as at least: small files take round trips, not bandwidth."""
_SAMPLES = 60
"""Samples of one window: the limit of its memory and of its precision."""


class TransferWindow:
    """Bytes that arrived within the last ``length`` seconds."""

    def __init__(self, length: float) -> None:
        self.length = length
        self._total = 0
        self._samples: deque[tuple[float, int]] = deque()
        """(time, bytes in all before it), the oldest first."""

    def add(self, now: float, count: int) -> None:
        if not self._samples or now - self._samples[-1][0] >= self.length / _SAMPLES:
            self._samples.append((now, self._total))
            self._forget(now)
        self._total += count

    def rate(self, now: float) -> float | None:
        """Return the bytes per second over the window; ``None`` until one whole window has passed since time zero."""
        if now < self.length:
            return None
        self._forget(now)
        before = self._samples[0][1] if self._samples else self._total
        return (self._total - before) / self.length

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] < now - self.length:
            self._samples.popleft()


def time_limit(size: int, files: int, minimum_rate: float, window: float, parallel: int = 1) -> float:
    """Return the seconds a transfer may take at the minimum rate, which ``parallel`` transfers share equally."""
    return window + (size + files * REQUEST_BYTES) * parallel / minimum_rate
