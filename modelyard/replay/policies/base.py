"""What every policy is: a name, a cadence, and replicas by variant from what it can observe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from modelyard.objects import Key
from modelyard.reconcile.plans import Plan, status
from modelyard.replay.simulation import Metrics, SimulatedFleet, VariantSpec


class Policy(Protocol):
    """One way to scale. Made for one simulation; it may remember things from tick to tick."""

    name: str
    interval: float
    """Seconds between two ticks; infinite for one that never acts."""
    keep: float
    """Seconds of samples it needs at most."""

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        """The replicas to begin with, where they are not the manifests'. Called once, before the simulation."""

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """Replicas wanted now by variant; one left out stays as it is. ``now`` is seconds from the trace's start."""


class Fixed:
    """The same number of replicas for every variant, from beginning to end; ``None``: what the manifests say."""

    interval = float("inf")
    keep = 0.0

    def __init__(self, replicas: int | None = None) -> None:
        if replicas is not None and replicas < 0:
            raise ValueError(f"fixed: replicas must be >= 0, not {replicas}")
        self.replicas = replicas
        self.name = "fixed" if replicas is None else f"fixed:{replicas}"

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        """All of them from the start."""
        return {} if self.replicas is None else {spec.key: self.replicas for spec in variants}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """Nothing, ever."""
        return {}


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386: mappings are merged, ``None`` takes away, everything else replaces. Neither argument is changed."""
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            under = merged.get(name)
            merged[name] = merge_patch(under if isinstance(under, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def carried_out(body: Mapping[str, Any], plan: Plan, now: float) -> dict[str, Any]:
    """The object after what its plan writes on it, at ``now`` (epoch seconds)."""
    merged = merge_patch(body, {"metadata": {"annotations": plan.annotations}} if plan.annotations else {})
    if plan.status is None:
        return merged
    return merge_patch(merged, {"status": status.patch(plan.status, merged.get("status") or {}, now)})
