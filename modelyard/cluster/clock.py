"""Time by the clock of the API server.

Objects carry moments: of their creation, of conditions, and those that Modelyard stores (claims, stabilization windows,
cooldowns, records of model names). They are compared with each other and with the present. So all of them go by one
clock, that of the API server, and a machine whose own clock is wrong, drifts, or is set while it runs changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_SECOND = 1.0
_CORRECTION = 2.0
"""Seconds by which an estimate may become smaller without a server whose clock was set: time stands still meanwhile."""


class ServerClock:
    """Estimate of the server's time from the header ``Date`` of its answers, which have whole seconds.

    The server wrote the header between the request and the answer, up to a second after the second that it names. Each
    answer narrows the estimate, which otherwise goes on evenly, and moves it only where it cannot be right. Before the
    first answer it is this machine's time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = math.nan
        self._latest = -math.inf

    def now(self) -> float:
        """Return the server's time, in epoch seconds."""
        if math.isnan(self._offset):
            return time.time()
        now = self._monotonic() + self._offset
        if self._latest - _CORRECTION < now < self._latest:
            return self._latest
        self._latest = now
        return now

    def note(self, date: str | None, sent: float) -> None:
        """Take the ``Date`` of an answer that has just begun, to a request sent at ``sent`` (monotonic seconds)."""
        try:
            written = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):  # a proxy's, or none
            return
        earliest, latest = written - self._monotonic(), written + _SECOND - sent
        middle = (earliest + latest) / 2
        self._offset = middle if math.isnan(self._offset) else min(max(self._offset, earliest), latest)
