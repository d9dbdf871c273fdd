"""Free GPUs: which accelerators there are, on which nodes, and what of them a variant draws from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from modelyard.autoscaling.fleet import Fleet, pool_of_node
from modelyard.autoscaling.variants.observation import Observation
from modelyard.objects import PRODUCT_LABELS, Matcher, partition_of

LIMITED_BY = "gpu-limiter"


class Pools:
    """Free GPUs per accelerator and node."""

    def __init__(self, fleet: Fleet, matches: Matcher) -> None:
        self._nodes = {node.name: node for node in fleet.nodes}
        self.free: dict[str, dict[str, int]] = defaultdict(dict)
        """Free GPUs by pool (normalized accelerator) and node name."""
        self.total: dict[str, int] = defaultdict(int)
        pools: dict[str, dict[str, str]] = {}
        for node in sorted(fleet.nodes, key=lambda n: n.name):
            if not (node.ready and node.schedulable and matches(node.labels)):
                continue
            mine = pools.setdefault(node.name, {})
            for resource, count in sorted(node.gpus.items()):
                pool = pool_of_node(node.labels, resource)
                if pool is None or count <= 0:
                    continue
                self.free[pool][node.name] = self.free[pool].get(node.name, 0) + count
                self.total[pool] += count
                mine[resource] = pool
        for pod in fleet.pods:
            if not (pod.node and pod.gpus) or pod.has_ended:
                continue
            if (pool := _pool_of_pod(pools.get(pod.node, {}), pod.gpu_resource)) is not None:
                free = self.free[pool]
                free[pod.node] = max(0, free[pod.node] - pod.gpus)

    def reserve(self, variants: Iterable[Observation]) -> None:
        """Set aside GPUs for pods without a node; replicas that only ``spec`` names may never come and keep none."""
        for seen in variants:
            waiting = [pod.gpus for pod in seen.pods if pod.gpus and not pod.node]
            if waiting and seen.workload is not None:
                free = self.free.get(seen.pool, {})
                names = self._eligible(free, seen.workload.node_selector)
                for gpus in waiting:
                    _take(free, names, gpus)

    def available(self, seen: Observation) -> int:
        return sum(self.free.get(seen.pool, {}).values())

    def place(self, seen: Observation, replicas: int) -> int:
        """Take GPUs for up to ``replicas`` replicas; return for how many there was room."""
        assert seen.workload is not None
        free = self.free.get(seen.pool, {})
        names = self._eligible(free, seen.workload.node_selector)
        pods = seen.workload.pods_per_replica
        each = -(-seen.gpus // pods)
        for done in range(replicas):
            chosen: list[str] = []
            for _ in range(pods):
                node = _take(free, names, each)
                if node is None:
                    for name in chosen:
                        free[name] += each
                    return done
                chosen.append(node)
        return replicas

    def _eligible(self, free: Mapping[str, int], selector: Mapping[str, str]) -> list[str]:
        wanted = {key: value.split(",") for key, value in selector.items() if key not in PRODUCT_LABELS}
        if not wanted:
            return list(free)
        return [n for n in free if all(self._nodes[n].labels.get(key) in values for key, values in wanted.items())]


def _take(free: dict[str, int], names: Iterable[str], gpus: int) -> str | None:
    """Prefers the fullest node."""
    node = min((name for name in names if free[name] >= gpus), key=lambda name: (free[name], name), default=None)
    if node is not None:
        free[node] -= gpus
    return node


def _pool_of_pod(pools: Mapping[str, str], resource: str) -> str | None:
    """Whole cards are assumed of a pod that names no resource."""
    whole = (pool for name, pool in sorted(pools.items()) if not partition_of(name))
    return pools.get(resource) if resource else next(whole, next(iter(pools.values()), None))
