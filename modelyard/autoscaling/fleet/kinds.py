"""The kinds that autoscaling decides for and by, and those that own what it scales."""

from __future__ import annotations

from modelyard.objects import ResourceType
from modelyard.resources import (
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    ClusterServingRuntime,
    InferenceService,
    Model,
    ServingRuntime,
    VariantAutoscaling,
)

VARIANTS = ResourceType.of_resource(VariantAutoscaling)
BINDINGS = ResourceType.of_resource(AutoscalingPolicyBinding)
POLICIES = ResourceType.of_resource(AutoscalingPolicy)
SERVICES, MODELS = map(ResourceType.of_resource, (InferenceService, Model))
RUNTIMES, CLUSTER_RUNTIMES = map(ResourceType.of_resource, (ServingRuntime, ClusterServingRuntime))
