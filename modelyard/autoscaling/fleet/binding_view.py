"""What the decision about one AutoscalingPolicyBinding is made from.

Plain values only; ``None`` means "not known", never zero. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelyard.autoscaling.memory import BindingMemory
from modelyard.objects import Condition, Key, ReplicaLimits, WorkloadId


@dataclass(frozen=True, slots=True)
class DirectionLimits:
    """How far replicas may move one way: ``instances`` and ``percent`` per ``period`` seconds, joined by ``select``
    (``Or``: the wider limit, ``And``: the narrower), after ``window`` seconds of stabilization."""

    instances: int
    percent: int
    period: float
    select: str
    window: float


@dataclass(frozen=True, slots=True)
class Panic:
    """Growth of at most ``percent`` per ``period`` seconds (0: no limit), entered at ``threshold`` percent of the
    current replicas (``None``: never), held for ``hold`` seconds (0: panic is off)."""

    percent: int
    period: float
    threshold: int | None
    hold: float


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour in effect, every default filled in."""

    up: DirectionLimits
    down: DirectionLimits
    panic: Panic


@dataclass(frozen=True, slots=True)
class PolicyView:
    """An AutoscalingPolicy: ``targets`` maps a metric to the value one instance should carry."""

    key: Key
    generation: int
    tolerance_percent: int
    targets: Mapping[str, float]
    behaviour: Behaviour


@dataclass(frozen=True, slots=True)
class TargetView:
    """One scaled workload of a binding, in the workload's own unit (a LeaderWorkerSet group is one instance).

    ``current`` is ``spec.replicas`` (null as 1), ``None`` when the workload is not there (``problem`` says why).
    ``instances`` holds one map per ready instance, metric to value; a metric that could not be read is left out.
    ``unready`` counts instances that exist and are not ready. ``external`` holds totals measured elsewhere
    (Prometheus). ``demand`` is the pending or running work known for scale-to-zero and wake-up, ``None`` unknown.
    ``cost`` is per instance. ``scrape_errors`` says which instances could not be read and why, ``unknown`` names the
    metrics that are there, or may be, and have no value now. ``limits`` are those that the workload's owner sets,
    ``grace`` the seconds of idleness before the last instance goes (``None``: the binding's).
    """

    name: str
    workload: WorkloadId
    minimum: int
    maximum: int
    cost: float = 0.0
    current: int | None = None
    ready: int | None = None
    unready: int = 0
    instances: tuple[Mapping[str, float], ...] = ()
    external: Mapping[str, float] = field(default_factory=dict)
    demand: float | None = None
    problem: str | None = None
    scrape_errors: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    startup_seconds: float | None = None
    gpus: int = 1
    limits: ReplicaLimits | None = None
    minimum_from: str = "minReplicas"
    maximum_from: str = "maxReplicas"
    contradiction: str = ""
    """Reason for which ``minimum`` is below one of the bounds."""
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class BindingView:
    """One AutoscalingPolicyBinding with everything its decision needs.

    ``optimizer`` tells heterogeneous mode (one total shared by several targets) from scaling mode (one target).
    ``policy`` is ``None`` when it does not exist or cannot be used; ``problem`` says what is wrong with the binding or
    its policy. ``grace`` is the seconds of true idleness before the last instance goes. ``annotations`` carry
    ``modelyard.dev/actuation`` and ``modelyard.dev/compatibility`` as for variants, and choose the optimizer.
    """

    key: Key
    uid: str
    generation: int
    resource_version: str
    policy_name: str
    optimizer: bool
    targets: tuple[TargetView, ...]
    policy: PolicyView | None
    expansion_percent: int = 200
    grace: float = 30.0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    memory: BindingMemory = field(default_factory=BindingMemory)
    ignored: str = ""
    """Fields of the object that have no effect, and are told."""
    memory_problem: str | None = None
    problem: str | None = None
    problem_reason: str = "InvalidConfiguration"
    """CamelCase code of ``problem``, for the Event and the records."""
    created: float = 0.0
    deleting: bool = False
    rivals: Mapping[WorkloadId, tuple[str, ...]] = field(default_factory=dict)
    """Targets that something scales which another loop is responsible for, and what that is."""
    status: Mapping[str, object] = field(default_factory=dict)

    def grace_of(self, target: TargetView) -> float:
        return self.grace if target.grace is None else target.grace
