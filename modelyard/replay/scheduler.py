"""Which node a replica's pods get, and which replicas find none.

Only GPUs and node labels count. Among the nodes that fit the one with most free GPUs is taken, ties by name. Without
nodes there is room for everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from modelyard.objects import Node
from modelyard.replay.pods import SimulatedPod

ANYWHERE = ""


class Scheduler:
    """The free GPUs of each node."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = {node.name: node for node in nodes if node.ready and node.schedulable}
        self._free = {name: dict(node.gpus) for name, node in self._nodes.items()}
        self._taken: dict[int, list[tuple[str, str, int]]] = {}

    def place(self, pod: SimulatedPod) -> str | None:
        """The node of the replica's first pod, whose GPUs are taken from now on; ``None`` when it does not fit."""
        spec = pod.variant
        if not self._nodes or not spec.gpu_resource:
            return ANYWHERE
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
