"""The replica bounds of a variant: its annotations, and the HPA or ScaledObject that acts on its gauge.

``select`` works them out once; every stage uses the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decision import UNBOUNDED, Bounds
from modelyard.autoscaling.fleet import Consumer
from modelyard.autoscaling.handling import MAX_REPLICAS, MIN_REPLICAS, Handling
from modelyard.objects import Notice


def variant_bounds(handling: Handling, consumers: Sequence[Consumer]) -> tuple[Bounds, tuple[Notice, ...]]:
    """Bounds and what is wrong with them."""
    heeded = consumers if handling.rules.heeds_scalers else ()
    if handling.lower is None and handling.upper is None and not heeded:
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
    if upper is not None and lower > upper:
        text = f"{lower_from} ({lower}) is above {upper_from} ({upper}); the smaller number {upper} is used"
        notices.append(Notice("InvalidConfiguration", text, "Warning"))
        lower, lower_from = upper, upper_from
    return Bounds(lower, upper, lower_from, upper_from), tuple(notices)
