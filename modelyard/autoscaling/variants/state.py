"""The working state of one tick: a ``State`` per variant and a ``Group`` per model, filled in stage by stage.

Mutable on purpose and private to ``decide``: at ten thousand variants, copying records between stages would cost more
than deciding. Class attributes are the defaults, so a state only stores what differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.decision import UNBOUNDED, Bounds, Evidence, Step
from modelyard.autoscaling.fleet import Consumer, Variant
from modelyard.autoscaling.handling import Handling
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.mixing import Effort
from modelyard.autoscaling.rules import RULES, Rules
from modelyard.autoscaling.settings import Mode
from modelyard.autoscaling.variants.saturation_config import Effective, Thresholds
from modelyard.autoscaling.variants.slo.work import GroupWork, VariantWork
from modelyard.autoscaling.variants.zero_config import ZeroRule
from modelyard.metrics.values import PodSignal
from modelyard.objects import Notice, Pod, Workload, WorkloadId

Unit = tuple[PodSignal, Pod]
"""A reporting replica: its signals and the pod they come from (the leader of a group)."""


class State:
    """One variant in this tick. Replica numbers are in the target's own unit."""

    workload: Workload | None = None
    workload_id: WorkloadId | None = None
    bounds: Bounds = UNBOUNDED
    consumers: Sequence[Consumer] = ()
    consumers_error: str | None = None
    """Why there may be more consumers than these."""
    mode: Mode = Mode.DIRECT
    rules: Rules = RULES
    """The handling's, unless the variant's group is decided by others."""
    accelerator: str | None = None
    accelerator_missing: bool = False
    spec: int = 0
    """``spec.replicas``, null as 1."""
    current: int | None = None
    """Replicas there are, without ``surge``; ``None`` when the workload is not known."""
    surge: int = 0
    """Pods beyond ``spec``, as a rolling update makes them; not told apart where ``rules`` count it."""
    ready: int | None = None
    """Ready replicas, surge included."""
    pending: int = 0
    reporting: int = 0
    """Ready replicas that report. A pod may also report before it is ready, or when it no longer is."""
    young: int = 0
    """Ready replicas that take no load yet."""
    desired: int | None = None
    """Last published replicas; ``None`` when never decided."""
    limits: Thresholds = Thresholds()
    """The thresholds of the variant's model."""
    base: int = 0
    """Replicas once the scaling under way is complete."""
    coming: int = 0
    moving: bool = False
    overdue: bool = False
    timed_out_from: int | None = None
    """The desired count that was given up because its transition took too long."""
    shrink_delay: float = 0.0
    """The fleet's scale-down delay, seconds."""
    target: int | None = None
    decided: bool = False
    publish: bool = True
    reason: str = ""
    message: str = ""
    limited_by: str | None = None
    shortage: tuple[str, str] | None = None
    """Why replicas that the load needs cannot be added: a reason code of ``CapacityLimited`` and a message."""
    evidence: Evidence | None = None
    steps: tuple[Step, ...] = ()
    notices: tuple[Notice, ...] = ()
    target_resolved: Story | None = None
    metrics: Story | None = None
    optimization: Story | None = None
    slo: VariantWork | None = None
    """What is known of a variant that has latency targets."""

    def __init__(self, variant: Variant, handling: Handling) -> None:
        self.variant = variant
        self.handling = handling
        self.mode = handling.mode
        self.rules = handling.rules
        self.pods: list[Pod] = []
        self.units: list[Unit] = []
        self.memory: VariantMemory = variant.memory
        self.other_models: set[str] = set()
        """Models that its pods report and that are not the variant's."""
        self.updates: dict[str, object] = {}
        """Memory fields that may have changed; compared with the old ones when the record is made."""

    @property
    def name(self) -> str:
        """Name of the VariantAutoscaling, for messages and ties."""
        return self.variant.key.name

    @property
    def gpus(self) -> int:
        """GPUs per replica; a template that asks for none counts as what the SLO form says, else as one."""
        if self.workload is not None and self.workload.gpus:
            return self.workload.gpus
        return self.variant.slo.accelerator_count if self.variant.slo is not None else 1

    def propose(self, target: int, reason: str = "", message: str = "") -> None:
        """A strategy's answer; the stages after it change it by ``fold``."""
        self.target = target
        self.reason = reason or self.reason
        self.message = message or self.message

    def fold(self, step: Step, message: str = "") -> None:
        """Let a stage after the strategy change the target; ``message`` replaces the story, else it is added to."""
        self.steps = (*self.steps, step)
        if step.after is None:
            return
        if message or step.after != step.before:
            self.message = message or f"{step.detail}; {self.message}"
        self.target = step.after
        self.reason = step.reason or self.reason

    def keep(self, reason: str, message: str, optimization: str | None = None) -> None:
        """The safety net: publish what was desired, else what is there, never above the maximum, and change nothing."""
        self.target = self.desired or self.current
        if self.target is not None and self.bounds.upper is not None and self.target > self.bounds.upper:
            message = f"{message}; of {self.target} no more than {self.bounds.upper} ({self.bounds.upper_from})"
            self.target = self.bounds.upper
        self.decided = False
        self.reason = reason
        self.message = message
        self.optimization = ("False", optimization or reason, message)


class Group:
    """The variants of one model in one namespace, decided together; with latency targets those of one
    service class."""

    config: Effective
    zero: ZeroRule
    rules: Rules = RULES
    """Those of all its variants."""
    slo: GroupWork | None = None
    """What is known of a group that has latency targets."""
    effort: Effort | None = None
    """What all groups of its namespace may spend on searches for the cheapest mix; no limit where it is not set."""

    trials: Effort | None = None
    """What all groups of its namespace may spend on trying rules, in steps of the load times replicas; as above."""

    def __init__(self, namespace: str, model_id: str) -> None:
        self.namespace = namespace
        self.model_id = model_id
        self.states: list[State] = []

    @property
    def name(self) -> str:
        """For messages: the model and its namespace."""
        return f"model {self.model_id!r} in namespace {self.namespace}"


def work_of(state: State) -> VariantWork:
    """The SLO part of a state that is known to have one."""
    assert state.slo is not None
    return state.slo
