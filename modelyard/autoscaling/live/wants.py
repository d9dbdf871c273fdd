"""What autoscaling wants of the cluster: which objects, and what is kept of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from modelyard.autoscaling.fleet import (
    BINDINGS,
    CLUSTER_RUNTIMES,
    MODELS,
    POLICIES,
    RUNTIMES,
    SERVICES,
    VARIANTS,
    Consumer,
    Variant,
    owners as limit_owners,
)
from modelyard.autoscaling.memory import AUTOSCALING_STATE, POLICY_STATE
from modelyard.autoscaling.reading import ANNOTATION as PREDICTION, observe
from modelyard.autoscaling.reading.bindings import OWNER, BindingSpec, PolicySpec, objects, owners_of
from modelyard.objects import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    Key,
    Namespace,
    Node,
    Object,
    OwnerRef,
    Pod,
    ResourceType,
    Workload,
    parse,
    parse_selector,
)
from modelyard.reconcile.plans import Want

LISTED = {("apps", "Deployment"), ("apps", "StatefulSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")}
"""Workloads that are read whole. Of other kinds no more is known than their scale subresource says."""
BACKEND = "backend"
"""The index of workloads by the backend of a Model that they are of."""
OURS = frozenset({AUTOSCALING_STATE, POLICY_STATE, PREDICTION})
T = TypeVar("T")
Data = tuple[Key, Mapping[str, str]]
Owned = tuple[tuple[str, str, str], OwnerRef]


def wish_of(obj: Object) -> object:
    """The part of an object that a person controls, without our annotations; a hash, good only for comparison."""
    metadata = obj["metadata"]
    annotations = ((k, v) for k, v in (metadata.get("annotations") or {}).items() if k not in OURS)
    labels = metadata.get("labels") or {}
    return hash((metadata.get("generation"), frozenset(annotations), frozenset(labels.items())))


def variants(label_selector: str = "") -> Want[Variant]:
    """VariantAutoscalings with these labels."""
    return Want(VARIANTS, observe.variant, label_selector, wish=wish_of)


def bindings(label_selector: str = "") -> Want[BindingSpec]:
    """All AutoscalingPolicyBindings: those of others are rivals to know of. Edits count of those with the labels."""
    selected = parse_selector(label_selector)

    def wish(obj: Object) -> object:
        return wish_of(obj) if selected(obj["metadata"].get("labels") or {}) else None

    return Want(BINDINGS, objects.binding, wish=wish)


EVERY_POLICY: Want[PolicySpec] = Want(POLICIES, objects.policy, wish=wish_of)
"""A policy is named by bindings: the selector that shards the fleet does not hold for it."""
RIVAL_VARIANTS = Want(VARIANTS, observe.variant, cached=True, use="rivals")
RIVAL_BINDINGS = Want(BINDINGS, objects.binding, cached=True, use="rivals")
LIVE_PODS: Want[Pod] = Want(
    PODS, parse.pod, field_selector="status.phase!=Succeeded", cached=True, indexes={OWNER: owners_of}
)
"""Failed ones among them: policy bindings count those as pods that are not ready."""
EVERY_NAMESPACE: Want[Namespace] = Want(NAMESPACES, parse.namespace, cached=True)


def nodes(label_selector: str) -> Want[Node]:
    """Nodes with these labels."""
    return Want(NODES, parse.node, label_selector, cached=True)


def workloads(resource: ResourceType, group: str, kind: str) -> Want[Workload]:
    """Workloads of one of the kinds in ``LISTED``."""
    indexes = {BACKEND: lambda workload: objects.backends_of((workload,))}
    return Want(resource, partial(parse.workload, group=group, kind=kind), indexes=indexes)


def owners(resource: ResourceType) -> Want[Owned]:
    """Of intermediate owners (ReplicaSets ...) who owns them."""

    def owned(obj: Object) -> Owned | None:
        key, owner = parse.key_of(obj), parse.controller_of(obj)
        return ((key.namespace, resource.kind, key.name), owner) if owner else None

    return Want(resource, owned, cached=True, use="owners")


def consumers(resource: ResourceType) -> Want[Consumer]:
    """HorizontalPodAutoscalers or ScaledObjects."""
    read: Callable[[Object], Consumer | None] = (
        observe.hpa if resource.kind == "HorizontalPodAutoscaler" else observe.scaled_object
    )
    return Want(resource, read, cached=True)


def _owner(kind: ResourceType, read: Callable[[Object], T]) -> Want[T]:
    return Want(kind, read, cached=True, wish=wish_of, use="limits")


OWNING_SERVICES, OWNING_MODELS = _owner(SERVICES, limit_owners.service), _owner(MODELS, limit_owners.model)
OWNING_RUNTIMES = tuple(_owner(kind, partial(limit_owners.runtime, kind=kind)) for kind in (RUNTIMES, CLUSTER_RUNTIMES))


def config_maps(name: str = "") -> Want[Data]:
    """ConfigMaps of this name (none: all of them)."""

    def data(obj: Object) -> Data:
        return parse.key_of(obj), obj.get("data") or {}

    selector = f"metadata.name={name}" if name else ""
    return Want(CONFIG_MAPS, data, field_selector=selector, cached=True, largest=None)
