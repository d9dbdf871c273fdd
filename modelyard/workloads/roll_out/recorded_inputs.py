"""Inputs of a rendering that are kept for a rollback: the service, its runtime, and how they are read back. Pure.

A tenant may forge what is kept, so that it counts for no more than an object of the tenant's own. The spec, labels and
annotations of a service are the tenant's to write anyway. Models and weights are looked up again by name. A runtime of
the cluster may give pods rights, so its recorded spec counts as an administrator's only in two cases: the runtime still
has that spec, or the controller has recorded the spec's hash in its own namespace and the runtime, as it is now, gives
all rights that the spec asks for. In any other case the recorded spec is that of a runtime of the tenant's namespace,
which gives none.

The recorded hashes are as many as specs of ClusterServingRuntimes were rolled out, whatever tenants write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from modelyard.objects import CONFIG_MAPS, NAMESPACES, Key, mapping, texts
from modelyard.reconcile.plans import CLAIM, FAILED, Mark, Want, World
from modelyard.resources import ClusterServingRuntime, InferenceService, Model, ServingRuntime
from modelyard.runtimes import parse_runtime, parse_wishes
from modelyard.workloads.rendering import (
    RDMA_PREFIX,
    Body,
    Refusal,
    Refused,
    by_annotations,
    canonical,
    checked,
    plain,
    pod_fields,
    read_resource,
    rights,
)
from modelyard.workloads.roll_out.world import RUNTIMES, OfferedRuntime, StoredService

CONFIG_MAP: Final = "modelyard-rolled-out-runtimes"
"""ConfigMap in the controller's namespace: hashes of specs of ClusterServingRuntimes that were rolled out."""
RECORDS: Final = "rolled-out-runtimes"
MAX_RECORDS: Final = 1500
"""Hashes in the ConfigMap; each takes about 150 bytes of the 256 KiB of an object that is read."""
_POD_FIELDS: Final = frozenset(
    (
        *("runner", "containers", "initContainers", "ephemeralContainers", "volumes", "securityContext"),
        *("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "serviceAccount"),
    )
)
_VOLATILE: Final = frozenset((CLAIM, FAILED, "kubectl.kubernetes.io/last-applied-configuration"))
"""Annotations that are no part of what is asked for."""


class RuntimeRecords(NamedTuple):
    """The ConfigMap as it is stored: names of ClusterServingRuntimes by the hash of a spec."""

    key: Key
    uid: str
    names: Mapping[str, str]


def records_wanted(home: str) -> Want[RuntimeRecords]:
    """Return the want of the recorded hashes, which are in the controller's namespace."""

    def parse(obj: Mapping[str, Any]) -> RuntimeRecords:
        return RuntimeRecords(Key(home, CONFIG_MAP), obj["metadata"]["uid"], texts(obj.get("data")))

    selector = f"metadata.name={CONFIG_MAP}"
    return Want(CONFIG_MAPS, parse, field_selector=selector, namespace=home, use="services", called=RECORDS)


def record(service: StoredService, runtime: OfferedRuntime | None) -> Body:
    """Return the inputs of a service as they are kept; empty where they cannot be written as JSON."""
    resource = service.resource
    if resource is None:
        return {}
    labels = texts((resource.metadata.model_extra or {}).get("labels"))
    annotations = {name: text for name, text in service.annotations.items() if name not in _VOLATILE}
    try:
        inputs: Body = {"spec": _spec(resource), "labels": labels, "annotations": annotations}
        if runtime is not None and runtime.resource is not None:
            inputs["runtime"] = {"kind": runtime.kind, "name": runtime.choice.name, "spec": _spec(runtime.resource)}
    except (ValueError, RecursionError, Refusal):
        return {}
    return inputs


def record_mark(home: str, runtime: OfferedRuntime | None, world: World) -> tuple[Mark, ...]:
    """Return the write that records a runtime of the cluster; empty if it is recorded, or of a namespace."""
    if runtime is None or runtime.resource is None or runtime.kind != RUNTIMES[1].kind:
        return ()
    if world[NAMESPACES].get(Key("", home)) is None:
        return ()  # there is nowhere to record it, and a roll-out needs no record
    stored = _records(world)
    names = stored.names if stored is not None else {}
    existing = {offer.choice.name for offer in world[RUNTIMES[1]].all()}
    digest, name = _digest(runtime.choice.name, _spec(runtime.resource)), runtime.choice.name
    dropped: list[str] = [other for other, of in names.items() if of not in existing]
    if digest in names or len(names) - len(dropped) >= MAX_RECORDS:
        return ()
    create = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": home}}
    data = {**dict.fromkeys(dropped), digest: name}
    return (Mark(CONFIG_MAPS, Key(home, CONFIG_MAP), stored.uid if stored else "", data=data, create=create),)


def recorded_service(service: StoredService, inputs: Mapping[str, Any]) -> StoredService:
    """Return the service with recorded spec, labels and annotations; name, uid and status are those it has now."""
    resource = service.resource
    assert resource is not None
    kind, parser = service.subject.kind, type(resource)
    labels, annotations = (texts(inputs.get(name)) for name in ("labels", "annotations"))
    now = {**resource.metadata.model_dump(mode="json", by_alias=True, exclude_none=True), "uid": service.subject.uid}
    now |= {"name": service.key.name, "namespace": service.key.namespace}
    obj = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {**now, "labels": labels, "annotations": annotations},
        "spec": mapping(inputs.get("spec")),
        "status": dict(service.status),
    }
    read = read_resource(parser, obj)
    result, problem = (None, read) if isinstance(read, Refused) else (read, None)
    return StoredService(
        service.subject, result, service.label, parse_wishes(obj), problem, service.status, annotations
    )


def recorded_runtime(
    inputs: Mapping[str, Any], namespace: str, offered: Iterable[OfferedRuntime], world: World
) -> OfferedRuntime | None:
    """Return the recorded runtime, if any, with the rights it may give now. Raises ``Refusal``: disabled or invalid."""
    recorded = mapping(inputs.get("runtime"))
    kind, name, spec = recorded.get("kind"), recorded.get("name"), recorded.get("spec")
    if not (isinstance(kind, str) and isinstance(name, str) and isinstance(spec, dict)):
        return None
    current = next((offer for offer in offered if (offer.kind, offer.choice.name) == (kind, name)), None)
    if current is not None and current.choice.disabled:
        raise Refusal(
            "RuntimeDisabled", "spec.runtime.name", f"{kind} {name} is disabled", "enable it, or name another"
        )
    if current is not None and current.resource is not None and _spec(current.resource) == spec:
        return current
    trusted = kind == RUNTIMES[1].kind and _is_recorded(name, spec, world) and _gives_rights_of(current, spec)
    used, parser = (RUNTIMES[1], ClusterServingRuntime) if trusted else (RUNTIMES[0], ServingRuntime)
    about = {"name": name} if trusted else {"name": name, "namespace": namespace}
    obj = {"apiVersion": used.api_version, "kind": used.kind, "metadata": about, "spec": spec}
    try:
        resource = parser.parse(obj, unknown="accept")
        return OfferedRuntime(parse_runtime(obj), used.kind, 0, resource)
    except Exception as error:  # whatever a tenant has thought of
        problem = f"recorded {kind} {name} cannot be read: {type(error).__name__}: {error}"
        raise Refusal("RuntimeInvalid", "spec.runtime", problem, "change the service to try again") from None


def _spec(resource: InferenceService | Model | ServingRuntime | ClusterServingRuntime) -> Body:
    spec: Body = plain(resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True), "spec")
    return spec


def _digest(name: str, spec: Mapping[str, Any]) -> str:
    # The whole hash: a tenant chooses what is hashed, and could find two specs with one shortened hash.
    return hashlib.sha256(canonical({"name": name, "spec": spec}).encode(errors="replace")).hexdigest()


def _records(world: World) -> RuntimeRecords | None:
    return next(iter(world[RECORDS].all()), None)


def _is_recorded(name: str, spec: Mapping[str, Any], world: World) -> bool:
    stored = _records(world)
    return stored is not None and stored.names.get(_digest(name, spec)) == name


def _gives_rights_of(current: OfferedRuntime | None, spec: Mapping[str, Any]) -> bool:
    now = _rights(_spec(current.resource)) if current is not None and current.resource is not None else frozenset()
    return now >= _rights(spec)


def _rights(value: Any) -> frozenset[tuple[str, str]]:
    if isinstance(value, list):
        return frozenset[tuple[str, str]]().union(*map(_rights, value))
    if not isinstance(value, Mapping):
        return frozenset()
    annotations = texts(value.get("annotations"))
    asked = by_annotations(annotations)
    if value.keys() & _POD_FIELDS:
        containers, runner = value.get("containers") or [], value.get("runner")
        if isinstance(runner, Mapping):
            containers = [*containers, {**runner, "name": runner.get("name") or "runner"}]
        pod = checked({**pod_fields(value), "containers": containers}, "spec")
        asked |= rights(pod)
    injected = frozenset((name, text) for name, text in annotations.items() if name.startswith(RDMA_PREFIX))
    named = frozenset((right.what, right.value) for right in asked)
    return (named | injected).union(*map(_rights, value.values()))
