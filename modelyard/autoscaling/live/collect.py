"""Read the cluster and Prometheus into one ``Fleet``.

Objects come from a mirror; a constant number of PromQL queries, whatever the number of variants. Anything a decision
cannot do without raises; what it can do without is marked unknown.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from modelyard.autoscaling.configuration import ConfigMaps, FleetSettings, SizingAim, saturation_names
from modelyard.autoscaling.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.live import wants
from modelyard.autoscaling.live.limits import read_owners
from modelyard.autoscaling.live.scalers import API_VERSIONS, unread_scalers
from modelyard.autoscaling.reading import (
    at_zero,
    count_windows,
    needs_loads,
    sized_namespaces,
    token_namespaces,
    wake_expressions,
    workload_of,
)
from modelyard.autoscaling.variants import SaturationConfigs, class_references
from modelyard.cluster import ClusterError, Forbidden, NotFound, Unavailable, UnknownKind
from modelyard.fairness import interleave
from modelyard.metrics.prometheus import Expressions, LastSeen, LoadHistory, Prometheus, PrometheusError, read_signals
from modelyard.metrics.vocabulary import Signals, with_errors
from modelyard.objects import (
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Key,
    Namespace,
    Node,
    OwnerRef,
    Pod,
    Workload,
    WorkloadId,
    collector_paused,
    few,
    parse,
)
from modelyard.reconcile.kernel import CONCURRENCY, Mirror
from modelyard.resources import WAKE_QUERY

log = logging.getLogger(__name__)

MOST_READ_ALONE = 100
"""Workloads of a namespace that are read one by one in a tick, because their kind is not one of ``wants.LISTED``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a loop is responsible for."""

    namespaces: tuple[str, ...] = ()
    label_selector: str = ""

    def spaces(self, settings: FleetSettings) -> tuple[str, ...]:
        """The namespaces to read; none: all of them."""
        return self.namespaces or ((settings.watch_namespace,) if settings.watch_namespace else ())


async def collect(
    mirror: Mirror,
    prometheus: Prometheus | PrometheusError,
    expressions: Expressions,
    settings: FleetSettings,
    selection: Selection,
    last_seen: LastSeen,
    loads: LoadHistory | None = None,
    homes: Collection[str] = (),
) -> Fleet:
    """One picture of the fleet. Raises ``ClusterError`` when the API server cannot give the vital lists.

    ``loads`` keeps load history between ticks. ``homes`` are further namespaces whose scalers and labels are wanted.
    """
    with collector_paused():
        loads = loads or LoadHistory(settings.load_history, settings.tick, clock=mirror.cluster.now)
        spaces = selection.spaces(settings)
        variants = (await mirror.read(wants.variants(selection.label_selector), spaces)).within(spaces)
        configured = await _config_maps(mirror, settings, spaces, class_references(variants))
        wanted = {target for v in variants if (target := workload_of(v))}
        own = sorted({v.key.namespace for v in variants})
        # Tenants wrote what is read here: the loop, and with it the Lease, does not wait for it.
        asked = await asyncio.to_thread(_asked, variants, configured, settings)
        async with asyncio.TaskGroup() as group:
            signals = group.create_task(_signals(prometheus, settings, spaces, variants, asked, last_seen, loads))
            workloads = group.create_task(read_workloads(mirror, wanted, own))
            wakes = group.create_task(_wakes(expressions, variants, workloads))
            pods = group.create_task(_pods(mirror, own, asked.limiter))
            owners = group.create_task(_owners(mirror, own, any(w.group != "apps" for w in wanted)))
            nodes = group.create_task(_nodes(mirror, settings.node_selector, own))
            consumers = group.create_task(_consumers(mirror, sorted({*own, *homes})))
            namespaces = group.create_task(read_namespaces(mirror, [*own, *homes]))
        found, unread = workloads.result()
        pending, broken = wakes.result()
        said = signals.result()
        errors = with_errors(said.errors_in, ((key.namespace, text) for key, text in broken.items()))
        listed, nodes_error = nodes.result()
        scalers, scalers_error = consumers.result()
        for text in few(list(unread_scalers(scalers, wanted))):
            log.warning("%s", text)
        return Fleet(
            now=mirror.cluster.now(),
            variants=variants,
            workloads=found,
            workload_errors=unread,
            pods=pods.result(),
            owners=owners.result(),
            nodes=listed,
            nodes_error=nodes_error,
            consumers=scalers,
            consumers_error=scalers_error,
            namespaces=namespaces.result(),
            config_maps=configured,
            signals=dataclasses.replace(said, wake=pending, errors_in=errors),
        )


class _Asked(NamedTuple):
    """What the ConfigMaps ask for: the GPU limiter, windows to count requests over, namespaces whose caches matter."""

    limiter: bool
    windows: Mapping[int, set[str]]
    tokens: set[str]


def _asked(variants: tuple[Variant, ...], configured: ConfigMaps, settings: FleetSettings) -> _Asked:
    return _Asked(
        SaturationConfigs(configured, settings).limiter,
        count_windows(variants, configured, settings),
        token_namespaces(variants, configured, settings),
    )


async def _config_maps(
    mirror: Mirror, settings: FleetSettings, spaces: tuple[str, ...], classes: Mapping[str, set[str]]
) -> dict[Key, Mapping[str, str]]:
    names = (*saturation_names(settings), settings.scale_to_zero_config_map)
    own = settings.controller_namespace

    async def read(name: str, places: tuple[str, ...]) -> Iterable[wants.Data]:
        return (await mirror.read(wants.config_maps(name), places)).within(places)

    async def of_classes(name: str) -> Iterable[wants.Data]:
        # Users choose these names: one that may not be read is missing for its users only.
        if not (places := classes[name] - {own}):
            return ()
        try:
            store = await mirror.read(wants.config_maps(name), places, partial=True)
        except Unavailable:
            raise
        except ClusterError as error:
            log.warning("SLO classes in ConfigMap %s are not read: %s", name, error)
            return ()
        for place in sorted(places & store.errors.keys()):
            why = store.errors[place]
            log.warning("SLO classes in ConfigMap %s are not read (grant list on it): %s", name, why)
        return store.within(places)

    shared = (read(name, spaces) for name in names)
    lists = await asyncio.gather(read("", (own,)), *shared, *map(of_classes, sorted(classes)))
    return {key: data for found in lists for key, data in found}


async def _wakes(
    expressions: Expressions,
    variants: tuple[Variant, ...],
    workloads: asyncio.Task[tuple[dict[WorkloadId, Workload], dict[WorkloadId, str]]],
) -> tuple[dict[Key, float], dict[Key, str]]:
    if not any(WAKE_QUERY in v.annotations for v in variants):
        return {}, {}
    found, _ = await workloads
    return await expressions.totals(wake_expressions(variants, at_zero(variants, found)))


async def _signals(
    prometheus: Prometheus | PrometheusError,
    settings: FleetSettings,
    spaces: tuple[str, ...],
    variants: tuple[Variant, ...],
    asked: _Asked,
    last_seen: LastSeen,
    loads: LoadHistory,
) -> Signals:
    if isinstance(prometheus, PrometheusError):
        return Signals(error=str(prometheus))
    if not variants:
        return Signals()
    sized = sized_namespaces(variants, settings)
    try:
        return await read_signals(
            prometheus,
            peak_window=settings.peak_window,
            namespaces=spaces,
            gateways=settings.gateway_namespaces,
            retentions=asked.windows,
            expected={(v.key.namespace, v.model_id) for v in variants if v.model_id},
            last_seen=last_seen,
            loads=loads if needs_loads(variants, settings) else None,
            load_window=settings.load_window,
            performance_in=sized | asked.tokens,
            latency_in=sized,
            caches_in=asked.tokens,
            shares_in=sized if settings.aim is SizingAim.ATTAINMENT else (),
        )
    except PrometheusError as error:
        return Signals(error=str(error))


async def read_workloads(
    mirror: Mirror, wanted: set[WorkloadId], homes: list[str], partial: bool = False, backends: Iterable[Key] = ()
) -> tuple[dict[WorkloadId, Workload], dict[WorkloadId, str]]:
    """Return the wanted workloads that exist, with their owners' limits, and why others could not be read.

    ``backends`` are those of Models, as (namespace, MODEL-BACKEND), whose workloads are wanted, whatever their names.
    Kinds that are not listed take two calls for each workload: each namespace has its turn and its share of them.
    ``partial``: a namespace that may not be read is the problem of the workloads in it alone.
    """
    cluster = mirror.cluster
    kinds = {(w.group, w.kind) for w in wanted}
    found: dict[WorkloadId, Workload] = {}
    errors: dict[WorkloadId, str] = {}

    async def listed(group: str, kind: str) -> None:
        mine = [w for w in wanted if (w.group, w.kind) == (group, kind)]
        if group == "apps":
            resource = DEPLOYMENTS if kind == "Deployment" else STATEFUL_SETS
        else:
            try:
                resource = await cluster.resolve(f"{group}/v1", kind)
            except UnknownKind as error:
                errors.update(dict.fromkeys(mine, str(error)))
                return
        store = await mirror.read(wants.workloads(resource, group, kind), homes, partial=partial)
        for key in backends:
            found.update((one.id, one) for one in store.by(wants.BACKEND, key))
        for one in mine:
            if (forbidden := store.errors.get(one.namespace)) is not None:
                errors[one] = str(forbidden)
            elif (workload := store.get(Key(one.namespace, one.name))) is not None:
                found[one] = workload

    others = (target for target in sorted(wanted) if (target.group, target.kind) not in wants.LISTED)
    alone, beyond = interleave(others, attrgetter("namespace"), MOST_READ_ALONE)
    errors |= dict.fromkeys(beyond, f"beyond the {MOST_READ_ALONE} of other kinds that are read in one namespace")
    gate = asyncio.Semaphore(CONCURRENCY)

    async def scaled(target: WorkloadId) -> None:
        async with gate:
            try:
                resource = await cluster.resolve(f"{target.group}/v1" if target.group else "v1", target.kind)
                if not resource.namespaced:
                    errors[target] = f"{resource.kind} objects are in no namespace, so that nobody's may name them"
                    return
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
            labels=metadata.get("labels") or {},
            owner=parse.controller_of(body),
        )

    await asyncio.gather(*(listed(group, kind) for group, kind in sorted(kinds & wants.LISTED)), *map(scaled, alone))
    limiting = await read_owners(mirror, found.values())
    return {id_: limiting.bound(workload) for id_, workload in found.items()}, errors


async def _pods(mirror: Mirror, homes: list[str], everything: bool) -> tuple[Pod, ...]:
    if not homes:
        return ()
    spaces = () if everything else homes
    pods = (await mirror.read(wants.LIVE_PODS, spaces)).within(spaces)
    return tuple(pod for pod in pods if pod.phase != "Failed")


async def _owners(mirror: Mirror, homes: list[str], grouped: bool) -> dict[tuple[str, str, str], OwnerRef]:
    """Intermediate owners. Kinds outside ``apps`` (LeaderWorkerSet ...) put StatefulSets between them and pods."""
    if not homes:
        return {}
    kinds = [wants.owners(REPLICA_SETS), *([wants.owners(STATEFUL_SETS)] if grouped else [])]
    stores = [await mirror.read(kind, homes) for kind in kinds]
    return dict(owned for store in stores for owned in store.within(homes))


async def _nodes(mirror: Mirror, selector: str, homes: list[str]) -> tuple[tuple[Node, ...], str | None]:
    if not homes:
        return (), None
    try:
        return (await mirror.read(wants.nodes(selector))).all(), None
    except ClusterError as error:
        return (), str(error)


async def _consumers(mirror: Mirror, homes: list[str]) -> tuple[tuple[Consumer, ...], str | None]:
    """HPAs and ScaledObjects, and why some could not be listed: then nobody may assume that there are none."""
    if not homes:
        return (), None
    consumers, unknown = list[Consumer](), list[str]()
    for api_version, kind in API_VERSIONS:
        try:
            resource = await mirror.cluster.resolve(api_version, kind)
            consumers += (await mirror.read(wants.consumers(resource), homes)).within(homes)
        except UnknownKind:
            continue
        except Forbidden as error:
            unknown.append(str(error))
    return tuple(consumers), "; ".join(unknown) or None


async def read_namespaces(mirror: Mirror, homes: list[str]) -> dict[str, Namespace]:
    """Every namespace by name, if any is of interest (``homes``); none where they may not be listed."""
    if not homes:
        return {}
    try:
        store = await mirror.read(wants.EVERY_NAMESPACE)
    except Forbidden as error:
        log.warning("no namespace is excluded, and none lets in references from others: %s", error)
        return {}
    return {one.name: one for one in store.all()}
