"""The workloads of variants in virtual time: replicas come after their start-up and share the held load.

One ``VirtualFleet`` per question. Scalers that read the gauge are taken to follow it at once. A replica that could not
be scheduled never comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import TickDecision, VariantDecision
from modelyard.autoscaling.fleet import Fleet, Variant, pool_name, shared_models, short_name
from modelyard.autoscaling.variants import GROUP_INDEX_LABEL, Observation, Pools, startup
from modelyard.autoscaling.what_if.bindings import VirtualBinding
from modelyard.autoscaling.what_if.inventory import owner_of
from modelyard.autoscaling.what_if.spread import PodEngine, Spread, engine_of, evenly, observed
from modelyard.metrics.vocabulary import ModelLoad, PodPerformance, PodSignal, Signals
from modelyard.objects import PRODUCT_LABELS, Key, Pod, Workload, WorkloadId

Model = tuple[str, str]
"""Namespace and model ID."""


@dataclass(slots=True)
class VirtualReplica:
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

    def __init__(self, seen: Observation, settings: FleetSettings, now: float) -> None:
        assert seen.workload is not None
        self.workload = seen.workload
        self.variant = seen.variant.key
        self.model: Model = (seen.variant.key.namespace, seen.variant.model_id)
        self.engine = engine_of(seen)
        self.startup = startup(seen, settings)
        self.spec = seen.spec
        self.pool = ""
        self._made = 0
        self._owner = next((pod.owner for pod in seen.pods if pod.owner is not None), None) or owner_of(
            self.workload.id
        )
        self.replicas = _replicas(seen, self.startup, settings, now)
        while len(self.replicas) < (seen.current or 0):
            ready = sum(r.ready_at <= now for r in self.replicas) < (seen.ready or 0)
            self.replicas.append(VirtualReplica((), -inf) if ready else self._new(now))
        self.replicas = self.replicas[: seen.current or 0]

    def scale(self, wanted: int, now: float) -> None:
        """New ones are created now; of those there are, the ones not ready go first, then the youngest."""
        self.spec = wanted
        self.replicas.sort(key=lambda replica: replica.ready_at)
        del self.replicas[wanted:]
        self.replicas += [self._new(now) for _ in range(wanted - len(self.replicas))]

    def _new(self, now: float) -> VirtualReplica:
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
                gpu_resource=self.workload.gpu_resource,
            )
            for index in range(size)
        )
        return VirtualReplica(pods, now + self.startup, assumed=True, placed=False)

    def reporting(self, replica: VirtualReplica) -> list[Key]:
        """The pods of a replica whose engine has metrics: of a new group, its first."""
        return [pod.key for pod in (replica.pods[:1] if replica.assumed else replica.pods)]


def _replicas(seen: Observation, start: float, settings: FleetSettings, now: float) -> list[VirtualReplica]:
    assert seen.workload is not None
    size = seen.workload.pods_per_replica
    groups: dict[str, list[Pod]] = defaultdict(list)
    for index, pod in enumerate(seen.pods):
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
        found.append(VirtualReplica(tuple(pods), at))
    return sorted(found, key=lambda replica: replica.ready_at)


class Placement:
    """The free GPUs of a fleet's nodes once ``pods`` have theirs, so that GPUs are used once.

    Without a known node of its accelerator a replica runs without one; with full nodes it waits for the scheduler.
    """

    def __init__(self, fleet: Fleet, pods: Iterable[Pod]) -> None:
        self._labels = {node.name: node.labels for node in fleet.nodes}
        self._free = Pools(replace(fleet, pods=tuple(pods)), lambda _: True).free

    def place(self, pods: Iterable[Pod], pool: str, workload: Workload) -> tuple[Pod, ...] | None:
        """The pods of one replica on nodes of ``pool`` (an accelerator), ``None`` when they find no room."""
        pods, pool = tuple(pods), pool_name(pool, workload.gpu_resource)
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


class VirtualFleet:
    """Everything of a fleet that a decision moves."""

    def __init__(self, fleet: Fleet, settings: FleetSettings) -> None:
        self._start = fleet
        self._settings = settings
        self.now = fleet.now
        self._variants: dict[Key, Variant] = {variant.key: variant for variant in fleet.variants}
        variants = observed(fleet, settings)
        self._deployed: dict[WorkloadId, Deployed] = {
            seen.workload_id: Deployed(seen, settings, fleet.now)
            for seen in variants
            if seen.workload_id is not None and seen.workload is not None
        }
        ours = {pod.key for seen in variants for pod in seen.pods}
        self._foreign = tuple(pod for pod in fleet.pods if pod.key not in ours)
        self._engines = {pod.key: engine_of(seen) for seen in variants for pod in seen.pods}
        self._signals: dict[Model, list[PodSignal]] = defaultdict(list)
        """Of the pods that are moved; the others' stay as they are."""
        for signal in fleet.signals.pods:
            if Key(signal.namespace, signal.pod) in ours:
                self._signals[signal.namespace, signal.model].append(signal)
        heard = {Key(s.namespace, s.pod) for s in fleet.signals.pods}
        self._silent = {pod.key for seen in variants for pod in seen.pods if pod.ready} - heard
        self._spreads: dict[Model, Spread] = {}
        self._bindings = {view.key: VirtualBinding(view, settings, fleet.now) for view in fleet.bindings}

    def fleet(self) -> Fleet:
        """What a tick would see now; at the beginning the very fleet that was handed in."""
        if self.now == self._start.now:
            return self._start
        workloads = dict(self._start.workloads)
        pods = list(self._foreign)
        for id_, deployed in self._deployed.items():
            ready = sum(replica.ready_at <= self.now for replica in deployed.replicas)
            workloads[id_] = replace(
                deployed.workload,
                spec_replicas=deployed.spec,
                status_replicas=len(deployed.replicas),
                ready=None if deployed.workload.ready is None else ready,
            )
            pods += [pod for replica in deployed.replicas for pod in replica.pods_at(self.now)]
        return replace(
            self._start,
            now=self.now,
            variants=tuple(self._variants[variant.key] for variant in self._start.variants),
            workloads=workloads,
            pods=tuple(pods),
            signals=self._seen(),
            bindings=tuple(binding.at(self.now) for binding in self._bindings.values()),
        )

    def follow(self, decision: TickDecision) -> None:
        for one in decision.variants:
            self._remember(one)
            (record,) = one.records
            deployed = self._deployed.get(record.now.workload) if record.now.workload is not None else None
            if deployed is None or deployed.variant != record.identity.key:
                continue
            follows = record.writes.mode is Mode.SIGNAL and record.writes.publish and record.target.decided
            wanted = record.target.replicas if follows else record.writes.scale
            deployed.pool = short_name(record.now.accelerator or "")
            if wanted is not None and wanted != deployed.spec:
                deployed.scale(wanted, self.now)
        self._place()
        for policy in decision.bindings:
            if policy.key in self._bindings:
                self._bindings[policy.key].follow(policy, self.now)

    def advance(self) -> None:
        self.now += self._settings.tick

    def _place(self) -> None:
        waiting = [(d, r) for d in self._deployed.values() for r in d.replicas if not r.placed]
        if not waiting:
            return
        there = (pod for d in self._deployed.values() for r in d.replicas if r.placed for pod in r.pods)
        placement = Placement(self._start, (*self._foreign, *there))
        for deployed, replica in waiting:
            found = placement.place(replica.pods, deployed.pool, deployed.workload)
            if found is not None:
                replica.pods, replica.placed, replica.ready_at = found, True, self.now + deployed.startup
            else:
                text = f"no node has {deployed.pool} enough for it"
                replica.pods = tuple(replace(pod, unschedulable=text) for pod in replica.pods)
                replica.ready_at = inf

    @property
    def starting(self) -> bool:
        waits = (r.ready_at for deployed in self._deployed.values() for r in deployed.replicas)
        bindings = self._bindings.values()
        return any(self.now < at < inf for at in waits) or any(binding.starting(self.now) for binding in bindings)

    @property
    def longest_start(self) -> float:
        """Seconds the slowest variant's replicas take to be ready."""
        return max((deployed.startup for deployed in self._deployed.values()), default=0.0)

    def _remember(self, decision: VariantDecision) -> None:
        after = replace(self._variants[decision.key], memory=decision.memory, conditions=decision.conditions)
        target = decision.records[0].target.replicas
        if target is not None:
            after = replace(after, status_replicas=target, last_run=self.now)
        self._variants[decision.key] = after

    def _seen(self) -> Signals:
        before, later = self._start.signals, self.now - self._start.now
        pods = [s for s in before.pods if Key(s.namespace, s.pod) not in self._engines]
        performance = [p for p in before.performance if Key(p.namespace, p.pod) not in self._engines]
        queues, sizes, wakes = dict(before.gateway_queue), dict(before.gateway_bytes), dict(before.wake)
        there: dict[Model, list[tuple[Key, PodEngine]]] = defaultdict(list)
        served: set[str] = set()
        for deployed in self._deployed.values():
            for replica in deployed.replicas:
                if replica.ready_at <= self.now:
                    served.add(deployed.model[1])
                    there[deployed.model] += [(key, deployed.engine) for key in deployed.reporting(replica)]
        for model, engines in there.items():
            known = {Key(s.namespace, s.pod) for s in self._signals[model]}
            reporting = [(key, engine) for key, engine in engines if key not in self._silent]
            moved = {key for key, _ in reporting} != known
            spread = self._spread(model)
            if moved:
                for place in (model, ("", model[1])):
                    queues.pop(place, None)
                    sizes.pop(place, None)
            pods += spread.on(reporting, model[1]) if moved else self._signals[model]
            performance += _performance(before.performance, reporting, model, moved)
        woken = (key for key in before.wake if key in self._variants and self._variants[key].model_id in served)
        wakes |= dict.fromkeys(woken, 0.0)
        return replace(
            before,
            pods=tuple(_later(s, later) for s in pods),
            performance=tuple(performance),
            gateway_queue=queues,
            gateway_bytes=sizes,
            wake=wakes,
            loads={key: _held(load, self.now, self._settings) for key, load in before.loads.items()},
            last_seen={key: at + later for key, at in before.last_seen.items()},
        )

    def _spread(self, model: Model) -> Spread:
        if model not in self._spreads:
            queue = self._start.signals.queued(*model, model[1] in shared_models(self._start.variants)) or 0.0
            pending = [p for key, p in self._start.signals.wake.items() if self._variants[key].model_id == model[1]]
            if not self._signals[model]:
                queue = max([queue, *pending])
            self._spreads[model] = Spread(self._signals[model], self._engines, queue)
        return self._spreads[model]


def _later(signal: PodSignal, seconds: float) -> PodSignal:
    return signal if signal.sampled_at is None else replace(signal, sampled_at=signal.sampled_at + seconds)


def _held(load: ModelLoad, now: float, settings: FleetSettings) -> ModelLoad:
    """Arrivals go on unchanged; the history ages."""
    if load.arrivals is None or not load.history:
        return load
    points = [point for point in load.history if point[0] > now - settings.trend_window - settings.tick]
    newest = load.history[-1][0]
    steps = int((now - newest) / settings.tick)
    first = max(0, steps - int(settings.trend_window / settings.tick))
    points += [(newest + (step + 1) * settings.tick, load.arrivals) for step in range(first, steps)]
    return ModelLoad(load.arrivals, tuple(points), load.sizes)


def _performance(
    found: Sequence[PodPerformance], pods: Sequence[tuple[Key, PodEngine]], model: Model, moved: bool
) -> list[PodPerformance]:
    """The requests in all stay the same; present speeds are unknown."""
    mine = {Key(p.namespace, p.pod): p for p in found if (p.namespace, p.model) == model}
    if not moved:
        return [mine[key] for key, _ in pods if key in mine]
    if not mine:
        return []
    sized = max(mine.values(), key=lambda p: p.completed or 0.0)
    caches = [p.kv_tokens for p in mine.values() if p.kv_tokens is not None]
    like = replace(sized, kv_tokens=min(caches, default=None))
    parts = evenly(PodPerformance, mine.values(), len(pods))
    return [replace(mine.get(key, like), namespace=key.namespace, pod=key.name, **parts) for key, _ in pods]
