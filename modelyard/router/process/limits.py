"""The token budgets of one router, in the memory of its process or in files that its worker processes share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from modelyard.objects import Key
from modelyard.routing import Left, OverBudget, Route, TokenBucket, TokenLimits


class LocalLimits:
    """The budgets of a router on its own, by the route's key: each replica gives out the whole budget."""

    def __init__(self) -> None:
        self._limits = TokenLimits()

    def configure(self, route: Key, now: Route | None) -> None:
        """Make the budget that of the route as it is now; ``None``: it is gone. In the order of the changes."""
        budget = None if now is None or not now.names else now.budget
        self._limits.configure(route, budget, time.monotonic())

    async def admit(self, route: Key, tokens: int) -> Left | OverBudget:
        """Check all, then take ``tokens`` of input; what is left then, or which budget forbids it."""
        now = time.monotonic()
        with self._locked(route):
            return self._limits.admit(route, tokens, now) or Left(*self._limits.left(route, now))

    async def settle(self, route: Key, estimated: int, real: int | None, output: int) -> None:
        """After the answer: put the estimate right, and charge the output; both 0 where no engine was reached."""
        with self._locked(route):
            self._limits.settle(route, estimated, real, output, time.monotonic())

    def _locked(self, route: Key) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class SharedLimits(LocalLimits):
    """The budgets of the worker processes of one router: a small file for each route, locked for each change.

    All of a machine's processes share its monotonic clock, which is what the files are written in.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[Key, int] = {}

    def configure(self, route: Key, now: Route | None) -> None:
        """As ``LocalLimits`` do. Each worker says the same; the first one's word changes what is there."""
        budget = None if now is None or not now.names else now.budget
        if budget is None:
            self._limits.configure(route, None, 0.0)
            if (file := self._files.pop(route, None)) is not None:
                os.close(file)
            return
        if route not in self._files:
            # No two routes share a file, however their names were chosen.
            name = f"{hashlib.blake2b(f'{route.namespace}/{route.name}'.encode(), digest_size=32).hexdigest()}.budget"
            self._files[route] = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._locked(route):
            self._limits.configure(route, budget, time.monotonic())

    @contextlib.contextmanager
    def _locked(self, route: Key) -> Iterator[None]:
        file = self._files.get(route)
        if file is None:
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            said = os.pread(file, _BUCKETS.size, 0)
            if len(said) == _BUCKETS.size:
                values = _BUCKETS.unpack(said)
                first, second = (TokenBucket(*one) if one[0] else None for one in (values[:4], values[4:]))
                self._limits.restore(route, first, second)
            yield
            kept = [(b.limit, b.seconds, b.level, b.at) if b else (0, 0, 0, 0) for b in self._limits.buckets(route)]
            os.pwrite(file, _BUCKETS.pack(*kept[0], *kept[1]), 0)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


_BUCKETS = struct.Struct("qqddqqdd")
"""Limit, seconds of the unit, level and time of the bucket for input, then of that for output."""
