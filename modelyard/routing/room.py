"""What requests in progress take of a router, and what one of them may have of it: places, and bytes of memory. Pure.

All that is there is for everybody, but no namespace gets more than three quarters: its engines may hang, and its
clients wait for them, for as long as both like. Nor is the last eighth of the memory for anything but small requests:
whose they are is not known before they are read. Until then they are their client's, which has a part as well: it may
send as slowly as it likes.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from functools import lru_cache

from modelyard.routing import errors
from modelyard.routing.errors import ErrorAnswer

SMALL = 1 << 16
"""Bytes of a request that may use the last eighth."""
OF_A_NAMESPACE = 0.75
_NETWORK = 64
"""Bits of an IPv6 address that tell clients apart: one host may use all addresses that begin with them."""


@lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """Return the client that an address belongs to: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), _NETWORK), strict=False))


@dataclass(slots=True)
class _Use:
    share: float = 1.0
    places: int = 0
    held: int = 0


@dataclass(slots=True)
class Room:
    """``places`` for requests and ``size`` bytes for what is kept of them and of their answers.

    ``share`` of both may be of requests of one client that are not there as a whole yet; 1: all of it.
    """

    places: int
    size: int
    share: float = 1.0
    _all: _Use = field(default_factory=_Use)
    _of: dict[tuple[str, str], _Use] = field(default_factory=dict)
    """By whose it is: ``("client", address)`` or ``("namespace", name)``."""

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return self._all.places

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._all.held


class Part:
    """The part of one request, from its first line to ``leave``; until then what is refused here is taken, too.

    ``client`` is where it came from (``client_of``); none: it may be anybody's.
    """

    __slots__ = ("_mine", "_room", "_whose", "held")

    def __init__(self, room: Room, client: str = "") -> None:
        self.held = 0
        self._room = room
        self._mine: _Use | None = None
        self._whose = ("", "")
        room._all.places += 1
        if client and room.share < 1:
            self._move(("client", client), room.share)

    @property
    def full(self) -> ErrorAnswer | None:
        """Why there is no place for it, if so."""
        most, mine = self._room.places, self._mine
        if self._room.taken > most:
            return errors.busy(f"{most} requests in progress")
        if mine is not None and mine.places > (its := max(1, int(most * mine.share))):
            return self._beyond(f"{its} requests")
        return self._crowded if self.held else None

    @property
    def _crowded(self) -> ErrorAnswer | None:
        room, size, mine = self._room, self._room.size, self._mine
        if room.held > size or (self.held > SMALL and room.held > self.held and room.held > size * 7 // 8):
            return errors.busy(f"{size} bytes of bodies in progress")
        if mine is not None and mine.held > self.held and mine.held > (its := int(size * mine.share)):
            return self._beyond(f"{its} bytes of bodies")
        return None

    def _beyond(self, most: str) -> ErrorAnswer:
        what = f"{most} of one {self._whose[0]} in progress"
        return errors.too_many(what) if self._whose[0] == "client" else errors.busy(what)

    def hold(self, more: int) -> ErrorAnswer | None:
        """Hold so many bytes more (or, where it is negative, less). Why they are not to be had, if so."""
        self.held += more
        self._room._all.held += more
        if self._mine is not None:
            self._mine.held += more
        return self._crowded

    def belong(self, namespace: str) -> ErrorAnswer | None:
        """It is there, and a request to this namespace. Why there is no place for it, if so."""
        self._move(("namespace", namespace), OF_A_NAMESPACE)
        return self.full

    def leave(self) -> None:
        """It is over."""
        self._move()
        self._room._all.held -= self.held
        self._room._all.places -= 1
        self.held = 0

    def _move(self, whose: tuple[str, str] = ("", ""), share: float = 1.0) -> None:
        """From whose it was to whose it is; to nobody."""
        if self._mine is not None:
            self._mine.places -= 1
            self._mine.held -= self.held
            if not self._mine.places:
                del self._room._of[self._whose]
        self._whose, self._mine = whose, None
        if whose[0]:
            self._mine = self._room._of.setdefault(whose, _Use(share))
            self._mine.places += 1
            self._mine.held += self.held
