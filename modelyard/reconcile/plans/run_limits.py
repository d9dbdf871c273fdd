"""Bounds on flow runs, and the order in which namespaces start them. Pure.

A worker starts queued runs in the order of their scheduled time, whoever they are for. So only a few runs are created
ahead of the places in which they run: then that order is the order of starting, and a namespace whose first object
becomes due waits for at most one run of each other namespace. All lifecycles share the places and the order. Runs that
a user or a schedule creates take places like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from modelyard.fairness import by_owner, interleave

RUNS = "runs"
"""Work queue of the runs of lifecycles, whoever creates them (``deployments/queues.py``)."""
PLACES = 5
"""Runs that are carried out at a time, where the work queue has no concurrency limit."""

T = TypeVar("T")


class ActiveRun(NamedTuple):
    """A flow run that has not ended, and the namespaces of its objects. ``queued``: it has not started."""

    deployment: str
    namespaces: frozenset[str]
    queued: bool = False


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits that follow from the number of runs carried out at a time (``places``)."""

    places: int = PLACES

    @property
    def per_namespace(self) -> int:
        """Runs of one namespace that have not ended: half of the places, rounded up, so that none takes all of them."""
        return max(1, (self.places + 1) // 2)

    @property
    def total(self) -> int:
        """Runs that have not ended: one in each place, and as many that wait for a place."""
        return 2 * self.places


@dataclass(frozen=True, slots=True)
class RunLoad:
    """Runs that have not ended, the limits, and when (epoch seconds) each namespace last had a run created."""

    active: Sequence[ActiveRun] = ()
    limits: RunLimits = RunLimits()
    last_starts: Mapping[str, float] | None = None


class RunAdmission:
    """Count of runs by namespace: says which namespace may have another run, and in which order they take turns."""

    def __init__(self, load: RunLoad) -> None:
        self.limits = load.limits
        self._last_starts = load.last_starts or {}
        self._by_namespace = Counter(name for run in load.active for name in run.namespaces)
        self._by_deployment = Counter((name, run.deployment) for run in load.active for name in run.namespaces)
        self._queued_by_namespace = Counter(name for run in load.active if run.queued for name in run.namespaces)
        self._queued = sum(run.queued for run in load.active)
        self._free = max(0, self.limits.places - (len(load.active) - self._queued))
        counted = Counter[str]()
        self._total = 0
        for run in load.active:  # a namespace beyond its own limit leaves the others their part of the whole
            if not run.namespaces or any(counted[name] < self.limits.per_namespace for name in run.namespaces):
                self._total += 1
                counted.update(run.namespaces)

    def reason_to_join(self, namespace: str) -> str:
        """Return why an object of this namespace may not join a run of others; empty if it may."""
        count, limit = self._by_namespace[namespace], self.limits.per_namespace
        if count < limit:
            return ""
        runs = "1 run of its namespace is" if count == 1 else f"{count} runs of its namespace are"
        return f"waits for its turn: {runs} under way (limit {limit})"

    def reason_to_wait(self, namespace: str) -> str:
        """Return why no run may be created for this namespace now; empty if one may."""
        if reason := self.reason_to_join(namespace):
            return reason
        if self._total >= self.limits.total:
            return f"waits for its turn: the runs of all namespaces are at their limit ({self.limits.total})"
        if self._queued >= self._free and self._queued_by_namespace[namespace]:
            places = self.limits.places
            return f"waits for its turn: a run of its namespace is queued, and all {places} places are taken"
        return ""

    def add(self, namespace: str, opened: bool) -> None:
        """Count a run that is created for this namespace: the namespace's own (``opened``), or one it joins."""
        self._by_namespace[namespace] += 1
        self._queued_by_namespace[namespace] += 1
        self._total += opened
        self._queued += opened

    def order(
        self,
        items: Iterable[T],
        namespace_of: Callable[[T], str],
        lifecycle_of: Callable[[T], tuple[Hashable, str, int]],
        rank: Callable[[T], tuple[float, str]],
    ) -> list[T]:
        """Order items by turns: the first run of every namespace, then the second of every namespace, and so on.

        Runs that have not ended are turns taken. In one turn, the namespace that has waited longest comes first. Within
        a namespace lifecycles take turns, and of each lifecycle the item of the lowest ``rank`` comes first.
        ``lifecycle_of`` gives a lifecycle's identity, its deployment, and how many items one run takes.
        """
        by_lifecycle = by_owner(items, lambda item: (namespace_of(item), lifecycle_of(item)[0]))
        batches: list[tuple[tuple[str, Hashable], list[T]]] = []
        taken: dict[tuple[str, Hashable], int] = {}
        for owner, own in by_lifecycle.items():
            own.sort(key=rank)
            _, deployment, size = lifecycle_of(own[0])
            taken[owner] = self._by_deployment[owner[0], deployment]
            batches += [(owner, own[start : start + size]) for start in range(0, len(own), size)]
        by_turns, _ = interleave(batches, lambda batch: batch[0], rank=lambda batch: rank(batch[1][0]), taken=taken)

        def waiting_longest(batch: tuple[tuple[str, Hashable], list[T]]) -> tuple[float, str]:
            namespace = batch[0][0]
            return self._last_starts.get(namespace, 0.0), namespace

        ordered, _ = interleave(by_turns, lambda batch: batch[0][0], rank=waiting_longest, taken=self._by_namespace)
        return [item for _, members in ordered for item in members]
