"""Requests for a ModelServer without pods wait here, bounded, until it has some. Their number wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from modelyard.objects import Key


class Full(Exception):
    """As many wait as may."""


class Lobby:
    """``most`` requests wait at once, of each namespace half of that, of each server a quarter.

    ``shown`` is told of each that comes or goes: the server, the model asked for, the one that the engine would be
    asked for, and 1 or -1.
    """

    def __init__(self, most: int, shown: Callable[[str, str, str, int], None]) -> None:
        self._most = most
        self._shown = shown
        self._doors: dict[Key, tuple[asyncio.Event, list[int]]] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(count[0] for _, count in self._doors.values())

    @property
    def servers(self) -> list[Key]:
        """Those that are waited for."""
        return list(self._doors)

    async def wait(self, server: Key, model: str, upstream: str, seconds: float) -> bool:
        """Wait for a pod of the server; whether there is one. Raises ``Full``."""
        door, count = self._doors.setdefault(server, (asyncio.Event(), [0]))
        try:
            if seconds <= 0:
                return False
            if self.waiting >= self._most or count[0] >= max(1, self._most // 4):
                raise Full
            mine = sum(one[0] for key, (_, one) in self._doors.items() if key.namespace == server.namespace)
            if mine >= max(1, self._most // 2):
                raise Full
            count[0] += 1
            self._shown(str(server), model, upstream, 1)
            try:
                async with asyncio.timeout(seconds):
                    await door.wait()
            finally:
                count[0] -= 1
                self._shown(str(server), model, upstream, -1)
        except TimeoutError:
            return False
        finally:
            if not count[0] and self._doors.get(server, (None,))[0] is door:
                del self._doors[server]
        return True

    def open(self, servers: Iterable[Key]) -> None:
        """These servers have pods now, or never will: nobody need wait any more."""
        for server in servers:
            if server in self._doors:
                self._doors.pop(server)[0].set()
