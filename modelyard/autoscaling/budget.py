"""What one namespace may ask of a decision, so that no tenant's objects take the time of all. Pure.

Work is counted before it is done, in units of about a tenth of a microsecond: no clock has a say in what is decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from modelyard.objects import Condition

BEYOND = "BeyondShare"
"""Why something was not decided on: the reason of its condition."""
SHARE = 8_000_000
"""Units of one namespace in one decision."""
SEARCHES = 2_000_000
"""Of ``mixing.Effort``, for each of what its bindings and its variants search for."""

TRIALS = 16_000_000
"""Of ``mixing.Effort``, for what its models in one decision try of rules: those that get nothing go on as before."""


class Ask(NamedTuple):
    """What is decided as a whole or not at all. ``since`` is when it began to wait (infinite: it does not)."""

    namespace: str
    units: float
    since: float = inf

    @property
    def refusal(self) -> str:
        """Why it is not decided on now."""
        if self.units > SHARE:
            return f"this alone is more work ({self.units:.3g} units) than a namespace may ask for ({SHARE:.3g})"
        return f"namespace {self.namespace} asks for more work than its share; who waits longest comes first next time"


def waiting_since(conditions: Iterable[Condition], type_: str) -> float:
    """``Ask.since`` of an object whose condition of that type says what became of it the last time."""
    return next((c.last_transition or 0.0 for c in conditions if c.type == type_ and c.reason == BEYOND), inf)


def within_share(asks: Sequence[Ask]) -> list[bool]:
    """Which of these are decided on: of each namespace as many as its share allows, those that wait longest first."""
    left: defaultdict[str, float] = defaultdict(lambda: SHARE)
    granted = [False] * len(asks)
    for at in sorted(range(len(asks)), key=lambda at: (asks[at].since, at)):
        ask = asks[at]
        if ask.units <= left[ask.namespace]:
            left[ask.namespace] -= ask.units
            granted[at] = True
    return granted
