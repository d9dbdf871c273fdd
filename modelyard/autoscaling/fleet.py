"""What a decision is made from: one picture of the fleet at one instant.

Built by ``modelyard.loop.collect`` from the cluster and Prometheus (or by ``modelyard plan`` from files) and handed to
``modelyard.autoscaling.decide``. Plain values only; ``None`` always means "not known", never zero.
Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from modelyard.autoscaling.memory import VariantMemory

if TYPE_CHECKING:
    from modelyard.autoscaling.policies.view import BindingView


class Key(NamedTuple):
    """Namespace and name of a namespaced object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TargetRef(NamedTuple):
    """A scale target: ``autoscaling/v1`` CrossVersionObjectReference. An empty ``api_version`` means ``apps/v1``."""

    api_version: str
    kind: str
    name: str

    @property
    def group(self) -> str:
        """API group, ``""`` for core; an empty ``api_version`` counts as ``apps``."""
        version = self.api_version or "apps/v1"
        return version.split("/")[0] if "/" in version else ""


class WorkloadId(NamedTuple):
    """Identity of a workload; the version is left out so that ``apps/v1`` and ``apps/v1beta1`` are one workload."""

    namespace: str
    group: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A status condition as Kubernetes writes it (``lastTransitionTime`` in epoch seconds)."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int | None = None
    last_transition: float | None = None


@dataclass(frozen=True, slots=True)
class SLOSpec:
    """What the SLO form adds to a variant, exactly as written in the object: nothing of it is parsed or checked yet.

    ``class_name`` and ``class_key`` are ``sloClassRef``; ``decode`` and ``prefill`` the two parameter maps (text to
    text); ``max_batch`` the engine's limit of concurrent requests; ``accelerator_count`` units per replica.
    """

    variant_id: str
    accelerator: str
    accelerator_count: int
    class_name: str
    class_key: str
    decode: Mapping[str, str]
    prefill: Mapping[str, str]
    max_batch: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One VariantAutoscaling: one model on one workload with one accelerator and cost.

    ``status_replicas`` is ``None`` when the object was never decided (``lastRunTime`` null), which is not the same as
    decided zero. ``cost`` is already parsed (10.0 when absent or unparsable).
    ``problem`` carries what is wrong with the object itself (it does not parse, for example); ``memory_problem`` that
    its remembered state was unreadable and starts afresh.
    """

    key: Key
    uid: str
    generation: int
    resource_version: str
    created: float
    model_id: str
    target: TargetRef | None
    cost: float
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    form: str = "saturation"
    status_replicas: int | None = None
    status_accelerator: str | None = None
    last_run: float | None = None
    applied: bool | None = None
    conditions: tuple[Condition, ...] = ()
    memory: VariantMemory = field(default_factory=VariantMemory)
    problem: str | None = None
    memory_problem: str | None = None
    slo: SLOSpec | None = None
    status_current: Mapping[str, object] | None = None
    """``status.currentAlloc`` as it stands (SLO form)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A scale target as observed. Replica numbers are in the target's own unit (a LeaderWorkerSet group is one).

    ``spec_replicas`` ``None`` counts as 1. ``ready`` ``None`` means the kind does not report it: count ready pods.
    ``gpus`` is GPUs per replica (container requests summed; 0 when the template asks for none or is unknown).
    ``pods_per_replica`` is above 1 for groups. ``node_selector`` is what the template asks for, affinity included.
    """

    id: WorkloadId
    uid: str
    spec_replicas: int | None
    status_replicas: int
    ready: int | None
    created: float = 0.0
    deleting: bool = False
    gpus: int = 0
    gpu_resource: str = ""
    pods_per_replica: int = 1
    selector: str = ""
    template_labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    """Command and arguments of the container that runs the engine."""


class OwnerRef(NamedTuple):
    """The controller owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, reduced to what attribution, warm-up and the limiter need.

    ``ready_since`` is the Ready condition's last transition while it is true. ``gpus`` is
    max(largest init container, sum of containers).
    """

    key: Key
    uid: str
    owner: OwnerRef | None
    created: float
    ready_since: float | None = None
    phase: str = "Pending"
    deleting: bool = False
    node: str = ""
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: str = ""

    @property
    def ready(self) -> bool:
        """Whether the pod is Ready and not being deleted."""
        return self.ready_since is not None and not self.deleting


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its allocatable GPUs by resource name (``nvidia.com/gpu`` ...)."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int]
    ready: bool = True
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Consumer:
    """An HPA or ScaledObject that consumes a variant's gauge, with its bounds.

    ``desired`` is what it last asked of the workload (HPA ``status.desiredReplicas``), if it says.
    """

    key: Key
    kind: str
    target: WorkloadId
    minimum: int | None
    maximum: int | None
    desired: int | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace's labels and annotations."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodSignal:
    """The saturation signals of one pod for one model.

    ``kv`` is KV-cache use as a fraction (peak over the window, may exceed nothing but 1); ``waiting`` requests in the
    queue (same peak); ``running`` requests in the batch now; ``completed_rate`` finished requests per second over
    five minutes. Each is ``None`` when missing, NaN or infinite. ``sampled_at`` is the newest sample's time.
    """

    namespace: str
    pod: str
    model: str
    kv: float | None = None
    waiting: float | None = None
    running: float | None = None
    completed_rate: float | None = None
    sampled_at: float | None = None


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Offered load of one model in one namespace, whoever serves it.

    ``arrivals`` is requests per second now: completions plus the growth of running and waiting, so that it keeps
    rising when the engines are saturated. ``history`` is the same over the last minutes, (time, requests per second),
    oldest first; it may be empty.
    """

    arrivals: float | None
    history: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PodPerformance:
    """What one pod's engine did for one model over the load window. ``None`` when missing, NaN or infinite.

    ``completed`` is requests finished in the window (a count); ``prompt_tokens`` and ``output_tokens`` are means per
    finished request; ``ttft`` and ``itl`` are observed means in milliseconds; ``kv_tokens`` is the size of the KV
    cache in tokens; ``prefix_hit_rate`` a fraction.
    """

    namespace: str
    pod: str
    model: str
    completed: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft: float | None = None
    itl: float | None = None
    kv_tokens: int | None = None
    prefix_hit_rate: float | None = None


class SourceState(StrEnum):
    """How the collection of a signal source went."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything Prometheus said in one tick.

    ``request_counts`` maps (namespace, model, retention seconds) to finished requests over that retention; a missing
    key means unknown, never zero. ``last_seen`` maps (namespace, model) to the newest sample time of any engine metric
    and is what tells "stale" from "missing". ``gateway_queue`` maps model to requests queued at the gateway.
    ``error`` says why Prometheus could not be read at all; ``partial_errors`` names single queries that failed.
    """

    pods: tuple[PodSignal, ...] = ()
    request_counts: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    last_seen: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gateway_queue: Mapping[str, float] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], ModelLoad] = field(default_factory=dict)
    performance: tuple[PodPerformance, ...] = ()
    wake: Mapping[Key, float] = field(default_factory=dict)
    error: str | None = None
    partial_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """One instant of everything a tick decides on.

    ``workloads`` holds every target that exists and could be read; ``workload_errors`` says why one could not be read
    (a target in neither is missing). ``owners`` maps (namespace, kind, name) of intermediate owners (ReplicaSet) to
    their controller. ``consumers_error`` says why HPAs or ScaledObjects could not be listed. ``config_maps`` maps
    (namespace, name) to data.
    """

    now: float
    variants: tuple[Variant, ...] = ()
    workloads: Mapping[WorkloadId, Workload] = field(default_factory=dict)
    workload_errors: Mapping[WorkloadId, str] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    owners: Mapping[tuple[str, str, str], OwnerRef] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    nodes_error: str | None = None
    consumers: tuple[Consumer, ...] = ()
    consumers_error: str | None = None
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    config_maps: Mapping[Key, Mapping[str, str]] = field(default_factory=dict)
    signals: Signals = field(default_factory=Signals)
    bindings: tuple[BindingView, ...] = ()
    """AutoscalingPolicyBindings with everything their decision needs."""
