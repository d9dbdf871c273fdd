"""Other accelerators than there are: the limiter switched on, over an inventory that was named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import yaml

from modelyard.autoscaling.configuration import DEFAULT_ENTRY, FleetSettings, find, read_document, saturation_names
from modelyard.autoscaling.decisions import Record
from modelyard.autoscaling.fleet import (
    ACCELERATOR_LABEL,
    UNRESOLVED,
    Fleet,
    Variant,
    pool_name,
    pool_of_node,
    short_name,
)
from modelyard.autoscaling.pipeline import decide
from modelyard.autoscaling.what_if.absence import without_pods
from modelyard.autoscaling.what_if.errors import WhatIfError, listed
from modelyard.autoscaling.what_if.spread import observed
from modelyard.objects import PRODUCT_LABELS, Key, Node, OwnerRef, Pod, Workload, WorkloadId, family_of

_USUAL = ("nvidia.com/gpu.product", "nvidia.com/gpu")
"""Label and resource of an assumed node whose own resource comes without a label for the product."""
_NODE = "assumed-"
_LONG_AGO = 86400.0


def with_capacity(
    fleet: Fleet, settings: FleetSettings, capacity: Mapping[str, int]
) -> tuple[Fleet, FleetSettings, list[str]]:
    """The fleet with the limiter on and ``capacity`` (GPUs by accelerator) in place of all nodes.

    The GPUs named are for the fleet's variants together, those in use included, each accelerator as on one node: what
    other workloads hold, fragmentation and node selectors do not count. Replicas beyond it are gone. Accelerators that
    are not named have none beyond what is in use. Raises ``WhatIfError`` for one that no variant uses and no node has.
    """
    found = {one.key: one.records[0] for one in decide(fleet, settings).variants}
    used = {key: r.now.accelerator for key, r in found.items() if r.now.accelerator and r.now.accelerator != UNRESOLVED}
    resources = {s.variant.key: s.workload.gpu_resource for s in observed(fleet, settings) if s.workload is not None}
    homed = {key: pool_name(accelerator, resources.get(key, "")) for key, accelerator in used.items()}
    pools = {pool.upper(): pool for pool in reversed(homed.values())}
    for node in fleet.nodes:
        for resource in node.gpus:
            if (home := pool_of_node(node.labels, resource)) is not None:
                pools.setdefault(home.upper(), home)
    wanted: dict[str, int] = {}
    for name, count in capacity.items():
        known = pools.get(name.upper(), pools.get(short_name(name).upper()))
        if known is None:
            raise WhatIfError(
                f"--capacity {name}={count}: no variant uses this accelerator and no node has it; there are: "
                f"{listed(pools.values())}"
            )
        wanted[known] = wanted.get(known, 0) + count
    told = [f"{', '.join(f'{count} {name}' for name, count in wanted.items())} for these variants, the limiter on"]
    fleet, lost = _fitted(fleet, settings, found, homed, wanted)
    told += lost
    workloads, vendors, in_use = dict(fleet.workloads), dict[str, str](), dict[str, int]()
    homes: dict[Key, tuple[str, int]] = {}
    placeholders: list[Pod] = []
    for seen in observed(fleet, settings):
        pool = homed.get(seen.key)
        if pool is None or seen.workload is None or seen.workload_id is None:
            continue
        name, each = pool, found[seen.key].now.gpus
        workload = workloads[seen.workload_id] = _workload(seen.workload, each)
        vendors.setdefault(name, workload.gpu_resource)
        in_use[name] = in_use.get(name, 0) + (seen.current or 0) * workload.gpus
        share = -(-workload.gpus // workload.pods_per_replica)
        homes |= {pod.key: (name, share) for pod in seen.pods}
        for number in range(len(seen.pods), (seen.current or 0) * workload.pods_per_replica):
            placeholders.append(_placeholder(workload, number, share, fleet.now, number < (seen.ready or 0)))
            homes[placeholders[-1].key] = (name, share)
    unnamed = in_use.keys() - wanted.keys()
    if unnamed:
        told[0] += f"; of {', '.join(sorted(unnamed))} no more than is in use"
    nodes = {**{name: in_use[name] for name in unnamed}, **wanted}
    assumed = replace(
        fleet,
        nodes=tuple(_node(name, count, vendors.get(name, "")) for name, count in sorted(nodes.items())),
        nodes_error=None,
        variants=tuple(_labelled(variant, used.get(variant.key)) for variant in fleet.variants),
        workloads=workloads,
        pods=tuple(_at_home(pod, homes.get(pod.key)) for pod in (*fleet.pods, *placeholders)),
        config_maps=_limited(fleet, settings),
    )
    return assumed, settings.model_copy(update={"node_selector": ""}), told


def _fitted(
    fleet: Fleet,
    settings: FleetSettings,
    found: Mapping[Key, Record],
    homed: Mapping[Key, str],
    wanted: Mapping[str, int],
) -> tuple[Fleet, list[str]]:
    """The dearest replicas are the first to go."""
    variants = observed(fleet, settings)
    told: list[str] = []
    workloads, gone = dict(fleet.workloads), set[Key]()
    for name, count in wanted.items():
        mine = [s for s in variants if homed.get(s.key) == name and s.workload_id is not None]
        over = sum((s.current or 0) * found[s.key].now.gpus for s in mine) - count
        for seen in sorted(mine, key=lambda s: (-found[s.key].now.cost, s.key)):
            current, each = seen.current or 0, found[seen.key].now.gpus
            fewer = min(current, max(0, -(-over // each)))
            if not fewer or seen.workload is None or seen.workload_id is None:
                continue
            over -= fewer * each
            left = current - fewer
            size = seen.workload.pods_per_replica
            by_age = sorted(seen.pods, key=lambda pod: (pod.ready_since is None, pod.ready_since or 0.0, pod.key))
            gone |= {pod.key for pod in by_age[left * size :]}
            ready = seen.workload.ready
            workloads[seen.workload_id] = replace(
                seen.workload,
                spec_replicas=left,
                status_replicas=left,
                ready=None if ready is None else min(ready, left),
            )
            told.append(f"{fewer} of {current} replicas of {seen.key} have no {name} and are gone")
    if not told:
        return fleet, told
    fleet, _ = without_pods(fleet, variants, gone)
    return replace(fleet, workloads=workloads), told


def _placeholder(workload: Workload, number: int, gpus: int, now: float, ready: bool) -> Pod:
    id_ = workload.id
    key = Key(id_.namespace, f"{id_.name}-unnamed-{number}")
    since = now - _LONG_AGO if ready else None
    return Pod(key, f"assumed/{key}", owner_of(id_), now - _LONG_AGO, since, phase="Running", gpus=gpus)


def owner_of(workload: WorkloadId) -> OwnerRef:
    """What a pod of the workload names as its owner."""
    return OwnerRef(f"{workload.group}/v1" if workload.group else "v1", workload.kind, workload.name, "")


def _at_home(pod: Pod, home: tuple[str, int] | None) -> Pod:
    """Pods of others hold nothing of this inventory."""
    return replace(pod, node=f"{_NODE}{home[0]}", gpus=home[1], gpu_resource="") if home else replace(pod, node="")


def _workload(workload: Workload, gpus: int) -> Workload:
    selector = {key: value for key, value in workload.node_selector.items() if key in PRODUCT_LABELS}
    return replace(workload, gpus=workload.gpus or gpus, node_selector=selector)


def _labelled(variant: Variant, accelerator: str | None) -> Variant:
    """The accelerator may be known only from nodes that are not there any more."""
    if accelerator is None or variant.labels.get(ACCELERATOR_LABEL):
        return variant
    return replace(variant, labels={**variant.labels, ACCELERATOR_LABEL: accelerator})


def _node(accelerator: str, count: int, resource: str) -> Node:
    family = family_of(resource)
    label, resource = (family.labels[0], resource) if family is not None and family.labels else _USUAL
    return Node(f"{_NODE}{accelerator}", {label: accelerator}, {resource: count})


def _limited(fleet: Fleet, settings: FleetSettings) -> dict[Key, Mapping[str, str]]:
    document, _ = find(fleet.config_maps, settings, settings.controller_namespace, saturation_names(settings))
    key = document.id if document is not None else Key(settings.controller_namespace, settings.saturation_config_map)
    data = dict(fleet.config_maps.get(key) or {})
    written = read_document(key, data, settings)
    if DEFAULT_ENTRY in written.broken:
        raise WhatIfError(f"--capacity: the limiter cannot be switched on: {written.broken[DEFAULT_ENTRY]}")
    fields = next((dict(entry.fields) for entry in written.entries if entry.key == DEFAULT_ENTRY), {})
    data[DEFAULT_ENTRY] = yaml.safe_dump({**fields, "enableLimiter": True}, sort_keys=False)
    return {**fleet.config_maps, key: data}
