"""When the last instance may go.

Source: Kthena autoscaler reference, "Scale to zero and back".
"""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.bindings.behaviour import clock

UNKNOWN = (
    "it is not known whether there is demand (no instance tells of running and waiting requests, or one could not be "
    "read; the annotation modelyard.dev/wake-query can say it instead)"
)


class LastInstance(NamedTuple):
    """The replicas to have, since when the target has been idle, and what holds the last instance, if anything."""

    replicas: int
    idle_since: float | None
    blocked: str = ""


def last_instance(
    desired: int,
    current: int,
    minimum: int,
    demand: float | None,
    idle_since: float | None,
    grace: float,
    now: float,
    *,
    recommended: int = 0,
) -> LastInstance:
    """Let a target go to zero only when nothing has been asked of it for ``grace`` seconds without a break.

    ``demand`` is pending and running work, ``None`` when that is not known, which never counts as none.
    ``idle_since`` is what the last call returned. ``recommended`` is what the metrics ask for.
    """
    if minimum > 0 or current == 0:
        return LastInstance(desired, None)
    idle = (idle_since if idle_since is not None else now) if demand is not None and demand <= 0 else None
    if desired > 0:
        return LastInstance(desired, idle)
    if demand is None:
        return LastInstance(1, None, f"keeps the last instance: {UNKNOWN}")
    if idle is None:
        return LastInstance(1, None, f"keeps the last instance: {demand:g} requests are running or waiting")
    if recommended > 0:
        return LastInstance(1, idle, f"keeps the last instance: the metrics ask for {recommended}")
    if now - idle < grace:
        text = f"keeps the last instance until {clock(idle + grace)}: idle since {clock(idle)}, grace is {grace:g} s"
        return LastInstance(1, idle, text)
    return LastInstance(0, idle)
