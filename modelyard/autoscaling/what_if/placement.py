"""Which node a new replica gets in virtual time, so that GPUs are used once.

Where no node of its accelerator is known a replica runs without one. Where nodes are known and none has room it waits,
as it would for the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from modelyard.autoscaling.accelerators import PRODUCT_LABELS
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.variants.pools import Pools
from modelyard.objects import Pod, Workload


class Placement:
    """The free GPUs of a fleet's nodes once ``pods`` have theirs."""

    def __init__(self, fleet: Fleet, pods: Iterable[Pod]) -> None:
        self._labels = {node.name: node.labels for node in fleet.nodes}
        self._free = Pools(replace(fleet, pods=tuple(pods)), _everywhere).free

    def place(self, pods: Iterable[Pod], pool: str, workload: Workload) -> tuple[Pod, ...] | None:
        """The pods of one replica on nodes of ``pool`` (an accelerator), ``None`` when they find no room."""
        pods = tuple(pods)
        if pool not in self._free or not any(pod.gpus for pod in pods):
            return pods
        free = self._free[pool]
        wanted = {k: v.split(",") for k, v in workload.node_selector.items() if k not in PRODUCT_LABELS}
        names = [n for n in free if all(self._labels[n].get(key) in values for key, values in wanted.items())]
        placed: list[Pod] = []
        for pod in pods:
            node = min((n for n in names if free[n] >= pod.gpus), key=lambda n: (free[n], n), default=None)
            if node is None:
                for done in placed:
                    free[done.node] += done.gpus
                return None
            free[node] -= pod.gpus
            placed.append(replace(pod, node=node, unschedulable=""))
        return tuple(placed)


def _everywhere(labels: Mapping[str, str]) -> bool:
    return True
