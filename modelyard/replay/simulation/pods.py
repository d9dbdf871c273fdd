"""A simulated pod: one engine in virtual time, its life from creation to end, the step times its requests saw; and the
nodes that hold such pods.

Times are seconds from the start of the trace; pods that were there before it have
negative ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache

from modelyard.engine import EngineCore, EngineStats, Histogram, Request, buckets
from modelyard.metrics.vocabulary import VLLM
from modelyard.objects import Node
from modelyard.replay.simulation.variants import VariantSpec


class Life(IntEnum):
    """Where a pod is in its life."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    ENDED = 3


class StepLog(Histogram):
    """The engine's histogram of inter-token latency, which also knows the longest step since any moment.

    A stack of falling step times, each with the number of the run of steps it came from: whatever came before a longer
    one can never be the maximum again, so a question is one binary search.
    """

    __slots__ = ("_lengths", "_numbers", "number", "resumed")

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        super().__init__(bounds)
        self.number = 0
        self.resumed = 0.0
        """Longest gap that a preemption made."""
        self._numbers: list[int] = []
        self._lengths: list[float] = []

    def observe(self, value: float, count: int = -1) -> None:
        """Add ``count`` equal steps; without a count it is the one gap of a request that had been preempted."""
        if count < 0:
            super().observe(value)
            self.resumed = max(self.resumed, value)
            return
        super().observe(value, count)
        self.number += 1
        lengths, numbers = self._lengths, self._numbers
        while lengths and lengths[-1] <= value:
            lengths.pop()
            numbers.pop()
        lengths.append(value)
        numbers.append(self.number)

    def longest_since(self, number: int) -> float:
        """The longest step after the one of this ``number``; 0 when there was none."""
        position = bisect_right(self._numbers, number)
        return self._lengths[position] if position < len(self._lengths) else 0.0

    def forget(self) -> None:
        """Nobody will ask about steps so far."""
        self._numbers.clear()
        self._lengths.clear()


@lru_cache(maxsize=64)
def _buckets(context: int) -> Mapping[str, Sequence[float]]:
    return buckets(VLLM, context)


class SimulatedPod:
    """One replica. ``outstanding`` is what the router has sent and not got back; ``inflight`` the same by request."""

    def __init__(self, variant: VariantSpec, serial: int, created: float, seed: int) -> None:
        self.variant = variant
        self.serial = serial
        self.name = f"{variant.key.name}-{serial}"
        self.created = created
        self.ready_at = math.nan
        self.removed_at = math.nan
        self.ended = math.nan
        self.life = Life.STARTING
        self.node = ""
        self.unschedulable = ""
        buckets = _buckets(variant.engine.context_limit)
        self.steps = StepLog(buckets["itl"])
        stats = EngineStats(buckets)
        stats.itl = self.steps
        self.core = EngineCore(variant.engine, stats=stats, seed=seed)
        self.outstanding = 0
        self.inflight: dict[int, Request] = {}
        self.first_step: dict[int, int] = {}
        self.wake = math.inf
        """When something next happens in the engine."""
        self.scheduled = math.inf
        """The earliest entry for this pod in the simulation's agenda."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.life is Life.READY

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self.life is Life.ENDED

    @property
    def active(self) -> bool:
        """Whether the workload counts it: not being removed."""
        return self.life <= Life.READY


class Scheduler:
    """Which node a replica's pods get, and which replicas find none.

    Only GPUs and node labels count. Among the nodes that fit the one with most free GPUs is taken, ties by name.
    Without nodes there is room for everything.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = {node.name: node for node in nodes if node.ready and node.schedulable}
        self._free = {name: dict(node.gpus) for name, node in self._nodes.items()}
        self._taken: dict[int, list[tuple[str, str, int]]] = {}

    def place(self, pod: SimulatedPod) -> str | None:
        """The node of the replica's first pod, whose GPUs are taken from now on; ``None`` when it does not fit."""
        spec = pod.variant
        if not self._nodes or not spec.gpu_resource:
            return ""
        parts = max(1, spec.pods_per_replica)
        share = -(-spec.gpus // parts)
        taken: list[tuple[str, str, int]] = []
        self._taken[pod.serial] = taken
        for _ in range(parts):
            fitting = [
                name
                for name, node in self._nodes.items()
                if self._free[name].get(spec.gpu_resource, 0) >= share
                and all(node.labels.get(label) == value for label, value in spec.node_selector.items())
            ]
            if not fitting:
                self.release(pod)
                return None
            best = min(fitting, key=lambda name: (-self._free[name][spec.gpu_resource], name))
            self._free[best][spec.gpu_resource] -= share
            taken.append((best, spec.gpu_resource, share))
        return taken[0][0]

    def release(self, pod: SimulatedPod) -> None:
        """The replica is gone."""
        for node, resource, amount in self._taken.pop(pod.serial, ()):
            self._free[node][resource] += amount
