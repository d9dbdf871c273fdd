"""Share of one namespace in the work of a decision, so that no tenant takes the time of all. Pure.

Work is counted before it is done, in units of about a tenth of a microsecond: no clock has a say in what is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from modelyard.fairness import WorkRequest
from modelyard.objects import Condition

BEYOND = "BeyondShare"
"""Why something was not decided on: the reason of its condition."""
SHARE = 8_000_000
"""Units of one namespace in one decision."""
SEARCHES = 2_000_000
"""Units of ``WorkBudget`` for the searches of a namespace: its bindings and its variants have as many each."""

TRIALS = 16_000_000
"""Units of ``WorkBudget`` for rules that a namespace's models try in one decision; models beyond it keep theirs."""


def refusal(request: WorkRequest) -> str:
    """Return why what was requested is not decided on now."""
    if request.units > SHARE:
        return f"this alone is more work ({request.units:.3g} units) than a namespace may ask for ({SHARE:.3g})"
    return f"namespace {request.owner} asks for more work than its share; who waits longest comes first next time"


def waiting_since(conditions: Iterable[Condition], type_: str) -> float:
    """Return ``WorkRequest.since`` of an object, by the condition of that type that its last decision left."""
    return next((c.last_transition or 0.0 for c in conditions if c.type == type_ and c.reason == BEYOND), inf)
