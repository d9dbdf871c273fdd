"""Kubernetes Events that people see in ``kubectl describe``.

A repetition of the same Event (object, reason, message) within the window raises its count instead of adding one. The
Event's name is made from what it says, so that the count goes on when another process takes over.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict

from modelyard.cluster.errors import AlreadyExists, ClusterError, NotFound
from modelyard.cluster.objects import Object
from modelyard.cluster.transport import JSON, MERGE_PATCH, ApiRequest, Transport
from modelyard.objects import EVENTS, cut, printable, timestamp

logger = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Events whose count is kept here; forgetting one costs one more read."""

_TIMEOUT = 5.0
"""Seconds one Event may take: it is a courtesy and must not hold up the work."""

_MESSAGE_LIMIT = 1024
_REASON_LIMIT = 128


class EventRecorder:
    """Records Events through one cluster connection."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._recent: OrderedDict[tuple[str, ...], tuple[str, int, float]] = OrderedDict()
        """What an Event says -> its object name, its count, the wall-clock time of its last occurrence."""
        self._complained: set[str] = set()

    async def record(self, regarding: Object, reason: str, message: str, kind: str, component: str) -> None:
        """Record an occurrence about an object or reference. Never raises: failures are logged, once for each sort."""
        reference = reference_to(regarding)
        message = cut(printable(message), _MESSAGE_LIMIT)
        try:
            await self._record(reference, reason[:_REASON_LIMIT], message, kind, component)
        except ClusterError as error:
            sort = f"{type(error).__name__} {error.reason}"
            level = logging.DEBUG if sort in self._complained else logging.WARNING
            self._complained.add(sort)
            logger.log(level, "Event %s about %s is lost: %s", reason, reference.get("name"), error)

    async def _record(self, reference: Object, reason: str, message: str, kind: str, component: str) -> None:
        now = self._transport.clock.now()
        window = self._transport.settings.event_window
        namespace = reference.get("namespace") or "default"  # where Events of cluster-wide objects live
        says = (
            *(str(reference.get(key) or "") for key in ("kind", "namespace", "name", "uid")),
            reason,
            message,
            kind,
            component,
        )
        recent = self._recent.get(says)
        if recent is not None and now - recent[2] <= window:
            name, count, _ = recent
            if await self._raise_count(name, namespace, count + 1, now):
                self._remember(says, name, count + 1, now)
                return
        # Tumbling windows, so that every process arrives at the same name.
        digest = hashlib.blake2b("\0".join((*says, str(int(now // window)))).encode(), digest_size=8).hexdigest()
        name = f"{str(reference.get('name') or 'unknown')[:200]}.{digest}"
        body: Object = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": reference,
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": component},
            "reportingComponent": component,
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "count": 1,
        }
        try:
            await self._send("POST", "create", namespace, name, body, idempotent=False)
            self._remember(says, name, 1, now)
        except AlreadyExists:
            count = int((await self._send("GET", "get", namespace, name)).get("count") or 1) + 1
            if await self._raise_count(name, namespace, count, now):
                self._remember(says, name, count, now)

    async def _raise_count(self, name: str, namespace: str, count: int, now: float) -> bool:
        """False: the Event is gone (the server keeps Events for an hour)."""
        try:
            await self._send("PATCH", "patch", namespace, name, {"count": count, "lastTimestamp": timestamp(now)})
        except NotFound:
            return False
        return True

    async def _send(
        self, method: str, verb: str, namespace: str, name: str, body: Object | None = None, idempotent: bool = True
    ) -> Object:
        return await self._transport.json(
            ApiRequest(
                method,
                EVENTS.path(namespace, None if method == "POST" else name),
                verb,
                EVENTS.describe(namespace, name),
                {} if method == "GET" else {"fieldManager": self._transport.settings.field_manager},
                body,
                MERGE_PATCH if method == "PATCH" else JSON,
                idempotent,
                _TIMEOUT,
            )
        )

    def _remember(self, says: tuple[str, ...], name: str, count: int, now: float) -> None:
        self._recent[says] = (name, count, now)
        self._recent.move_to_end(says)
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)


def reference_to(regarding: Object) -> Object:
    """An ObjectReference to an object; a reference is returned as it is, less what an Event does not take."""
    source = regarding.get("metadata") or regarding
    reference = {
        "apiVersion": regarding.get("apiVersion"),
        "kind": regarding.get("kind"),
        "namespace": source.get("namespace"),
        "name": source.get("name"),
        "uid": source.get("uid"),
        "resourceVersion": source.get("resourceVersion"),
        "fieldPath": regarding.get("fieldPath"),
    }
    return {key: value for key, value in reference.items() if value}
