"""What is in the cluster, of the kinds that somebody asked for: held in memory, parsed once per resource version.

``read`` gives a store that is current; in the same round (``begin``) it costs nothing to ask again. Two modes over the
same code. Without ``follow`` every round lists what is asked for in it, once: ``plan``, a run of one tick. With
``follow`` watches keep the stores current, and a round lists only what a watch cannot be trusted with:

* the watch was interrupted since the last list, or said nothing (no event, no bookmark) for ``SILENCE`` seconds;
* it has not told what we wrote ourselves through the same connection: resource versions of our writes are compared
  with the watch's position, and what does not come within ``OWN_WRITE_WITHIN`` seconds is listed;
* ``distrust`` was called: another writer may have been at work until just now.

So a round that ``read`` completes is never older than a read of the API server's watch cache, and always newer than
our own writes. What can still be missing is an edit of the last milliseconds by somebody else. That is harmless where
writes carry preconditions (uid, generation, resource version, the replicas that were seen), and the change wakes
``wait``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Generic, Self, TypeVar

from modelyard.cluster import (
    UNREAD,
    Cluster,
    ClusterError,
    Forbidden,
    Object,
    Unavailable,
    UnknownKind,
    Watch,
    WatchEvent,
)
from modelyard.objects import LONGEST_PROBLEM, Key, ResourceType, key_of
from modelyard.reconcile.plans import Want

log = logging.getLogger(__name__)

T = TypeVar("T")

NAMESPACE_LISTS = 20
"""Up to this many namespaces, objects are read per namespace; beyond, once for the whole cluster."""
CONCURRENCY = 16
SILENCE = 90.0
"""Seconds without a word after which a watch is not trusted; API servers send bookmarks every minute."""
OWN_WRITE_WITHIN = 2.0
"""Seconds that a watch may take to tell what we wrote."""

EVERYTHING = ("", None)


class Store(Generic[T]):
    """The objects somebody wants, parsed; a ``reconcile.plan.Store``.

    One that cannot be read is in ``problems``, told once, and stops no other. ``by("namespace", name)`` is always
    there. ``version`` grows with every change of what is kept; a node's heartbeat, or a pod that nobody wants, is none.
    """

    def __init__(self, want: Want[T]) -> None:
        self.kind = want.kind
        self.problems: dict[Key, str] = {}
        self.errors: dict[str, ClusterError] = {}
        self.version = 0
        self._want = want
        self._wishes: dict[Key, object] = {}
        self._values: dict[Key, T] = {}
        self._files: dict[tuple[str, object], dict[Key, T]] = {EVERYTHING: self._values}
        self._sorted: dict[tuple[str, object], tuple[T, ...]] = {}

    def get(self, key: Key) -> T | None:
        """The object of this name."""
        return self._values.get(key)

    def all(self) -> tuple[T, ...]:
        """Every object, in key order."""
        return self._of(EVERYTHING)

    def by(self, index: str, value: object) -> tuple[T, ...]:
        """The objects that ``index`` files under ``value``, in key order."""
        return self._of((index, value))

    def within(self, namespaces: Iterable[str]) -> tuple[T, ...]:
        """The objects of these namespaces (none: of all of them), in key order."""
        spaces = sorted(set(namespaces))
        if not spaces or sum(len(self._files.get(("namespace", space), ())) for space in spaces) == len(self._values):
            return self.all()
        return tuple(value for space in spaces for value in self.by("namespace", space))

    def put(self, obj: Object) -> bool:
        """An object as it is now; whether somebody changed what they want of it."""
        key = key_of(obj)
        places: tuple[tuple[str, object], ...] = ()
        wish: object = None
        try:
            if UNREAD in obj:
                raise ValueError(obj[UNREAD])
            wish = self._want.wish(obj) if self._want.wish is not None else None
            value, problem = self._want.parse(obj), None
            if value is not None:
                places = tuple(self._places(key, value))
        except Exception as error:
            # In a form that the schema should have refused, or written to exhaust us: it must not stop all the others.
            value, problem = None, f"{error!r}"[:LONGEST_PROBLEM]
        if problem is None:
            self.problems.pop(key, None)
        elif self.problems.get(key) != problem:
            self.problems[key] = problem
            log.error("%s %s is left alone, it cannot be read: %s", self.kind.kind, key, problem)
        if value != self._values.get(key):
            self._unfile(key)
            if value is not None:
                self.version += 1
                for place in (EVERYTHING, *places):
                    self._files.setdefault(place, {})[key] = value
                    self._sorted.pop(place, None)
        if self._want.wish is None:
            return False
        before, self._wishes[key] = self._wishes.get(key), wish
        return before != wish

    def drop(self, key: Key) -> bool:
        """An object is gone; whether there was one."""
        self._unfile(key)
        self.problems.pop(key, None)
        return self._wishes.pop(key, None) is not None

    def keep(self, held: Callable[[Key], bool]) -> None:
        """Drop what is not held any more."""
        for key in [key for key in (*self._values, *self.problems, *self._wishes) if not held(key)]:
            self.drop(key)

    def _unfile(self, key: Key) -> None:
        old = self._values.pop(key, None)
        if old is None:
            return
        self.version += 1
        self._sorted.pop(EVERYTHING, None)
        for place in self._places(key, old):
            filed = self._files[place]
            filed.pop(key, None)
            self._sorted.pop(place, None)
            if not filed:
                del self._files[place]

    def _places(self, key: Key, value: T) -> Iterable[tuple[str, object]]:
        yield "namespace", key.namespace
        for name, index in self._want.indexes.items():
            for place in set(index(value)):
                yield name, place

    def _of(self, place: tuple[str, object]) -> tuple[T, ...]:
        found = self._sorted.get(place)
        if found is None:
            filed = self._files.get(place)
            if not filed:
                return ()
            found = self._sorted[place] = tuple(filed[key] for key in sorted(filed))
        return found


class _Part:
    """A store's share of one namespace (``None``: of the whole cluster), with the watch that keeps it current.

    ``spaces`` limits what is kept of a whole cluster (empty: no limit).
    """

    def __init__(self, mirror: Mirror, store: Store[Any], watch: Watch, namespace: str | None, cached: bool) -> None:
        self.store = store
        self.watch = watch
        self.namespace = namespace
        self.spaces: frozenset[str] = frozenset()
        self.round = -1
        self.asked = -1
        self.error: ClusterError | None = None
        self._mirror = mirror
        self._cached = cached
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._begun = False

    def covers(self, spaces: Iterable[str]) -> bool:
        """Whether all objects of these namespaces (none: of all of them) are in it."""
        if self.namespace is not None:
            return set(spaces) == {self.namespace}
        return not self.spaces or (bool(spaces) and self.spaces.issuperset(spaces))

    def widen(self, spaces: frozenset[str]) -> None:
        """Cover these as well (none: everything), from the next list on."""
        self.spaces = self.spaces | spaces if self.spaces and spaces else frozenset()
        self.watch.forget()
        self.round = -1

    @property
    def settled(self) -> bool:
        """Whether it has been listed, or is known not to be had."""
        return bool(self.watch.position) or (self.error is not None and not isinstance(self.error, Unavailable))

    async def refresh(self, number: int) -> None:
        """Make it current, once in a round. Raises what the API server says."""
        async with self._lock:
            if self.round != number:
                if not await self._is_current():
                    await self._list()
                self.round = number
        if self.error is not None:
            raise self.error

    async def _is_current(self) -> bool:
        if self._task is None or self._mirror.distrusted >= self.round:
            return False
        deadline = time.monotonic() + OWN_WRITE_WITHIN
        while self._is_sound():
            if self.watch.streaming and not self._behind():
                return True
            if time.monotonic() > deadline:
                log.info("%s: the watch has not told our own writes; listing anew", self.store.kind.plural)
                return False
            await asyncio.sleep(0.01)
        return False

    def _is_sound(self) -> bool:
        watch = self.watch
        return bool(watch.position) and not watch.broken and time.monotonic() - watch.heard_at < SILENCE

    def _behind(self) -> bool:
        kind, position = self.store.kind, self.watch.position
        if not position.isdecimal():
            return True
        ours = (
            version
            for (group, namespace, plural), version in self._mirror.cluster.transport.written.items()
            if (group, plural) == (kind.group, kind.plural) and self.namespace in (None, namespace)
        )
        return any(version > int(position) for version in ours)

    async def _list(self) -> None:
        cached = self._cached and self._task is None
        await self.stop()
        try:
            async with self._mirror.gate:
                events = await self.watch.relist(cached)
        except ClusterError as error:
            self.fail(error)
            if self.namespace is not None and isinstance(error, (Forbidden, UnknownKind)):
                self.watch.forget()
                self.store.keep(lambda key: key.namespace != self.namespace)
        else:
            self.fail(None)
            for event in events:
                self._take(event)
        refused = self.error is not None and not isinstance(self.error, Unavailable)
        if self._mirror.following and self._mirror.spare and not refused:
            self.start()

    def start(self) -> None:
        if self._task is None:
            self._mirror.watches += 1
            # A context of its own: the watch outlives whatever is being done while it begins.
            name, context = f"mirror-{self.store.kind.plural}", contextvars.Context()
            self._task = asyncio.create_task(self._follow(), name=name, context=context)

    async def stop(self) -> None:
        """Do not follow any more; what is there stays."""
        task, self._task = self._task, None
        if task is not None:
            self._mirror.watches -= 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def fail(self, error: ClusterError | None) -> None:
        place = self.namespace or ""
        if error is None:
            self.store.errors.pop(place, None)
        else:
            if str(error) != str(self.error):
                log.log(self._mirror.loudness, "%s", error)
            self.store.errors[place] = error
        self.error = error

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self.watch.events()) as events:
                    async for event in events:
                        self._take(event)
            except ClusterError as error:
                if not self.watch.position:
                    self.fail(error)
                else:  # it may be listed, but not watched
                    log.info("%s; listing in its place", error)
                    self.watch.position = ""
            self._mirror.tell(False)
            await asyncio.sleep(self._mirror.retry_after)

    def _take(self, event: WatchEvent) -> None:
        changed, version = False, self.store.version
        if event.kind == "SYNC":
            # What went while this part looked elsewhere is told by nobody.
            known = {Key(*key) for key in self.watch.keys}
            self.store.keep(lambda key: key in known or not self.covers({key.namespace}))
            self._begun = True
            self.fail(None)
        else:
            key = key_of(event.object)
            if event.kind == "DELETED":
                changed = self.store.drop(key)
            elif not self.spaces or key.namespace in self.spaces:
                changed = self.store.put(event.object)
        if changed or event.kind == "SYNC" or self.store.version != version:
            self._mirror.tell(changed and self._begun)


class _Holding(Generic[T]):
    def __init__(self, mirror: Mirror, want: Want[T]) -> None:
        self.store: Store[T] = Store(want)
        self.parts: dict[str | None, _Part] = {}
        self._mirror = mirror
        self._want = want

    def parts_for(self, spaces: frozenset[str]) -> list[_Part]:
        whole = self.parts.get(None)
        covered = whole is not None and whole.error is None and whole.covers(spaces)
        if spaces and len(spaces) <= (self._mirror.apart or NAMESPACE_LISTS) and not covered:
            return [self.part(space) for space in sorted(spaces)]
        if whole is None:
            whole = self.part(None)
            whole.spaces = spaces
        elif not covered:
            whole.widen(spaces)
        return [whole]

    def part(self, namespace: str | None) -> _Part:
        if namespace not in self.parts:
            want, transport = self._want, self._mirror.cluster.transport
            watch = Watch(
                transport, want.kind, namespace, want.label_selector, want.field_selector, largest=want.largest
            )
            self.parts[namespace] = _Part(self._mirror, self.store, watch, namespace, want.cached)
        return self.parts[namespace]

    async def forget(self, before: int) -> None:
        """Drop the parts that nobody asked for since that round, and what only they hold."""
        idle = [space for space, part in self.parts.items() if part.asked < before]
        for space in idle:
            await self.parts.pop(space).stop()
            self.store.errors.pop(space or "", None)
        if idle:
            self.store.keep(lambda key: any(part.covers({key.namespace}) for part in self.parts.values()))


class Mirror:
    """``async with Mirror(cluster) as mirror``: the stores of what is asked for.

    ``retry_after`` is the pause in seconds before something that the cluster does not serve or allow is watched again.
    ``loudness`` is the log level at which it is told that something cannot be read (each reason once in a row).
    Up to ``apart`` namespaces (0: the usual number) are read each on its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        retry_after: float = 15.0,
        loudness: int = logging.DEBUG,
        apart: int = 0,
    ) -> None:
        self.cluster = cluster
        self.apart = apart
        self.retry_after = retry_after
        self.loudness = loudness
        self.following = False
        self.distrusted = -1
        self.watches = 0
        self.gate = asyncio.Semaphore(CONCURRENCY)
        self._round = 0
        self._held: dict[tuple[ResourceType, str, str, str], _Holding[Any]] = {}
        self._woken = asyncio.Event()
        self._noticed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(part.stop() for part in self._parts()))

    def store(self, want: Want[T], namespaces: Iterable[str] = ()) -> Store[T]:
        """Ask for these objects in these namespaces (none: all), without waiting for them.

        Who wants the same as somebody else gets the same store, with the namespaces of both in it.
        """
        holding, parts = self._ask(want, namespaces)
        if self.following:
            for part in parts:
                part.start()
        return holding.store

    async def read(self, want: Want[T], namespaces: Iterable[str] = (), *, partial: bool = False) -> Store[T]:
        """The same, and wait until they are current. Raises the ``ClusterError`` of the first namespace that has one.

        ``partial``: namespaces that may not be read are left out instead, and ``Store.errors`` says why.
        """
        spaces = frozenset(namespaces)
        holding, parts = self._ask(want, spaces)
        whole = parts[0].namespace is None
        try:
            await self._refresh(parts, partial and not whole)
        except Forbidden:
            if not whole or not spaces:
                raise
            # The cluster as a whole may not be read: then as many of these namespaces as may.
            await holding.parts.pop(None).stop()
            holding.store.errors.pop("", None)
            parts = [holding.part(space) for space in sorted(spaces)]
            for part in parts:
                part.asked = self._round
            await self._refresh(parts, partial)
        return holding.store

    async def begin(self) -> None:
        """Begin a round. What the last one did not ask for is forgotten, and what would wake ``wait`` it will see."""
        self._woken.clear()
        for asked, holding in list(self._held.items()):
            await holding.forget(self._round)
            if not holding.parts:
                del self._held[asked]
        self._round += 1

    def follow(self) -> None:
        """Watch from now on, what is asked for and what will be."""
        self.following = True
        for part in self._parts():
            if self.spare:
                part.start()

    def distrust(self) -> None:
        """The next round lists everything: another writer may have been at work until just now."""
        self.distrusted = self._round

    @property
    def spare(self) -> bool:
        """Whether there is a connection for one more watch: what tenants name must not use them up, the rest is listed
        in every round."""
        return self.watches < self.cluster.settings.max_connections // 2

    @property
    def synced(self) -> bool:
        """Whether everything there is to have has been listed once."""
        return all(part.settled for part in self._parts())

    async def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until somebody changes what they wish; the change is then forgotten."""
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    async def moved(self) -> None:
        """Wait until anything has changed, or what can be read, since the last time; for one waiter."""
        await self._noticed.wait()
        self._noticed.clear()

    def tell(self, wished: bool) -> None:
        """Something changed; ``wished``: somebody wants it otherwise than before."""
        self._noticed.set()
        if wished:
            self._woken.set()

    def _parts(self) -> Iterator[_Part]:
        for holding in self._held.values():
            yield from holding.parts.values()

    def _ask(self, want: Want[T], namespaces: Iterable[str]) -> tuple[_Holding[T], list[_Part]]:
        asked = want.kind, want.label_selector, want.field_selector, want.use
        holding: _Holding[T] = self._held.setdefault(asked, _Holding(self, want))
        parts = holding.parts_for(frozenset(namespaces))
        for part in parts:
            part.asked = self._round
        return holding, parts

    async def _refresh(self, parts: Iterable[_Part], partial: bool) -> None:
        found = await asyncio.gather(*(part.refresh(self._round) for part in parts), return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not (partial and isinstance(error, Forbidden)):
                raise error
