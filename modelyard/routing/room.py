"""What requests in progress take of a router, and what one of them may have of it: places, and bytes of memory. Pure.

All that is there is for everybody, but no namespace gets more than three quarters: its engines may hang, and its
clients wait for them, for as long as both like. Nor is the last eighth of the memory for anything but small requests:
whose they are is not known before they are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SMALL = 1 << 16
"""Bytes of a request that may use the last eighth."""


@dataclass(slots=True)
class _Use:
    places: int = 0
    held: int = 0


@dataclass(slots=True)
class Room:
    """``places`` for requests and ``size`` bytes for what is kept of them and of their answers."""

    places: int
    size: int
    _all: _Use = field(default_factory=_Use)
    _of: dict[str, _Use] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return self._all.places

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._all.held


class Part:
    """The part of one request, from its first line to ``leave``; until then what is refused here is taken, too."""

    __slots__ = ("_mine", "_room", "held")

    def __init__(self, room: Room) -> None:
        self.held = 0
        self._room = room
        self._mine: _Use | None = None
        room._all.places += 1

    @property
    def full(self) -> str:
        """Why there is no place for it; empty: there is."""
        most, room = self._room.places, self._room
        if room.taken > most:
            return f"{most} requests in progress"
        if self._mine is not None and self._mine.places > max(1, most * 3 // 4):
            return f"{max(1, most * 3 // 4)} requests of one namespace in progress"
        return self._crowded if self.held else ""

    @property
    def _crowded(self) -> str:
        room, size = self._room, self._room.size
        if room.held > size or (self.held > SMALL and room.held > self.held and room.held > size * 7 // 8):
            return f"{size} bytes of bodies in progress"
        if self._mine is not None and self._mine.held > self.held and self._mine.held > size * 3 // 4:
            return f"{size * 3 // 4} bytes of bodies of one namespace in progress"
        return ""

    def hold(self, more: int) -> bool:
        """Hold so many bytes more (or, where it is negative, less); whether they are to be had."""
        self.held += more
        self._room._all.held += more
        if self._mine is not None:
            self._mine.held += more
        return not self._crowded

    def belong(self, namespace: str) -> str:
        """It is a request to this namespace. Why there is no place for it, if so."""
        self._mine = self._room._of.setdefault(namespace, _Use())
        self._mine.places += 1
        self._mine.held += self.held
        return self.full

    def leave(self) -> None:
        """It is over."""
        self.hold(-self.held)
        self._room._all.places -= 1
        if self._mine is not None:
            self._mine.places -= 1
            if not self._mine.places:
                self._room._of = {name: use for name, use in self._room._of.items() if use is not self._mine}
