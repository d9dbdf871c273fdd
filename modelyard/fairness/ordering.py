"""Fair order of work between owners, in one round or over several."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def by_owner(items: Iterable[T], owner_of: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by owner; owners and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(owner_of(item), []).append(item)
    return groups


def interleave(
    items: Iterable[T],
    owner_of: Callable[[T], Hashable],
    limit: float = inf,
    *,
    rank: Callable[[T], Any] | None = None,
    taken: Mapping[Any, int] | None = None,
) -> tuple[list[T], list[T]]:
    """Order items round-robin by owner; return those within ``limit`` items of an owner, and those over it.

    The items of an owner keep their order. ``rank`` orders the items of one turn (default: by owner), and ``taken`` is
    the number of turns that each owner has had already.
    """
    rank = rank or owner_of
    turns: defaultdict[Hashable, int] = defaultdict(int, taken or {})
    ordered: list[tuple[tuple[int, Any], T]] = []
    for item in items:
        owner = owner_of(item)
        ordered.append(((turns[owner], rank(item)), item))
        turns[owner] += 1
    ordered.sort(key=lambda entry: entry[0])
    end = bisect_left(ordered, limit, key=lambda entry: entry[0][0])
    result = [item for _, item in ordered]
    return result[:end], result[end:]


def divide(total: int, wanted: Mapping[K, int]) -> dict[K, int]:
    """Divide places between owners by max-min fairness: what small owners leave goes to large ones.

    Every owner gets at least one, so that more owners than places get more than ``total`` together.
    """
    shares: dict[K, int] = {}
    owners = sorted(wanted, key=lambda owner: wanted[owner])
    for index, owner in enumerate(owners):
        shares[owner] = min(wanted[owner], max(1, total // (len(owners) - index)))
        total -= shares[owner]
    return shares


class RoundRobin(Generic[T]):
    """Rounds over items, which may come and go, in the fixed order of ``rank``; each starts where the last stopped."""

    def __init__(self, rank: Callable[[T], Any]) -> None:
        self._rank = rank
        self._next: dict[Hashable, Any] = {}
        """Rank of the item with which an owner's next round begins."""

    def resume(self, owner: Hashable, items: Iterable[T]) -> list[T]:
        """Order an owner's items for this round, which reaches all of them unless ``stop`` is called."""
        ordered = sorted(items, key=self._rank)
        if owner not in self._next:
            return ordered
        start = bisect_left(ordered, self._next.pop(owner), key=self._rank)
        return ordered[start:] + ordered[:start]

    def stop(self, owner: Hashable, item: T) -> None:
        """End the owner's round before this item."""
        self._next[owner] = self._rank(item)

    def choose(self, items: Iterable[T], owner_of: Callable[[T], Hashable], limit: int) -> list[T]:
        """Choose about ``limit`` items for this round, divided between their owners (``divide``)."""
        groups = by_owner(items, owner_of)
        chosen: list[T] = []
        for owner, share in divide(limit, {owner: len(group) for owner, group in groups.items()}).items():
            group = groups[owner]
            if share < len(group):
                group = self.resume(owner, group)
                self.stop(owner, group[share])
            chosen += group[:share]
        self._next = {owner: rank for owner, rank in self._next.items() if owner in groups}
        return chosen
