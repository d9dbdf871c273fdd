"""The real decision code as a policy: ``decide`` on a fleet built from the simulated one, tick by tick.

What the cluster keeps between ticks is kept the same way: the memory as the annotation's text, the status as the merge
patch the loop would send, and only when the loop would send one; both are read back by the loop's own reader. So a
replayed decision is the one the loop would have made.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import TickDecision
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.offline import Manifest, Snapshot, fleet_from_files
from modelyard.autoscaling.pipeline import decide
from modelyard.autoscaling.plans import variant_plans
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.variants import retentions
from modelyard.metrics.vocabulary import Signals
from modelyard.objects import Key, OwnerRef, Pod, Workload, WorkloadId
from modelyard.replay.policies.base import carried_out
from modelyard.replay.policies.bindings import Bindings
from modelyard.replay.policies.horizontal import Horizontal, HorizontalBehaviour
from modelyard.replay.simulation import Metrics, SignalReader, SimulatedFleet, SimulatedPod, VariantSpec

ORIGIN = 1_767_225_600.0
"""The epoch second at which a replay begins (2026-01-01): decisions are made in absolute time."""

OnDecision = Callable[[Fleet, TickDecision], None]


class ModelyardPolicy:
    """Decides as the loop would, on any manifests: VariantAutoscalings and AutoscalingPolicyBindings.

    ``on_decision`` sees every fleet and decision. A workload in signal mode is moved by a horizontal autoscaler that
    follows its gauge (``desired`` as an external metric, one per replica).
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        settings: FleetSettings | None = None,
        name: str = "default",
        on_decision: OnDecision | None = None,
    ) -> None:
        self.settings = settings or FleetSettings()
        self.name = name
        self.interval = self.settings.tick
        self._on_decision = on_decision
        self._base = fleet_from_files(manifests, Snapshot(), ORIGIN, self.settings)
        self._bodies = {m.key: copy.deepcopy(m.body) for m in manifests if m.kind == "VariantAutoscaling"}
        self._variants = {variant.key: variant for variant in self._base.variants}
        self._bindings = Bindings(manifests, self.settings, ORIGIN)
        self._periods = sorted(set(retentions(self._base.variants, self._base.config_maps, self.settings).values()))
        self.keep = max(5 * self.settings.peak_window, 5 * self.settings.load_window, *self._periods, 0.0)
        self._reader: SignalReader | None = None
        self._followers: dict[Key, Horizontal] = {}
        self.errors: dict[str, None] = {}
        """What went wrong in any tick, each once."""

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        """As the manifests say."""
        return {}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """Collect, decide, keep status and memory; what is to be written to the workloads."""
        seen = self.observe(now, fleet, metrics)
        decision = decide(seen, self.settings)
        self.errors.update(dict.fromkeys(decision.errors))
        if self._on_decision is not None:
            self._on_decision(seen, decision)
        for plan in variant_plans(seen, decision, self.settings.status_refresh):
            if plan.annotations or plan.status is not None:
                key = plan.subject.key
                self._bodies[key] = carried_out(self._bodies[key], plan, seen.now)
                self._variants[key] = observe.variant(self._bodies[key])
        self._bindings.keep(seen.bindings, decision.bindings, seen.now)
        by_workload = {spec.workload: spec.key for spec in fleet.variants.values()}
        wanted: dict[Key, int] = {}
        for record in decision.records:
            scaled = by_workload.get(record.now.workload)
            if scaled is None or record.target.replicas is None:
                continue
            if record.writes.mode is Mode.SIGNAL:
                if record.writes.publish:
                    follower = self._followers.setdefault(scaled, self._follower(seen, record.now.workload))
                    wanted[scaled] = follower.external(now, fleet.spec[scaled], float(record.target.replicas), 1.0)
            elif record.writes.scale is not None:
                wanted[scaled] = record.writes.scale
        return wanted

    def observe(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Fleet:
        """The fleet as ``collect`` would see it now."""
        workloads = dict(self._base.workloads)
        pods: list[Pod] = []
        for key, spec in fleet.variants.items():
            assert spec.workload is not None
            alive = fleet.pods_of(key)
            workloads[spec.workload] = _workload(workloads[spec.workload], fleet.spec[key], alive)
            pods += [_pod(pod, spec) for pod in alive]
        return dataclasses.replace(
            self._base,
            now=ORIGIN + now,
            variants=tuple(self._variants[variant.key] for variant in self._base.variants),
            workloads=workloads,
            pods=tuple(pods),
            bindings=self._bindings.observe(now, fleet, workloads, {pod.key.name: pod for pod in pods}),
            signals=self._signals(now, fleet, metrics),
        )

    def _signals(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Signals:
        settings = self.settings
        if self._reader is None:
            self._reader = SignalReader(metrics, ORIGIN, history=settings.load_history)
        models = {spec.model for spec in fleet.variants.values()}
        return self._reader.read(
            now,
            peak_window=settings.peak_window,
            load_window=settings.load_window,
            retentions=self._periods,
            gateway_queue={("", model): float(fleet.queued(model)) for model in sorted(models)},
        )

    def _follower(self, fleet: Fleet, workload: WorkloadId | None) -> Horizontal:
        consumer = next((one for one in fleet.consumers if one.target == workload), None)
        return Horizontal(
            HorizontalBehaviour(),
            minimum=(consumer.minimum if consumer is not None else None) or 1,
            maximum=(consumer.maximum if consumer is not None else None) or 10_000,
        )


def _workload(base: Workload, replicas: int, alive: Sequence[SimulatedPod]) -> Workload:
    """Pods that are going away are not counted in a workload's status."""
    return dataclasses.replace(
        base,
        spec_replicas=replicas,
        status_replicas=sum(pod.active for pod in alive),
        ready=sum(pod.ready for pod in alive),
    )


def _pod(pod: SimulatedPod, spec: VariantSpec) -> Pod:
    workload = spec.workload
    assert workload is not None
    # Kubernetes keeps whole seconds.
    return Pod(
        key=Key(workload.namespace, pod.name),
        uid=pod.name,
        owner=OwnerRef(f"{workload.group}/v1" if workload.group else "v1", workload.kind, workload.name, ""),
        created=float(int(ORIGIN + pod.created)),
        ready_since=float(int(ORIGIN + pod.ready_at)) if pod.ready else None,
        phase="Pending" if pod.unschedulable else "Running",
        deleting=not pod.active,
        node=pod.node,
        gpus=spec.gpus,
        labels=spec.labels,
        unschedulable=pod.unschedulable,
    )
