"""Reading a whole collection, in pages or from the server's watch cache, and following it.

A watch never misses a change for good: it lists, follows, reconnects, and lists anew when it must.

Where it resumes depends on how it was interrupted:

* the connection ended, was cut, or the server restarted: from the last resource version seen;
* that version is no longer in the server's history (410): a new list, reported as the difference to what was known.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import orjson

from modelyard.backoff import Backoff
from modelyard.cluster.connection import ClusterSettings
from modelyard.cluster.errors import (
    ClusterError,
    Forbidden,
    NotFound,
    TooLarge,
    TooOld,
    Unauthorized,
    Unavailable,
    UnknownKind,
)
from modelyard.cluster.nesting import MAX_DEPTH, parse
from modelyard.cluster.objects import UNREAD, Object, ObjectList, WatchEvent, metadata, outline, resource_version
from modelyard.cluster.transport import ApiRequest, Transport, is_transient
from modelyard.objects import ResourceType

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

MOST_IN_A_PAGE = 32 * 2**20
"""Bytes of a page of a list; where a page would have more, smaller ones are asked for."""

MOST_CACHED = 256 * 2**20
"""Bytes of a list out of the server's cache, which is in one piece; what has more is read in pages."""

_SHORT_LIFE = 1.0
"""Seconds below which a connection that the server ended counts as a failure, so that we do not reconnect in a spin."""

_LONGEST_PAUSE = 5.0
"""Seconds between two tries to reconnect, at most."""

_GRACE = 15.0
"""Seconds that the end of a connection may be late before it counts as dead."""

_STARTING_UP = (Unauthorized, Forbidden, NotFound, UnknownKind)
"""What a server answers while it has not yet read its roles and CRDs."""


async def list_objects(
    transport: Transport,
    type: ResourceType,
    namespace: str | None = None,
    label_selector: str = "",
    field_selector: str = "",
    *,
    cached: bool = False,
    timeout: float | None = None,
    largest: int | None = None,
) -> ObjectList:
    """All objects of a served type; see ``Cluster.list``. ``timeout`` bounds all pages together.

    With ``largest``, an object that has more bytes or is nested too deeply is its ``outline`` and why, ``UNREAD``.
    """
    settings = transport.settings
    deadline = time.monotonic() + (settings.list_timeout if timeout is None else timeout)
    selectors = selector_query(label_selector, field_selector)
    shown = type.describe(namespace) + "".join(f", {key}={value}" for key, value in selectors.items())

    async def page(query: dict[str, str], most: int | None = None) -> dict[str, Any]:
        found = await transport.json(
            ApiRequest(
                "GET",
                type.path(namespace),
                "list",
                shown,
                {**selectors, **query},
                timeout=max(0.001, deadline - time.monotonic()),
                try_timeout=settings.page_timeout,
                most=most,
            )
        )
        if largest is not None:
            found["items"] = [_carried(item, largest) for item in found.get("items") or ()]
        return found

    if cached:
        try:
            return _join(type, [await page({"resourceVersion": "0"}, MOST_CACHED)])
        except TooLarge as error:  # the server's cache knows no pages
            logger.info("%s; reading it in pages", error)
    pages: list[dict[str, Any]] = []
    size, token = settings.page_size, ""
    while not pages or token:
        query = ({"limit": str(size)} if size else {}) | ({"continue": token} if token else {})
        try:
            pages.append(await page(query, MOST_IN_A_PAGE if size > 1 else None))
        except TooLarge:
            size = max(1, size // 10)
            continue
        except TooOld:
            if not token:
                raise
            # The history was compacted between two pages: pages of two moments must not be mixed.
            logger.info("list %s: the server dropped its history between pages; reading all in one page", shown)
            pages = [await page({})]
        token = (pages[-1].get("metadata") or {}).get("continue") or ""
        size = min(settings.page_size, 2 * size)
    return _join(type, pages)


def _carried(obj: Object, largest: int | None) -> Object:
    if largest is None:
        return obj
    try:
        size = len(orjson.dumps(obj))
    except orjson.JSONEncodeError:
        return {**outline(obj), UNREAD: f"it is nested more than {MAX_DEPTH} levels deep; make it flatter"}
    if size > largest:
        return {**outline(obj), UNREAD: f"it has {size} bytes, of {largest} at most; make it smaller"}
    return obj


def selector_query(label_selector: str, field_selector: str) -> dict[str, str]:
    """The query parameters of the selectors that are set."""
    pairs = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in pairs.items() if value}


def _join(type: ResourceType, pages: list[dict[str, Any]]) -> ObjectList:
    items: list[Object] = [item for page in pages for item in page.get("items") or ()]
    for item in items:
        # The API leaves these out of the items of built-in kinds.
        item.setdefault("apiVersion", type.api_version)
        item.setdefault("kind", type.kind)
    return ObjectList(items, str((pages[0].get("metadata") or {}).get("resourceVersion") or ""))


class _Pause:
    def __init__(self, settings: ClusterSettings, shown: str) -> None:
        self._backoff = Backoff(settings.retry_delay, longest=_LONGEST_PAUSE)
        self._failures = 0
        self._shown = shown
        self._since: float | None = None

    async def after(self, error: ClusterError) -> None:
        if self._since is None:
            self._since = time.monotonic()
            logger.warning("watch %s: interrupted, reconnecting: %s", self._shown, error)
        self._failures += 1
        wait = self._backoff.delay(self._failures, random.uniform(0.75, 1.25))
        if isinstance(error, Unavailable) and error.retry_after:
            wait = max(wait, error.retry_after)
        await asyncio.sleep(wait)

    def over(self) -> None:
        if self._since is not None:
            logger.info("watch %s: resumed after %.1f s", self._shown, time.monotonic() - self._since)
        self._since = None
        self._failures = 0

    @property
    def lasted(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since


class Watch:
    """One watch of one collection. ``events()`` follows it; a second call goes on where the first was left.

    ``heard_at`` is when the server last said something (monotonic seconds), ``streaming`` whether a connection is open
    now, ``broken`` whether one ended otherwise than in time since the last list. ``position`` is the resource version
    up to which everything has been told; without one, following begins with a list. ``largest`` is as for
    ``list_objects``.
    """

    def __init__(
        self,
        transport: Transport,
        type: ResourceType,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        *,
        cached: bool = False,
        largest: int | None = None,
    ) -> None:
        self._transport = transport
        self._type = type
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self.position = resource_version or ""
        self.heard_at = float("-inf")
        self.broken = False
        self.streaming = False
        self._cached = cached
        self._largest = largest
        self._known: dict[tuple[str, str], Object] = {}
        self._shown = type.describe(namespace)
        self._pause = _Pause(transport.settings, self._shown)
        self._established = False
        self._listed_at = float("-inf")

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        while True:
            try:
                if not self.position:
                    # After a gap only a consistent list will do: a cache may be older than what was already seen.
                    for event in await self.relist(cached=self._cached and not self._established):
                        yield event
                began = time.monotonic()
                try:
                    async with aclosing(self._follow()) as events:
                        async for event in events:
                            yield event
                finally:
                    self.streaming = False
                if time.monotonic() - began < _SHORT_LIFE:
                    raise Unavailable("the server ended the watch at once", verb="watch", object=self._shown)
            except TooOld as error:
                logger.info("watch %s: %s; listing anew", self._shown, error.detail)
                self.position, self.broken = "", True
                # Lists are dear: a server that refuses its own newest version must not make us list in a spin.
                recent = time.monotonic() - self._listed_at < _SHORT_LIFE
                await asyncio.sleep(random.uniform(0.5, 1.5) if recent else random.uniform(0, 0.1))
            except ClusterError as error:
                self.broken = True
                if not is_transient(error) and not self._may_pass(error):
                    raise
                await self._pause.after(error)

    async def relist(self, cached: bool = False) -> list[WatchEvent]:
        """List now; return the difference to what was known, SYNC last, only this once. Following goes on from here."""
        listed = await list_objects(
            self._transport,
            self._type,
            self._namespace,
            self._label_selector,
            self._field_selector,
            cached=cached,
            largest=self._largest,
        )
        self._listed_at = self.heard_at = time.monotonic()
        self._established = True
        self.broken = False
        events = [
            *self._difference(listed),
            WatchEvent("SYNC", {"metadata": {"resourceVersion": listed.resource_version}}),
        ]
        self.position = listed.resource_version
        return events

    def forget(self) -> None:
        """Know nothing any more: the next list tells everything anew."""
        self._known.clear()
        self.position = ""

    @property
    def keys(self) -> Iterable[tuple[str, str]]:
        return self._known.keys()

    def _may_pass(self, error: ClusterError) -> bool:
        """A restarting server refuses for a moment what it allowed before."""
        patience = self._transport.settings.watch_patience
        return self._established and isinstance(error, _STARTING_UP) and self._pause.lasted <= patience

    def _difference(self, listed: ObjectList) -> Iterator[WatchEvent]:
        present = {_key(item) for item in listed.items}
        for key in [key for key in self._known if key not in present]:
            yield WatchEvent("DELETED", self._known.pop(key))
        for item in listed.items:
            key = _key(item)
            before = self._known.get(key)
            if before is not None and metadata(before).get("uid") != metadata(item).get("uid"):
                yield WatchEvent("DELETED", self._known.pop(key))
                before = None
            if before is None or resource_version(before) != resource_version(item):
                self._known[key] = outline(item)
                yield WatchEvent("ADDED" if before is None else "MODIFIED", item)

    async def _follow(self) -> AsyncGenerator[WatchEvent, None]:
        """One watch connection, to its end. Raises ``TooOld`` or ``Unavailable``."""
        life = max(1, round(self._transport.settings.watch_timeout * random.uniform(0.9, 1.1)))
        request = ApiRequest(
            "GET",
            self._type.path(self._namespace),
            "watch",
            self._shown,
            {
                **selector_query(self._label_selector, self._field_selector),
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": self.position,
                "timeoutSeconds": str(life),
            },
        )
        async with self._transport.stream(request, silence=life + _GRACE) as lines:
            self.heard_at = time.monotonic()
            self._established = self.streaming = True
            self._pause.over()
            async for line in lines:
                event = _parse(request, line)
                obj: Object = event["object"]
                if event["type"] == "ERROR":
                    raise _error_event(request, obj)
                self.heard_at = time.monotonic()
                self.position = resource_version(obj) or self.position
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED":
                    self._known.pop(_key(obj), None)
                else:
                    self._known[_key(obj)] = outline(obj)
                yield WatchEvent(event["type"], _carried(obj, self._largest))


async def patiently(action: Callable[[], Awaitable[_T]], settings: ClusterSettings) -> _T:
    """Repeat until the server answers (for what comes before a watch)."""
    pause = _Pause(settings, "API")
    while True:
        try:
            return await action()
        except Unavailable as error:
            if not is_transient(error):
                raise
            await pause.after(error)


def _key(obj: Object) -> tuple[str, str]:
    meta = metadata(obj)
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")


def _parse(request: ApiRequest, line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = parse(line)
    except orjson.JSONDecodeError as error:  # the last line of a connection that was cut
        raise request.unavailable(f"the watch ended in the middle of an event ({error})") from error
    return event


def _error_event(request: ApiRequest, status: Object) -> ClusterError:
    """An ERROR event as an exception. Whatever is not overload means that our position is no longer good."""
    detail = str(status.get("message") or status)
    code = status.get("code")
    if code in (429, 503):
        return request.unavailable(detail)
    return TooOld(detail, verb=request.verb, object=request.object, status=code, reason=str(status.get("reason") or ""))
