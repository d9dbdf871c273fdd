"""To zero and back as documented: only completed requests are looked at, and demand wakes every variant."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.wake import at_zero, start, waiting
from modelyard.metrics.values import Signals


def idle(group: Group, states: Sequence[State], signals: Signals, now: float) -> tuple[str | None, str]:
    """Whatever is in flight is not looked at."""
    return None, f"no request completed for {group.zero.window} s"


def wake_all(group: Group, signals: Signals, backlog: float, settings: FleetSettings, now: float) -> None:
    """Every variant of the model at zero gets one replica."""
    queue = waiting(group, signals, backlog)
    for state in at_zero(group) if queue > 0 else ():
        start(state, 1, queue, now)
