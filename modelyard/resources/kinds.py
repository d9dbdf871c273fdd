"""All kinds of custom resources, and the parser for an object of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modelyard.resources.base import RENAMED_GROUPS, Resource, ResourceInvalid
from modelyard.resources.llmd import VariantAutoscaling
from modelyard.resources.networking import ModelRoute, ModelServer
from modelyard.resources.ome import (
    BaseModel,
    BenchmarkJob,
    ClusterBaseModel,
    ClusterServingRuntime,
    FineTunedWeight,
    InferenceService,
    ServingRuntime,
)
from modelyard.resources.registry import AutoscalingPolicy, AutoscalingPolicyBinding, Model

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


def parse(obj: Mapping[str, Any]) -> Resource:
    """Read an object of any of the kinds. Raises ``ResourceInvalid``: its kind is unknown, or it is not valid."""
    group = str(obj.get("apiVersion", "")).partition("/")[0]
    kind = str(obj.get("kind", ""))
    cls = KINDS.get((group, kind))
    if cls is None:
        known = "use one of " + ", ".join(f"{k} ({g})" for g, k in sorted(KINDS))
        remedy = "'modelyard convert -f' rewrites this newer group" if group in RENAMED_GROUPS else known
        problem = ("kind", f"{kind or 'no kind'} of group {group or 'none'} is not known - {remedy}")
        raise ResourceInvalid(kind or "object", obj.get("metadata"), [problem])
    return cls.parse(obj)
