"""The routes, servers and pods of the cluster, kept current by the kernel's mirror while the router runs.

What was listed once stays in use however long the API server is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from modelyard.cluster import Cluster
from modelyard.objects.kinds import PODS
from modelyard.objects.parse import pod
from modelyard.reconcile.mirror import Mirror, Store
from modelyard.reconcile.plan import Want
from modelyard.routing.fleet import FleetChange, RoutedFleet
from modelyard.routing.objects import ROUTES, SERVERS, route, server

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


class Follower:
    """Keeps ``fleet`` current and tells each change."""

    def __init__(
        self, fleet: RoutedFleet, changed: Callable[[FleetChange], None], namespaces: Iterable[str] = ()
    ) -> None:
        self._fleet = fleet
        self._changed = changed
        self._spaces = tuple(namespaces)
        self.synced = asyncio.Event()
        """Set once everything there is has been listed."""
        self.trouble = "the cluster has not been read yet"
        """Why it is not synced."""

    async def run(self, cluster: Cluster) -> None:
        """Until cancelled."""
        async with Mirror(cluster, RETRY, loudness=logging.WARNING) as mirror:
            stores = [mirror.store(want, self._spaces) for want in WANTS]
            mirror.follow()
            clock = asyncio.get_running_loop().time
            while True:
                begun = clock()
                errors = [error for store in stores for error in store.errors.values()]
                if mirror.synced and (self.synced.is_set() or not errors):
                    self._changed(_update(self._fleet, *stores))
                    if not self.synced.is_set():
                        log.info("serving %d model names by %d servers", *self._fleet.size)
                        self.synced.set()
                elif errors:
                    self.trouble = str(errors[0])
                taken = clock() - begun
                await mirror.moved()
                await asyncio.sleep(min(LONGEST, max(SETTLE, taken * (1 / SHARE - 1))))


async def look(cluster: Cluster, fleet: RoutedFleet, namespaces: Iterable[str] = ()) -> None:
    """Read the cluster once. Raises ``ClusterError``."""
    async with Mirror(cluster) as mirror:
        _update(fleet, *[await mirror.read(want, namespaces) for want in WANTS])


def _update(fleet: RoutedFleet, routes: Store[Any], servers: Store[Any], pods: Store[Any]) -> FleetChange:
    return fleet.update(
        routes.all(),
        lambda namespace: servers.by("namespace", namespace),
        lambda namespace: pods.by("namespace", namespace),
        sorted({one.key.namespace for one in servers.all()}),
    )
