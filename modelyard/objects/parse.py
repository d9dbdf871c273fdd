"""Kubernetes objects as the API sends them, turned into plain values. Pure.

Thousands of pods pass here, so nothing is validated that the API server has validated already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from modelyard.objects.accelerators import devices
from modelyard.objects.documents import items_of, mapping, mappings, shown
from modelyard.objects.values import Condition, Key, Namespace, Node, OwnerRef, Pod, TargetRef, Workload, WorkloadId

Object = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MAX_ARGUMENTS = 16 * 1024
"""Characters of an engine's command line; of a longer one nothing is known."""
MAX_TIME = 64
"""Characters of a time. What is longer is none, and would only fill the memory of times that were read before."""


def epoch(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0.0 for none, or one that Python has no calendar for."""
    return _epoch(text) if text and len(text) <= MAX_TIME else 0.0


@lru_cache(maxsize=65536)
def _epoch(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time prints."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def key_of(obj: Object) -> Key:
    """Namespace and name."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def controller_of(obj: Object) -> OwnerRef | None:
    """Return the controller owner, if any."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if isinstance(owner, Mapping) and owner.get("controller"):
            return OwnerRef(*(str(owner.get(field) or "") for field in ("apiVersion", "kind", "name", "uid")))
    return None


OWNER_FIELDS = ("kind", "name")
"""Fields of an entry of ``metadata.ownerReferences`` without which it names nothing."""


def describe_owner_problem(obj: Object) -> str | None:
    """Return what is wrong with the owner references of an object from a file; the API server checks its own."""
    path = "metadata.ownerReferences"
    owners = obj["metadata"].get("ownerReferences")
    if owners is None:
        return None
    if not isinstance(owners, list):
        return f"{path}: {shown(owners)} is not a list; write entries with apiVersion, kind, name and uid"
    for index, owner in enumerate(owners):
        if not isinstance(owner, Mapping):
            return f"{path}[{index}]: {shown(owner)} is not an object; write apiVersion, kind, name and uid"
        for field in ("apiVersion", "kind", "name", "uid"):
            value = owner.get(field)
            if value is None and field in OWNER_FIELDS:
                return f"{path}[{index}].{field}: is missing; add it, or remove the entry"
            if value is not None and (not isinstance(value, str) or (field in OWNER_FIELDS and not value)):
                return f"{path}[{index}].{field}: {shown(value)} is not the owner's {field}; write it as text"
    return None


def container_gpus(container: Object) -> dict[str, int]:
    """Return the accelerators one container asks for, by resource name: its limits, else its requests."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: amount for name, amount in devices(amounts).items() if amount > 0}


def template_gpus(pod_spec: Object) -> tuple[int, str]:
    """GPUs per pod (sum over containers, init containers not counted) and the resource asked for."""
    total, resource = 0, ""
    for container in pod_spec.get("containers") or ():
        for name, amount in container_gpus(container).items():
            total += amount
            resource = resource or name
    return total, resource


def pod_gpus(pod_spec: Object) -> int:
    """GPUs a scheduled pod holds: the larger of its largest init container and the sum of its containers."""
    regular = sum(sum(container_gpus(c).values()) for c in pod_spec.get("containers") or ())
    initial = max((sum(container_gpus(c).values()) for c in pod_spec.get("initContainers") or ()), default=0)
    return max(regular, initial)


def gpu_resource(pod_spec: Object) -> str:
    """Return the accelerator resource a pod asks for first, ``""`` for none."""
    containers = (entry for kind in ("containers", "initContainers") for entry in pod_spec.get(kind) or ())
    return next((name for container in containers for name in container_gpus(container)), "")


def required_terms(node_affinity: Any) -> list[Any]:
    """The required terms of a core/v1 NodeAffinity, whatever was written there."""
    return items_of(mapping(mapping(node_affinity).get(REQUIRED)).get("nodeSelectorTerms"))


def wanted_nodes(pod_spec: Object) -> dict[str, str]:
    """Node labels a template insists on: its nodeSelector, and single-valued required ``In`` affinity terms."""
    wanted = dict(pod_spec.get("nodeSelector") or {})
    terms = required_terms((pod_spec.get("affinity") or {}).get("nodeAffinity"))
    if len(terms) == 1:
        for expression in terms[0].get("matchExpressions") or ():
            values: list[str] = expression.get("values") or []
            if expression.get("operator") == "In" and len(values) == 1:
                wanted.setdefault(expression["key"], values[0])
    return wanted


def pod(obj: Object) -> Pod:
    """A pod."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready_since: float | None = None
    unschedulable = ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "True":
            ready_since = epoch(condition.get("lastTransitionTime"))
        elif condition["type"] == "PodScheduled" and condition["status"] == "False":
            unschedulable = condition.get("message") or condition.get("reason") or "unschedulable"
    return Pod(
        key=Key(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata.get("uid", ""),
        owner=controller_of(obj),
        created=epoch(metadata.get("creationTimestamp")),
        ready_since=ready_since,
        phase=status.get("phase", "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        node=spec.get("nodeName", ""),
        gpus=pod_gpus(spec),
        gpu_resource=gpu_resource(spec),
        labels=metadata.get("labels") or {},
        unschedulable=unschedulable,
        ip=status.get("podIP") or "",
        started=_started(status),
    )


def _started(status: Object) -> str:
    starts = [
        str(running.get("startedAt") or "")
        for container in status.get("containerStatuses") or ()
        if (running := (container.get("state") or {}).get("running"))
    ]
    return max(starts, default="") or str(status.get("startTime") or "")


def node(obj: Object) -> Node:
    """A node."""
    status = obj.get("status") or {}
    return Node(
        name=obj["metadata"]["name"],
        labels=obj["metadata"].get("labels") or {},
        gpus=devices(status.get("allocatable") or {}),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()),
        schedulable=not (obj.get("spec") or {}).get("unschedulable", False),
    )


def namespace(obj: Object) -> Namespace:
    """A namespace."""
    metadata = obj["metadata"]
    return Namespace(metadata["name"], metadata.get("labels") or {}, metadata.get("annotations") or {})


def workload(obj: Object, group: str, kind: str) -> Workload:
    """A Deployment, StatefulSet or LeaderWorkerSet (whose unit is the group)."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    size = 1
    if kind == "LeaderWorkerSet":
        groups = spec.get("leaderWorkerTemplate") or {}
        size = int(groups.get("size") or 1)
        template = groups.get("workerTemplate") or {}
        worker, resource = template_gpus(template.get("spec") or {})
        engine = groups.get("leaderTemplate") or template
        leader, leader_resource = template_gpus(engine.get("spec") or {})
        gpus, resource = leader + worker * (size - 1), resource or leader_resource
    else:
        engine = template = spec.get("template") or {}
        gpus, resource = template_gpus(template.get("spec") or {})
    words = engine_args(engine.get("spec") or {})
    return Workload(
        id=WorkloadId(metadata.get("namespace", ""), group, kind, metadata["name"]),
        uid=metadata.get("uid", ""),
        spec_replicas=spec.get("replicas"),
        status_replicas=int(status.get("replicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        created=epoch(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        gpus=gpus,
        gpu_resource=resource,
        pods_per_replica=size,
        selector=label_selector((spec.get("selector") or {}).get("matchLabels") or {}),
        template_labels=(template.get("metadata") or {}).get("labels") or {},
        node_selector=wanted_nodes(template.get("spec") or {}),
        engine_args=words if sum(map(len, words)) <= MAX_ARGUMENTS else (),
        labels=metadata.get("labels") or {},
        owner=controller_of(obj),
    )


ENGINE_VARIABLES = ("VLLM_USE_V1",)
"""Environment variables that say what an engine can hold. No others are carried: they may be secrets."""


def engine_args(pod_spec: Object) -> tuple[str, ...]:
    """Command line of the first container with GPUs, else the first, after ``NAME=value`` of ``ENGINE_VARIABLES``."""
    containers: list[Object] = pod_spec.get("containers") or []
    if not containers:
        return ()
    engine = next((container for container in containers if container_gpus(container)), containers[0])
    given = (one for one in engine.get("env") or () if one.get("name") in ENGINE_VARIABLES and "valueFrom" not in one)
    set_here = (f"{one['name']}={one.get('value', '')}" for one in given)
    return tuple(str(word) for word in (*set_here, *(engine.get("command") or ()), *(engine.get("args") or ())))


def label_selector(labels: Mapping[str, str]) -> str:
    """These labels as the API takes them for a selector."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def target_id(namespace: str, reference: Object) -> WorkloadId:
    """The identity a CrossVersionObjectReference names."""
    target = TargetRef(reference.get("apiVersion") or "", reference.get("kind") or "", reference.get("name") or "")
    return WorkloadId(namespace, target.group, target.kind, target.name)


def conditions(items: Iterable[Object] | None) -> tuple[Condition, ...]:
    """Status conditions."""
    return tuple(
        Condition(
            type=item.get("type", ""),
            status=item.get("status", "Unknown"),
            reason=item.get("reason", ""),
            message=item.get("message", ""),
            observed_generation=item.get("observedGeneration"),
            last_transition=epoch(item.get("lastTransitionTime")) or None,
        )
        for item in items or ()
    )


def stored_status(obj: Object) -> dict[str, Any]:
    """The status of an object, with a list of objects as its conditions whatever was written there."""
    status = dict(mapping(obj.get("status")))
    status["conditions"] = mappings(status.get("conditions"))
    return status


def condition(status: Object, type: str) -> Object:
    """The condition of this type in a status, empty where there is none."""
    return next((item for item in status.get("conditions") or () if item.get("type") == type), {})


def annotations_of(obj: Object) -> Object:
    """The annotations of an object, whatever was written there."""
    return mapping(mapping(obj.get("metadata")).get("annotations"))


def texts(value: Any) -> dict[str, str]:
    """The entries of a map whose values are text."""
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, Mapping) else {}
