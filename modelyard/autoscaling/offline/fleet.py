"""A ``Fleet`` from files instead of a cluster: manifests plus a metrics snapshot.

Manifests are what ``manifests.DUMP`` prints, or what a repository holds before anything is deployed. A workload
without a status counts as all there and Ready.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from modelyard.autoscaling.configuration import FleetSettings, PlanInputError, saturation_names
from modelyard.autoscaling.fleet import (
    BINDINGS,
    CLUSTER_RUNTIMES,
    MODELS,
    POLICIES,
    RUNTIMES,
    SERVICES,
    VARIANTS,
    Consumer,
    Fleet,
    Owners,
    Workloads,
    owner_kind,
    owners as limit_owners,
)
from modelyard.autoscaling.offline.bindings import is_ours, measured, remarks as binding_remarks, views_of
from modelyard.autoscaling.offline.managed import managed_variants
from modelyard.autoscaling.offline.manifests import DUMP, Manifest, filled_uid
from modelyard.autoscaling.offline.snapshot import Snapshot, signals_of
from modelyard.autoscaling.reading import observe, workload_of
from modelyard.autoscaling.reading.bindings import objects
from modelyard.autoscaling.variants import class_references
from modelyard.objects import Key, OwnerRef, Pod, ResourceType, Workload, WorkloadId, few, parse

_T = TypeVar("_T")

KNOWN = {"Deployment": "apps", "StatefulSet": "apps", "LeaderWorkerSet": "leaderworkerset.x-k8s.io"}
"""Workload kinds whose fields we know, with their group."""

AGE = 86400.0
"""Seconds since when a pod that only the snapshot names is taken to be Ready."""


def fleet_from_files(
    manifests: Iterable[Manifest], snapshot: Snapshot, now: float, settings: FleetSettings | None = None
) -> Fleet:
    """The fleet these files describe at ``now``, or at the snapshot's own time if it has one.

    Raises ``PlanInputError`` for malformed objects and measurements of missing bindings; other kinds are ignored.
    """
    settings = settings or FleetSettings()
    if snapshot.at is not None:
        now = snapshot.at.timestamp()
    everything = list(manifests)
    by_kind: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in (*everything, *managed_variants(everything)[0]):
        by_kind[manifest.kind].append(manifest)

    def every(kind: str, read: Callable[[Mapping[str, Any]], _T]) -> list[_T]:
        return [_read(manifest, read) for manifest in by_kind[kind]]

    variants = every(VARIANTS.kind, partial(observe.variant, strict=True))
    known = (every(kind, partial(_workload, group=group, kind=kind)) for kind, group in KNOWN.items())
    workloads = {workload.id: workload for some in known for workload in some}
    namespaces = {found.name: found for found in every("Namespace", parse.namespace)}
    stored = (
        spec for spec in every(BINDINGS.kind, partial(objects.binding, strict=True)) if is_ours(spec.view, settings)
    )
    specs = [objects.within_reach(spec, namespaces) for spec in stored]
    targets = {target for v in variants if (target := workload_of(v))}
    targets |= {id_ for spec in specs for target in spec.targets for id_ in target.candidates}
    for target in sorted(targets):
        _add_unknown_kind(workloads, target, by_kind.get(target.kind, ()))
    limiting = _owners(by_kind)
    workloads = {id_: limiting.bound(workload) for id_, workload in workloads.items()}

    pods = every("Pod", parse.pod)
    present = {pod.key for pod in pods}
    for entry in snapshot.pods:
        key = Key(entry.namespace, entry.pod)
        if entry.workload and key not in present:
            pods.append(_ready_pod(key, entry.workload, targets, workloads, now))
            present.add(key)
    owners = {
        (manifest.key.namespace, manifest.kind, manifest.key.name): owner
        for kind in ("ReplicaSet", "StatefulSet")
        for manifest in by_kind[kind]
        if (owner := _read(manifest, parse.controller_of))
    }
    consumers: list[Consumer] = every("ScaledObject", observe.scaled_object)
    consumers += [found for found in every("HorizontalPodAutoscaler", observe.hpa) if found]
    names = {*saturation_names(settings), settings.scale_to_zero_config_map}
    classes = class_references(variants)
    return Fleet(
        now=now,
        variants=tuple(variants),
        workloads=workloads,
        pods=tuple(pods),
        owners=owners,
        nodes=tuple(every("Node", parse.node)),
        consumers=tuple(consumers),
        namespaces=namespaces,
        config_maps={
            manifest.key: _read(manifest, _config)
            for manifest in by_kind["ConfigMap"]
            if manifest.key.name in names
            or manifest.key.namespace == settings.controller_namespace
            or manifest.key.namespace in classes.get(manifest.key.name, ())
        },
        signals=signals_of(snapshot, now),
        bindings=measured(
            views_of(specs, every(POLICIES.kind, partial(objects.policy, strict=True)), workloads), snapshot.policies
        ),
    )


def _owners(by_kind: Mapping[str, Sequence[Manifest]]) -> Owners:
    def every(kind: ResourceType, read: Callable[[Mapping[str, Any]], _T]) -> list[_T]:
        return [_read(manifest, read) for manifest in by_kind.get(kind.kind, ()) if manifest.group == kind.group]

    # One that was written by hand has no uid: then kind and name of a reference suffice.
    unnamed = {
        kind: {one.key for one in by_kind.get(kind, ()) if one.body["metadata"]["uid"] == filled_uid(kind, one.key)}
        for kind in (SERVICES.kind, MODELS.kind)
    }
    services = {service.key: service for service in every(SERVICES, limit_owners.service)}
    services |= {key: dataclasses.replace(services[key], uid="") for key in services.keys() & unnamed[SERVICES.kind]}
    models = {model.key: model for model in every(MODELS, limit_owners.model)}
    models |= {key: dataclasses.replace(models[key], uid="") for key in models.keys() & unnamed[MODELS.kind]}
    kinds = (RUNTIMES, CLUSTER_RUNTIMES)
    runtimes = (runtime for kind in kinds for runtime in every(kind, partial(limit_owners.runtime, kind=kind)))
    return Owners(services, models, {runtime.key: runtime for runtime in runtimes})


def remarks(fleet: Fleet, manifests: Iterable[Manifest]) -> Iterator[str]:
    """What is probably missing from the files, each with its remedy. The decision stands all the same."""
    everything = list(manifests)
    managed, about_scalers = managed_variants(everything)
    yield from about_scalers
    everything += managed
    where = {manifest.key: manifest.where for manifest in everything if manifest.kind == "VariantAutoscaling"}
    for variant in fleet.variants:
        target = workload_of(variant)
        if target is not None and target not in fleet.workloads:
            own = variant.form == "slo" and target.name == variant.key.name
            named = "it scales the workload of its own name," if own else "spec.scaleTargetRef names"
            yield (
                f"{where[variant.key]}: VariantAutoscaling {variant.key}: {named} {target}, which is "
                "in none of the files; add its manifest with -f"
            )
    yield from binding_remarks(fleet.bindings)
    yield from _missing_owners(fleet, everything)
    pods = {pod.key: pod for pod in fleet.pods}
    lost: dict[str, list[str]] = {}
    for signal in fleet.signals.pods:
        pod = pods.get(Key(signal.namespace, signal.pod))
        if pod is None:
            why = (
                "no such Pod is in the files; add its manifest with -f, or name its workload in the snapshot "
                "(workload: Deployment/NAME)"
            )
        elif (
            pod.owner and pod.owner.kind in ("ReplicaSet", "StatefulSet") and not _has_owner(fleet, pod.key, pod.owner)
        ):
            kind = pod.owner.kind
            why = f"its {kind} {pod.owner.name} is in none of the files; dump the {kind}s too ({DUMP})"
        else:
            continue
        lost.setdefault(why, []).append(f"{signal.namespace}/{signal.pod}")
    for why, names in lost.items():
        yield f"metrics of pod {', '.join(few(names))} count for nothing: {why}"


def _missing_owners(fleet: Fleet, manifests: Iterable[Manifest]) -> Iterator[str]:
    given = {(manifest.kind, manifest.key) for manifest in manifests}
    scaled = dict.fromkeys(filter(None, map(workload_of, fleet.variants)))
    scaled |= dict.fromkeys(target.workload for view in fleet.bindings for target in view.targets)
    for id_ in scaled:
        workload = fleet.workloads.get(id_)
        owner = None if workload is None or owner_kind(workload.owner) is None else workload.owner
        if owner is not None and (owner.kind, Key(id_.namespace, owner.name)) not in given:
            yield (
                f"{id_} belongs to {owner.kind} {owner.name}, which is in none of the files: its minReplicas and "
                "maxReplicas are not known; add its manifest with -f"
            )


def _has_owner(fleet: Fleet, pod: Key, owner: OwnerRef) -> bool:
    if owner.kind == "ReplicaSet":
        return (pod.namespace, owner.kind, owner.name) in fleet.owners
    return WorkloadId(pod.namespace, KNOWN[owner.kind], owner.kind, owner.name) in fleet.workloads


def _read(manifest: Manifest, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        return read(manifest.body)
    except PlanInputError as error:
        raise PlanInputError(f"{manifest}: {error}") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise PlanInputError(
            f"{manifest}: not in the form the API gives it ({type(error).__name__}: {error}); "
            "check it with 'kubectl apply --dry-run=server -f'"
        ) from error


def _workload(body: Mapping[str, Any], group: str, kind: str) -> Workload:
    _whole(body, "spec", "replicas")
    one = parse.workload(body, group, kind)
    if "status" in body:
        return one
    wanted = 1 if one.spec_replicas is None else one.spec_replicas
    return dataclasses.replace(one, status_replicas=wanted, ready=wanted)


def _add_unknown_kind(
    workloads: dict[WorkloadId, Workload], target: WorkloadId, candidates: Iterable[Manifest]
) -> None:
    """The usual paths of the scale subresource are assumed."""
    for manifest in candidates:
        if target.kind in KNOWN or (manifest.group, manifest.key) != (target.group, Key(target.namespace, target.name)):
            continue
        stated = _read(manifest, lambda body: _whole(body, "spec", "replicas"))
        wanted = 1 if stated is None else stated
        observed = _read(manifest, lambda body: _whole(body, "status", "replicas")) or 0
        workloads[target] = Workload(
            id=target,
            uid=manifest.body["metadata"]["uid"],
            spec_replicas=wanted,
            status_replicas=observed if "status" in manifest.body else wanted,
            ready=None,
            labels=manifest.body["metadata"].get("labels") or {},
            owner=_read(manifest, parse.controller_of),
        )


def _whole(body: Mapping[str, Any], *path: str) -> int | None:
    value: Any = body
    for part in path:
        value = (value or {}).get(part)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanInputError(f"{'.'.join(path)}: {value!r} is not a whole number from 0 on; write one without quotes")
    return value


def _config(body: Mapping[str, Any]) -> dict[str, str]:
    data = body.get("data") or {}
    for name, value in data.items():
        if not isinstance(value, str):
            raise PlanInputError(f"data[{name}]: {value!r} is not text; put quotes around it, or '|' before a block")
    return dict(data)


def _ready_pod(key: Key, workload: str, targets: Iterable[WorkloadId], workloads: Workloads, now: float) -> Pod:
    kind, name = workload.split("/")
    groups = {t.group for t in targets if (t.namespace, t.kind, t.name) == (key.namespace, kind, name)}
    group = min(groups, default=KNOWN.get(kind, ""))
    found = workloads.get(WorkloadId(key.namespace, group, kind, name))
    return Pod(
        key=key,
        uid=f"Pod/{key}",
        owner=OwnerRef(f"{group}/v1" if group else "", kind, name, ""),
        created=now - AGE,
        ready_since=now - AGE,
        phase="Running",
        gpus=-(-found.gpus // found.pods_per_replica) if found is not None else 0,
        gpu_resource=found.gpu_resource if found is not None else "",
    )
