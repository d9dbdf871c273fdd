"""Bounds on work. It is counted and not timed, so that a decision does not depend on the machine or its load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple


@dataclass(slots=True)
class WorkBudget:
    """Units of work left, such as nodes of a search. The caller defines the unit."""

    left: int

    def spend(self, units: int) -> bool:
        """Take units; return whether that many were left. A budget that did not suffice is used up."""
        enough = units <= self.left
        self.left = max(0, self.left - units)
        return enough


class WorkRequest(NamedTuple):
    """Work that is done as a whole or not at all. ``since`` is the time from which it waits (infinite: it is new)."""

    owner: str
    units: float
    since: float = inf


def grant_work(requests: Sequence[WorkRequest], share: float) -> list[bool]:
    """Grant each owner up to ``share`` units, the requests that wait longest first; return the verdict on each."""
    left: defaultdict[str, float] = defaultdict(lambda: share)
    granted = [False] * len(requests)
    for index in sorted(range(len(requests)), key=lambda index: (requests[index].since, index)):
        owner, units, _ = requests[index]
        if units <= left[owner]:
            left[owner] -= units
            granted[index] = True
    return granted
