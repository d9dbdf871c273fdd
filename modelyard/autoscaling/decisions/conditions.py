"""Status conditions of a VariantAutoscaling, written the way Kubernetes expects them.

``observedGeneration`` is always the generation decided on; ``lastTransitionTime`` changes only when the status does.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decisions.reasons import ConditionValue
from modelyard.objects import Condition

READY = "Ready"
TARGET_FOUND = "TargetFound"
TARGET_RESOLVED = "TargetResolved"
METRICS_AVAILABLE = "MetricsAvailable"
OPTIMIZATION_READY = "OptimizationReady"
ACCELERATOR_RESOLVED = "AcceleratorResolved"
PROFILE_VALID = "ProfileValid"
SLO_FEASIBLE = "SLOFeasible"
PROFILE_DRIFT = "ProfileDrift"
CAPACITY_LIMITED = "CapacityLimited"
SCALE_FROM_ZERO = "ScaleFromZero"


def build(
    previous: Sequence[Condition], values: Sequence[tuple[str, ConditionValue | None]], generation: int, now: float
) -> tuple[Condition, ...]:
    """Return the new conditions in order; ``None`` keeps the previous one. Other types belong to other writers."""
    before = {condition.type: condition for condition in previous}
    result: list[Condition] = []
    for type_, value in values:
        old = before.pop(type_, None)
        if value is None:
            if old is not None:
                result.append(old)
            continue
        status, reason, message = value.status, value.reason, str(value.message)
        if old is None or old.status != status:
            result.append(Condition(type_, status, reason, message, generation, now))
        elif old.reason == reason and old.message == message and old.observed_generation == generation:
            result.append(old)
        else:
            since = now if old.last_transition is None else old.last_transition
            result.append(Condition(type_, status, reason, message, generation, since))
    return tuple(result)
