"""VariantAutoscalings with their workloads' replica counts, bindings, excluded namespaces: kept current by watches.

What ``modelyard.autoscaling.live.exporter`` renders at a scrape. A count that cannot be read any more keeps its last
value: a consumer must never see a collapse that did not happen. Only what is deleted goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from modelyard.autoscaling.fleet import Variant
from modelyard.autoscaling.kinds import BINDINGS, VARIANTS
from modelyard.autoscaling.live import observe
from modelyard.autoscaling.live.bindings.gauges import Gauges, gauges_of
from modelyard.autoscaling.live.collect import LISTED
from modelyard.autoscaling.select import EXCLUDE_ANNOTATION, INSTANCE_LABEL
from modelyard.cluster import NAMESPACES, Cluster, ClusterError, ResourceType, Unavailable, UnknownKind
from modelyard.objects import Key, WorkloadId, parse

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Object = dict[str, Any]
_Find = Callable[[], Awaitable[ResourceType]]


class Fleetwatch:
    """The picture of one controller installation's variants.

    ``instance`` selects as ``FleetSettings.controller_instance`` does, ``watch_namespace`` as its namesake: one
    namespace only, whose exclusion is then ignored. ``retry_after`` is the pause in seconds before something that
    the cluster does not serve or allow (a kind whose CRD is missing) is tried again.
    """

    def __init__(
        self,
        cluster: Cluster,
        instance: str | None = None,
        watch_namespace: str | None = None,
        retry_after: float = 15.0,
    ) -> None:
        self.cluster = cluster
        self.instance = instance or None
        self.watch_namespace = watch_namespace or None
        self.retry_after = retry_after
        self.synced = asyncio.Event()
        """Set once everything there is has been listed."""
        self._variants: dict[Key, Variant] = {}
        self._bindings: dict[Key, tuple[Gauges, ...]] = {}
        self._excluded: dict[Key, bool] = {}
        self._replicas: dict[tuple[str, str], dict[Key, int]] = {}
        self._awaited: set[str] = set()
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Watch until cancelled. Raises ``ClusterError`` (in a group) when VariantAutoscalings may not be watched."""
        async with asyncio.TaskGroup() as self._tasks:
            self._start("VariantAutoscalings", _known(VARIANTS), self._variants, self._variant, vital=True)
            self._start(f"{BINDINGS.kind}s", _known(BINDINGS), self._bindings, self._binding)
            if self.watch_namespace is None:
                self._start("namespaces", _known(NAMESPACES), self._excluded, _is_excluded)

    def published(self) -> Iterator[tuple[Variant, int | None]]:
        """Every variant whose gauges may be served, with its workload's current replicas (``None``: unknown)."""
        for variant in sorted(self._variants.values(), key=lambda v: v.key):
            if variant.deleting or variant.last_run is None or variant.target is None:
                continue
            if self._excluded.get(Key("", variant.key.namespace)):
                continue
            if variant.labels.get(INSTANCE_LABEL) != self.instance:
                continue
            if variant.memory.hidden:
                continue
            target = variant.target
            counts = self._replicas.get((target.group, target.kind), {})
            yield variant, counts.get(Key(variant.key.namespace, target.name))

    def published_bindings(self) -> Iterator[Gauges]:
        """The targets of every binding whose gauges may be served."""
        for key, units in sorted(self._bindings.items()):
            if not self._excluded.get(Key("", key.namespace)):
                yield from units

    async def _binding(self, _: ResourceType, obj: Object) -> tuple[Gauges, ...]:
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp") or (metadata.get("labels") or {}).get(INSTANCE_LABEL) != self.instance:
            return ()
        return tuple(gauges_of(parse.key_of(obj), obj.get("status") or {}))

    def _start(
        self,
        what: str,
        find: _Find,
        into: dict[Key, _T],
        read: Callable[[ResourceType, Object], Awaitable[_T | None]],
        vital: bool = False,
    ) -> None:
        """From now on keep ``into`` equal to what ``read`` makes of all objects of one type (``None``: unchanged)."""
        self._awaited.add(what)
        self._tasks.create_task(self._mirror(what, find, into, read, vital))

    async def _mirror(
        self,
        what: str,
        find: _Find,
        into: dict[Key, _T],
        read: Callable[[ResourceType, Object], Awaitable[_T | None]],
        vital: bool,
    ) -> None:
        said = ""
        while True:
            try:
                await self._follow(what, await find(), into, read)
            except ClusterError as error:
                if vital and not isinstance(error, (UnknownKind, Unavailable)):
                    raise
                if str(error) != said:
                    said = str(error)
                    log.warning("%s cannot be watched, trying again every %g s: %s", what, self.retry_after, error)
                if not vital and not isinstance(error, Unavailable):
                    self._arrived(what)
            await asyncio.sleep(self.retry_after)

    async def _follow(
        self,
        what: str,
        resource: ResourceType,
        into: dict[Key, _T],
        read: Callable[[ResourceType, Object], Awaitable[_T | None]],
    ) -> None:
        listed: set[Key] | None = set()
        namespace = self.watch_namespace if resource.namespaced else None
        async with aclosing(self.cluster.watch(resource, namespace)) as events:
            async for event in events:
                if event.kind == "SYNC":
                    for key in into.keys() - listed if listed is not None else ():
                        del into[key]  # deleted while there was no watch
                    listed = None
                    self._arrived(what)
                    continue
                key = parse.key_of(event.object)
                if event.kind == "DELETED":
                    into.pop(key, None)
                    continue
                if listed is not None:
                    listed.add(key)
                value = await read(resource, event.object)
                if value is not None:
                    into[key] = value

    def _arrived(self, what: str) -> None:
        self._awaited.discard(what)
        if not self._awaited and not self.synced.is_set():
            self.synced.set()
            log.info("all resources are listed: %d VariantAutoscalings", len(self._variants))

    async def _variant(self, _: ResourceType, obj: Object) -> Variant | None:
        try:
            variant = observe.variant(obj)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # One object in a form that the schema should have refused must not cost all others their gauges.
            log.error("VariantAutoscaling %s cannot be read: %s", parse.key_of(obj), error)
            return None
        if variant.target is not None:
            kind = (variant.target.group, variant.target.kind)
            if kind not in self._replicas:
                self._replicas[kind] = {}
                self._watch_workloads(*kind)
        return variant

    def _watch_workloads(self, group: str, kind: str) -> None:
        async def count(resource: ResourceType, obj: Object) -> int | None:
            if (group, kind) in LISTED:
                return int((obj.get("status") or {}).get("replicas") or 0)
            # Where another kind keeps its count is known to its scale subresource alone.
            key = parse.key_of(obj)
            try:
                return (await self.cluster.read_scale(resource, key.name, key.namespace)).status_replicas
            except ClusterError as error:
                log.debug("replicas of %s %s: %s", kind, key, error)
                return None

        self._start(
            f"{kind}.{group}" if group else kind,
            lambda: self.cluster.resolve(WorkloadId("", group, kind, "").api_version, kind),
            self._replicas[group, kind],
            count,
        )


def _known(resource: ResourceType) -> _Find:
    async def find() -> ResourceType:
        return resource

    return find


async def _is_excluded(_: ResourceType, obj: Object) -> bool:
    return (obj["metadata"].get("annotations") or {}).get(EXCLUDE_ANNOTATION) == "true"
