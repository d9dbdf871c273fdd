"""What of deciding can be had in two ways, as plain values chosen once per variant and binding."""

from __future__ import annotations

from typing import Final, NamedTuple


class Rules(NamedTuple):
    """Each field names what the algorithm does, so that no stage asks in which mode it runs."""

    counts_surge: bool = False
    """Pods beyond ``spec.replicas``, as a rolling update makes them, are replicas to plan with."""
    heeds_scalers: bool = True
    """The bounds of the HPA or ScaledObject that acts on the gauge hold here too."""
    follows_transitions: bool = True
    """What is under way, and what was regretted, is remembered from tick to tick."""
    plans_ahead: bool = True
    """Growth of the offered load bounds and precedes scaling."""
    class_by_reference: bool = True
    """An SLO class is looked up where the variant refers to, in its namespace too, and may stand for any model."""
    needs_price: bool = False
    """A variant in SLO form cannot be decided on while its accelerator has no price."""
    told_batch: int | None = None
    """The batch limit that status tells, whatever it is; then costs are told as of one accelerator per replica."""
    seeds_windows: bool = True
    """A binding's first windows start with its current replicas, so that limits hold from the first step on."""
    leaves_zero: bool = True
    """Limits on growth let the first instance start, and panic at zero needs something to grow for."""
    shrinks_from_highest: bool = True
    """Scale-down is limited from the highest replicas of its period; else from the lowest."""
    notes_recommended: bool = True
    """What is recorded for stabilization is the recommendation; else the replicas after all limits."""
    doubts: bool = True
    """Metrics that are dark or contradict the move take nothing away and add nothing."""
    instance_by_instance: bool = True
    """A target's instances are looked at each; else as one with the sum of their values."""
    guards_zero: bool = True
    """The last instance waits until it is idle, and demand wakes the first one."""
    histograms_from_start: bool = False
    """A histogram seen for the first time counts with everything it ever took in."""


RULES: Final = Rules()
DOCUMENTED: Final = Rules(
    counts_surge=True,
    heeds_scalers=False,
    follows_transitions=False,
    plans_ahead=False,
    class_by_reference=False,
    needs_price=True,
    told_batch=256,
    seeds_windows=False,
    leaves_zero=False,
    shrinks_from_highest=False,
    notes_recommended=False,
    doubts=False,
    instance_by_instance=False,
    guards_zero=False,
    histograms_from_start=True,
)
"""What the documented algorithms do, their defects included."""
