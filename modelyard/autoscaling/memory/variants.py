"""What a variant must remember from one tick to the next.

Kept with the resource, as JSON in the annotation ``modelyard.dev/autoscaling-state``, so that any worker can carry on
where another died. Times, not counters: the annotation changes only when something happens, so a quiet fleet costs no
writes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from modelyard.reconcile.plans import Count, Seconds

AUTOSCALING_STATE = "modelyard.dev/autoscaling-state"
MOST_SCALINGS = 64
"""Directions and reasons that are counted: there are fewer, and each is a series of its own."""

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sum = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class SLOMemory(BaseModel):
    """What is remembered of a variant that has latency targets: last trustworthy request sizes, and what was learnt."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    output_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    tokens_at: Seconds | None = Field(default=None, description="when those request sizes were last measured")
    ttft_factor: Factor = Field(default=1.0, description="observed over predicted TTFT, learnt slowly")
    itl_factor: Factor = Field(default=1.0, description="observed over predicted ITL, learnt slowly")
    corrected: tuple[float, ...] = Field(
        default=(), max_length=4, description="the profile that those two are about; with another one they begin anew"
    )
    capacity: Factor = Field(
        default=1.0, description="what a replica holds of the load it was thought to, learnt from mean ITL"
    )
    rule: tuple[Count, Count, Count, Count] | None = Field(
        default=None, description="margin, memory, trend and floor that are followed, as places in their lists"
    )
    speed: tuple[Sum, Sum, Sum, Sum, Sum, Sum] | None = Field(
        default=None, description="what the engine's speed is learnt from: sums over what was seen of it"
    )


class VariantMemory(BaseModel):
    """State a policy needs across ticks. All times are epoch seconds, all durations seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    workload_uid: str = Field(default="", description="the workload all this is about; another one starts afresh")
    transition_since: Seconds | None = Field(default=None, description="when the scaling under way began")
    transition_target: Count | None = Field(
        default=None,
        description="the replica count it is heading for; null once they exist and only have to become ready",
    )
    relax_since: Seconds | None = Field(default=None, description="since when scale-down has been safe without a break")
    woken_at: Seconds | None = Field(default=None, description="when the variant last went from zero to some")
    startup_seconds: Seconds | None = Field(default=None, ge=0, description="learnt time from pod creation to Ready")
    stuck_since: dict[str, Seconds] = Field(
        default_factory=dict, description="pods with a waiting queue and no throughput, by name, since when"
    )
    stuck_waiting: dict[str, Seconds] = Field(
        default_factory=dict, description="the waiting requests those pods had when first seen so"
    )
    partial_since: Seconds | None = Field(
        default=None, description="since when too few of the model's ready pods report metrics"
    )
    shrunk_at: Seconds | None = Field(
        default=None, description="when the variant was last asked to shrink, null once it was asked to grow"
    )
    regrets: Count = Field(default=0, ge=0, description="scale-downs in a row that were soon taken back")
    regretted: Count | None = Field(default=None, description="the replicas that were too few then")
    regretted_at: Seconds | None = Field(default=None, description="when the last of them was")
    slo: SLOMemory | None = Field(default=None, description="where latency targets are aimed at")
    compute_limits: dict[str, list[float]] = Field(
        default_factory=dict,
        description="token analyzer: tokens in use when a queue formed, newest last, by length of output",
    )
    token_capacity: Count | None = Field(
        default=None, description="token analyzer, published mode: tokens a replica could hold when one last reported"
    )
    hidden: bool = Field(default=False, description="no gauge may be served for this variant")
    scalings: dict[Annotated[str, Field(pattern=r"^(up|down)/[A-Za-z]{1,48}$")], Count] = Field(
        default_factory=dict,
        max_length=MOST_SCALINGS,
        description='scaling decisions so far, by "direction/reason" (wva_replica_scaling_total)',
    )

    def not_after(self, now: float) -> VariantMemory:
        """Itself with every time after ``now`` replaced by it, so that a clock set back blocks nothing for long."""
        times = {name: getattr(self, name) for name in _TIMES}
        late: dict[str, object] = {name: now for name, time in times.items() if time is not None and time > now}
        if any(time > now for time in self.stuck_since.values()):
            late["stuck_since"] = {pod: min(time, now) for pod, time in self.stuck_since.items()}
        return self.model_copy(update=late) if late else self


_TIMES = ("transition_since", "relax_since", "woken_at", "partial_since", "shrunk_at", "regretted_at")
