"""Which kinds, versions and subresources this server has.

Reads the API's own lists, one group version at a time and only when asked, so that a broken aggregated API hurts
nobody who does not use it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from modelyard.cluster.errors import UnknownKind
from modelyard.cluster.transport import ApiRequest, Transport
from modelyard.objects import ResourceType


@dataclass(slots=True)
class _Kinds:
    types: dict[str, ResourceType] = field(default_factory=dict)
    subresources: set[tuple[str, str]] = field(default_factory=set)


class Discovery:
    """A cache of the server's API lists. An unknown kind makes it read anew, at most every ``discovery_interval``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._groups: dict[str, tuple[str, ...]] | None = None
        self._kinds: dict[str, _Kinds] = {}
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def resolve(self, api_version: str, kind: str) -> ResourceType:
        """The type of ``kind``. Raises ``UnknownKind``.

        An empty ``api_version`` means the group ``apps`` (as in a scale target), then core. A version that the server
        does not serve (any more), or an empty one (``apps/``), falls back to the group's preferred version.
        """
        if not api_version:
            group, version = "apps", ""
        else:
            group, _, version = api_version.rpartition("/")
        async with self._lock:
            for _ in range(2):
                found = await self._find(group, version, kind)
                if found is None and not api_version:
                    found = await self._find("", "", kind)
                if found is not None or not self._forget():
                    break
            if found is None:
                served = ", ".join((await self._load_groups()).get(group, ())) or "nothing"
                raise UnknownKind(
                    f"{self._transport.server} serves no {kind} in {api_version or 'apps/v1 or v1'}; "
                    f"of the group {group or 'core'!r} it serves {served}",
                    verb="resolve",
                    object=f"{kind} {api_version}".strip(),
                )
            return found

    async def has_subresource(self, type: ResourceType, subresource: str) -> bool:
        async with self._lock:
            return (type.plural, subresource) in (await self._load_kinds(type.group, type.version)).subresources

    async def _find(self, group: str, version: str, kind: str) -> ResourceType | None:
        served = (await self._load_groups()).get(group, ())
        for candidate in (version, *served) if version in served else served:
            found = (await self._load_kinds(group, candidate)).types.get(kind)
            if found is not None:
                return found
        return None

    def _forget(self) -> bool:
        """Drop the cache, unless it was read just now."""
        if time.monotonic() - self._read_at < self._transport.settings.discovery_interval:
            return False
        self._groups = None
        self._kinds.clear()
        return True

    async def _load_groups(self) -> dict[str, tuple[str, ...]]:
        if self._groups is None:
            answer = await self._get("/apis", "API groups")
            core = await self._get("/api", "core API versions")
            self._read_at = time.monotonic()
            groups = {"": tuple(core.get("versions") or ())}
            for group in answer.get("groups") or ():
                preferred = (group.get("preferredVersion") or {}).get("version")
                versions = [entry["version"] for entry in group["versions"]]
                versions.sort(key=lambda version: version != preferred)  # stable: the rest keeps the server's order
                groups[group["name"]] = tuple(versions)
            self._groups = groups
        return self._groups

    async def _load_kinds(self, group: str, version: str) -> _Kinds:
        key = f"{group}/{version}"
        if key not in self._kinds:
            kinds = _Kinds()
            if version in (await self._load_groups()).get(group, ()):
                path = f"/apis/{group}/{version}" if group else f"/api/{version}"
                try:
                    answer = await self._get(path, f"kinds of {key.lstrip('/')}")
                except UnknownKind:  # it went away since the groups were read
                    answer = {}
                for entry in answer.get("resources") or ():
                    plural, _, subresource = entry["name"].partition("/")
                    if subresource:
                        kinds.subresources.add((plural, subresource))
                    else:
                        kinds.types[entry["kind"]] = ResourceType(
                            group, version, entry["kind"], plural, bool(entry["namespaced"])
                        )
            self._kinds[key] = kinds
        return self._kinds[key]

    async def _get(self, path: str, what: str) -> dict[str, Any]:
        return await self._transport.json(ApiRequest("GET", path, "discover", what))
