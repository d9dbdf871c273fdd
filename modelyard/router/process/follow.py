"""The routes, servers and pods of the cluster, kept current by the kernel's mirror while the router runs.

What was listed once stays in use however long the API server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from modelyard.cluster import Cluster, Forbidden
from modelyard.objects import PODS, pod
from modelyard.reconcile.kernel import Mirror, Store
from modelyard.reconcile.plans import Want
from modelyard.routing import (
    ROUTES,
    SERVERS,
    FleetChange,
    NameSources,
    RoutedFleet,
    bindings_wanted,
    records_wanted,
    route,
    server,
)

log = logging.getLogger(__name__)

WANTS: tuple[Want[Any], ...] = (
    Want(ROUTES, route),
    Want(SERVERS, server),
    Want(PODS, pod, cached=True, use="router"),
)
SETTLE = 0.02
"""Seconds in which changes are gathered: many come together."""
SHARE = 0.1
"""Part of the time that changes may take: who edits one of ten thousand routes for ever holds up no requests."""
LONGEST = 0.5
"""Seconds that a change waits for its turn at most."""
RETRY = 5.0
UNREADABLE = (
    "holders of model names cannot be read: %s; names go to the namespaces that are seen with them first. Grant list"
    " and watch on ConfigMaps of namespace %s"
)


class Follower:
    """Keeps ``fleet`` current and tells each change.

    ``home`` is the controller's namespace, with the records of model names. Where they may not be read, the names that
    this process sees first are those that hold.
    """

    def __init__(
        self, fleet: RoutedFleet, changed: Callable[[FleetChange], None], namespaces: Iterable[str] = (), home: str = ""
    ) -> None:
        self._fleet = fleet
        self._changed = changed
        self._spaces = tuple(namespaces)
        self._home = home
        self._complaint = ""
        self.synced = asyncio.Event()
        """Set once everything there is has been listed."""
        self.trouble = "the cluster has not been read yet"
        """Why it is not synced."""

    async def run(self, cluster: Cluster) -> None:
        """Until cancelled."""
        async with Mirror(cluster, RETRY, loudness=logging.WARNING) as mirror:
            stores = [mirror.store(want, self._spaces) for want in WANTS]
            names = [mirror.store(want, want.spaces(())) for want in _name_wants(self._home)]
            mirror.follow()
            clock = asyncio.get_running_loop().time
            while True:
                begun = clock()
                errors = [error for store in stores for error in store.errors.values()]
                if mirror.synced and (self.synced.is_set() or not errors):
                    self._complain(names)
                    self._changed(_update(self._fleet, names, *stores))
                    if not self.synced.is_set():
                        log.info("serving %d model names by %d servers", *self._fleet.size)
                        self.synced.set()
                elif errors:
                    self.trouble = str(errors[0])
                taken = clock() - begun
                await mirror.moved()
                await asyncio.sleep(min(LONGEST, max(SETTLE, taken * (1 / SHARE - 1))))

    def _complain(self, names: Sequence[Store[Any]]) -> None:
        why = _problem(names)
        if why and why != self._complaint:
            log.warning(UNREADABLE, why, self._home)
        self._complaint = why


def _problem(names: Sequence[Store[Any]]) -> str:
    return "; ".join(str(error) for store in names for error in store.errors.values())


async def look(cluster: Cluster, fleet: RoutedFleet, namespaces: Iterable[str] = (), home: str = "") -> None:
    """Read the cluster once. Raises ``ClusterError``."""
    async with Mirror(cluster) as mirror:
        stores = [await mirror.read(want, namespaces) for want in WANTS]
        names = [mirror.store(want, want.spaces(())) for want in _name_wants(home)]
        for want in _name_wants(home):
            with contextlib.suppress(Forbidden):  # the store's ``errors`` say so
                await mirror.read(want, want.spaces(()))
        if why := _problem(names):
            log.warning(UNREADABLE, why, home)
        _update(fleet, names, *stores)


def _name_wants(home: str) -> tuple[Want[Any], ...]:
    return (records_wanted(home), bindings_wanted(home)) if home else ()


def _update(
    fleet: RoutedFleet, names: Sequence[Store[Any]], routes: Store[Any], servers: Store[Any], pods: Store[Any]
) -> FleetChange:
    # What cannot be read any more stays as it was.
    readable = bool(names) and not any(store.errors for store in names)
    return fleet.update(
        routes.all(),
        lambda namespace: servers.by("namespace", namespace),
        lambda namespace: pods.by("namespace", namespace),
        sorted({one.key.namespace for one in servers.all()}),
        NameSources(*(store.all() for store in names)) if readable else None,
    )
