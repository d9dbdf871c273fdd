"""What a decision says: one record per variant, from which status, Event, artifact, gauges and ``plan`` are rendered.

Made by ``decide``; read by ``loop.actuate``, ``loop.report``, ``loop.plan`` and the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from modelyard.autoscaling.fleet import Condition, Key, WorkloadId
from modelyard.autoscaling.memory import VariantMemory


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
class Notice:
    """Something to tell the user as a Kubernetes Event. ``kind`` is ``Normal`` or ``Warning``."""

    reason: str
    message: str
    kind: str = "Normal"


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
