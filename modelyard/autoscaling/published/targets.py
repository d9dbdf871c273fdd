"""From analysis to targets as documented: one step, and none while the model is in transition. Knows no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class VariantNumbers(NamedTuple):
    """What the documented rules look at. ``desired`` 0 means unset, as it does there."""

    name: str
    cost: float
    current: int
    desired: int
    reporting: int
    pending: int = 0

    @property
    def preserved(self) -> bool:
        """Whether a desired count is set that the workload has not reached."""
        return self.desired != 0 and self.desired != self.current


class Targets(NamedTuple):
    """Replicas by variant name, and why as (reason code, text)."""

    replicas: dict[str, int]
    reason: str
    why: str


def documented_targets(variants: Sequence[VariantNumbers], scale_up: bool, scale_down_safe: bool) -> Targets:
    """One step for one variant, and none while any reporting variant of the model is in transition."""
    present = [v for v in variants if v.reporting > 0]
    if not present:
        return Targets({v.name: v.current for v in variants}, "SteadyState", "no replica reports")
    blockers = [v for v in present if v.preserved or v.reporting != v.current]
    if blockers:
        first = min(blockers, key=lambda v: v.name)
        if first.preserved:
            text = f"in transition: {first.name} desired {first.desired} ≠ current {first.current}"
        else:
            text = f"in transition: {first.name} reporting {first.reporting} ≠ current {first.current}"
        return Targets({v.name: v.desired if v.preserved else v.current for v in present}, "InTransition", text)
    replicas = {v.name: v.reporting for v in present}
    return _one_step(replicas, present, scale_up, scale_down_safe)


def _one_step(
    replicas: dict[str, int], eligible: Sequence[VariantNumbers], scale_up: bool, scale_down_safe: bool
) -> Targets:
    if scale_up:
        able = [v for v in eligible if v.pending == 0]
        if not able:
            return Targets(replicas, "InTransition", "capacity is short, but every variant has pending replicas")
        chosen = min(able, key=lambda v: (v.cost, v.name))
        replicas[chosen.name] += 1
        return Targets(replicas, "ScaleUp", f"{chosen.name} is the cheapest (cost {chosen.cost:g})")
    if scale_down_safe:
        able = [v for v in eligible if replicas[v.name] > 1]
        if able:
            chosen = max(able, key=lambda v: (v.cost, v.name))
            replicas[chosen.name] -= 1
            return Targets(replicas, "ScaleDown", f"{chosen.name} is the most expensive (cost {chosen.cost:g})")
        return Targets(replicas, "AtMinimum", "scale-down is safe, but every variant has one replica")
    return Targets(replicas, "SteadyState", "neither short of capacity nor safe to shrink")
