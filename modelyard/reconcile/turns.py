"""Whose turn it is: what tenants bring goes by namespace, so that nobody's many things delay another's few. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")


def in_turn(things: Iterable[T], space: Callable[[T], str], most: float = inf) -> tuple[list[T], list[T]]:
    """The first thing of every namespace, then the second of every one, and so on; and those beyond ``most`` of each.

    ``space`` tells a thing's namespace. Within one they stay in their order.
    """
    counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
    turns = [((next(counts[name]), name), thing) for thing in things for name in (space(thing),)]
    turns.sort(key=itemgetter(0))
    end = next((at for at, ((number, _), _) in enumerate(turns) if number >= most), len(turns))
    ordered = [thing for _, thing in turns]
    return ordered[:end], ordered[end:]
