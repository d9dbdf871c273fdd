"""A tick's ``Decision`` per object with a ``Record`` per workload: the source of all statuses, Events and gauges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from modelyard.autoscaling.configuration import Mode
from modelyard.autoscaling.memory import BindingMemory, VariantMemory
from modelyard.objects import Condition, Key, Notice, WorkloadId
from modelyard.reconcile.plans import Subject

Memory_co = TypeVar("Memory_co", VariantMemory, BindingMemory, covariant=True)


class Action(StrEnum):
    """What the target means relative to *current* replicas (not to the previous desired)."""

    UP = "scale-up"
    DOWN = "scale-down"
    NONE = "no-change"

    @classmethod
    def of(cls, target: int | None, current: int | None) -> Action:
        """What ``target`` means where there are ``current`` replicas; nothing when one of the two is not known."""
        if target is None or current is None or target == current:
            return cls.NONE
        return cls.UP if target > current else cls.DOWN


class Bounds(NamedTuple):
    """``lower`` is 0 when nothing asks for more, ``upper`` ``None`` when nothing limits; with where they come from."""

    lower: int = 0
    upper: int | None = None
    lower_from: str = ""
    upper_from: str = ""

    def clamp(self, replicas: int) -> int:
        if self.upper is not None and replicas > self.upper:
            return self.upper
        return max(replicas, self.lower)


UNBOUNDED = Bounds()
KNOWLEDGE = ("TargetResolved", "TargetFound", "MetricsAvailable")
"""Conditions without which nothing certain can be said of an object."""


@dataclass(frozen=True, slots=True)
class Step:
    """One stage's effect on the target, in order: targets, enforcement, bounds, allocation, limiter.

    ``after`` ``None``: it only had something to say. ``reason`` is the decision's code from here on, unless empty.
    """

    stage: str
    before: int | None
    after: int | None
    detail: str
    reason: str = ""


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
    carry within its targets; these are milliseconds too, ``None`` for none. ``attainment`` is the share of the requests
    that is expected to be within both targets, where that is aimed at.
    """

    load: float
    rate_per_replica: float
    ttft: float | None = None
    itl: float | None = None
    utilisation: float | None = None
    ttft_target: float | None = None
    itl_target: float | None = None
    attainment: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A considered size, with cost per hour; ``attainment``: share within both targets; ``note``: why not taken."""

    replicas: Mapping[str, int]
    cost: float
    ttft: float | None = None
    itl: float | None = None
    utilisation: float | None = None
    attainment: float | None = None
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


class Identity(NamedTuple):
    """Object and workload of a record. ``form``: saturation, slo, policy or optimizer; ``variant_id``: which target."""

    subject: Subject
    form: str
    model_id: str
    variant_id: str | None = None

    @property
    def key(self) -> Key:
        return self.subject.key


class Now(NamedTuple):
    """Replicas now, and last ``desired``. ``cost``, ``gpus``: per replica; ``allocation``: in an SLO form's status."""

    workload: WorkloadId | None
    current: int | None
    ready: int | None
    reporting: int
    desired: int | None
    accelerator: str | None = None
    cost: float = 10.0
    gpus: int = 1
    allocation: CurrentAllocation | None = None


class Target(NamedTuple):
    """Replicas to have; ``None``: not known. Without ``decided`` they merely keep what was there: the safety net."""

    replicas: int | None
    action: Action
    decided: bool


class DecisionFacts(NamedTuple):
    """The numbers of a decision (``None``: unknown). ``basis`` is why ``load`` now and the planned ``forecast`` differ.

    Loads and ``per_replica`` are in ``unit``. ``required`` replicas are what the load needs, before bounds and limits.
    """

    unit: str = "requests/s"
    load: float | None = None
    forecast: float | None = None
    basis: str = ""
    per_replica: float | None = None
    required: int | None = None


NO_FACTS = DecisionFacts()


class Why(NamedTuple):
    """``reason`` is a CamelCase code; ``message`` the same for people, with the numbers in it; then the evidence."""

    reason: str
    message: str
    facts: DecisionFacts = NO_FACTS
    steps: tuple[Step, ...] = ()
    limited_by: str | None = None
    evidence: Evidence | None = None
    prediction: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()


class Writes(NamedTuple):
    """What follows for the cluster.

    ``scale`` is the replica count to put on the scale subresource now, ``None`` to leave the workload alone.
    ``publish`` false means no gauge may be served (excluded, workload gone). ``applied`` is whether what is published
    was observed where it has to arrive, ``None`` when that is not told.
    """

    mode: Mode
    scale: int | None = None
    publish: bool = True
    applied: bool | None = None
    applied_message: str = ""


class Record(NamedTuple):
    """Why this workload should have this many replicas."""

    identity: Identity
    now: Now
    target: Target
    why: Why
    bounds: Bounds
    writes: Writes


class Decision(NamedTuple, Generic[Memory_co]):
    """One object's decision: records, memory, conditions, a sentence; ``panic``: a binding scales in panic mode."""

    subject: Subject
    records: tuple[Record, ...]
    memory: Memory_co
    conditions: tuple[Condition, ...] = ()
    notices: tuple[Notice, ...] = ()
    message: str = ""
    panic: bool = False

    @property
    def record(self) -> Record:
        (record,) = self.records
        return record

    @property
    def key(self) -> Key:
        return self.subject.key


VariantDecision = Decision[VariantMemory]
BindingDecision = Decision[BindingMemory]


@dataclass(frozen=True, slots=True)
class TickDecision:
    """All decisions of one tick, and what went wrong with whole groups or with configuration."""

    now: float
    decisions: tuple[VariantDecision | BindingDecision, ...] = ()
    notices: tuple[tuple[str, Notice], ...] = ()
    """(object, notice): configuration objects that deserve an Event of their own, named ``namespace/name``."""
    errors: tuple[str, ...] = ()
    unattributed_signals: int = 0
    """Pod signals that belong to no live pod of a known workload (``wva_pod_mapping_miss_total``)."""

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(record for decision in self.decisions for record in decision.records)

    @property
    def changes(self) -> tuple[Record, ...]:
        return tuple(
            one for one in self.records if one.target.action is not Action.NONE or one.writes.scale is not None
        )

    @property
    def unknown(self) -> list[str]:
        """Why nothing certain can be said, a sentence each. Nothing to measure at zero replicas is no such reason."""
        lacking: dict[str, None] = dict.fromkeys(self.errors)
        for one in self.decisions:
            if all(record.now.current == 0 for record in one.records) and one.records:
                continue
            for condition in one.conditions:
                if condition.type in KNOWLEDGE and condition.status != "True":
                    lacking[f"{one.key}: {condition.reason}: {condition.message}"] = None
        return list(lacking)

    @property
    def variants(self) -> tuple[VariantDecision, ...]:
        return tuple(one for one in self.decisions if isinstance(one.memory, VariantMemory))

    @property
    def bindings(self) -> tuple[BindingDecision, ...]:
        return tuple(one for one in self.decisions if isinstance(one.memory, BindingMemory))
