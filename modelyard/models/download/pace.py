"""How hard a source is pulled at, and how patiently: what all threads of a download share."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import Field

from modelyard.backoff import Backoff
from modelyard.models.sources import Chunk
from modelyard.models.storage import REQUEST_BYTES, FetchError, TransferWindow
from modelyard.objects import Cli, amount

T = TypeVar("T")

MIB = 1 << 20
MINIMUM_RATE = 128 << 10
"""Bytes per second; below it 10 GB take a day."""
_RETRIES = Backoff(0.5, longest=30.0)
_RECENT = 30.0
"""Seconds over which the present speed is measured."""
_POLL = 0.5
"""Seconds between two looks at threads that wait for a source."""
_LAST_WORDS = 5.0
"""Seconds that threads have to end, once they must."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Limits of what deliveries take of a disk; percentages are of all its bytes and of all its inodes."""

    free_percent: Annotated[
        float,
        Cli("--free-disk-percent"),
        Field(ge=0, le=90, description="percent of the disk's bytes and inodes that every delivery leaves free"),
    ] = 0.0
    namespace_percent: Annotated[
        float,
        Cli("--namespace-disk-percent"),
        Field(ge=0, le=100, description="percent of the disk that the models of the model's namespace may have"),
    ] = 100.0
    namespace_bytes: Annotated[
        int | None, Cli("--bytes-per-namespace"), Field(ge=1, description="bytes that they may have; unset: no limit")
    ] = None
    namespace_files: Annotated[
        int | None,
        Cli("--files-per-namespace"),
        Field(ge=1, description="files and folders that they may have; unset: no limit"),
    ] = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard to pull. Memory is about 60 MiB and 2 MiB for each of ``parallel``, whatever the size of parts."""

    parallel: Annotated[int, Field(ge=1, le=64, description="requests at a time")] = 8
    part_size: Annotated[
        int, Field(ge=65536, description="bytes of a part, which a kill of the process may cost each")
    ] = 4 * MIB
    bandwidth: Annotated[float | None, Field(ge=1, description="limit in bytes per second; unset: none")] = None
    patience: Annotated[
        float, Field(ge=0, description="seconds without a byte after which transient errors are no longer retried")
    ] = 300.0
    minimum_rate: Annotated[
        float, Field(ge=0, description="bytes per second that the source must send on average; 0: any rate")
    ] = MINIMUM_RATE
    window: float = 300.0
    """Seconds over which the rate is measured; only those count in which the source is waited for."""
    listing: float = 600.0
    """Seconds that a listing may take, with all its pages and retries."""
    deadline: Annotated[
        float | None, Field(ge=1, description="time limit in seconds for the whole delivery; unset: none")
    ] = None
    disk: DiskLimits = field(default_factory=DiskLimits)

    @property
    def required_rate(self) -> float:
        """Bytes per second that a source must send; half of the own limit where that is lower than the minimum."""
        return self.minimum_rate if self.bandwidth is None else min(self.minimum_rate, self.bandwidth / 2)


class Stopped(Exception):
    """Another thread has failed, or the process is to end."""


class Pace:
    """State that all threads of a download share: counts, the bandwidth limit, pauses, time limits, and the end."""

    def __init__(
        self, limits: Limits, clock: Callable[[], float] = time.monotonic, started: float | None = None
    ) -> None:
        self.limits = limits
        self.bytes = self.files = self.fetched = 0
        self.trouble = ""
        """What is being tried again, and why."""
        self.stop = threading.Event()
        self._clock = clock
        self._lock = threading.Lock()
        self._moved = self._began = clock()
        self._not_before = 0.0
        self._free_at = 0.0
        self._waiting = 0
        self._waiting_since = self._waited = 0.0
        self._window = TransferWindow(limits.window)
        self._recent = TransferWindow(_RECENT)
        begun = self._began if started is None else started
        self._ends = None if limits.deadline is None else begun + limits.deadline
        self._phase_ends: float | None = None

    @property
    def now(self) -> float:
        return self._clock()

    def took(self, count: int) -> None:
        now = self._clock()
        with self._lock:
            self._moved, self.trouble = now, ""
            self.bytes += count
            self.fetched += count
            self._window.add(self._waited_until(now), count)
            self._recent.add(now - self._began, count)
            if self.limits.bandwidth:
                self._free_at = max(self._free_at, now) + count / self.limits.bandwidth

    def answered(self, length: int) -> None:
        """Count a request that was answered in full: a short one for as much as its round trip would have brought."""
        now = self._clock()
        with self._lock:
            self._window.add(self._waited_until(now), max(0, REQUEST_BYTES - length))

    def count(self, *, files: int = 0, size: int = 0) -> None:
        """Something that was there, or is complete, or (negative) must be fetched anew."""
        with self._lock:
            self.files += files
            self.bytes += size

    def begin(self) -> None:
        """Before each request: not while the source has asked to be left alone."""
        with self.waiting():
            self.pause(self._not_before - self._clock())
        self.throttle()

    def throttle(self) -> None:
        self.pause(self._free_at - self._clock())

    def retry(self, error: FetchError, attempt: int) -> None:
        """Waits before the next try; raises the error where there is to be none."""
        if not error.retryable or error.reason == "SourceChanged":
            raise error
        now = self._clock()
        pause = _RETRIES.delay(attempt + 1, random.uniform(0.5, 1.0))
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        with self._lock:
            self.trouble = str(error)
            if now + pause - self._moved > self.limits.patience:
                raise error
            if error.reason == "RateLimited":
                self._not_before = max(self._not_before, now + pause)
        with self.waiting():
            self.pause(pause)

    def pause(self, seconds: float) -> None:
        """Waits; Stopped where everything is to end."""
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise Stopped

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A thread waits for the source, or as long as that has asked for. Disks and own limits are not its fault."""
        with self._lock:
            if self._waiting == 0:
                self._waiting_since = self._clock()
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._waited += self._clock() - self._waiting_since

    def watch(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same chunks; the time until each counts as waiting for the source."""
        while True:
            with self.waiting():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def waited(self) -> float:
        """Seconds in which at least one thread waited for the source."""
        with self._lock:
            return self._waited_until(self._clock())

    def _waited_until(self, now: float) -> float:
        return self._waited + (now - self._waiting_since if self._waiting else 0.0)

    def recent_rate(self) -> float | None:
        """Bytes per second at present; ``None`` in the first seconds."""
        with self._lock:
            return self._recent.rate(self._clock() - self._began)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the time of what is done in the block, as far as ``check`` is called meanwhile."""
        self._phase_ends = self._clock() + seconds
        try:
            yield
        finally:
            self._phase_ends = None

    def check(self) -> None:
        """Raise FetchError where the source is slower than the minimum rate, or the time is over."""
        now, limits = self._clock(), self.limits
        if self._ends is not None and now > self._ends:
            raise FetchError(
                "DeadlineExceeded",
                f"not delivered within {limits.deadline:.0f} s; the next attempt continues with what has arrived; for"
                " more time have an administrator raise deliveryDeadline",
                retryable=True,
            )
        if self._phase_ends is not None and now > self._phase_ends:
            trouble = f" ({self.trouble})" if self.trouble else ""
            raise FetchError(
                "SourceTooSlow",
                f"the source did not answer completely within its time limit{trouble}; name a smaller part of it in"
                " storageUri, or use another source",
                retryable=True,
            )
        with self._lock:
            rate = self._window.rate(self._waited_until(now))
        if rate is not None and rate < limits.required_rate:
            raise FetchError(
                "SourceTooSlow",
                f"the source sent {amount(rate)} a second over the last {limits.window:.0f} s, and"
                f" {amount(limits.required_rate)} are required; use a faster source, or have an administrator lower"
                " minimumRate",
                retryable=True,
            )


def one_by_one(items: Iterable[T], do: Callable[[T], None]) -> Callable[[], None]:
    """Return the work of threads that share items: each takes the next one until none is left."""
    queue, lock = iter(items), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                item = next(queue, None)
            if item is None:
                return
            do(item)

    return work


class WatchedThreads:
    """Threads that do the same work on one source, watched by the caller: a thread in a system call stops for nobody.

    The first failure, of a thread, of ``Pace.check`` or of ``supervise``, ends all of it. A thread that still waits for
    the network is left behind (``ended`` is then false), and ends with the process.
    """

    def __init__(self, pace: Pace, count: int, work: Callable[[], None]) -> None:
        self._pace, self._work = pace, work
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(count)]

    @property
    def ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def run(self, supervise: Callable[[], None] = lambda: None) -> None:
        """Do the work to its end. Raises the first failure."""
        for thread in self._threads:
            thread.start()
        try:
            while alive := [thread for thread in self._threads if thread.is_alive()]:
                alive[0].join(_POLL)
                if alive[0].is_alive() and not self._pace.stop.is_set():
                    self._pace.check()
                    supervise()
                elif self._pace.stop.is_set():
                    break
        except BaseException:
            self._pace.stop.set()
            raise
        finally:
            if self._pace.stop.is_set():
                deadline = time.monotonic() + _LAST_WORDS
                for thread in self._threads:
                    thread.join(max(0.0, deadline - time.monotonic()))
        if self._failures:
            raise self._failures[0]

    def _guarded(self) -> None:
        try:
            self._work()
        except Stopped:
            return
        except BaseException as error:
            self._failures.append(error)
            self._pace.stop.set()
