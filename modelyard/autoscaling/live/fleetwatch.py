"""VariantAutoscalings with their workloads' replica counts, bindings, Leases, excluded namespaces, as mirrored.

What ``modelyard.autoscaling.live.exporter`` renders at a scrape. A count that cannot be read any more keeps its last
value: a consumer must never see a collapse that did not happen. Only what is deleted goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from functools import partial

from modelyard.autoscaling.fleet import BINDINGS, VARIANTS, Variant
from modelyard.autoscaling.live.controller_gauges import LeaseState, Told, lease_state
from modelyard.autoscaling.live.wants import LISTED
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.bindings import Gauges, gauges_of
from modelyard.autoscaling.variants import EXCLUDE_ANNOTATION, INSTANCE_LABEL
from modelyard.cluster import Cluster, ClusterError, NotFound, Unavailable, UnknownKind
from modelyard.fairness import interleave
from modelyard.objects import LEASES, NAMESPACES, Key, Object, ResourceType, WorkloadId, parse
from modelyard.reconcile.kernel import Mirror, Store
from modelyard.reconcile.plans import Want

log = logging.getLogger(__name__)

MOST_ASKED = 100
"""Workloads of a namespace whose scale is read at one look."""
Binding = tuple[tuple[Gauges, ...], Told]
Count = tuple[str, int | None]
"""Resource version and replicas of a workload; ``None``: where the count is, its scale subresource alone knows."""
UNREAD: Count = "", None


class Fleetwatch:
    """The picture of one controller installation's variants.

    ``instance`` selects as ``FleetSettings.controller_instance`` does, ``watch_namespace`` as its namesake: one
    namespace only, whose exclusion is then ignored. ``retry_after`` is the pause in seconds before something that
    the cluster does not serve or allow (a kind whose CRD is missing) is tried again. ``leases`` are those that keep
    writers apart.
    """

    def __init__(
        self,
        cluster: Cluster,
        instance: str | None = None,
        watch_namespace: str | None = None,
        retry_after: float = 15.0,
        leases: Iterable[Key] = (),
    ) -> None:
        self.cluster = cluster
        self.instance = instance or None
        self.synced = asyncio.Event()
        """Set once everything there is has been listed."""
        self._spaces = (watch_namespace,) if watch_namespace else ()
        self._retry_after = retry_after
        self._mirror = Mirror(cluster, retry_after, loudness=logging.WARNING)
        self._variants = self._mirror.store(Want(VARIANTS, observe.variant), self._spaces)
        self._bindings = self._mirror.store(Want(BINDINGS, self._binding), self._spaces)
        self._leases = {
            key: self._mirror.store(
                Want(LEASES, lease_state, field_selector=f"metadata.name={key.name}"), (key.namespace,)
            )
            for key in leases
        }
        self._excluded = None if self._spaces else self._mirror.store(Want(NAMESPACES, _is_excluded))
        self._workloads: dict[tuple[str, str], tuple[ResourceType, Store[Count]]] = {}
        self._scales: dict[tuple[str, str, Key], Count] = {}

    async def run(self) -> None:
        """Watch until cancelled. Raises ``ClusterError`` when VariantAutoscalings may not be watched."""
        async with self._mirror as mirror:
            mirror.follow()
            while True:
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._retry_after):
                        await mirror.moved()

    def published(self) -> Iterator[tuple[Variant, int | None]]:
        """Every variant whose gauges may be served, with its workload's current replicas (``None``: unknown)."""
        for variant in self._handled():
            if variant.last_run is not None and variant.target is not None and not variant.memory.hidden:
                yield variant, self._replicas(variant)

    def published_bindings(self) -> Iterator[Gauges]:
        for units, told in self._bindings.all():
            yield from () if self._is_out(told.key.namespace) else units

    def told(self) -> Iterator[Told]:
        yield from (Told(VARIANTS.kind, variant.key, variant.conditions) for variant in self._handled())
        yield from (told for _, told in self._bindings.all() if not self._is_out(told.key.namespace))

    def leases(self) -> Iterator[LeaseState]:
        """The Leases that keep writers apart, those that do not exist among them; none that may not be read."""
        for key, store in self._leases.items():
            if not store.errors:
                yield store.get(key) or LeaseState(key)

    def _handled(self) -> Iterator[Variant]:
        for variant in self._variants.all():
            mine = variant.labels.get(INSTANCE_LABEL) == self.instance
            if mine and not variant.deleting and not self._is_out(variant.key.namespace):
                yield variant

    def _is_out(self, namespace: str) -> bool:
        return self._excluded is not None and self._excluded.get(Key("", namespace)) is not None

    def _replicas(self, variant: Variant) -> int | None:
        target = group, kind, key = _target(variant)
        found = self._workloads[group, kind][1].get(key) if (group, kind) in self._workloads else None
        if found is None or found[1] is not None:
            return None if found is None else found[1]
        return self._scales.get(target, UNREAD)[1]

    async def _look(self) -> None:
        for error in self._variants.errors.values():
            if not isinstance(error, (UnknownKind, Unavailable)):
                raise error
        complete = self._mirror.synced
        targets = [_target(variant) for variant in self._variants.all() if variant.target is not None]
        for group, kind in sorted({(group, kind) for group, kind, _ in targets} - self._workloads.keys()):
            try:
                resource = await self.cluster.resolve(WorkloadId("", group, kind, "").api_version, kind)
            except ClusterError as error:
                log.debug("%s", error)
                complete = complete and not isinstance(error, Unavailable)
                continue
            store = self._mirror.store(Want(resource, partial(_count, listed=(group, kind) in LISTED)), self._spaces)
            self._workloads[group, kind] = resource, store
            complete = False
        wanted = (target for target in targets if self._must_ask(*target))
        for target in interleave(wanted, lambda target: target[2].namespace, MOST_ASKED)[0]:
            await self._ask(*target)
        if complete and not self.synced.is_set():
            self.synced.set()
            log.info("all resources are listed: %d VariantAutoscalings", len(self._variants.all()))

    def _must_ask(self, group: str, kind: str, key: Key) -> bool:
        found = self._workloads[group, kind][1].get(key) if (group, kind) in self._workloads else None
        known = self._scales.get((group, kind, key))
        return found is not None and found[1] is None and (known is None or known[0] != found[0])

    async def _ask(self, group: str, kind: str, key: Key) -> None:
        """A workload without a scale is asked again when it changes."""
        resource, store = self._workloads[group, kind]
        found = store.get(key)
        if found is None:
            return
        count = self._scales.get((group, kind, key), UNREAD)[1]
        try:
            count = (await self.cluster.read_scale(resource, key.name, key.namespace)).status_replicas
        except ClusterError as error:
            log.debug("replicas of %s %s: %s", kind, key, error)
            if not isinstance(error, (NotFound, UnknownKind)):
                return
        self._scales[group, kind, key] = found[0], count

    def _binding(self, obj: Object) -> Binding | None:
        metadata, status, key = obj["metadata"], obj.get("status") or {}, parse.key_of(obj)
        if metadata.get("deletionTimestamp") or (metadata.get("labels") or {}).get(INSTANCE_LABEL) != self.instance:
            return None
        return tuple(gauges_of(key, status)), Told(BINDINGS.kind, key, parse.conditions(status.get("conditions")))


def _is_excluded(namespace: Object) -> bool | None:
    return (namespace["metadata"].get("annotations") or {}).get(EXCLUDE_ANNOTATION) == "true" or None


def _target(variant: Variant) -> tuple[str, str, Key]:
    assert variant.target is not None
    return variant.target.group, variant.target.kind, Key(variant.key.namespace, variant.target.name)


def _count(obj: Object, listed: bool) -> Count:
    replicas = int((obj.get("status") or {}).get("replicas") or 0) if listed else None
    return obj["metadata"].get("resourceVersion", ""), replicas
