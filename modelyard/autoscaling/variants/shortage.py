"""Replicas that a model needs and cannot have, and the last one that it keeps: the words for both."""

from __future__ import annotations

from modelyard.autoscaling.conditions import CAPACITY_LIMITED, Story
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
