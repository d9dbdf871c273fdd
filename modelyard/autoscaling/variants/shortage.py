"""Replicas that a model needs and cannot have, and the last one that it keeps: the words for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from modelyard.autoscaling.conditions import CAPACITY_LIMITED, Story
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.state import State
from modelyard.objects.documents import cut

AT_MAXIMUM = "AtMaximum"
NOT_STARTING = "ReplicasNotStarting"
EXHAUSTED = "AcceleratorsExhausted"
LAST_REPLICA = "Idle; keeping the last replica: scale to zero is off"
SUFFICIENT: Story = ("False", "CapacitySufficient", "the replicas that the load needs can be added")
MOST = 200
"""Characters of a message."""


def cannot_scale(state: State, current: int, wanted: int, why: str) -> str:
    """Return the sentence about replicas that are wanted and cannot be added."""
    return cut(f"Cannot scale {state.name} {current} -> {wanted}: {why}.", MOST)


def at_maximum(state: State) -> str:
    """Return where the maximum of a variant comes from, and what it is."""
    return f"{state.bounds.upper_from} is {state.bounds.upper}"


def capacity_limited(state: State) -> Story | None:
    """Return the condition of a variant without latency targets; ``None`` where there never was a shortage."""
    if state.limited_by is not None:
        return ("True", EXHAUSTED, cut(state.message, MOST))
    if state.shortage is not None:
        return ("True", *state.shortage)
    before = next((c for c in state.variant.conditions if c.type == CAPACITY_LIMITED), None)
    if before is None or (before.status != "True" and before.message != SUFFICIENT[2]):
        return None
    return SUFFICIENT


def note_shortage(
    states: Sequence[State],
    missing: float,
    worth: Callable[[State], float],
    cost: Callable[[State], float],
    why: str,
    *,
    stalled: Sequence[State] = (),
    waiting: str = "",
) -> None:
    """Say on every variant of a model which replicas it lacks for ``missing`` units of load.

    ``worth`` is the load that a replica of a variant carries, ``cost`` its price. The replicas are those of the
    cheapest variant at its maximum; where none is, of the cheapest ``stalled`` one, whose replicas do not start.
    ``why`` is for several variants, and ``waiting`` follows it.
    """
    full = [s for s in states if s.bounds.upper is not None and s.base >= s.bounds.upper and worth(s) > 0]
    candidates = full or [s for s in stalled if worth(s) > 0]
    if not candidates:
        return
    best = min(candidates, key=lambda state: (cost(state) / worth(state), state.name))
    wanted = best.base + ceil(round(missing / worth(best), DIGITS))
    if len(states) == 1:
        why = at_maximum(best) if full else "replicas asked for before did not start"
    text = cannot_scale(best, best.base, wanted, f"{why}{waiting}")
    for state in states:
        state.shortage = (AT_MAXIMUM if full else NOT_STARTING, text)
