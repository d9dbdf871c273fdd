"""What a roll-out looks at, as plain values: services, models, runtimes, children, pods, settings. Pure.

Nothing here raises: what cannot be read is kept with what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from modelyard.models.names import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS
from modelyard.objects import Key, ResourceType
from modelyard.objects.documents import cut, listed, printable
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICE_ACCOUNTS, SERVICES, STATEFUL_SETS
from modelyard.objects.parse import controller_of, epoch, key_of
from modelyard.reconcile.plan import CLAIM, FAILED, ServedKind, Subject, Want
from modelyard.resources import (
    AutoscalingPolicyBinding,
    ClusterServingRuntime,
    InferenceService,
    ResourceInvalid,
    ServingRuntime,
    VariantAutoscaling,
)
from modelyard.runtimes import ModelView, Runtime, Wishes, parse_model, parse_runtime, parse_wishes
from modelyard.workloads import names
from modelyard.workloads.changes import Object
from modelyard.workloads.components import texts
from modelyard.workloads.diagnosis import Trouble, of_pod
from modelyard.workloads.files import ServedModel, served
from modelyard.workloads.values import Body, Refused

INFERENCE_SERVICES = ResourceType.of_resource(InferenceService)
RUNTIMES: Final = (ResourceType.of_resource(ServingRuntime), ResourceType.of_resource(ClusterServingRuntime))
VARIANTS, BINDINGS = map(ResourceType.of_resource, (VariantAutoscaling, AutoscalingPolicyBinding))

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
    ("HorizontalPodAutoscaler", "horizontalpodautoscalers", "autoscaling", ("v2", "v2beta2")),
    ("PodDisruptionBudget", "poddisruptionbudgets", "policy", ("v1", "v1beta1")),
    ("Ingress", "ingresses", "networking.k8s.io", ("v1",)),
    ("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io", ("v1",)),
    ("ScaledObject", "scaledobjects", "keda.sh", ("v1alpha1",)),
    ("Service", "services", "serving.knative.dev", ("v1",)),
    ("RayCluster", "rayclusters", "ray.io", ("v1",)),
    ("HTTPRoute", "httproutes", "gateway.networking.k8s.io", ("v1", "v1beta1")),
    ("VirtualService", "virtualservices", "networking.istio.io", ("v1", "v1beta1")),
)
"""Kinds that a server has in one version or another, or not at all; the first that is served counts."""
WORKLOADS: Final = frozenset(("Deployment", "StatefulSet", "LeaderWorkerSet", "RayCluster"))
ASKED: Final = (
    *(ServedKind(f"{group}/{version}", kind) for kind, _, group, versions in _VERSIONED for version in versions),
    *(ServedKind(one.api_version, one.kind) for one in (VARIANTS, BINDINGS)),
)


def child_kinds(there: frozenset[ServedKind]) -> tuple[ResourceType, ...]:
    """The kinds of what is made for services, where these are served."""
    found = list(_EVERYWHERE)
    for kind, plural, group, versions in _VERSIONED:
        version = next((one for one in versions if ServedKind(f"{group}/{one}", kind) in there), None)
        if version is not None:
            found.append(ResourceType(group, version, kind, plural, True))
    return tuple(found)


def _wish(obj: Object) -> object:
    metadata = obj["metadata"]
    kept = {name: v for name, v in texts(metadata.get("annotations")).items() if name not in (CLAIM, FAILED)}
    return metadata.get("generation"), metadata.get("deletionTimestamp"), kept, metadata.get("labels")


# Services


@dataclass(frozen=True, slots=True)
class StoredService:
    """An InferenceService; ``problem`` says why there is no ``resource``."""

    subject: Subject
    resource: InferenceService | None
    wishes: Wishes
    problem: Refused | None
    ignored: str
    status: Mapping[str, Any]
    annotations: Mapping[str, str]

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.subject.key

    @property
    def label(self) -> str:
        """What its children say of it."""
        return names.label_value(self.key.name)


def service(obj: Object) -> StoredService:
    """A service as the API sends it."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    status = obj.get("status")
    status = dict(status) if isinstance(status, Mapping) else {}
    conditions = status.get("conditions")
    status["conditions"] = [c for c in conditions if isinstance(c, Mapping)] if isinstance(conditions, list) else []
    resource, problem, ignored = None, None, ""
    try:
        resource = InferenceService.parse({**obj, "metadata": metadata}, unknown="accept")
        ignored = listed(resource.ignored)
    except ResourceInvalid as error:
        field, text = error.problems[0]
        problem = Refused("InvalidSpec", cut(field, 500), cut(printable(text), 1000), "correct it")
    except Exception as error:  # whatever a tenant has thought of
        text = cut(printable(f"cannot be read: {type(error).__name__}: {error}"), 1000)
        problem = Refused("InvalidSpec", "spec", text, "correct it")
    found = Subject.of(INFERENCE_SERVICES, obj)
    return StoredService(
        found, resource, parse_wishes(obj), problem, ignored, status, texts(metadata.get("annotations"))
    )


SERVICES_WANTED = Want(INFERENCE_SERVICES, service, wish=_wish)


# What services name


class Offered(NamedTuple):
    """A model, or weights, that services may name. ``view`` is what runtimes are chosen by, of weights nothing."""

    served: ServedModel
    view: ModelView

    @property
    def state(self) -> str:
        """How far its delivery is."""
        found = self.served.stored.status.get("state")
        return found if isinstance(found, str) else ""

    @property
    def words(self) -> str:
        """What its status says of its readiness."""
        conditions = self.served.stored.status.get("conditions") or ()
        ready: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
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
        """Namespace, empty for the whole cluster, and name."""
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


# What is made for services


class StoredChild(NamedTuple):
    """Something that is there and says that it belongs to a service; ``owner`` is the uid of its controller."""

    kind: ResourceType
    body: Body
    owner: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.body)

    @property
    def component(self) -> str:
        """Which component it says it belongs to."""
        return texts(self.body["metadata"].get("labels")).get(names.COMPONENT, "")


def _child(kind: ResourceType) -> Want[StoredChild]:
    def parse(obj: Object) -> StoredChild:
        metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        owner = controller_of(obj)
        body = {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        return StoredChild(kind, body, owner.uid if owner is not None else "")

    def owner(one: StoredChild) -> tuple[str, ...]:
        return (one.owner,) if one.owner else ()

    return Want(kind, parse, label_selector=names.SERVICE, indexes={"owner": owner}, use="services")


@dataclass(frozen=True, slots=True)
class ServicePod:
    """A pod of a service's component. ``selector`` holds the labels that it wants of a node."""

    key: Key
    service: str
    component: str
    created: float
    node: str
    ready: bool
    deleting: bool
    restarts: int
    selector: Mapping[str, str]
    trouble: Trouble | None


def pod(obj: Object) -> ServicePod:
    """A pod as the API sends it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = texts(metadata.get("labels"))
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return ServicePod(
        key_of(obj),
        labels.get(names.SERVICE, ""),
        labels.get(names.COMPONENT, ""),
        epoch(metadata.get("creationTimestamp")),
        spec.get("nodeName") or "",
        ready,
        bool(metadata.get("deletionTimestamp")),
        sum(int(one.get("restartCount") or 0) for one in containers),
        texts(spec.get("nodeSelector")),
        None if ready else of_pod(obj),
    )


def _of_service(one: ServicePod) -> tuple[tuple[str, str], ...]:
    return ((one.key.namespace, one.service),)


class Scaled(NamedTuple):
    """The workloads, by name, that a VariantAutoscaling or a binding scales."""

    key: Key
    workloads: tuple[str, ...]


def _scaled(kind: ResourceType) -> Want[Scaled]:
    def parse(obj: Object) -> Scaled:
        return Scaled(key_of(obj), tuple(_targets(obj.get("spec"), 0)))

    return Want(kind, parse, use="services")


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
PODS_WANTED = Want(
    PODS, pod, label_selector=names.SERVICE, cached=True, indexes={"service": _of_service}, use="services"
)


def wanted(there: frozenset[ServedKind]) -> tuple[Want[Any], ...]:
    """The stores of what differs between servers: children, and who else scales them."""
    others = [one for one in (VARIANTS, BINDINGS) if ServedKind(one.api_version, one.kind) in there]
    return (*map(_child, child_kinds(there)), *map(_scaled, others))
