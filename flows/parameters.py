"""The parameter model of the ``autoscale`` flow: what the UI form, ``prefect.yaml`` and the command line offer.

One model with ``extra="forbid"``, so that the Prefect server rejects unknown or wrong fields when a run is created.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from modelyard.autoscaling.live.settings import LoopSettings

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class AutoscaleParameters(BaseModel):
    """One shift of the autoscaling loop: how long it lasts, how often it ticks, what it watches over."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval_seconds: float = Field(15, ge=0.2, le=3600, description="seconds from one tick to the next")
    shift_seconds: float = Field(
        300,
        ge=0,
        le=86_400,
        description="seconds the run lasts, same as its schedule's interval; 0: one tick, then end ('run once now')",
    )
    early_end_seconds: float = Field(
        5,
        ge=0,
        le=60,
        description="seconds before the end of the shift at which no new tick starts and the lease is released",
    )
    stale_after_seconds: float | None = Field(
        None,
        gt=0,
        description="a scheduled run that starts this many seconds late is skipped; unset: when its shift is over",
    )
    lease_name: str = Field(
        "modelyard-autoscale",
        max_length=200,
        pattern=NAME,
        description="name of the Kubernetes Lease that keeps writers apart; give each shard of a fleet its own",
    )
    lease_namespace: str | None = Field(
        None, max_length=63, pattern=NAME, description="namespace of the Lease; unset: the controller's own"
    )
    table_every_ticks: int = Field(
        20, ge=1, le=10_000, description="update the decision table at least every so many ticks, changed or not"
    )
    loop: LoopSettings = Field(default_factory=lambda: LoopSettings(), description="what is scaled, and from what data")

    def is_stale(self, late_by: float) -> bool:
        """Whether a scheduled run that begins ``late_by`` seconds late should leave the moment to a newer run."""
        over = self.shift_seconds - self.early_end_seconds if self.shift_seconds else 60.0
        return late_by >= min(over, self.stale_after_seconds or over)

    @property
    def for_loop(self) -> LoopSettings:
        """The loop's settings, with the interval as the length of a tick that scaling policies count in."""
        tick = self.interval_seconds * self.loop.time_compression
        return self.loop.model_copy(update={"fleet": self.loop.fleet.model_copy(update={"tick": tick})})

    @model_validator(mode="after")
    def _a_shift_holds_a_tick(self) -> Self:
        if 0 < self.shift_seconds <= self.early_end_seconds:
            raise ValueError(
                f"early_end_seconds ({self.early_end_seconds:g}) must be below shift_seconds ({self.shift_seconds:g}): "
                "the shift would end before its first tick"
            )
        return self
