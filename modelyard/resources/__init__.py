"""The custom resources as Pydantic models; the CRDs in config/crd are generated from them.

``KINDS`` lists them, ``parse`` reads an object of any kind, ``VariantAutoscaling.parse`` one of a known kind.
"""

from __future__ import annotations

from modelyard.resources.base import (
    RENAMED_GROUPS,
    Resource,
    ResourceInvalid,
)
from modelyard.resources.duration import Duration
from modelyard.resources.kinds import KINDS, parse
from modelyard.resources.llmd import VariantAutoscaling
from modelyard.resources.networking import ModelRoute, ModelServer
from modelyard.resources.ome.benchmarks import BenchmarkJob
from modelyard.resources.ome.models import (
    BaseModel,
    ClusterBaseModel,
    FineTunedWeight,
)
from modelyard.resources.ome.runtimes import (
    ClusterServingRuntime,
    ServingRuntime,
)
from modelyard.resources.ome.services import InferenceService
from modelyard.resources.quantity import Quantity
from modelyard.resources.registry import (
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    Model,
)
