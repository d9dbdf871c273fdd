"""Fleets for tests: a few readable numbers in, a complete ``Fleet`` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decisions import Told, told

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import PodSignal, Signals
from modelyard.objects import Key, Node, OwnerRef, Pod, TargetRef, Workload, WorkloadId

NOW = 1_700_000_000.0
MODEL = "meta/llama"
CONTROLLER = "workload-variant-autoscaler-system"
SATURATION = Key(CONTROLLER, "wva-saturation-scaling-config")
ZERO = Key(CONTROLLER, "wva-model-scale-to-zero-config")
LABEL = "inference.optimization/acceleratorName"

PUBLISHED = FleetSettings(compatibility="published")
REPAIRED = FleetSettings()
EAGER = FleetSettings(scale_down_delay=0, scale_down_margin=0, scale_down_elasticity=1)
"""Repaired without damping and caution, so that a table's verdict shows in one tick."""


@dataclass
class Serving:
    """One variant with its workload and pods.

    ``load`` holds (kv, waiting) per reporting pod; pods beyond it are ready without reporting, up to ``ready``.
    """

    name: str = "v1"
    load: Sequence[tuple[float | None, float | None]] = ()
    current: int | None = None
    ready: int | None = None
    spec: int | None = None
    desired: int | None = None
    cost: float = 10.0
    model: str = MODEL
    namespace: str = "chat"
    accelerator: str | None = "H100"
    gpus: int = 1
    created: float = NOW - 86_400
    ready_age: float = 3600.0
    startup: float = 60.0
    rate: float | None = 1.0
    running: float | None = 0.0
    kind: str = "Deployment"
    memory: VariantMemory = field(default_factory=VariantMemory)
    variant: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> WorkloadId:
        return WorkloadId(self.namespace, "apps", self.kind, self.name)

    @property
    def replicas(self) -> int:
        return len(self.load) if self.current is None else self.current

    @property
    def ready_count(self) -> int:
        return max(len(self.load), self.replicas) if self.ready is None else self.ready

    def pods(self) -> list[Pod]:
        count = max(len(self.load), min(self.replicas, self.ready_count), self.replicas)
        made = []
        for i in range(count):
            since = NOW - self.ready_age if i < max(self.ready_count, len(self.load)) else None
            if i >= self.ready_count:
                since = None
            made.append(
                replace(
                    Pod(
                        Key(self.namespace, f"{self.name}-{i}"),
                        f"pod-{self.namespace}-{self.name}-{i}",
                        OwnerRef("apps/v1", "ReplicaSet", f"{self.name}-rs", f"rs-{self.namespace}-{self.name}"),
                        created=NOW - self.ready_age - self.startup,
                        ready_since=since,
                        phase="Running",
                        gpus=self.gpus,
                    ),
                    **self.pod,
                )
            )
        return made


def make_variant(s: Serving) -> Variant:
    decided = s.desired is not None
    base = Variant(
        Key(s.namespace, s.name),
        f"va-{s.namespace}-{s.name}",
        generation=3,
        resource_version="7",
        created=s.created,
        model_id=s.model,
        target=TargetRef("apps/v1", s.kind, s.name),
        cost=s.cost,
        labels={LABEL: s.accelerator} if s.accelerator else {},
        status_replicas=s.desired,
        status_accelerator=s.accelerator if decided else None,
        last_run=NOW - 30 if decided else None,
        memory=s.memory,
    )
    return replace(base, **s.variant)


def make_workload(s: Serving) -> Workload:
    base = Workload(
        s.id,
        f"wl-{s.namespace}-{s.name}",
        spec_replicas=s.replicas if s.spec is None else s.spec,
        status_replicas=s.replicas,
        ready=s.ready_count,
        created=s.created,
        gpus=s.gpus,
        gpu_resource="nvidia.com/gpu",
    )
    return replace(base, **s.workload)


def make_fleet(
    *serving: Serving,
    now: float = NOW,
    config: Mapping[str, str] | None = None,
    zero: Mapping[str, str] | None = None,
    config_maps: Mapping[Key, Mapping[str, str]] | None = None,
    counts: Mapping[tuple[str, str, int], float] | None = None,
    consumers: Iterable[Consumer] = (),
    nodes: Iterable[Node] = (),
    extra_pods: Iterable[Pod] = (),
    signals: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Fleet:
    """A fleet of the given variants, everything else as on a quiet cluster."""
    pods: list[Pod] = []
    found: list[PodSignal] = []
    owners: dict[tuple[str, str, str], OwnerRef] = {}
    for s in serving:
        mine = s.pods()
        pods += mine
        for pod, (kv, waiting) in zip(mine, s.load, strict=False):
            found.append(
                PodSignal(s.namespace, pod.key.name, s.model, kv, waiting, s.running, s.rate, sampled_at=now - 5)
            )
        owners[(s.namespace, "ReplicaSet", f"{s.name}-rs")] = OwnerRef(
            "apps/v1", s.kind, s.name, f"wl-{s.namespace}-{s.name}"
        )
    maps = dict(config_maps or {})
    if config is not None:
        maps[SATURATION] = config
    if zero is not None:
        maps[ZERO] = zero
    return Fleet(
        now=now,
        variants=tuple(make_variant(s) for s in serving),
        workloads={s.id: make_workload(s) for s in serving},
        pods=(*pods, *extra_pods),
        owners=owners,
        consumers=tuple(consumers),
        nodes=tuple(nodes),
        config_maps=maps,
        signals=Signals(pods=tuple(found), request_counts=counts or {}, **(signals or {})),
        **fields,
    )


def records(decision: TickDecision) -> dict[str, Told]:
    """Decisions by variant name."""
    return {one.key.name: one for one in told(decision)}


def run(*serving: Serving, settings: FleetSettings = REPAIRED, **fields: Any) -> dict[str, Told]:
    """Decide for a fleet and return the decisions by variant name."""
    return records(decide(make_fleet(*serving, **fields), settings))


def one(*serving: Serving, settings: FleetSettings = REPAIRED, **fields: Any) -> Told:
    """The decision about the first variant."""
    return run(*serving, settings=settings, **fields)[serving[0].name]


def condition(decision: Told, type_: str) -> tuple[str, str]:
    """(status, reason) of a condition of a decision."""
    return next((c.status, c.reason) for c in decision.conditions if c.type == type_)


def hpa(s: Serving, minimum: int | None = 1, maximum: int | None = 10, **fields: Any) -> Consumer:
    return Consumer(Key(s.namespace, f"{s.name}-hpa"), "HorizontalPodAutoscaler", s.id, minimum, maximum, **fields)


def gpu_node(name: str, gpus: int, product: str = "NVIDIA-H100-SXM5-80GB", **fields: Any) -> Node:
    return Node(name, {"nvidia.com/gpu.product": product}, {"nvidia.com/gpu": gpus}, **fields)
