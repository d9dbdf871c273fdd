"""Token budgets of routes: everything is checked before anything is taken, and a debt is paid before more is given.

Pure: the caller says what time it is (seconds of a clock that never goes back). Source: kthena-routing, 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from modelyard.objects import Key

SECONDS: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "month": 30 * 86_400}


_MOST = 10**15
"""Tokens of a budget: a floating-point number counts single tokens up to nine times as many."""


class Budget(NamedTuple):
    """Most tokens of a route per unit; ``None``: no limit. ``seconds`` is the length of the unit."""

    input: int | None
    output: int | None
    seconds: int = 1

    @classmethod
    def of(cls, input_: int | None, output: int | None, seconds: int) -> Budget:
        """Return a budget that can be counted exactly."""
        into, out = (None if limit is None else min(limit, _MOST) for limit in (input_, output))
        return cls(into, out, seconds)

    @property
    def limits(self) -> bool:
        """Return whether there is a limit at all."""
        return self.input is not None or self.output is not None


@dataclass(slots=True)
class TokenBucket:
    """Starts full, fills at ``limit`` per ``seconds`` up to ``limit``; its level may be negative, which is a debt."""

    limit: int
    seconds: int
    level: float
    at: float

    def available(self, now: float) -> float:
        """Tokens there are at this time. Reading changes nothing."""
        passed = now - self.at
        there = self.level + passed * self.limit / self.seconds if passed > 0 else self.level
        return there if there < self.limit else self.limit

    def take(self, tokens: float, now: float) -> None:
        """Take tokens, into debt if need be; give them back where the number is negative."""
        level = self.available(now) - tokens
        self.level = level if level < self.limit else self.limit
        if now > self.at:
            self.at = now

    def wait(self, tokens: float, now: float) -> float | None:
        """Seconds until that many are there; ``None``: never, because they are more than it can hold."""
        if tokens > self.limit:
            return None
        return max(0.0, tokens - self.available(now)) * self.seconds / self.limit


class OverBudget(NamedTuple):
    """Which budget a request is beyond, and after how many seconds it would not be (``None``: never)."""

    kind: str
    retry_after: float | None


class TokenLimits:
    """The buckets of every route with a budget, by the route's namespace and name."""

    def __init__(self) -> None:
        self._of: dict[Key, tuple[TokenBucket | None, TokenBucket | None]] = {}

    def configure(self, route: Key, budget: Budget | None, now: float) -> None:
        """Make the buckets those of the spec. What is filled stays in proportion; an unchanged limit is not touched."""
        if budget is None or (budget.input is None and budget.output is None):
            self._of.pop(route, None)
            return
        old = self._of.get(route, (None, None))
        limits = (budget.input, budget.output)
        first, second = (_bucket(o, limit, budget.seconds, now) for o, limit in zip(old, limits, strict=True))
        self._of[route] = first, second

    def admit(self, route: Key, tokens: int, now: float) -> OverBudget | None:
        """Take ``tokens`` of input, unless a budget of the route forbids it; then take none."""
        into, out = self._of.get(route, (None, None))
        if into is not None and tokens > into.available(now):
            return OverBudget("input", into.wait(tokens, now))
        if out is not None and out.available(now) < 1:
            return OverBudget("output", out.wait(1, now))
        if into is not None and tokens:
            into.take(tokens, now)
        return None

    def settle(self, route: Key, estimated: int, real: int | None, output: int, now: float) -> None:
        """After the answer: put the estimate right where the engine told the real number, and charge the output."""
        into, out = self._of.get(route, (None, None))
        if into is not None and real is not None and real != estimated:
            into.take(real - estimated, now)
        if out is not None and output:
            out.take(output, now)

    def buckets(self, route: Key) -> tuple[TokenBucket | None, TokenBucket | None]:
        """Those for input and output."""
        return self._of.get(route, (None, None))

    def restore(self, route: Key, into: TokenBucket | None, out: TokenBucket | None) -> None:
        """Put buckets that were kept elsewhere in their place."""
        self._of[route] = into, out

    def left(self, route: Key, now: float) -> tuple[float | None, float | None]:
        """Tokens left for input and output; ``None`` where there is no limit."""
        into, out = self._of.get(route, (None, None))
        return into.available(now) if into else None, out.available(now) if out else None


def _bucket(old: TokenBucket | None, limit: int | None, seconds: int, now: float) -> TokenBucket | None:
    if limit is None:
        return None
    if old is None:
        return TokenBucket(limit, seconds, float(limit), now)
    if (old.limit, old.seconds) == (limit, seconds):
        return old
    return TokenBucket(limit, seconds, old.available(now) / old.limit * limit, now)
