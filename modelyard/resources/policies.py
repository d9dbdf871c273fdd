"""The scaling policy of ``registry.volcano.sh/v1alpha1``: an object of its own, or embedded in a Model.

Source: the published registry.volcano.sh/v1alpha1 reference. Its defaults apply inside an object that is present; what
holds when ``behavior`` or one of its parts is absent is up to the controller.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from modelyard.resources.base import Part
from modelyard.resources.duration import Duration
from modelyard.resources.fields import Int32, optional, unique
from modelyard.resources.quantity import Quantity
from modelyard.resources.rules import Rule


def _positive(quantity: Quantity) -> Quantity:
    if not quantity > 0:
        raise ValueError(f"{quantity} is not above zero; write the value to hold the metric at")
    return quantity


PositiveQuantity = Annotated[
    Quantity,
    AfterValidator(_positive),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "pattern": r"^\+?([0-9]*[1-9][0-9]*(\.[0-9]*)?|[0-9]*\.[0-9]*[1-9][0-9]*)"
            r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$",
        }
    ),
]


def at_most_30m(attribute: str, field: str) -> Rule:
    """A duration of 0s to 30m, where it is given."""

    def holds(policy: object) -> bool:
        value: Duration | None = getattr(policy, attribute)
        return value is None or Duration("0s") <= value <= Duration("30m")

    return Rule(
        f"{field} is outside 0s to 30m",
        "choose a time between 0s and 30m",
        holds,
        f"!has(self.{field}) || (duration(self.{field}) >= duration('0s')"
        f" && duration(self.{field}) <= duration('30m'))",
        field,
    )


class AutoscalingPolicyMetric(Part):
    """A metric to hold at a value."""

    newer: ClassVar = {"name": "metricName"}

    metric_name: str = Field(min_length=1, description="Name of the metric, as the pods or Prometheus give it.")
    target_value: PositiveQuantity = Field(description="The value per replica to hold the metric at; above 0.")


class AutoscalingPolicyStablePolicy(Part):
    """How far and how fast scaling may go in one direction."""

    invariants: ClassVar = (at_most_30m("period", "period"), at_most_30m("stabilization_window", "stabilizationWindow"))

    instances: Int32 = Field(1, ge=0, description="Maximum change within the period, in replicas. Default: 1.")
    percent: Int32 = Field(
        100,
        ge=0,
        le=1000,
        description="Maximum change within the period, in percent of the current replicas. Default: 100.",
    )
    period: Duration = Field(Duration("15s"), description="Period of both limits, 0s to 30m. Default: 15s.")
    select_policy: Literal["Or", "And"] = Field(
        "Or", description="Or: the wider of the two limits applies. And: the narrower. Default: Or."
    )
    stabilization_window: Duration | None = optional(
        "Time for which all recommendations must agree before scaling in this direction, 0s to 30m."
    )


class AutoscalingPolicyPanicPolicy(Part):
    """Faster growth when load jumps."""

    invariants: ClassVar = (at_most_30m("period", "period"), at_most_30m("panic_mode_hold", "panicModeHold"))

    percent: Int32 = Field(
        1000,
        ge=0,
        le=1000,
        description="Maximum growth within the period, in percent of the current replicas. Default: 1000.",
    )
    period: Duration = Field(description="Period of that limit, 0s to 30m; 0s means no limit.")
    panic_threshold_percent: Int32 = Field(
        200,
        ge=110,
        le=1000,
        description="Recommended replicas, in percent of the current ones, that start panic mode. Default: 200.",
    )
    panic_mode_hold: Duration = Field(
        Duration("60s"),
        json_schema_extra={"default": "60s"},
        description="Duration of panic mode, without scaling down, after its last trigger, 0s to 30m. Default: 60s.",
    )


class AutoscalingPolicyScaleUpPolicy(Part):
    """How to grow."""

    stable_policy: AutoscalingPolicyStablePolicy | None = optional("Limits in normal times.")
    panic_policy: AutoscalingPolicyPanicPolicy | None = optional("Limits when load jumps. Default: no panic mode.")


class AutoscalingPolicyBehavior(Part):
    """How to grow and how to shrink."""

    scale_up: AutoscalingPolicyScaleUpPolicy | None = optional("How to grow.")
    scale_down: AutoscalingPolicyStablePolicy | None = optional("How to shrink.")


class AutoscalingPolicySpec(Part):
    """Which metrics to hold at which values, and how fast to react."""

    newer: ClassVar = {
        "homogeneousTarget": "scalingConfiguration of an AutoscalingPolicyBinding",
        "heterogeneousTarget": "optimizerConfiguration of an AutoscalingPolicyBinding",
    }

    tolerance_percent: Int32 = Field(
        10, ge=0, le=100, description="Deviation from the target, in percent, that causes no scaling. Default: 10."
    )
    metrics: list[AutoscalingPolicyMetric] = Field(
        min_length=1,
        json_schema_extra=unique("map", "metricName"),
        description="The metrics; the one that asks for most replicas decides.",
    )
    behavior: AutoscalingPolicyBehavior | None = optional("How fast to react. Default: built-in limits.")
