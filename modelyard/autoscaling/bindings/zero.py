"""When the last instance may go. Source: Kthena autoscaler reference, "Scale to zero and back"."""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.bindings.behaviour import clock
from modelyard.autoscaling.decisions import Explanation, Reason


class LastInstance(NamedTuple):
    """The replicas to have, since when the target has been idle, and what holds the last instance, if anything."""

    replicas: int
    idle_since: float | None
    blocked: Explanation | None = None


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
    """Let a target go to zero once idle for ``grace`` seconds without a break; unknown demand is never idle."""
    if minimum > 0 or current == 0:
        return LastInstance(desired, None)
    idle = (idle_since if idle_since is not None else now) if demand is not None and demand <= 0 else None
    if desired > 0:
        return LastInstance(desired, idle)
    if demand is None:
        return LastInstance(1, None, Explanation(Reason.DEMAND_UNKNOWN))
    if idle is None:
        return LastInstance(1, None, Explanation(Reason.STILL_ASKED, demand=demand))
    if recommended > 0:
        return LastInstance(1, idle, Explanation(Reason.STILL_WANTED, replicas=recommended))
    if now - idle < grace:
        why = Explanation(Reason.IN_GRACE, until=clock(idle + grace), since=clock(idle), grace=grace)
        return LastInstance(1, idle, why)
    return LastInstance(0, idle)
