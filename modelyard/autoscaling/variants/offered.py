"""How many replicas an offered load needs, by what replicas demonstrably complete: a ceiling for needs read off queues.

Queues and caches say that capacity is short, not by how much: what piles up while pods start would be ordered anew in
every tick. Where the offered load is known, it says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, isfinite

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.observation import Observation
from modelyard.metrics.vocabulary import ModelLoad

RATE_WINDOW = 5.0
"""Completion rates of single pods are means over so many peak windows."""


def replicas_offered(
    variants: Sequence[Observation],
    load: ModelLoad | None,
    waiting: float,
    factor: float,
    settings: FleetSettings,
    now: float,
) -> int | None:
    """Replicas for ``factor`` times the arrivals and for ``waiting`` requests; ``None`` where that cannot be told.

    What waits is worked off within a start-up time. A replica counts with the mean rate at which those of its variant
    completed requests that served for the whole window of that rate, the slowest variant's; it may be filled to the
    utilisation cap, less the margin. They can do at least what they did: the answer is too high rather than too low.
    """
    if load is None or load.arrivals is None or not isfinite(load.arrivals):
        return None
    before = now - RATE_WINDOW * settings.peak_window
    means: list[float] = []
    for seen in variants:
        warm = [s for s, pod in seen.units if pod.ready_since is not None and pod.ready_since <= before]
        rates = [signal.completed_rate for signal in warm if signal.completed_rate is not None]
        if rates:
            means.append(fsum(rates) / len(rates))
    each = min(means, default=0.0) * settings.utilisation_cap / (1 + settings.scale_down_margin)
    if each <= 0:
        return None
    lead = max(settings.load_window, max((startup(seen, settings) for seen in variants), default=0.0))
    return ceil(round((max(0.0, load.arrivals) * factor + max(0.0, waiting) / lead) / each, 9))
