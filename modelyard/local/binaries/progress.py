"""Telling a waiting person how far a long job is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TICK = 15.0


class Stages:
    """Numbered stages of a job: `[2/7] building kube-apiserver`, every 15 s that it still does, and its seconds."""

    def __init__(self, progress: Callable[[str], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._number = 0

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Announce a stage, and say how long it took."""
        self._number += 1
        label = f"[{self._number}/{self._total}] {what}"
        begun = time.monotonic()
        done = threading.Event()

        def tick() -> None:
            while not done.wait(_TICK):
                self._progress(f"{label} ... {time.monotonic() - begun:.0f} s")

        self._progress(label)
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
        self._progress(f"{label}: done in {time.monotonic() - begun:.0f} s")
