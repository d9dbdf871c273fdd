"""What is known of single replicas: which are broken rather than busy, which too young to report."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.memory import VariantMemory
from modelyard.autoscaling.variants.observation import Observation

StuckPods = dict[str, tuple[dict[str, float], dict[str, float]]]
"""By variant name: (since when, with how many waiting requests first seen so) of its suspicious pods."""

_NO_STUCK: tuple[frozenset[tuple[str, str]], StuckPods] = (frozenset(), {})


def stuck_pods(
    variants: Sequence[Observation], settings: FleetSettings, now: float
) -> tuple[frozenset[tuple[str, str]], StuckPods]:
    """Replicas whose queue has not moved and that finished nothing for ``stale_after``: broken, not busy.

    Returns them as (namespace, pod), and what the memory has to keep of all that may become such.
    When that would leave no replica at all, none is left out: then it is the model that is in trouble.
    """
    suspicious: StuckPods = {}
    aged: set[tuple[str, str]] = set()
    reporting = 0
    for seen in variants:
        memory: VariantMemory = seen.memory
        reporting += len(seen.units)
        for signal, _ in seen.units:
            if signal.completed_rate == 0 and signal.waiting:
                same = memory.stuck_waiting.get(signal.pod) == signal.waiting
                since = memory.stuck_since.get(signal.pod, now) if same else now
                since_by_pod, waiting_by_pod = suspicious.setdefault(seen.name, ({}, {}))
                since_by_pod[signal.pod] = since
                waiting_by_pod[signal.pod] = signal.waiting
                if now - since >= settings.stale_after:
                    aged.add((signal.namespace, signal.pod))
    if not suspicious:
        return _NO_STUCK
    return (frozenset() if len(aged) >= reporting else frozenset(aged)), suspicious


def unseen(seen: Observation, ready_after: float) -> int:
    """Return the ready replicas that do not report, which is no gap: they became ready after ``ready_after``."""
    silent = (seen.ready or 0) - seen.reporting
    if silent <= 0:
        return 0
    reporting = {pod.key for _, pod in seen.units}
    starts = (pod.ready_since for pod in seen.pods if pod.key not in reporting)
    return min(silent, sum(1 for ready_since in starts if ready_since is not None and ready_since > ready_after))
