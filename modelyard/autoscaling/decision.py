"""What a decision says: one record per target, from which status, Event, artifact, gauges and plan are rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modelyard.autoscaling.bindings.memory import BindingMemory
from modelyard.autoscaling.variants.memory import VariantMemory
from modelyard.objects import Condition, Key, Notice, WorkloadId


class Action(StrEnum):
    """What the target means relative to *current* replicas (not to the previous desired)."""

    UP = "scale-up"
    DOWN = "scale-down"
    NONE = "no-change"


class Mode(StrEnum):
    """Who moves the workload: we do (``direct``), or an HPA/KEDA reading the gauge (``signal``)."""

    DIRECT = "direct"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage's effect on the target, in order: analysis, targets, enforcement, limiter, clamp ..."""

    stage: str
    before: int | None
    after: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The model-level numbers a decision rests on. Spares are means over all reporting replicas that count."""

    reporting: int = 0
    saturated: int = 0
    spare_kv: float | None = None
    spare_queue: float | None = None
    max_kv: float | None = None
    total_waiting: float | None = None
    scale_up: bool = False
    scale_down_safe: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the performance model expects at the decided size: mean milliseconds, utilisation 0 to 1.

    ``load`` is the requests per second the whole variant is to carry, ``rate_per_replica`` the most one replica can
    carry within its targets.
    """

    load: float
    rate_per_replica: float
    ttft: float | None = None
    itl: float | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to size the model that was considered: replicas by variant, cost per hour, what it would give.

    ``chosen`` marks the one decided on; ``note`` says why another one was not.
    """

    replicas: Mapping[str, int]
    cost: float
    ttft: float | None = None
    itl: float | None = None
    utilisation: float | None = None
    chosen: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class CurrentAllocation:
    """``status.currentAlloc`` of the SLO form. ``cost`` is of all replicas, per hour."""

    variant_id: str
    accelerator: str
    replicas: int
    max_batch: int
    cost: float


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Why this variant should have this many replicas.

    ``target`` ``None`` means nothing can be published for this variant (no known workload and never decided).
    ``decided`` is false when the target merely keeps what was there (no data, excluded, invalid): the safety net.
    ``write`` is the replica count to put on the scale subresource now, ``None`` to leave the workload alone.
    ``publish`` false means no gauge may be served for the variant (excluded, workload gone).
    ``reason`` is a CamelCase code; ``message`` the same for people, with the numbers in it.
    """

    variant: Key
    uid: str
    generation: int
    resource_version: str
    model_id: str
    workload: WorkloadId | None
    current: int | None
    ready: int | None
    reporting: int
    desired_before: int | None
    target: int | None
    action: Action
    decided: bool
    reason: str
    message: str
    accelerator: str | None = None
    cost: float = 10.0
    gpus: int = 1
    mode: Mode = Mode.DIRECT
    write: int | None = None
    publish: bool = True
    limited_by: str | None = None
    applied: bool | None = None
    applied_message: str = ""
    evidence: Evidence | None = None
    steps: tuple[Step, ...] = ()
    conditions: tuple[Condition, ...] = ()
    notices: tuple[Notice, ...] = ()
    memory: VariantMemory = field(default_factory=VariantMemory)
    form: str = "saturation"
    variant_id: str | None = None
    current_alloc: CurrentAllocation | None = None
    prediction: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class BindingDecision:
    """What one binding should do: a record per target, and what to remember and to say on the binding itself.

    ``mode`` is ``Stable`` or ``Panic``. The records' ``variant`` is the binding's key, their ``form`` ``policy`` or
    ``optimizer``; ``write`` is what to put on the target's scale subresource now.
    """

    binding: Key
    uid: str
    generation: int
    resource_version: str
    records: tuple[DecisionRecord, ...]
    mode: str
    conditions: tuple[Condition, ...]
    notices: tuple[Notice, ...]
    memory: BindingMemory
    message: str = ""
    units: tuple[Mapping[str, object], ...] = ()
    """Per target, for status: name, currentReplicas, desiredReplicas, mode, lastScaleTime (epoch seconds); what is
    not known is left out."""
    totals: Mapping[str, object] = field(default_factory=dict)
    """For status, over all targets: targets (names in one text), currentReplicas, desiredReplicas, mode."""


@dataclass(frozen=True, slots=True)
class TickDecision:
    """All records of one tick, and what went wrong with whole groups or with configuration."""

    now: float
    records: tuple[DecisionRecord, ...] = ()
    notices: tuple[tuple[str, Notice], ...] = ()
    """(object, notice): configuration objects that deserve an Event of their own, named ``namespace/name``."""
    errors: tuple[str, ...] = ()
    unattributed_signals: int = 0
    """Pod signals that belong to no live pod of a known workload (``wva_pod_mapping_miss_total``)."""
    bindings: tuple[BindingDecision, ...] = ()
