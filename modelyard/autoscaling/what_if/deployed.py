"""One variant's workload in virtual time: its replicas, when they are ready, which go first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import inf

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.attribution import GROUP_INDEX_LABEL
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.state import State
from modelyard.autoscaling.what_if.spread import engine_of
from modelyard.objects import Key, OwnerRef, Pod

Model = tuple[str, str]
"""Namespace and model ID."""


@dataclass(slots=True)
class Replica:
    """One replica and its pods; one that is known by number only has none. ``ready_at`` infinite: never."""

    pods: tuple[Pod, ...]
    ready_at: float
    assumed: bool = False
    placed: bool = True

    def pods_at(self, now: float) -> tuple[Pod, ...]:
        """Its pods as they are then, Ready once the start-up is over."""
        ready = self.ready_at if self.ready_at <= now else None
        return tuple(
            pod if pod.ready_since is not None or ready is None else replace(pod, ready_since=ready, phase="Running")
            for pod in self.pods
        )


class Deployed:
    """The workload of one variant."""

    def __init__(self, state: State, settings: FleetSettings, now: float) -> None:
        assert state.workload is not None
        self.workload = state.workload
        self.variant = state.variant.key
        self.model: Model = (state.variant.key.namespace, state.variant.model_id)
        self.engine = engine_of(state)
        self.startup = startup(state, settings)
        self.spec = state.spec
        self.pool = ""
        """The accelerator, as the decisions say."""
        self._made = 0
        self._owner = next((pod.owner for pod in state.pods if pod.owner is not None), None) or _owner(state)
        self.replicas = _replicas(state, self.startup, settings, now)
        while len(self.replicas) < (state.current or 0):
            ready = sum(r.ready_at <= now for r in self.replicas) < (state.ready or 0)
            self.replicas.append(Replica((), -inf) if ready else self._new(now))
        self.replicas = self.replicas[: state.current or 0]

    def scale(self, wanted: int, now: float) -> None:
        """New ones are created now; of those there are, the ones not ready go first, then the youngest."""
        self.spec = wanted
        self.replicas.sort(key=lambda replica: replica.ready_at)
        del self.replicas[wanted:]
        self.replicas += [self._new(now) for _ in range(wanted - len(self.replicas))]

    def _new(self, now: float) -> Replica:
        self._made += 1
        id_, size = self.workload.id, self.workload.pods_per_replica
        labels = {GROUP_INDEX_LABEL: f"assumed-{self._made}"} if size > 1 else {}
        pods = tuple(
            Pod(
                Key(id_.namespace, name := f"{id_.name}-assumed-{self._made}" + (f"-{index}" if size > 1 else "")),
                f"assumed/{id_.namespace}/{name}",
                self._owner,
                created=now,
                gpus=-(-self.workload.gpus // size),
                labels=labels,
            )
            for index in range(size)
        )
        return Replica(pods, now + self.startup, assumed=True, placed=False)

    def reporting(self, replica: Replica) -> list[Key]:
        """The pods of a replica whose engine has metrics: of a new group, its first."""
        return [pod.key for pod in (replica.pods[:1] if replica.assumed else replica.pods)]

    def ready(self, now: float) -> int:
        """Replicas that are ready."""
        return sum(replica.ready_at <= now for replica in self.replicas)


def _owner(state: State) -> OwnerRef:
    id_ = state.workload_id
    assert id_ is not None
    return OwnerRef(f"{id_.group}/v1" if id_.group else "v1", id_.kind, id_.name, "")


def _replicas(state: State, start: float, settings: FleetSettings, now: float) -> list[Replica]:
    """The replicas whose pods are known, ready ones first."""
    assert state.workload is not None
    size = state.workload.pods_per_replica
    groups: dict[str, list[Pod]] = defaultdict(list)
    for index, pod in enumerate(state.pods):
        name = pod.labels.get(GROUP_INDEX_LABEL, f"by number {index // size}")
        groups[name if size > 1 else pod.key.name].append(pod)
    found = []
    for pods in groups.values():
        if len(pods) >= size and all(pod.ready for pod in pods):
            at = max(pod.ready_since or 0.0 for pod in pods)
        elif any(pod.unschedulable for pod in pods):
            at = inf
        else:
            at = max(now + settings.tick, min(pod.created for pod in pods) + start)
        found.append(Replica(tuple(pods), at))
    return sorted(found, key=lambda replica: replica.ready_at)
