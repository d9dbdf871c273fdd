"""What a binding must remember from one tick to the next; kept as JSON in an annotation of the binding.

Only changes are kept, so a binding whose recommendation does not move costs no write, and a process that was killed
and started again decides what it would have decided anyway.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from modelyard.reconcile.plans import Count, Seconds

POLICY_STATE = "modelyard.dev/policy-state"

Mark = tuple[Seconds, Count]
"""A time (epoch seconds) and a number of replicas."""


class History(BaseModel):
    """The past of one number as change points; ``bindings.windows`` reads and extends it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    newest: Mark | None = Field(default=None, description="the value that holds now, and since when")
    past: tuple[Mark, ...] = Field(default=(), description="older values, each with the time until which it held")


class BindingMemory(BaseModel):
    """State of a binding's windows and modes. All times are epoch seconds.

    What belongs to one target is kept under ``str(workload)``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    subject: str = Field(default="", description="what the windows are about; another workload starts afresh")
    recommended: History = Field(default_factory=History, description="recommendations of the metrics")
    corrected: History = Field(default_factory=History, description="what the behaviour made of them")
    panic_until: Seconds | None = Field(default=None, description="panic lasts until then, this moment included")
    idle_since: dict[str, Seconds] = Field(
        default_factory=dict, description="targets that may go to zero: since when without any demand"
    )
    asked: dict[str, Mark] = Field(
        default_factory=dict, description="changes asked for and not seen at the workload yet: when, and how many"
    )
    scaled_at: dict[str, Seconds] = Field(default_factory=dict, description="when the last seen change was asked for")
    seen: dict[str, Count] = Field(
        default_factory=dict, description="optimizer: replicas of each target when it could last be read"
    )

    def not_after(self, now: float) -> BindingMemory:
        """Itself with every time after ``now`` replaced by it, so that a clock set back blocks nothing for long."""
        changes: dict[str, object] = {}
        for name in ("recommended", "corrected"):
            history: History = getattr(self, name)
            newest = history.newest
            late = (newest is not None and newest[0] > now) or any(until > now for until, _ in history.past)
            if late:
                past = tuple((min(until, now), value) for until, value in history.past)
                first = None if newest is None else (min(newest[0], now), newest[1])
                changes[name] = History(newest=first, past=past)
        for name in ("idle_since", "scaled_at"):
            times: dict[str, float] = getattr(self, name)
            if any(time > now for time in times.values()):
                changes[name] = {key: min(time, now) for key, time in times.items()}
        if any(time > now for time, _ in self.asked.values()):
            changes["asked"] = {key: (min(time, now), count) for key, (time, count) in self.asked.items()}
        return self.model_copy(update=changes) if changes else self
