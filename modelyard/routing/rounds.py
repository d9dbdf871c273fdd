"""Whose turn it is to be looked at, where not all can be at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Rounds(Generic[T]):
    """Up to ``most`` in each round. Every namespace has its part of that, and within it all come by turns: who has ten
    thousand is looked at seldom, and nobody else for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next: dict[str, int] = {}

    def turn(self, there: Mapping[str, Sequence[T]]) -> list[T]:
        """Those of this round, of what there is now by namespace."""
        found: list[T] = []
        spaces = sorted((space for space in there if there[space]), key=lambda space: (len(there[space]), space))
        self._next = {space: self._next.get(space, 0) for space in spaces}
        for place, space in enumerate(spaces):  # what the small ones leave is for the large ones
            mine, share = there[space], max(1, (self._most - len(found)) // (len(spaces) - place))
            start = self._next[space] % len(mine)
            taken = [*mine[start : start + share], *mine[: max(0, min(start, start + share - len(mine)))]]
            self._next[space] = start + len(taken)
            found += taken
        return found


def by_namespace(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Each once, in order."""
    found: dict[str, dict[T, None]] = {}
    for space, one in pairs:
        found.setdefault(space, {})[one] = None
    return {space: list(ones) for space, ones in found.items()}
