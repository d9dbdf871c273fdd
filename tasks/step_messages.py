"""The messages of a step in the log of its task run. Tenants write parts of them, and may change these all the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from modelyard.objects.documents import printable

LOG_PAUSE = 5.0
"""Seconds between two messages of a step in the log."""


class StepMessages:
    """Logs each message that is not the one before, on one line, and of several within ``LOG_PAUSE`` only the last."""

    def __init__(self, log: Callable[[str, str], None]) -> None:
        self._log = log
        self._logged = ""
        self._pending = ""
        self._next = -math.inf

    def tell(self, message: str) -> None:
        """Log the message, at once or with a later call."""
        if message:
            self._pending = message if message != self._logged else ""
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Log the last message where that is still to be done."""
        if self._pending:
            self._log("%s", printable(self._pending))
            self._logged, self._pending = self._pending, ""
            self._next = time.monotonic() + LOG_PAUSE
