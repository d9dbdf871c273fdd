"""Replica bounds that InferenceServices and Models set for the workloads they own. Pure.

A workload is found by its controller reference alone: group, kind, name and uid, in the workload's own namespace. A
label then says which component or backend it is. So a reference that a tenant makes up names nothing outside its own
namespace. The bounds of a component come from the service, else from its runtime
(``modelyard.resources.replicas``). A maximum that neither states is no bound: the default of 3 is the HPA's.

Source: OME's reference (ComponentExtensionSpec), Kthena's reference (ModelBackend) and its Model controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from modelyard.autoscaling.fleet.kinds import CLUSTER_RUNTIMES, MODELS, RUNTIMES, SERVICES
from modelyard.objects import (
    Key,
    Object,
    OwnerRef,
    ReplicaLimits,
    ResourceType,
    TargetRef,
    Workload,
    key_of,
    mapping,
    mappings,
)
from modelyard.resources import component_replicas
from modelyard.runtimes import named_keys

COMPONENTS: Final = ("engine", "decoder", "router")
COMPONENT: Final = "component"
BACKEND, ROLE = "registry.volcano.sh/backend-name", "modelinfer.volcano.sh/role"
RUNTIME: Final = "modelyard.dev/runtime"
"""Annotation of a service's status: the runtime that was rolled out last, as KIND/NAME@GENERATION."""
GROUPS: Final = frozenset((("apps", "Deployment"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")))
"""Workloads that hold all replicas of a component or role; a StatefulSet holds one pod of one group."""
MODEL_GROUPS: Final = frozenset((MODELS.group, "workload.serving.volcano.sh", "workload.volcano.sh"))

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ServiceReplicas:
    """Bounds an InferenceService states, by component, and its runtime. Without ``uid``, kind and name identify it."""

    key: Key
    uid: str
    components: Mapping[str, Counts]
    paths: Mapping[str, str] = field(default_factory=dict)
    runtime: tuple[str, str] = ("", "")
    """Kind (empty: either) and name."""


@dataclass(frozen=True, slots=True)
class BackendReplicas:
    """A backend's bounds in groups, and instances per group by type; ``governed`` by a policy: a workload per role."""

    counts: Counts
    workers: Counts
    governed: bool


@dataclass(frozen=True, slots=True)
class ModelReplicas:
    """The bounds a Model states, by backend."""

    key: Key
    uid: str
    backends: Mapping[str, BackendReplicas]


@dataclass(frozen=True, slots=True)
class RuntimeReplicas:
    """The bounds a runtime states, by component. A ClusterServingRuntime has no namespace."""

    key: Key
    components: Mapping[str, Counts]


def service(obj: Object) -> ServiceReplicas:
    """Read an InferenceService; fields is not in the published form states nothing."""
    spec = mapping(obj.get("spec"))
    paths = {name: f"spec.{name}" for name in COMPONENTS if name in spec}
    if "engine" not in spec and "predictor" in spec:
        paths["engine"] = "spec.predictor"
    counts = {name: _counts(spec.get(path.removeprefix("spec."))) for name, path in paths.items()}
    return ServiceReplicas(key_of(obj), str(obj["metadata"].get("uid") or ""), counts, paths, _runtime_of(obj))


def _runtime_of(obj: Object) -> tuple[str, str]:
    named = mapping(mapping(obj.get("spec")).get("runtime"))
    name = named.get("name")
    noted = mapping(mapping(obj.get("status")).get("annotations")).get(RUNTIME)
    kind, _, rest = noted.partition("/") if isinstance(noted, str) else ("", "", "")
    rolled_out = rest.partition("@")[0]
    if isinstance(name, str) and name and name != rolled_out:
        return (named["kind"] if isinstance(named.get("kind"), str) else "", name)
    return (kind, rolled_out) if rolled_out else ("", "")


def model(obj: Object) -> ModelReplicas:
    """Read a Model; fields is not in the published form states nothing."""
    spec = mapping(obj.get("spec"))
    backends: dict[str, BackendReplicas] = {}
    for backend in mappings(spec.get("backends")):
        workers = {
            str(worker.get("type") or "server"): max(1, _count(worker.get("replicas")) or 1)
            for worker in mappings(backend.get("workers"))
        }
        governed = bool(spec.get("autoscalingPolicy") or backend.get("autoscalingPolicy"))
        backends[str(backend.get("name") or "")] = BackendReplicas(_counts(backend), workers, governed)
    return ModelReplicas(key_of(obj), str(obj["metadata"].get("uid") or ""), backends)


def runtime(obj: Object, kind: ResourceType) -> RuntimeReplicas:
    """Read a ServingRuntime or ClusterServingRuntime."""
    spec, key = mapping(obj.get("spec")), key_of(obj)
    counts = {name: _counts(spec.get(f"{name}Config")) for name in COMPONENTS}
    return RuntimeReplicas(key if kind.namespaced else Key("", key.name), counts)


def _counts(part: Any) -> dict[str, int]:
    """The bounds that are stated; 0 in ``maxReplicas`` counts as absent."""
    counts = {name: _count(mapping(part).get(name)) for name in ("minReplicas", "maxReplicas")}
    return {name: count for name, count in counts.items() if count is not None and (count or name == "minReplicas")}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class _Stated(NamedTuple):
    value: int
    where: str


@dataclass(frozen=True, slots=True)
class Owners:
    """Objects that may own workloads. ``errors`` says by kind and namespace why objects could not be listed."""

    services: Mapping[Key, ServiceReplicas] = field(default_factory=dict)
    models: Mapping[Key, ModelReplicas] = field(default_factory=dict)
    runtimes: Mapping[Key, RuntimeReplicas] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def bound(self, workload: Workload) -> Workload:
        """Return the workload with the limits that its owner sets; as it is where none does."""
        owner, kind = workload.owner, owner_kind(workload.owner)
        if owner is None or kind is None:
            return workload
        key = Key(workload.id.namespace, owner.name)
        fields = f"minReplicas and maxReplicas of {kind.kind} {key}"
        if problem := self._unknown(fields, kind, key.namespace):
            return replace(workload, limits=ReplicaLimits(problem=problem))
        owning: ServiceReplicas | ModelReplicas | None
        owning = self.services.get(key) if kind == SERVICES else self.models.get(key)
        if owning is None or owning.uid not in ("", owner.uid):
            return workload
        if isinstance(owning, ServiceReplicas):
            limits = self._of_component(workload, owning)
        else:
            limits = _of_backend(workload, owning)
        return workload if limits is None else replace(workload, limits=limits)

    def _unknown(self, fields: str, kind: ResourceType, namespace: str) -> str:
        error = self.errors.get((kind.kind, namespace))
        return (error and f"{fields} are not known: {error}; grant list on {kind.plural} ({kind.group})") or ""

    def _of_component(self, workload: Workload, service: ServiceReplicas) -> ReplicaLimits | None:
        component = _component_of(workload, service)
        if component is None:
            return None
        name, path = f"InferenceService {service.key}", service.paths[component]
        own = {field: _Stated(n, f"{path}.{field} of {name}") for field, n in service.components[component].items()}
        given, problem = self._of_runtime(service, component) if len(own) < 2 else ({}, "")
        stated = {**given, **own}
        counts, own_counts = ({field: bound.value for field, bound in part.items()} for part in (stated, own))
        least, most = component_replicas(counts, own_counts)
        lower, upper = stated.get("minReplicas"), stated.get("maxReplicas")
        lower_from = f"default of {path}.minReplicas of {name}" if lower is None else lower.where
        if lower is not None and lower.value != least and upper is not None:
            lower_from = upper.where
        upper_from = "" if upper is None else upper.where if upper.value == most else lower_from
        return ReplicaLimits(least, most, lower_from, upper_from, lower is not None and least > 0, problem)

    def _of_runtime(self, service: ServiceReplicas, component: str) -> tuple[dict[str, _Stated], str]:
        kind, name = service.runtime
        if not name:
            return {}, ""
        for namespace, _ in named_keys(name, service.key.namespace, kind):
            stored = self.runtimes.get(Key(namespace, name))
            if stored is not None:
                where = f"{RUNTIMES.kind} {stored.key}" if namespace else f"{CLUSTER_RUNTIMES.kind} {name}"
                counts = stored.components[component]
                return {f: _Stated(n, f"{component}Config.{f} of {where}") for f, n in counts.items()}, ""
        fields = f"minReplicas and maxReplicas of runtime {name}"
        places = [(RUNTIMES, service.key.namespace), *([] if kind == RUNTIMES.kind else [(CLUSTER_RUNTIMES, "")])]
        unknown = (self._unknown(fields, runtimes, space) for runtimes, space in places)
        return {}, next(filter(None, unknown), "")


def owner_kind(owner: OwnerRef | None) -> ResourceType | None:
    """Return the kind of an owner that sets limits, ``None`` for any other."""
    if owner is None:
        return None
    group = TargetRef(owner.api_version, owner.kind, owner.name).group
    if owner.kind == SERVICES.kind and group == SERVICES.group:
        return SERVICES
    return MODELS if owner.kind == MODELS.kind and group in MODEL_GROUPS else None


def _component_of(workload: Workload, service: ServiceReplicas) -> str | None:
    """By its label, else by its name."""
    if (workload.id.group, workload.id.kind) not in GROUPS:
        return None
    named = workload.labels.get(COMPONENT) or workload.template_labels.get(COMPONENT)
    if named is None:
        name = workload.id.name.removeprefix("lws-")
        own = [part for part in service.components if name == f"{service.key.name}-{part}"]
        named = own[0] if own else next(iter(service.components)) if len(service.components) == 1 else None
    if named == "predictor" and service.paths.get("engine") == "spec.predictor":
        named = "engine"
    return named if named in service.components else None


def _of_backend(workload: Workload, model: ModelReplicas) -> ReplicaLimits | None:
    labels = {**workload.template_labels, **workload.labels}
    name = labels.get(BACKEND)
    if name is None and len(model.backends) == 1:
        (name,) = model.backends
    backend = model.backends.get(name or "")
    if backend is None or not backend.counts or (workload.id.group, workload.id.kind) == ("apps", "StatefulSet"):
        return None
    lower, upper = backend.counts.get("minReplicas", 0), backend.counts.get("maxReplicas")
    instances, groups = 1, 1
    if (workload.id.group, workload.id.kind) in GROUPS:  # its unit is an instance of a role, not a group of roles
        role = labels.get(ROLE, "")
        instances = backend.workers.get("server" if role in ("", "leader") else role, 1)
        if role in ("prefill", "decode") and not backend.governed:
            groups = max(1, lower)
    each = f" (x {instances} role instances)" if instances > 1 else ""
    where = f"of backend {name} of Model {model.key}{each}"
    return ReplicaLimits(
        lower * instances // groups,
        None if upper is None else max(upper, lower, 1) * instances // groups,
        f"minReplicas {where}",
        f"maxReplicas {where}" if upper is not None and upper >= lower else f"minReplicas {where}",
        lower > 0,
    )
