"""Match the demonstration's pace to the machine.

The demonstration compresses time: engines, traffic, ticks and policies run several times faster than in production. A
busy machine cannot keep up with the full speed. Three decisions follow from measurements:

- Before anything starts, ``measure_free_cores`` counts the processor cores that a program gets here, and
  ``choose_compression`` sets the speed-up factor.
- While traffic flows, ``Pace`` measures how late this process wakes up and thins the traffic until it is on time.
- Afterwards, ``Lateness`` says whether latencies describe the service or the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from modelyard.traffic.clients import RequestResult
from modelyard.traffic.traces import percentile

SLOWEST, FASTEST = 4.0, 10.0
"""Speed-up factors; the fastest needs ``NEEDED_CORES``."""
NEEDED_CORES = 0.9
"""Free cores for the fastest: the busiest minute of the traffic takes about as much."""
CALIBRATION_SECONDS = 2.0
LAG_LIMIT = 0.05
"""Wall seconds that this process may wake up late before traffic is thinned; below 0.02 on two quiet cores."""
LEAST_SHARE = 0.4
"""Smallest share of the traffic: less would need no second replica."""
OVERDUE = 1.0
"""Wall seconds after which a request is dropped instead of sent late."""
THINNER, THICKER = 0.8, 0.02
"""Factor of the share for each second that is late; addition for each second on time."""
LATENESS_LIMIT = 0.25
"""Seconds of simulated time, a tenth of the TTFT target: a request sent later seems to have waited that much."""


def measure_free_cores(seconds: float = CALIBRATION_SECONDS) -> float:
    """Return the processor cores that this process gets while it asks for all of them."""
    cores = len(os.sched_getaffinity(0))
    deadline = time.monotonic() + seconds

    def spin() -> float:
        while time.monotonic() < deadline:
            hashlib.pbkdf2_hmac("sha256", b"modelyard", b"calibration", 10_000)  # Releases the interpreter's lock.
        return time.thread_time()

    started = time.monotonic()
    with ThreadPoolExecutor(cores) as pool:
        used = sum(pool.map(lambda _: spin(), range(cores)))
    return used / (time.monotonic() - started)


def choose_compression(free_cores: float) -> float:
    """Return the speed-up factor for a machine with so many free cores, in steps of 0.5."""
    return math.floor(2 * min(FASTEST, max(SLOWEST, FASTEST * free_cores / NEEDED_CORES))) / 2


def next_share(share: float, lag: float) -> float:
    """Return the share of the traffic for the next second: down fast when late, up slowly when on time."""
    if lag > LAG_LIMIT:
        return max(LEAST_SHARE, share * THINNER)
    return min(1.0, share + THICKER) if lag < LAG_LIMIT / 2 else share


class Pace:
    """Share of the traffic sent now; requests ``OVERDUE`` are dropped, as a burst would cause the next stall."""

    def __init__(self, compression: float) -> None:
        self.share = 1.0
        self._overdue = OVERDUE * compression

    def admits(self, index: int, late: float) -> bool:
        """Return whether request ``index``, ``late`` seconds of simulated time after it was due, is sent.

        Indices spread evenly over the fractions of their multiples of the golden ratio.
        """
        return late < self._overdue and (self.share >= 1 or (index * 0.6180339887498949) % 1 < self.share)

    async def adjust(self) -> None:
        """Measure lateness and adapt the share every second until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            lags, end = [0.0], clock() + 1
            while clock() < end:
                before = clock()
                await asyncio.sleep(0.05)
                lags.append(clock() - before - 0.05)
            self.share = next_share(self.share, float(np.percentile(lags, 90)))


@dataclass(frozen=True)
class Lateness:
    """Delay with which requests were sent, 95th percentile in seconds of simulated time, and the share of them sent."""

    p95: float
    sent: float = 1.0

    @classmethod
    def of(cls, results: Sequence[RequestResult], planned: int) -> Lateness:
        late = np.array([result.late for result in results], dtype=np.float64)
        return cls(percentile(late, 95), len(results) / planned)

    @property
    def kept_up(self) -> bool:
        """True when latencies describe the service, not the machine."""
        return self.p95 <= LATENESS_LIMIT

    def __str__(self) -> str:
        measured = f"95% of requests were sent within {self.p95:.2f} s of their time (limit {LATENESS_LIMIT:g} s)"
        share = f"; {self.sent:.0%} of the trace was sent, as much as the machine could" if self.sent < 1 else ""
        if self.kept_up:
            return f"Latencies are reliable: {measured}{share}."
        return f"Latencies are indicative only: the machine could not keep up; {measured}{share}."
