"""What a roll-out looks at, as plain values: services, models, runtimes, children, pods, settings. Pure.

Nothing here raises: what cannot be read is kept with what is wrong with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from modelyard.models.delivery import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS
from modelyard.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    HPA_VERSIONS,
    PDB_VERSIONS,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    Key,
    ResourceType,
    condition,
    controller_of,
    cut,
    epoch,
    key_of,
    printable,
    stored_status,
    texts,
)
from modelyard.reconcile.plans import CLAIM, FAILED, OfSubject, ServedKind, Subject, Want
from modelyard.resources import (
    AutoscalingPolicyBinding,
    ClusterServingRuntime,
    InferenceService,
    Model,
    ServingRuntime,
    VariantAutoscaling,
)
from modelyard.runtimes import AcceleratorClass, ModelView, Runtime, Wishes, parse_model, parse_runtime, parse_wishes
from modelyard.workloads.rendering import GROUP, Refused, ServedModel, StoredChild, names, read_resource, served
from modelyard.workloads.roll_out.changes import Object
from modelyard.workloads.roll_out.diagnosis import Trouble, of_pod

INFERENCE_SERVICES, MODELS = map(ResourceType.of_resource, (InferenceService, Model))
RUNTIMES: Final = (ResourceType.of_resource(ServingRuntime), ResourceType.of_resource(ClusterServingRuntime))
VARIANTS, BINDINGS = map(ResourceType.of_resource, (VariantAutoscaling, AutoscalingPolicyBinding))

ACCELERATOR_CLASSES: Final = ResourceType("ome.io", "v1beta1", "AcceleratorClass", "acceleratorclasses", False)
CLASSES_SERVED: Final = ServedKind(ACCELERATOR_CLASSES.api_version, ACCELERATOR_CLASSES.kind)
"""Not part of the published reference: a server may have it."""

_RBAC = "rbac.authorization.k8s.io"
_EVERYWHERE: Final = (
    CONFIG_MAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    ResourceType(_RBAC, "v1", "Role", "roles", True),
    ResourceType(_RBAC, "v1", "RoleBinding", "rolebindings", True),
    DEPLOYMENTS,
    STATEFUL_SETS,
)
_VERSIONED: Final = (
    ("HorizontalPodAutoscaler", "horizontalpodautoscalers", HPA_VERSIONS),
    ("PodDisruptionBudget", "poddisruptionbudgets", PDB_VERSIONS),
    ("Ingress", "ingresses", ("networking.k8s.io/v1",)),
    ("LeaderWorkerSet", "leaderworkersets", ("leaderworkerset.x-k8s.io/v1",)),
    ("ScaledObject", "scaledobjects", ("keda.sh/v1alpha1",)),
    ("Service", "services", ("serving.knative.dev/v1",)),
    ("RayCluster", "rayclusters", ("ray.io/v1",)),
    ("HTTPRoute", "httproutes", ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1")),
    ("VirtualService", "virtualservices", ("networking.istio.io/v1", "networking.istio.io/v1beta1")),
    ("ModelServer", "modelservers", ("networking.volcano.sh/v1alpha1",)),
    ("ModelRoute", "modelroutes", ("networking.volcano.sh/v1alpha1",)),
)
"""Kinds that a server has in one version or another, or not at all; the first that is served counts."""
KNATIVE: Final = "serving.knative.dev"
WORKLOADS: Final = frozenset(("Deployment", "StatefulSet", "LeaderWorkerSet", "RayCluster"))
ASKED: Final = (
    *(ServedKind(version, kind) for kind, _, versions in _VERSIONED for version in versions),
    *(ServedKind(one.api_version, one.kind) for one in (VARIANTS, BINDINGS)),
    CLASSES_SERVED,
)


@functools.lru_cache(maxsize=4)
def child_kinds(there: frozenset[ServedKind]) -> tuple[ResourceType, ...]:
    """The kinds of what is made for services, where these are served."""
    found = list(_EVERYWHERE)
    for kind, plural, versions in _VERSIONED:
        served = next((version for version in versions if ServedKind(version, kind) in there), None)
        if served is not None:
            group, _, version = served.partition("/")
            found.append(ResourceType(group, version, kind, plural, True))
    return tuple(found)


def _wish(obj: Object) -> object:
    metadata = obj["metadata"]
    kept = {name: v for name, v in texts(metadata.get("annotations")).items() if name not in (CLAIM, FAILED)}
    return metadata.get("generation"), metadata.get("deletionTimestamp"), kept, metadata.get("labels")


@dataclass(frozen=True, slots=True)
class StoredService(OfSubject):
    """An InferenceService or a Model; ``problem``: why there is no ``resource``; ``label``: what its children carry."""

    subject: Subject
    resource: InferenceService | Model | None
    label: str
    wishes: Wishes
    problem: Refused | None
    status: Mapping[str, Any]
    annotations: Mapping[str, str]


def service(obj: Object) -> StoredService:
    """An InferenceService as the API sends it."""
    return _service(INFERENCE_SERVICES, InferenceService, obj, names.label_value(obj["metadata"]["name"]))


def model(obj: Object) -> StoredService:
    """A Model as the API sends it."""
    return _service(MODELS, Model, obj, names.label_value(obj["metadata"].get("uid") or ""))


def _service(kind: ResourceType, parser: type[InferenceService | Model], obj: Object, label: str) -> StoredService:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    result = read_resource(parser, {**obj, "metadata": metadata})
    resource, problem = (None, result) if isinstance(result, Refused) else (result, None)
    found, noted = Subject.of(kind, obj), texts(metadata.get("annotations"))
    return StoredService(found, resource, label, parse_wishes(obj), problem, stored_status(obj), noted)


SERVICES_WANTED = Want(INFERENCE_SERVICES, service, wish=_wish)
SERVED_MODELS_WANTED = Want(MODELS, model, wish=_wish)


class Offered(NamedTuple):
    """A model, or weights, that services may name. ``view`` is what runtimes are chosen by, of weights nothing."""

    served: ServedModel
    view: ModelView

    @property
    def state(self) -> str:
        found = self.served.stored.status.get("state")
        return found if isinstance(found, str) else ""

    @property
    def words(self) -> str:
        ready = condition(self.served.stored.status, "Ready")
        return cut(printable(str(ready.get("message") or ready.get("reason") or "its delivery has not begun")), 500)


def _offered(kind: ResourceType) -> Want[Offered]:
    def parse(obj: Object) -> Offered:
        obj = {**obj, "kind": kind.kind}
        return Offered(served(kind, obj), parse_model(obj))

    return Want(kind, parse, use="services")


@dataclass(frozen=True, slots=True)
class OfferedRuntime:
    """A runtime that services may run on: as it is chosen, and as it is merged (``None``: it cannot be read)."""

    choice: Runtime
    kind: str
    generation: int
    resource: ServingRuntime | None

    @property
    def key(self) -> tuple[str, str]:
        return self.choice.key


def _runtime(kind: ResourceType) -> Want[OfferedRuntime]:
    parser = ServingRuntime if kind.namespaced else ClusterServingRuntime

    def parse(obj: Object) -> OfferedRuntime:
        obj = {**obj, "kind": kind.kind}
        try:
            resource = parser.parse(obj, unknown="accept")
        except Exception:  # the choice says why
            resource = None
        generation = int(obj["metadata"].get("generation") or 0)
        return OfferedRuntime(parse_runtime(obj), kind.kind, generation, resource)

    return Want(kind, parse)


class OwnLabels(NamedTuple):
    """The labels by which what is made for services is known: which service, which of its components."""

    service: str
    component: str


OF_SERVICE = OwnLabels(names.SERVICE, names.COMPONENT)


_UNREAD = frozenset(("managedFields", "resourceVersion"))


def _child(kind: ResourceType, labels: OwnLabels) -> Want[StoredChild]:
    told = kind.kind in WORKLOADS or kind.group == KNATIVE or kind.kind == "ModelRoute"

    def parse(obj: Object) -> StoredChild:
        metadata = {name: value for name, value in obj["metadata"].items() if name not in _UNREAD}
        owner = controller_of(obj)
        body = {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        if not told:  # an autoscaler's changes every few seconds: nobody is to look again for that
            body.pop("status", None)
        component = texts(metadata.get("labels")).get(labels.component, "")
        return StoredChild(kind, body, owner.uid if owner is not None else "", component)

    by_owner = {"owner": lambda one: (one.owner,) if one.owner else ()}
    return Want(kind, parse, label_selector=labels.service, indexes=by_owner, use="services")


@dataclass(frozen=True, slots=True)
class ServicePod:
    """A pod of a service's component. ``selector`` holds the labels that it wants of a node.

    ``since`` is when it became ready, or ceased to be, ``deleting`` when it was to go (epoch seconds, ``None``: it
    stays). ``owner`` is the uid of its controller, ``entry`` whether it is the first of a group.
    """

    key: Key
    service: str
    component: str
    created: float
    node: str
    ready: bool
    deleting: float | None
    restarts: int
    selector: Mapping[str, str]
    trouble: Trouble | None
    uid: str = ""
    owner: str = ""
    since: float = 0.0
    phase: str = "Running"
    entry: bool = False
    group: str = ""
    """The group of pods that it serves with; empty: it serves alone."""

    @property
    def failed(self) -> bool:
        """Whether it was well, or should be."""
        well = self.phase == "Running" and self.ready
        return not well and (self.phase == "Failed" or self.restarts > 0)

    @property
    def over(self) -> bool:
        """Whether its containers have ended for good, as those of one that was evicted have."""
        return self.phase in ("Failed", "Succeeded")


_GROUP_LABELS: Final = (GROUP, "leaderworkerset.sigs.k8s.io/group-index", "ray.io/cluster")


def pod(obj: Object, own: OwnLabels = OF_SERVICE) -> ServicePod:
    """A pod as the API sends it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = texts(metadata.get("labels"))
    told = condition(status, "Ready")
    ready, created, owner = told.get("status") == "True", epoch(metadata.get("creationTimestamp")), controller_of(obj)
    leaves, grace = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return ServicePod(
        key_of(obj),
        labels.get(own.service, ""),
        labels.get(own.component, ""),
        created,
        spec.get("nodeName") or "",
        ready,
        epoch(leaves) - (grace or 0) if leaves else None,
        sum(int(one.get("restartCount") or 0) for one in containers),
        texts(spec.get("nodeSelector")),
        None if ready else of_pod(obj),
        metadata.get("uid") or "",
        owner.uid if owner is not None else "",
        epoch(told["lastTransitionTime"]) if told.get("lastTransitionTime") else created,
        str(status.get("phase") or ""),
        labels.get(names.WORKER_INDEX) == "0",
        next((f"{name}={labels[name]}" for name in _GROUP_LABELS if labels.get(name)), ""),
    )


class Scaled(NamedTuple):
    """Workloads, by name, that a VariantAutoscaling or binding scales; a variant's own name where it names none."""

    key: Key
    workloads: tuple[str, ...]
    owner: str
    """The uid of its controller."""


def _scaled(kind: ResourceType) -> Want[Scaled]:
    def parse(obj: Object) -> Scaled:
        key, owner = key_of(obj), controller_of(obj)
        named = tuple(_targets(obj.get("spec"), 0)) or ((key.name,) if kind == VARIANTS else ())
        return Scaled(key, named, owner.uid if owner is not None else "")

    return Want(kind, parse, use="services", called=f"scaled by {kind.kind}")


def _targets(value: Any, depth: int) -> Iterable[str]:
    if depth > 6:
        return
    if isinstance(value, list):
        for one in value:
            yield from _targets(one, depth + 1)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if name in ("targetRef", "scaleTargetRef") and isinstance(one, Mapping):
                if isinstance(called := one.get("name"), str):
                    yield called
            else:
                yield from _targets(one, depth + 1)


MODELS_WANTED = tuple(map(_offered, (BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS)))
RUNTIMES_WANTED = tuple(map(_runtime, RUNTIMES))


def classes_wanted(served: frozenset[ServedKind]) -> tuple[Want[AcceleratorClass], ...]:
    """Return the want of AcceleratorClasses where they are served, else nothing."""
    return (Want(ACCELERATOR_CLASSES, AcceleratorClass.of),) if CLASSES_SERVED in served else ()


def wanted(kinds: Iterable[ResourceType], labels: OwnLabels, there: frozenset[ServedKind]) -> tuple[Want[Any], ...]:
    """What is made for services (objects of these ``kinds``), their pods, and of the server's kinds who else scales."""
    others = [one for one in (VARIANTS, BINDINGS) if ServedKind(one.api_version, one.kind) in there]
    pods, by_service = partial(pod, own=labels), {"service": lambda one: ((one.key.namespace, one.service),)}
    return (
        *(_child(kind, labels) for kind in kinds),
        Want(PODS, pods, label_selector=labels.service, cached=True, indexes=by_service, use="services"),
        *map(_scaled, others),
    )
