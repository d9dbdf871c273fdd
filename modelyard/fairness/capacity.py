"""Places and bytes that owners share."""

from __future__ import annotations

from collections.abc import Hashable


class SharedCapacity:
    """Units in use, in total and by owner; an owner may have a ``limit`` that is a share of ``total``.

    Units are counted whether or not there is room for them: the caller decides what to refuse, and until it has done
    so, the refused request takes its units, too.
    """

    __slots__ = ("_by_owner", "total", "used")

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._by_owner: dict[Hashable, int] = {}

    def take(self, units: int, *owners: Hashable) -> None:
        """Count units for all of these owners; negative units are given back."""
        self.used += units
        for owner in owners:
            self._by_owner[owner] = self._by_owner.get(owner, 0) + units
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def used_by(self, owner: Hashable) -> int:
        return self._by_owner.get(owner, 0)

    def limit(self, share: float) -> int:
        """Return the units that are a share of the total, at least one."""
        return max(1, int(self.total * share))
