"""The kinds that autoscaling decides for and by."""

from __future__ import annotations

from modelyard.objects.kinds import ResourceType
from modelyard.resources import AutoscalingPolicy, AutoscalingPolicyBinding, VariantAutoscaling

VARIANTS = ResourceType.of_resource(VariantAutoscaling)
BINDINGS = ResourceType.of_resource(AutoscalingPolicyBinding)
POLICIES = ResourceType.of_resource(AutoscalingPolicy)
