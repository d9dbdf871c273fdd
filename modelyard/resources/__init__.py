"""The custom resources as Pydantic models; the CRDs in config/crd are generated from them.

``KINDS`` lists them, ``parse`` reads an object of any kind, ``VariantAutoscaling.parse`` one of a known kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modelyard.resources.base import (
    RENAMED_GROUPS as RENAMED_GROUPS,
    Resource as Resource,
    ResourceInvalid as ResourceInvalid,
)
from modelyard.resources.duration import Duration as Duration
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

_ALL: tuple[type[Resource], ...] = (
    Model,
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    ModelRoute,
    ModelServer,
    VariantAutoscaling,
    BaseModel,
    ClusterBaseModel,
    FineTunedWeight,
    ServingRuntime,
    ClusterServingRuntime,
    InferenceService,
    BenchmarkJob,
)

KINDS: Final[dict[tuple[str, str], type[Resource]]] = {(cls.group, cls.kind): cls for cls in _ALL}
"""(API group, kind) to the class."""


def parse(obj: Mapping[str, Any]) -> Resource:
    """Read an object of any of the kinds, by its ``apiVersion`` and ``kind``.

    Raises ``ResourceInvalid``: the kind is none of ours, or the object is not valid.
    """
    group = str(obj.get("apiVersion", "")).partition("/")[0]
    kind = str(obj.get("kind", ""))
    cls = KINDS.get((group, kind))
    if cls is None:
        known = "use one of " + ", ".join(f"{k} ({g})" for g, k in sorted(KINDS))
        remedy = "'modelyard convert -f' rewrites this newer group" if group in RENAMED_GROUPS else known
        problem = ("kind", f"{kind or 'no kind'} of group {group or 'none'} is not known - {remedy}")
        raise ResourceInvalid(kind or "object", obj.get("metadata"), [problem])
    return cls.parse(obj)
