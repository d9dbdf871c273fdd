"""``Cluster``: every call Modelyard makes to the Kubernetes API.

Objects are plain dictionaries in the API's own form. Reads and idempotent writes are repeated when the server gives no
answer; every call ends within ``timeout`` seconds (default: the settings') by a result or a ``ClusterError``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from modelyard.cluster import applying, watching
from modelyard.cluster.connection import ClusterSettings
from modelyard.cluster.discovery import Discovery
from modelyard.cluster.errors import CONFLICTS, WRITE_ATTEMPTS, Conflict, Invalid, NotFound, UnknownKind
from modelyard.cluster.events import EventRecorder
from modelyard.cluster.objects import Object, ObjectList, ScaleSubresource, WatchEvent, metadata, resource_version
from modelyard.cluster.transport import JSON, MERGE_PATCH, METADATA, ApiRequest, Transport
from modelyard.objects import PODS, ResourceType, warn_of_dropped_fields


class Cluster:
    """One connection to one cluster. ``async with Cluster.connect(settings) as cluster: ...``"""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.settings = transport.settings
        self.discovery = Discovery(transport)
        self._events = EventRecorder(transport)

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: ClusterSettings | None = None) -> AsyncIterator[Cluster]:
        """A connection for the length of the ``with``. Does not wait for the server. Raises ``NotConfigured``."""
        transport = await Transport.open(settings or ClusterSettings())
        try:
            yield cls(transport)
        finally:
            await transport.close()

    def now(self) -> float:
        return self.transport.clock.now()

    # Reading

    async def get(
        self, type: ResourceType, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> Object:
        """One object. Raises ``NotFound``."""
        return await self._call("GET", "get", type, namespace, name, timeout=timeout)

    async def exists(self, type: ResourceType, name: str, namespace: str | None = None) -> bool:
        """Return whether there is an object of this name; only its metadata is asked for."""
        try:
            await self._call("GET", "get", type, namespace, name, accept=METADATA)
        except NotFound:
            return False
        return True

    async def list(
        self,
        type: ResourceType,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
        *,
        timeout: float | None = None,
    ) -> ObjectList:
        """All objects of a type, of one namespace or all.

        ``cached`` reads the server's watch cache: several times faster for large collections, possibly a moment old.
        Otherwise the list is consistent and read in pages.
        """
        type = await self._served(type)
        return await watching.list_objects(
            self.transport, type, namespace, label_selector, field_selector, cached=cached, timeout=timeout
        )

    async def log(self, pod: str, namespace: str, lines: int = 1) -> str:
        """The last lines of what a pod's only container wrote. Raises ``NotFound`` or, before it runs, ``Invalid``."""
        request = ApiRequest(
            "GET",
            PODS.path(namespace, pod, "log"),
            "read the log of",
            PODS.describe(namespace, pod),
            {"tailLines": str(lines), "limitBytes": "65536"},
            most=1 << 20,
        )
        return (await self.transport.send(request)).decode("utf-8", "replace")

    async def watch(
        self,
        type: ResourceType,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        *,
        cached: bool = False,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Everything that is there (ADDED, then SYNC) and every change from then on, without end.

        Reconnects by itself. Where the server's history no longer reaches back, it lists anew and gives the difference
        to what it knew (DELETED for what vanished), then SYNC. With ``resource_version`` it begins there, without the
        first list, and so cannot know of objects that vanish during a first gap. Raises a ``ClusterError`` only for
        what waiting does not cure (forbidden, unknown kind).
        Leave the loop by closing the iterator (``contextlib.aclosing``) or by cancellation.
        """
        type = await watching.patiently(lambda: self._served(type), self.settings)
        watch = watching.Watch(
            self.transport, type, namespace, label_selector, field_selector, resource_version, cached=cached
        )
        events = watch.events()
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    # Writing

    async def create(
        self,
        type: ResourceType,
        body: Object,
        namespace: str | None = None,
        dry_run: bool = False,
        *,
        strict: bool = True,
        timeout: float | None = None,
    ) -> Object:
        """Create an object; ``namespace`` defaults to the body's. Raises ``AlreadyExists``.

        Not repeated if the server may have acted on it: an ``Unavailable`` then leaves open whether it exists.
        The server may drop fields that it does not know, which is logged; not ``strict`` leaves that to the caller.
        """
        query = {"fieldManager": self.settings.field_manager, "fieldValidation": "Strict" if strict else "Warn"}
        if dry_run:
            query["dryRun"] = "All"
        namespace = namespace or metadata(body).get("namespace")
        type = await self._served(type)
        name = str(metadata(body).get("name") or metadata(body).get("generateName") or "")
        self._need_namespace("create", type, name, namespace)
        request = ApiRequest(
            "POST",
            type.path(namespace),
            "create",
            type.describe(namespace, name),
            query,
            {"apiVersion": type.api_version, "kind": type.kind, **body},
            idempotent=False,
            timeout=timeout,
        )
        stored = await self.transport.json(request)
        if strict:
            warn_of_dropped_fields(body, stored, type.describe(namespace, name))
        return stored

    async def apply(
        self,
        body: Object,
        force: bool = True,
        field_manager: str | None = None,
        subresource: str | None = None,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Server-side apply: make the object have these fields and own them; create it if need be.

        ``field_manager`` defaults to the settings'. Without ``force`` a field that another manager set differently
        raises ``Conflict``. A body without ``spec.replicas`` leaves the number of replicas as it is, also when an
        earlier apply had set it.
        """
        manager = field_manager or self.settings.field_manager
        how = applying.Applying(self.transport, self.discovery, force, manager, subresource, dry_run, timeout)
        return await how.apply(body)

    async def merge_patch(
        self,
        type: ResourceType,
        name: str,
        patch: Object,
        namespace: str | None = None,
        subresource: str | None = None,
        *,
        timeout: float | None = None,
    ) -> Object:
        """JSON merge patch. With ``metadata.resourceVersion`` in the patch, a changed object raises ``Conflict``."""
        return await self._call(
            "PATCH", "patch", type, namespace, name, subresource, patch, content_type=MERGE_PATCH, timeout=timeout
        )

    async def replace(
        self, type: ResourceType, body: Object, subresource: str | None = None, *, timeout: float | None = None
    ) -> Object:
        """Replace a whole object; with ``metadata.resourceVersion`` in it a changed object raises ``Conflict``."""
        type = await self._served(type)
        body = {"apiVersion": type.api_version, "kind": type.kind, **body}
        name, namespace = str(metadata(body).get("name") or ""), metadata(body).get("namespace")
        return await self._call("PUT", "replace", type, namespace, name, subresource, body, timeout=timeout)

    async def delete(
        self,
        type: ResourceType,
        name: str,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        propagation: str | None = None,
        *,
        uid: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Delete an object, if it is there. ``propagation``: Background, Foreground or Orphan.

        ``uid``: only this very object; raises ``Conflict`` if it is another.
        """
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            body["propagationPolicy"] = propagation
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        with suppress(NotFound):
            await self._call("DELETE", "delete", type, namespace, name, None, body, timeout=timeout)

    async def update_status(
        self,
        type: ResourceType,
        name: str,
        namespace: str | None,
        change: Callable[[Object], Object | None],
        *,
        current: Object | None = None,
        timeout: float | None = None,
    ) -> Object | None:
        """Change an object's status without losing anybody else's change.

        ``change`` gets the current object and returns the merge patch for its ``status``, or ``None`` when there is
        nothing to do (the result is then ``None``). If the object changed meanwhile it is read again and ``change``
        is called again, so it must be free of side effects. Raises ``Conflict`` after the last of some attempts.
        ``current``: the object as just read, which saves the first read. ``timeout`` holds for each request.
        """
        attempt = 0
        while True:
            attempt += 1
            if current is None:
                current = await self.get(type, name, namespace, timeout=timeout)
            status = change(current)
            if not status:
                return None
            patch = {"metadata": {"resourceVersion": resource_version(current)}, "status": status}
            try:
                return await self.merge_patch(type, name, patch, namespace, "status", timeout=timeout)
            except Conflict as error:
                if attempt == WRITE_ATTEMPTS:
                    error.detail += f"; {attempt} attempts: another writer keeps changing this object"
                    raise
            current = None
            await asyncio.sleep(CONFLICTS.delay(attempt, random.random()))

    # Scaling

    async def read_scale(
        self, type: ResourceType, name: str, namespace: str | None, *, timeout: float | None = None
    ) -> ScaleSubresource:
        """The scale subresource. Raises ``NotFound`` or, for a kind that does not scale, ``UnknownKind``."""
        return _scale(await self._call("GET", "read scale of", type, namespace, name, "scale", timeout=timeout))

    async def write_scale(
        self,
        type: ResourceType,
        name: str,
        namespace: str | None,
        replicas: int,
        resource_version: str | None = None,
        *,
        timeout: float | None = None,
    ) -> ScaleSubresource:
        """Set the wanted replicas. With ``resource_version`` (of a read scale) a changed object raises ``Conflict``."""
        patch: Object = {"spec": {"replicas": replicas}}
        if resource_version:
            patch["metadata"] = {"resourceVersion": resource_version}
        return _scale(
            await self._call(
                "PATCH", "scale", type, namespace, name, "scale", patch, content_type=MERGE_PATCH, timeout=timeout
            )
        )

    async def resolve(self, api_version: str, kind: str) -> ResourceType:
        """The served type of ``apiVersion`` and ``kind``. Raises ``UnknownKind``; see ``Discovery.resolve``."""
        return await self.discovery.resolve(api_version, kind)

    async def serves(self, api_version: str, kind: str) -> bool:
        """Whether the server has the kind in just this version."""
        try:
            return (await self.discovery.resolve(api_version, kind)).api_version == api_version
        except UnknownKind:
            return False

    async def record_event(
        self, regarding: Object, reason: str, message: str, kind: str = "Normal", component: str = "modelyard"
    ) -> None:
        """Record a Kubernetes Event about an object (or a reference to one). Never raises; see ``EventRecorder``."""
        await self._events.record(regarding, reason, message, kind, component)

    async def _served(self, type: ResourceType) -> ResourceType:
        return type if type.version else await self.discovery.resolve(f"{type.group}/", type.kind)

    def _need_namespace(self, verb: str, type: ResourceType, name: str, namespace: str | None) -> None:
        if type.namespaced and not namespace:
            raise Invalid("the namespace is missing", verb=verb, object=f"{type.kind} {name}", reason="NoNamespace")

    async def _call(
        self,
        method: str,
        verb: str,
        type: ResourceType,
        namespace: str | None,
        name: str,
        subresource: str | None = None,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,
    ) -> Object:
        type = await self._served(type)
        self._need_namespace(verb, type, name, namespace)
        if not name:
            raise Invalid("the name is missing", verb=verb, object=type.describe(namespace), reason="NoName")
        request = ApiRequest(
            method,
            type.path(namespace, name, subresource),
            verb,
            type.describe(namespace, name, None if subresource == "scale" else subresource),
            {"fieldManager": self.settings.field_manager} if method in ("PUT", "PATCH") else {},
            body,
            content_type,
            timeout=timeout,
            accept=accept,
        )
        return await self.transport.json(request)


def _scale(obj: Object) -> ScaleSubresource:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}  # a zero is left out of the JSON
    return ScaleSubresource(
        replicas=int(spec.get("replicas") or 0),
        status_replicas=int(status.get("replicas") or 0),
        selector=str(status.get("selector") or ""),
        resource_version=resource_version(obj),
    )
