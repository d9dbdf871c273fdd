"""The custom resources as Pydantic models; the CRDs in config/crd are generated from them.

``KINDS`` lists them, ``parse`` reads an object of any kind, ``VariantAutoscaling.parse`` one of a known kind.
"""

from __future__ import annotations

from modelyard.resources.annotations import ROLE_RATIO, SCALE_TO_ZERO_GRACE, WAKE_QUERY
from modelyard.resources.base import RENAMED_GROUPS, Resource, ResourceInvalid
from modelyard.resources.crd import crd
from modelyard.resources.duration import Duration
from modelyard.resources.kinds import KINDS, parse
from modelyard.resources.llmd import VariantAutoscaling, VariantProfile
from modelyard.resources.networking import (
    ENGINE,
    METRICS_PATH,
    MINDIE,
    MOST_RETRIES,
    ModelMatch,
    ModelRoute,
    ModelServer,
    RouteRule,
    StringMatch,
    TrafficPolicy,
)
from modelyard.resources.ome import (
    BaseModel,
    BenchmarkJob,
    ClusterBaseModel,
    ClusterServingRuntime,
    FineTunedWeight,
    InferenceService,
    ServingRuntime,
)
from modelyard.resources.policies import (
    AutoscalingPolicyBehavior,
    AutoscalingPolicyPanicPolicy,
    AutoscalingPolicyScaleUpPolicy,
    AutoscalingPolicySpec,
    AutoscalingPolicyStablePolicy,
)
from modelyard.resources.quantity import Quantity
from modelyard.resources.registry import (
    DISAGGREGATED,
    ENDPOINT_VARIABLES,
    LIVE_ADAPTERS,
    MILLION,
    REGISTRY,
    RUNTIME_METRICS_PATH,
    RUNTIME_PORT,
    RUNTIME_URL,
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    LoraAdapter,
    Model,
    ModelBackend,
    ModelWorker,
)
from modelyard.resources.replicas import component_replicas
from modelyard.resources.rules import explain, field_path
