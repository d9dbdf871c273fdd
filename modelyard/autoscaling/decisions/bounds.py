"""The replica bounds of a variant: the tightest of its annotations, of the HPA or ScaledObject that acts on its gauge,
and of the InferenceService or Model that owns its workload.

``select`` works them out once; every stage uses the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.configuration import MAX_REPLICAS, MIN_REPLICAS, Handling
from modelyard.autoscaling.decisions.decision import UNBOUNDED, Bounds
from modelyard.autoscaling.fleet import Consumer
from modelyard.objects import Notice, ReplicaLimits


def variant_bounds(
    handling: Handling, consumers: Sequence[Consumer], limits: ReplicaLimits | None
) -> tuple[Bounds, tuple[Notice, ...]]:
    """Return the bounds and what is wrong with them. ``limits`` are those that the workload's owner sets."""
    heeded = consumers if handling.reading.heeds_scalers else ()
    if handling.lower is None and handling.upper is None and not heeded and limits is None:
        return UNBOUNDED, ()
    lower, lower_from = handling.lower or 0, f"annotation {MIN_REPLICAS}"
    upper, upper_from = handling.upper, f"annotation {MAX_REPLICAS}"
    notices: list[Notice] = []
    for consumer in heeded:
        minimum, maximum = consumer.minimum, consumer.maximum
        if minimum is None and consumer.kind == "HorizontalPodAutoscaler":
            minimum = 1
        if minimum is not None and maximum is not None and minimum > maximum:
            text = f"{consumer.kind} {consumer.key}: minimum {minimum} is above maximum {maximum}; both are ignored"
            notices.append(Notice("InvalidConfiguration", text, "Warning"))
            continue
        if minimum is not None and minimum > lower:
            lower, lower_from = minimum, f"minimum of {consumer.kind} {consumer.key}"
        if maximum is not None and (upper is None or maximum < upper):
            upper, upper_from = maximum, f"maximum of {consumer.kind} {consumer.key}"
    if limits is not None:
        if limits.problem:
            notices.append(limits_unknown(limits))
        if limits.lower > lower:
            lower, lower_from = limits.lower, limits.lower_from
        if limits.upper is not None and (upper is None or limits.upper < upper):
            upper, upper_from = limits.upper, limits.upper_from
    if upper is not None and lower > upper:
        text = f"{lower_from} ({lower}) is above {upper_from} ({upper}); the smaller number {upper} is used"
        notices.append(Notice("InvalidConfiguration", text, "Warning"))
        lower, lower_from = upper, upper_from
    return Bounds(lower, upper, lower_from, upper_from), tuple(notices)


def limits_unknown(limits: ReplicaLimits) -> Notice:
    """Return the warning about limits of an owner that could not be read."""
    return Notice("OwnerLimitsUnknown", f"{limits.problem}; only the other bounds hold", "Warning")


def required_minimum(handling: Handling, limits: ReplicaLimits | None) -> tuple[int, str]:
    """Return the stated minimum at zero replicas and its source; no scaler's: Kubernetes suspends an HPA at zero."""
    minimums = [(handling.lower or 0, f"annotation {MIN_REPLICAS}")]
    if limits is not None and limits.required:
        minimums.append((limits.lower, limits.lower_from))
    return max(minimums, key=lambda bound: bound[0])
