"""Read the cluster and Prometheus into one ``Fleet``.

One list of each kind of object per tick and a constant number of PromQL queries, whatever the number of variants.
VariantAutoscalings and workloads are read consistently; ConfigMaps, pods, ReplicaSets, nodes and namespaces from the
API server's watch cache. Anything a decision cannot do without raises; what it can do without is marked unknown.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from modelyard.autoscaling.config_maps import saturation_names
from modelyard.autoscaling.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live import observe
from modelyard.autoscaling.live.demands import (
    at_zero,
    class_references,
    needs_loads,
    slo_namespaces,
    token_namespaces,
    wake_expressions,
    workload_of,
)
from modelyard.autoscaling.live.reading import CONCURRENCY, NAMESPACE_LISTS, Reader
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.saturation_config import SaturationConfigs
from modelyard.autoscaling.variants.zero_config import retentions
from modelyard.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Cluster,
    ClusterError,
    Forbidden,
    NotFound,
    ResourceType,
    UnknownKind,
)
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.metrics.loads import LoadHistory
from modelyard.metrics.signals import LastSeen, read_signals
from modelyard.metrics.values import Signals
from modelyard.metrics.wake import ANNOTATION, read_expressions
from modelyard.objects import Key, Namespace, Node, OwnerRef, Pod, Workload, WorkloadId, parse

log = logging.getLogger(__name__)

LISTED = {("apps", "Deployment"), ("apps", "StatefulSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")}


LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"
BINDINGS_PODS = "status.phase!=Succeeded"
"""Policy bindings count a failed pod as one that is not ready."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a loop is responsible for."""

    namespaces: tuple[str, ...] = ()
    label_selector: str = ""


class VariantCache:
    """Parsed VariantAutoscalings by uid and resourceVersion, so that an unchanged fleet is not parsed every tick."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[str, Variant]] = {}

    def parse(self, items: Iterable[Mapping[str, Any]]) -> tuple[Variant, ...]:
        """Parse, reusing what has not changed; forgets what is gone."""
        fresh: dict[str, tuple[str, Variant]] = {}
        variants = []
        for item in items:
            metadata = item["metadata"]
            uid, version = metadata["uid"], metadata["resourceVersion"]
            known = self._parsed.get(uid)
            parsed = known[1] if known and known[0] == version else observe.variant(item)
            fresh[uid] = (version, parsed)
            variants.append(parsed)
        self._parsed = fresh
        return tuple(variants)


async def collect(
    cluster: Cluster,
    prometheus: Prometheus | PrometheusError,
    settings: FleetSettings,
    selection: Selection,
    cache: VariantCache,
    last_seen: LastSeen,
    loads: LoadHistory | None = None,
    homes: Iterable[str] = (),
    reader: Reader | None = None,
) -> Fleet:
    """One picture of the fleet. Raises ``ClusterError`` when the API server cannot give the vital lists.

    ``loads`` keeps the history of offered load from tick to tick; without one, a tick of its own measures it anew.
    ``homes`` are namespaces without variants whose HPAs, ScaledObjects and labels are wanted as well. ``reader`` shares
    lists with whoever else reads in this tick.
    """
    # Parsing ten thousand pods makes a million objects and no cycles: the collector would cost more than the parsing.
    pause = gc.isenabled()
    gc.disable()
    try:
        loads = loads or LoadHistory(settings.trend_window, settings.tick)
        async with AsyncExitStack() as stack:
            if reader is None:
                reader = await stack.enter_async_context(Reader(cluster))
            return await _collect(reader, prometheus, settings, selection, cache, last_seen, loads, sorted(homes))
    finally:
        if pause:
            gc.enable()


async def _collect(
    reader: Reader,
    prometheus: Prometheus | PrometheusError,
    settings: FleetSettings,
    selection: Selection,
    cache: VariantCache,
    last_seen: LastSeen,
    loads: LoadHistory,
    others: list[str],
) -> Fleet:
    cluster = reader.cluster
    spaces = selection.namespaces or ((settings.watch_namespace,) if settings.watch_namespace else ())
    variants = cache.parse(await list_objects(cluster, VARIANTS, spaces, selection.label_selector))
    configured = await _config_maps(cluster, settings, spaces, class_references(variants))

    wanted = {target for v in variants if (target := workload_of(v))}
    homes = sorted({v.key.namespace for v in variants})
    everything = SaturationConfigs(configured, settings).limiter
    periods = set(retentions(variants, configured, settings).values())
    async with asyncio.TaskGroup() as group:
        signals = group.create_task(
            _signals(prometheus, settings, spaces, variants, configured, periods, last_seen, loads)
        )
        workloads = group.create_task(read_workloads(reader, wanted, homes))
        wakes = group.create_task(_wakes(prometheus, variants, workloads))
        pods = group.create_task(_pods(reader, homes, others, everything))
        owners = group.create_task(_owners(cluster, homes, any(w.group != "apps" for w in wanted)))
        nodes = group.create_task(_nodes(cluster, settings.node_selector, homes))
        consumers = group.create_task(_consumers(cluster, sorted({*homes, *others})))
        namespaces = group.create_task(_namespaces(cluster, sorted({*homes, *others})))
    found, errors = workloads.result()
    pending, broken = wakes.result()
    said = signals.result()
    listed, nodes_error = nodes.result()
    scalers, scalers_error = consumers.result()
    return Fleet(
        now=time.time(),
        variants=variants,
        workloads=found,
        workload_errors=errors,
        pods=pods.result(),
        owners=owners.result(),
        nodes=listed,
        nodes_error=nodes_error,
        consumers=scalers,
        consumers_error=scalers_error,
        namespaces=namespaces.result(),
        config_maps=configured,
        signals=dataclasses.replace(said, wake=pending, partial_errors=(*said.partial_errors, *broken)),
    )


async def list_objects(
    cluster: Cluster,
    kind: ResourceType,
    namespaces: Iterable[str],
    label_selector: str = "",
    field_selector: str = "",
    cached: bool = False,
) -> list[dict[str, Any]]:
    """Objects of a kind in these namespaces (none: all); ``cached`` reads the API server's watch cache."""
    spaces: list[str | None] = list(namespaces) or [None]
    if len(spaces) > NAMESPACE_LISTS:
        keep = set(spaces)
        listed = await cluster.list(kind, None, label_selector, field_selector, cached=cached)
        return [item for item in listed.items if item["metadata"].get("namespace") in keep]
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(space: str | None) -> list[dict[str, Any]]:
        async with gate:
            return (await cluster.list(kind, space, label_selector, field_selector, cached=cached)).items

    return [item for items in await asyncio.gather(*(one(space) for space in spaces)) for item in items]


async def _config_maps(
    cluster: Cluster, settings: FleetSettings, spaces: tuple[str, ...], classes: Mapping[str, set[str]]
) -> dict[Key, Mapping[str, str]]:
    names = (*saturation_names(settings), settings.scale_to_zero_config_map)
    lists = await asyncio.gather(
        list_objects(cluster, CONFIG_MAPS, (settings.controller_namespace,), cached=True),
        *(
            list_objects(cluster, CONFIG_MAPS, spaces, field_selector=f"metadata.name={name}", cached=True)
            for name in names
        ),
        *(_class_maps(cluster, name, classes[name] - {settings.controller_namespace}) for name in sorted(classes)),
    )
    return {parse.key_of(item): item.get("data") or {} for items in lists for item in items}


async def _class_maps(cluster: Cluster, name: str, namespaces: set[str]) -> list[dict[str, Any]]:
    """ConfigMaps of SLO classes, whose names users choose: one that may not be read is missing for its users only."""
    if not namespaces:
        return []
    try:
        return await list_objects(
            cluster, CONFIG_MAPS, sorted(namespaces), field_selector=f"metadata.name={name}", cached=True
        )
    except Forbidden as error:
        log.warning("SLO classes in ConfigMap %s are not read (grant list on it): %s", name, error)
        return []


async def _wakes(
    prometheus: Prometheus | PrometheusError,
    variants: tuple[Variant, ...],
    workloads: asyncio.Task[tuple[dict[WorkloadId, Workload], dict[WorkloadId, str]]],
) -> tuple[dict[Key, float], list[str]]:
    """Pending demand of the variants at zero, as far as they have an expression for it."""
    if isinstance(prometheus, PrometheusError) or not any(ANNOTATION in v.annotations for v in variants):
        return {}, []
    found, _ = await workloads
    return await read_expressions(prometheus, wake_expressions(variants, at_zero(variants, found)))


async def _signals(
    prometheus: Prometheus | PrometheusError,
    settings: FleetSettings,
    spaces: tuple[str, ...],
    variants: tuple[Variant, ...],
    configured: Mapping[Key, Mapping[str, str]],
    periods: Iterable[int],
    last_seen: LastSeen,
    loads: LoadHistory,
) -> Signals:
    if isinstance(prometheus, PrometheusError):
        return Signals(error=str(prometheus))
    if not variants:
        return Signals()
    sized, tokens = slo_namespaces(variants), token_namespaces(variants, configured, settings)
    try:
        return await read_signals(
            prometheus,
            peak_window=settings.peak_window,
            namespaces=spaces,
            retentions=periods,
            expected={(v.key.namespace, v.model_id) for v in variants if v.model_id},
            last_seen=last_seen,
            loads=loads if needs_loads(variants, settings) else None,
            load_window=settings.load_window,
            performance_in=sized | tokens,
            latency_in=sized,
            caches_in=tokens,
        )
    except PrometheusError as error:
        return Signals(error=str(error))


async def read_workloads(
    reader: Reader, wanted: set[WorkloadId], homes: list[str]
) -> tuple[dict[WorkloadId, Workload], dict[WorkloadId, str]]:
    """Those of the wanted workloads that exist, and why others could not be read."""
    cluster = reader.cluster
    kinds = {(w.group, w.kind) for w in wanted}
    found: dict[WorkloadId, Workload] = {}
    errors: dict[WorkloadId, str] = {}

    async def listed(group: str, kind: str) -> None:
        if group == "apps":
            resource = DEPLOYMENTS if kind == "Deployment" else STATEFUL_SETS
        else:
            try:
                resource = await cluster.resolve(f"{group}/v1", kind)
            except UnknownKind as error:
                errors.update({w: str(error) for w in wanted if (w.group, w.kind) == (group, kind)})
                return
        for item in await reader.list(resource, homes):
            key = parse.key_of(item)
            if WorkloadId(key.namespace, group, kind, key.name) in wanted:
                one = parse.workload(item, group, kind)
                found[one.id] = one

    gate = asyncio.Semaphore(CONCURRENCY)

    async def scaled(target: WorkloadId) -> None:
        async with gate:
            try:
                resource = await cluster.resolve(f"{target.group}/v1" if target.group else "v1", target.kind)
                scale = await cluster.read_scale(resource, target.name, target.namespace)
                body = await cluster.get(resource, target.name, target.namespace)
            except NotFound:
                return
            except (UnknownKind, ClusterError) as error:
                errors[target] = str(error)
                return
        metadata = body["metadata"]
        found[target] = Workload(
            id=target,
            uid=metadata.get("uid", ""),
            spec_replicas=scale.replicas,
            status_replicas=scale.status_replicas,
            ready=None,
            created=parse.epoch(metadata.get("creationTimestamp")),
            deleting=bool(metadata.get("deletionTimestamp")),
            selector=scale.selector,
        )

    await asyncio.gather(
        *(listed(group, kind) for group, kind in sorted(kinds & LISTED)),
        *(scaled(target) for target in sorted(wanted) if (target.group, target.kind) not in LISTED),
    )
    return found, errors


async def _pods(reader: Reader, homes: list[str], others: list[str], everything: bool) -> tuple[Pod, ...]:
    """Pods that may still serve. ``others`` are namespaces whose pods are listed for policy bindings as well."""
    if not homes:
        return ()
    shared: list[str] = []
    if not everything and (wide := len(homes) > NAMESPACE_LISTS) == (len(others) > NAMESPACE_LISTS):
        shared = homes if wide else [home for home in homes if home in others]
    own = [home for home in homes if home not in shared]
    items = await reader.list(PODS, shared, field_selector=BINDINGS_PODS, cached=True) if shared else []
    if own:
        items = items + await reader.list(PODS, () if everything else own, field_selector=LIVE_PODS, cached=True)
    return tuple(pod for item in items if (pod := reader.pods.parse(item)).phase != "Failed")


async def _owners(cluster: Cluster, homes: list[str], grouped: bool) -> dict[tuple[str, str, str], OwnerRef]:
    """Intermediate owners. Kinds outside ``apps`` (LeaderWorkerSet ...) put StatefulSets between them and pods."""
    if not homes:
        return {}
    kinds = [("ReplicaSet", REPLICA_SETS), *([("StatefulSet", STATEFUL_SETS)] if grouped else [])]
    owners = {}
    for kind, resource in kinds:
        for item in await list_objects(cluster, resource, homes, cached=True):
            owner = parse.controller_of(item)
            if owner:
                key = parse.key_of(item)
                owners[key.namespace, kind, key.name] = owner
    return owners


async def _nodes(cluster: Cluster, selector: str, homes: list[str]) -> tuple[tuple[Node, ...], str | None]:
    if not homes:
        return (), None
    try:
        listed = await cluster.list(NODES, None, selector, cached=True)
    except ClusterError as error:
        return (), str(error)
    return tuple(parse.node(item) for item in listed.items), None


async def _consumers(cluster: Cluster, homes: list[str]) -> tuple[tuple[Consumer, ...], str | None]:
    """HPAs and ScaledObjects, and why some could not be listed: then nobody may assume that there are none."""
    consumers: list[Consumer] = []
    unknown: list[str] = []
    if not homes:
        return (), None
    for api_version, kind in (("autoscaling/v1", "HorizontalPodAutoscaler"), ("keda.sh/v1alpha1", "ScaledObject")):
        try:
            resource = await cluster.resolve(api_version, kind)
            items = await list_objects(cluster, resource, homes, cached=True)
        except UnknownKind:
            continue
        except Forbidden as error:
            unknown.append(str(error))
            continue
        for item in items:
            consumer = observe.hpa(item) if kind == "HorizontalPodAutoscaler" else observe.scaled_object(item)
            if consumer:
                consumers.append(consumer)
    return tuple(consumers), "; ".join(unknown) or None


async def _namespaces(cluster: Cluster, homes: list[str]) -> dict[str, Namespace]:
    if not homes:
        return {}
    try:
        listed = await cluster.list(NAMESPACES, cached=True)
    except Forbidden as error:
        log.warning("namespace exclusion is not honoured: %s", error)
        return {}
    return {item["metadata"]["name"]: parse.namespace(item) for item in listed.items}
