"""The custom resources as Pydantic models; the CRDs in config/crd are generated from them.

``KINDS`` lists them, ``parse`` reads an object of any kind, ``VariantAutoscaling.parse`` one of a known kind.
"""

from __future__ import annotations

from modelyard.resources.base import (
    RENAMED_GROUPS as RENAMED_GROUPS,
    Resource as Resource,
    ResourceInvalid as ResourceInvalid,
)
from modelyard.resources.duration import Duration as Duration
from modelyard.resources.kinds import KINDS as KINDS, parse as parse
from modelyard.resources.llmd import VariantAutoscaling as VariantAutoscaling
from modelyard.resources.networking import ModelRoute as ModelRoute, ModelServer as ModelServer
from modelyard.resources.ome.benchmarks import BenchmarkJob as BenchmarkJob
from modelyard.resources.ome.models import (
    BaseModel as BaseModel,
    ClusterBaseModel as ClusterBaseModel,
    FineTunedWeight as FineTunedWeight,
)
from modelyard.resources.ome.runtimes import (
    ClusterServingRuntime as ClusterServingRuntime,
    ServingRuntime as ServingRuntime,
)
from modelyard.resources.ome.services import InferenceService as InferenceService
from modelyard.resources.quantity import Quantity as Quantity
from modelyard.resources.registry import (
    AutoscalingPolicy as AutoscalingPolicy,
    AutoscalingPolicyBinding as AutoscalingPolicyBinding,
    Model as Model,
)
