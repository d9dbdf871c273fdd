"""The lists of one tick, each asked for once however many parts of the loop need it, and what is parsed of them.

Pods, the largest list by far, are parsed again only when they have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from modelyard.cluster import Cluster, ResourceType
from modelyard.objects import Pod, parse

NAMESPACE_LISTS = 20
"""Up to this many namespaces, objects are listed per namespace; beyond, once for the whole cluster."""
CONCURRENCY = 16

Items = list[dict[str, Any]]


class PodCache:
    """Parsed pods by uid and resourceVersion. One that no tick asked for twice in a row is forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Pod]] = {}
        self._seen: dict[str, tuple[str, Pod]] = {}

    def turn(self) -> None:
        """A new tick begins: what the last one did not ask for goes."""
        self._known, self._seen = self._seen, {}

    def parse(self, item: Mapping[str, Any]) -> Pod:
        """The pod, parsed now or earlier."""
        metadata = item["metadata"]
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
        if not uid or not version:
            return parse.pod(item)
        found = self._seen.get(uid) or self._known.get(uid)
        if found is None or found[0] != version:
            found = version, parse.pod(item)
        self._seen[uid] = found
        return found[1]


class Reader:
    """``async with Reader(cluster, pods) as reader``: the lists of one tick.

    A list that fails, fails for everybody who asked for it; the exceptions are those of ``Cluster.list``.
    """

    def __init__(self, cluster: Cluster, pods: PodCache | None = None) -> None:
        self.cluster = cluster
        self.pods = pods or PodCache()
        self.pods.turn()
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._lists: dict[tuple[ResourceType, str | None, str, str, bool], asyncio.Task[Items]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for task in self._lists.values():
            task.cancel()
        await asyncio.gather(*self._lists.values(), return_exceptions=True)

    async def list(
        self,
        kind: ResourceType,
        namespaces: Iterable[str],
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Items:
        """Objects of a kind in these namespaces (none: all); ``cached`` reads the API server's watch cache.

        Objects are shared with others who ask for the same: not to be changed.
        """
        spaces: list[str | None] = sorted(set(namespaces)) or [None]  # type: ignore[assignment]

        def one(space: str | None) -> asyncio.Future[Items]:
            asked = kind, space, label_selector, field_selector, cached
            if asked not in self._lists:
                self._lists[asked] = asyncio.create_task(self._list(*asked))
            return asyncio.shield(self._lists[asked])  # whoever gives up waiting does not take it from the others

        if len(spaces) > NAMESPACE_LISTS:
            keep = set(spaces)
            return [item for item in await one(None) if item["metadata"].get("namespace") in keep]
        found = await asyncio.gather(*(one(space) for space in spaces))
        return found[0] if len(found) == 1 else [item for items in found for item in items]

    async def _list(
        self, kind: ResourceType, space: str | None, label_selector: str, field_selector: str, cached: bool
    ) -> Items:
        async with self._gate:
            return (await self.cluster.list(kind, space, label_selector, field_selector, cached=cached)).items
