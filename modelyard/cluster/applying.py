"""Server-side apply, with two repairs that the server does not make.

* Replicas: a manager that stops applying ``spec.replicas`` gives the field up, and where the server does not record
  that a scaler took it over (before 1.22) it falls back to 1. So the field is first handed to a second manager.
* Structs: of one that is applied no more, such as a probe, what the server has set by default stays, and without the
  rest that is invalid. So where the server says so, what was applied before is first taken away whole.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from modelyard.cluster.discovery import Discovery
from modelyard.cluster.errors import CONFLICTS, WRITE_ATTEMPTS, Conflict, Invalid, NotFound
from modelyard.cluster.objects import Object, metadata, resource_version
from modelyard.cluster.transport import APPLY_PATCH, MERGE_PATCH, ApiRequest, Transport
from modelyard.objects import ResourceType, warn_of_dropped_fields


@dataclass(frozen=True, slots=True)
class Applying:
    """Options of applying objects; see ``Cluster.apply``."""

    transport: Transport
    discovery: Discovery
    force: bool
    field_manager: str
    subresource: str | None
    dry_run: bool
    timeout: float | None

    async def apply(self, body: Object) -> Object:
        kind, name, namespace = body.get("kind"), metadata(body).get("name"), metadata(body).get("namespace")
        if not kind or not name or not body.get("apiVersion"):
            raise Invalid(
                "the manifest needs apiVersion, kind and metadata.name",
                verb="apply",
                object=f"{kind or 'object'} {name or 'without a name'}",
                reason="Incomplete",
            )
        type = await self.discovery.resolve(body["apiVersion"], kind)
        if type.namespaced and not namespace:
            raise Invalid("metadata.namespace is missing", verb="apply", object=f"{kind} {name}", reason="NoNamespace")
        if not type.namespaced:
            namespace = None

        whole = self.subresource is None and not self.dry_run
        if whole and "replicas" not in (body.get("spec") or {}) and await self.discovery.has_subresource(type, "scale"):
            await self._hand_over_replicas(type, name, namespace)

        try:
            stored = await self._send(type, body)
        except Invalid:
            if self.dry_run or self.subresource or not await self._give_up(type, body):
                raise
            stored = await self._send(type, body)
            await self._forget(type, stored)
        warn_of_dropped_fields(body, stored, type.describe(namespace, name))
        return stored

    async def _send(self, type: ResourceType, body: Object) -> Object:
        name, namespace = metadata(body)["name"], metadata(body).get("namespace")
        query = {"fieldManager": self.field_manager, "force": str(self.force).lower(), "fieldValidation": "Strict"}
        if self.dry_run:
            query["dryRun"] = "All"
        return await self.transport.json(
            ApiRequest(
                "PATCH",
                type.path(namespace, name, self.subresource),
                "apply",
                type.describe(namespace, name, self.subresource),
                query,
                # The type may be served in another version than the manifest names (a legacy one).
                {**body, "apiVersion": type.api_version},
                APPLY_PATCH,
                timeout=self.timeout,
            )
        )

    async def _get(self, type: ResourceType, name: str, namespace: str | None) -> Object:
        path, shown = type.path(namespace, name), type.describe(namespace, name)
        return await self.transport.json(ApiRequest("GET", path, "get", shown, timeout=self.timeout))

    async def _patch(self, type: ResourceType, obj: Object, query: dict[str, str], patch: Object) -> None:
        path, shown = (do(metadata(obj).get("namespace"), metadata(obj)["name"]) for do in (type.path, type.describe))
        request = ApiRequest("PATCH", path, "patch", shown, query, patch, MERGE_PATCH, timeout=self.timeout)
        await self.transport.json(request)

    async def _give_up(self, type: ResourceType, body: Object) -> bool:
        """Take away in one write what the manager no longer applies, if anything. ``_forget`` must drop its claims."""
        try:
            live = await self._get(type, metadata(body)["name"], metadata(body).get("namespace"))
        except NotFound:
            return False
        if metadata(body).get("uid") not in (None, metadata(live)["uid"]):
            return False
        entries = metadata(live).get("managedFields") or ()
        claims = [(entry.get("manager") == self.field_manager, entry.get("fieldsV1") or {}) for entry in entries]
        applied: Object = next((fields for mine, fields in claims if mine), {})
        theirs = [fields for mine, fields in claims if not mine]
        parts = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata", "status")}
        if "replicas" in (live.get("spec") or {}):
            parts["spec"] = {"replicas": live["spec"]["replicas"], **(parts.get("spec") or {})}
        there = {key: live[key] for key in parts if key in live}
        patch = _merge_patch(there, _without_given_up(there, parts, applied, theirs))
        if not patch:
            return False
        patch["metadata"] = {"uid": metadata(live)["uid"], "resourceVersion": resource_version(live)}
        await self._patch(type, body, {"fieldManager": f"{self.field_manager}-structs"}, patch)
        return True

    async def _forget(self, type: ResourceType, stored: Object) -> None:
        """Drop what ``_give_up`` is said to have updated: it would keep fields that are applied no more."""
        entries = metadata(stored).get("managedFields") or []
        left = [entry for entry in entries if entry.get("manager") != f"{self.field_manager}-structs"]
        if len(left) == len(entries):
            return
        patch = {"metadata": {"resourceVersion": resource_version(stored), "managedFields": left}}
        with suppress(Conflict):
            await self._patch(type, stored, {}, patch)

    async def _hand_over_replicas(self, type: ResourceType, name: str, namespace: str | None) -> None:
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                live = await self._get(type, name, namespace)
            except NotFound:
                return
            if _owners_of_replicas(live) != {(self.field_manager, "Apply")}:
                return
            claim = {
                "apiVersion": type.api_version,
                "kind": type.kind,
                "metadata": {"name": name, "resourceVersion": resource_version(live)}
                | ({"namespace": namespace} if namespace else {}),
                "spec": {"replicas": live["spec"]["replicas"]},
            }
            try:
                await replace(self, force=True, field_manager=f"{self.field_manager}-replicas")._send(type, claim)
                return
            except Conflict:  # scaled or otherwise changed since it was read
                if attempt == WRITE_ATTEMPTS:
                    raise
                await asyncio.sleep(CONFLICTS.delay(attempt, random.random()))


def _without_given_up(live: Any, wanted: Any, applied: Object, theirs: list[Object]) -> Any:
    """Merge ``wanted`` into ``live``; of the rest drop what was ``applied``, but not ``theirs`` (``fieldsV1``)."""

    def below(place: str) -> tuple[Object, list[Object]]:
        return applied.get(place) or {}, [fields[place] for fields in theirs if place in fields]

    if isinstance(live, dict) and isinstance(wanted, dict):
        result = {**live, **wanted}
        for key in result:
            mine, others = below(f"f:{key}")
            if key in wanted:
                result[key] = _without_given_up(live.get(key), wanted[key], mine, others)
            elif others and isinstance(live[key], dict):
                result[key] = _without_given_up(live[key], {}, mine, others)
        gone = {key for key in live.keys() - wanted.keys() if f"f:{key}" in applied and not below(f"f:{key}")[1]}
        return {key: value for key, value in result.items() if key not in gone}
    if isinstance(live, list) and isinstance(wanted, list):
        keys = {place: json.loads(place[2:]) for place in applied if place.startswith("k:")}
        items, left = [], list(live)
        for item in wanted:
            place = next((place for place, key in keys.items() if _has(item, key)), "")
            there = next((one for one in left if place and _has(one, keys[place])), None)
            if there is not None:
                left.remove(there)
            items.append(_without_given_up(there, item, *below(place)))
        return [*items, *(one for one in left if keys and not any(_has(one, key) for key in keys.values()))]
    return wanted


def _has(item: Any, key: Object) -> bool:
    """Match an item of a list with its key; a missing protocol means TCP."""
    return isinstance(item, dict) and all(item.get(name, "TCP") == value for name, value in key.items())


def _merge_patch(live: Any, wanted: Any) -> Any:
    patch: Object = {key: None for key in live if key not in wanted}
    for key, value in wanted.items():
        before = live.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            patch |= {key: inner} if (inner := _merge_patch(before, value)) else {}
        elif before != value:
            patch[key] = value
    return patch


def _owners_of_replicas(obj: Object) -> set[tuple[Any, Any]]:
    return {
        (entry.get("manager"), entry.get("operation"))
        for entry in metadata(obj).get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    }
