"""To zero and back as documented: only completed requests are looked at, and demand wakes every variant."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason
from modelyard.autoscaling.variants import ModelDemand, Proposed, Sized, at_zero, start, waiting
from modelyard.metrics.vocabulary import Signals


def idle(
    demand: ModelDemand, variants: Sequence[Sized], signals: Signals, now: float
) -> tuple[Explanation | None, Explanation]:
    """Whatever is in flight is not looked at."""
    return None, Explanation(Reason.NOTHING_COMPLETED, window=demand.zero.window)


def wake_all(demand: ModelDemand, signals: Signals, settings: FleetSettings, now: float) -> dict[str, Proposed]:
    """Every variant of the model at zero gets one replica."""
    asleep = {seen.name: at_zero(seen) for seen in demand.variants if seen.spec == 0}
    queue = waiting(demand, signals)
    if queue > 0:
        for seen in demand.variants:
            if seen.spec == 0 and seen.workload is not None:
                asleep[seen.name] = start(asleep[seen.name], 1, queue, now)
    return asleep
