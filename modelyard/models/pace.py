"""How hard a source is pulled at, and how patiently: what all threads of a download share."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from modelyard.models.errors import FetchError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard to pull. Memory is about 60 MiB and 2 MiB for each of ``parallel``, whatever the size of parts."""

    parallel: int = 8
    part_size: int = 4 * MIB
    bandwidth: float | None = None
    """Bytes per second."""
    patience: float = 300.0
    """Seconds without a byte after which a transient error is told."""


class Stopped(Exception):
    """Another thread has failed, or the process is to end."""


class Pace:
    """What all threads share: counts, the limit of bandwidth, pauses, and the end."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = self.files = self.fetched = 0
        self.trouble = ""
        """What is being tried again, and why."""
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._moved = time.monotonic()
        self._not_before = 0.0
        self._free_at = 0.0

    def took(self, count: int) -> None:
        """So many bytes have arrived."""
        now = time.monotonic()
        with self._lock:
            self._moved, self.trouble = now, ""
            self.bytes += count
            self.fetched += count
            if self.limits.bandwidth:
                self._free_at = max(self._free_at, now) + count / self.limits.bandwidth

    def count(self, *, files: int = 0, size: int = 0) -> None:
        """Something that was there, or is complete, or (negative) must be fetched anew."""
        with self._lock:
            self.files += files
            self.bytes += size

    def begin(self) -> None:
        """Before each request: not while the source has asked to be left alone."""
        self.pause(self._not_before - time.monotonic())
        self.throttle()

    def throttle(self) -> None:
        """Before the next bytes: as the limit of bandwidth has it."""
        self.pause(self._free_at - time.monotonic())

    def retry(self, error: FetchError, attempt: int) -> None:
        """Waits before the next try; raises the error where there is to be none."""
        if not error.retryable or error.reason == "SourceChanged":
            raise error
        now = time.monotonic()
        pause = min(30.0, 0.5 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        with self._lock:
            self.trouble = str(error)
            if now + pause - self._moved > self.limits.patience:
                raise error
            if error.reason == "RateLimited":
                self._not_before = max(self._not_before, now + pause)
        self.pause(pause)

    def pause(self, seconds: float) -> None:
        """Waits; Stopped where everything is to end."""
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise Stopped
