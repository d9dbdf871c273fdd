"""Requests that wait for a ModelServer without pods, whose number wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from modelyard.fairness import SharedCapacity
from modelyard.objects import Key

_SERVER_SHARE, _NAMESPACE_SHARE = 0.25, 0.5


class QueueFull(Exception):
    """No more requests may wait."""


class WakeQueue:
    """Up to ``limit`` requests wait at once, half of them of one namespace, a quarter of them for one server.

    ``report`` is called for each that begins or ends to wait: with the server, the model asked for, the one that the
    engine would be asked for, and 1 or -1.
    """

    def __init__(self, limit: int, report: Callable[[str, str, str, int], None]) -> None:
        self._places = SharedCapacity(limit)
        self._report = report
        self._events: dict[Key, asyncio.Event] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return self._places.used

    @property
    def servers(self) -> list[Key]:
        """Servers that requests wait for."""
        return list(self._events)

    async def wait(self, server: Key, model: str, upstream: str, seconds: float) -> bool:
        """Wait for a pod of the server; return whether there is one. Raises ``QueueFull``."""
        if seconds <= 0:
            return False
        places, namespace = self._places, server.namespace
        if (
            places.used >= places.total
            or places.used_by(server) >= places.limit(_SERVER_SHARE)
            or places.used_by(namespace) >= places.limit(_NAMESPACE_SHARE)
        ):
            raise QueueFull
        event = self._events.setdefault(server, asyncio.Event())
        places.take(1, server, namespace)
        self._report(str(server), model, upstream, 1)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            places.take(-1, server, namespace)
            self._report(str(server), model, upstream, -1)
            if not places.used_by(server) and self._events.get(server) is event:
                del self._events[server]
        return True

    def wake(self, servers: Iterable[Key]) -> None:
        """End all waits for these servers: they have pods, or never will."""
        for server in servers:
            if (event := self._events.pop(server, None)) is not None:
                event.set()
