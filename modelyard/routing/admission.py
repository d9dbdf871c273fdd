"""Admission of requests by what they take of a router: places, and bytes of memory. Pure.

No namespace gets more than three quarters of either: its engines may hang, and its clients wait for them as long as
both like. Nor is the last eighth of the memory for anything but small requests. Until a request is read, its namespace
is not known, and it counts as its client's, which has a share as well: it may send as slowly as it likes.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from modelyard.fairness import SharedCapacity
from modelyard.routing import errors
from modelyard.routing.errors import ErrorAnswer

SMALL = 1 << 16
"""Bytes of a request that may use the last eighth."""
NAMESPACE_SHARE = 0.75
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


class RequestCapacity:
    """Places for requests in progress, and bytes for what is kept of them and of their answers.

    Requests of one client that have not arrived as a whole may take ``client_share`` of both; 1: everything.
    """

    def __init__(self, places: int, size: int, client_share: float = 1.0) -> None:
        self.places = SharedCapacity(places)
        self.memory = SharedCapacity(size)
        self.client_share = client_share


class Reservation:
    """The place and the bytes of one request, from its first line to ``release``, even while it is being refused.

    ``client`` is where it came from (``client_of``); empty: unknown.
    """

    __slots__ = ("_capacity", "_owner", "_share", "held")

    def __init__(self, capacity: RequestCapacity, client: str = "") -> None:
        self.held = 0
        """Bytes."""
        self._capacity = capacity
        self._owner: tuple[tuple[str, str], ...] = ()
        """``("client", address)`` or ``("namespace", name)``, or none."""
        self._share = capacity.client_share
        if client and self._share < 1:
            self._owner = (("client", client),)
        capacity.places.take(1, *self._owner)

    @property
    def refusal(self) -> ErrorAnswer | None:
        """Why there is no place for the request, if so."""
        places = self._capacity.places
        if places.used > places.total:
            return errors.busy(f"{places.total} requests in progress")
        for owner in self._owner:
            if places.used_by(owner) > (limit := places.limit(self._share)):
                return self._over_share(f"{limit} requests")
        return self._memory_refusal() if self.held else None

    def hold(self, size: int) -> ErrorAnswer | None:
        """Hold so many bytes more (or, where it is negative, less); return why there is no room for them, if so."""
        self.held += size
        self._capacity.memory.take(size, *self._owner)
        return self._memory_refusal()

    def charge_to(self, namespace: str) -> ErrorAnswer | None:
        """Count a request that has arrived as its namespace's; return why there is no place for it, if so."""
        owner = (("namespace", namespace),)
        for capacity, units in ((self._capacity.places, 1), (self._capacity.memory, self.held)):
            capacity.take(-units, *self._owner)
            capacity.take(units, *owner)
        self._owner, self._share = owner, NAMESPACE_SHARE
        return self.refusal

    def release(self) -> None:
        """Give back everything: the request is over."""
        self.hold(-self.held)
        self._capacity.places.take(-1, *self._owner)
        self._owner = ()

    def _memory_refusal(self) -> ErrorAnswer | None:
        memory = self._capacity.memory
        total, used, held = memory.total, memory.used, self.held
        if used > total or (held > SMALL and used > held and used > total * 7 // 8):
            return errors.busy(f"{total} bytes of bodies in progress")
        for owner in self._owner:
            if held < memory.used_by(owner) > (limit := memory.limit(self._share)):
                return self._over_share(f"{limit} bytes of bodies")
        return None

    def _over_share(self, limit: str) -> ErrorAnswer:
        kind = self._owner[0][0]
        text = f"{limit} of one {kind} in progress"
        return errors.too_many(text) if kind == "client" else errors.busy(text)
