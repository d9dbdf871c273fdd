"""Which pod, and with it which signal, belongs to which variant. All in memory, no reads.

A pod belongs to the variant whose workload stands in its chain of controller owners (ReplicaSet to Deployment,
StatefulSet and LeaderWorkerSet directly, or further up); the pod label ``llm-d.ai/variant`` overrides. The chain of a
LeaderWorkerSet's worker goes through its leader: StatefulSet of the group, leader Pod, StatefulSet of the leaders.
Signals count only for pods that exist and are not going away, which also drops the last minute of samples of a deleted
pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import fsum
from typing import Any

from modelyard.autoscaling.fleet import ACCELERATOR_LABEL, UNRESOLVED, Fleet, product_of, short_name
from modelyard.autoscaling.variants.observation import Observation, Unit
from modelyard.metrics.vocabulary import Join, Over, PodPerformance, PodSignal
from modelyard.objects import Key, Node, OwnerRef, Pod, WorkloadId

VARIANT_LABEL = "llm-d.ai/variant"
GROUP_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
Performances = Mapping[tuple[str, str, str], PodPerformance]
"""By namespace, pod and model."""
_MAX_DEPTH = 4
"""Owners from a pod upwards. A worker of a LeaderWorkerSet has so many."""


class Attributed:
    """The pods of a variant, what they report of its model, and the names of other models that they report."""

    __slots__ = ("model_id", "other_models", "pods", "seen", "units")

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.model_id = seen.variant.model_id
        self.pods: list[Pod] = []
        self.units: list[Unit] = []
        self.other_models: set[str] = set()

    def observation(self, nodes: Mapping[str, Node]) -> Observation:
        workload, current = self.seen.workload, self.seen.current
        assert workload is not None
        assert current is not None
        units, ready = self.units, self.seen.ready
        if workload.pods_per_replica > 1 and len(units) > 1:
            units = _merge_groups(units)
        if ready is None:
            size = workload.pods_per_replica
            ready = _ready_groups(self.pods, size) if size > 1 else sum(pod.ready for pod in self.pods)
        return self.seen._replace(
            pods=self.pods,
            units=units,
            other_models=self.other_models,
            ready=ready,
            pending=max(0, current - ready),
            reporting=len([pod for _, pod in units if pod.ready_since is not None]),
            accelerator=accelerator_of(self.seen, self.pods, nodes),
        )


def accelerator_of(seen: Observation, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> str | None:
    """Return the accelerator: label, then workload template, then the node of a running pod, then what status says."""
    slo = seen.variant.slo
    name = slo.accelerator if slo is not None else seen.variant.labels.get(ACCELERATOR_LABEL)
    if name:
        return name
    if seen.workload is not None and (product := product_of(seen.workload.node_selector)):
        return short_name(product)
    for pod in sorted((pod for pod in pods if pod.node in nodes), key=lambda pod: pod.key):
        if product := product_of(nodes[pod.node].labels):
            return short_name(product)
    known = seen.variant.status_accelerator
    return known if known and known != UNRESOLVED else None


def attribute(fleet: Fleet, active: Sequence[Observation], stale_before: float) -> tuple[list[Observation], int]:
    """Return active variants with pods and signals since ``stale_before``, and the number of signals of no live pod."""
    variants = [Attributed(seen) for seen in active]
    by_workload = {variant.seen.workload_id: variant for variant in variants}
    by_name = {variant.seen.key: variant for variant in variants}
    signals, further = _by_pod(fleet.signals.pods)
    nothing: dict[str, PodSignal] = {}
    owned: dict[object, Attributed | None] = {}
    owners = _Owners(fleet)
    taken = 0
    for pod in fleet.pods:
        if pod.deleting or pod.has_ended:
            continue
        namespace, name = pod.key
        variant = None
        if pod.labels and VARIANT_LABEL in pod.labels:
            variant = by_name.get(Key(namespace, pod.labels[VARIANT_LABEL]))
        if variant is None:
            owner = pod.owner
            if owner is None:
                continue
            memo = (namespace, owner.uid or owner)  # a pod may name an owner of another namespace
            if memo in owned:
                variant = owned[memo]
            else:
                variant = owned[memo] = _owner(namespace, owner, owners, by_workload)
            if variant is None:
                continue
        variant.pods.append(pod)
        signal = signals.get(namespace, nothing).get(name)
        if signal is None:
            continue
        for one in (signal, *further.get((namespace, name), ())) if further else (signal,):
            taken += 1
            if one.model != variant.model_id:
                variant.other_models.add(one.model)
            elif (one.kv is not None or one.waiting is not None) and (
                one.sampled_at is None or one.sampled_at >= stale_before
            ):
                variant.units.append((one, pod))
    nodes = {node.name: node for node in fleet.nodes}
    return [variant.observation(nodes) for variant in variants], len(fleet.signals.pods) - taken


def _by_pod(
    found: Iterable[PodSignal],
) -> tuple[dict[str, dict[str, PodSignal]], dict[tuple[str, str], list[PodSignal]]]:
    """Further signals of a pod that serves several models are apart."""
    first: dict[str, dict[str, PodSignal]] = {}
    further: dict[tuple[str, str], list[PodSignal]] = {}
    for signal in found:
        pods = first.get(signal.namespace)
        if pods is None:
            first[signal.namespace] = {signal.pod: signal}
        elif signal.pod in pods:
            further.setdefault((signal.namespace, signal.pod), []).append(signal)
        else:
            pods[signal.pod] = signal
    return first, further


def by_pod(performance: Iterable[PodPerformance]) -> Performances:
    """What each pod did."""
    return {(found.namespace, found.pod, found.model): found for found in performance}


def _owner(
    namespace: str, owner: OwnerRef, owners: _Owners, by_workload: Mapping[WorkloadId | None, Attributed]
) -> Attributed | None:
    step: OwnerRef | None = owner
    for _ in range(_MAX_DEPTH):
        if step is None:
            return None
        group = step.api_version.split("/")[0] if "/" in step.api_version else ""
        variant = by_workload.get(WorkloadId(namespace, group, step.kind, step.name))
        if variant is not None:
            assert variant.seen.workload is not None
            uid = variant.seen.workload.uid
            # A workload that was deleted and created again under its name does not own the old one's pods.
            return variant if not step.uid or not uid or step.uid == uid else None
        step = owners.of(namespace, step)
    return None


class _Owners:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @cached_property  # built when a chain first leads to a pod
    def _of_pods(self) -> Mapping[tuple[str, str], OwnerRef]:
        return {pod.key: pod.owner for pod in self._fleet.pods if pod.owner is not None}

    def of(self, namespace: str, owner: OwnerRef) -> OwnerRef | None:
        if owner.kind == "Pod":
            return self._of_pods.get((namespace, owner.name))
        return self._fleet.owners.get((namespace, owner.kind, owner.name))


def _ready_groups(pods: Iterable[Pod], size: int) -> int:
    """Pods without a group label count by number."""
    grouped = Counter(pod.labels.get(GROUP_INDEX_LABEL) for pod in pods if pod.ready)
    loose = grouped.pop(None, 0)
    return sum(1 for ready in grouped.values() if ready >= size) + loose // size


def _merge_groups(units: list[Unit]) -> list[Unit]:
    # The engines of a group are one replica: requests add up and the fullest cache counts. Pods that repeat another's
    # values count as engines too, which leaves the mean per engine as it is.
    groups: dict[str, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit[1].key):
        pod = unit[1]
        groups.setdefault(pod.labels.get(GROUP_INDEX_LABEL, pod.key.name), []).append(unit)
    return [(_merged([signal for signal, _ in members]), members[0][1]) for members in groups.values()]


def _merged(signals: Sequence[PodSignal]) -> PodSignal:
    first = signals[0]
    if len(signals) == 1:
        return first
    joined: dict[str, Any] = {}
    for name, measure in PodSignal.measures().items():
        values = [value for signal in signals if (value := getattr(signal, name)) is not None]
        highest = measure.over is Over.TIME or measure.join is Join.MAX
        joined[name] = (max(values) if highest else fsum(values)) if values else None
    joined["engines"] = fsum(signal.engines or 1.0 for signal in signals)
    return replace(first, **joined)


def with_groups(performance: Iterable[PodPerformance], variants: Iterable[Observation]) -> Performances:
    """Return the performance of each pod; under the reporting pod of a group, that of the whole group."""
    of_pods = by_pod(performance)
    result: dict[tuple[str, str, str], PodPerformance] | None = None
    for seen in variants:
        if seen.pods_per_replica == 1:
            continue
        members: dict[str, list[Key]] = {}
        for pod in seen.pods:
            if group := pod.labels.get(GROUP_INDEX_LABEL):
                members.setdefault(group, []).append(pod.key)
        for _, first in seen.units:
            names = members.get(first.labels.get(GROUP_INDEX_LABEL, ""), ())
            reported = (of_pods.get((*key, seen.variant.model_id)) for key in names)
            parts = [part for part in reported if part is not None]
            if len(parts) > 1:
                result = dict(of_pods) if result is None else result
                result[*first.key, seen.variant.model_id] = _together(first.key, parts)
    return of_pods if result is None else result


def _together(key: Key, parts: Sequence[PodPerformance]) -> PodPerformance:
    """Counts and caches add up, means weigh by finished requests."""
    weighted = any(part.completed for part in parts)
    joined: dict[str, Any] = {}
    for name, measure in PodPerformance.measures().items():
        pairs = [(value, part) for part in parts if (value := getattr(part, name)) is not None]
        if measure.over in (Over.GROWTH, Over.CACHE):
            joined[name] = sum(value for value, _ in pairs) if pairs else None
            continue
        weights = [(part.completed or 0.0) if weighted and measure.over is not Over.PEAK else 1.0 for _, part in pairs]
        total = fsum(weights)
        values = [value for value, _ in pairs]
        joined[name] = fsum(v * w for v, w in zip(values, weights, strict=True)) / total if total > 0 else None
    return PodPerformance(key.namespace, key.name, parts[0].model, **joined)
