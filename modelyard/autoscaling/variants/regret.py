"""Learning not to give up what is wanted back at once: after a regretted scale-down the same step waits longer.

``targets`` and ``slo.targets`` ask how long shrinking must have been safe, ``records`` notes what became of a scaling.
A load at the edge between two sizes would otherwise go back and forth for ever, whatever the margin: pods take minutes
to start, and a signal of one replica says little about the same load on fewer. Every regret makes the wait four times
as long, for the step below the edge only; it is forgotten with time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modelyard.autoscaling.memory import VariantMemory

WINDOW = 5.0
"""A growth within so many scale-down delays of a shrinking means that it was wrong."""
FACTOR, LONGEST = 4.0, 32.0
"""What a regret multiplies the delay by, and the most they make of it together."""
MOST = 3
FORGET = 30.0
"""Scale-down delays after which one regret is forgotten."""


class Shrink(NamedTuple):
    """A scale-down that is thought of: what the variant remembers, its replicas, and the fewest it may end with."""

    memory: VariantMemory
    replicas: int
    least: int


def regrets(memory: VariantMemory, delay: float, now: float) -> int:
    """Regrets in force; ``delay`` is the fleet's scale-down delay in seconds."""
    if not memory.regrets or memory.regretted_at is None or delay <= 0:
        return 0
    return max(0, min(MOST, memory.regrets) - int((now - memory.regretted_at) / (FORGET * delay)))


def shrink_delay(steps: Iterable[Shrink], delay: float, now: float) -> float:
    """Seconds for which a scale-down must have been safe without a break: longer where a step crosses a bad edge."""
    crossing = (m for m, replicas, least in steps if m.regretted is not None and least <= m.regretted < replicas)
    count = max((regrets(memory, delay, now) for memory in crossing), default=0)
    return delay * min(LONGEST, FACTOR**count)


def after(memory: VariantMemory, before: int, target: int, delay: float, now: float) -> dict[str, object]:
    """What to remember of a scaling decision."""
    if target < before:
        return {"shrunk_at": now}
    if target == before or memory.shrunk_at is None:
        return {}
    if now - memory.shrunk_at > WINDOW * delay:
        return {"shrunk_at": None}
    count = min(MOST, regrets(memory, delay, now) + 1)
    return {"shrunk_at": None, "regrets": count, "regretted_at": now, "regretted": before}
