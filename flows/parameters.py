"""The parameters of the flows: what the UI form, ``prefect.yaml`` and the command line offer.

Models that refuse unknown fields. A flow takes a model's fields flat, one keyword each (``flat``), and is given them as
one model, so that what fits together is checked in one place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Self, TypeVar

from prefect.context import FlowRunContext
from pydantic import BaseModel, ConfigDict, Field, model_validator

from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.replay.request import ReplayRequest

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

LeaseName = Annotated[
    str,
    Field(
        max_length=200,
        pattern=NAME,
        description="name of the Kubernetes Lease that keeps writers apart; give each shard of a fleet its own",
    ),
]

ShiftSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=86_400,
        description="seconds the run lasts, twice its schedule's interval; 0: one tick, then end ('run once now')",
    ),
]

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")


def flat(
    model: type[M],
) -> Callable[[Callable[[M], Coroutine[Any, Any, R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Make a flow's function take the fields of ``model`` as keywords: shown, checked and stored at the top level.

    Prefect reads types, limits and defaults from the signature, and the descriptions from the docstring.
    """
    fields = model.model_fields
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
                default=inspect.Parameter.empty
                if field.is_required()
                else field.get_default(call_default_factory=True),
            )
            for name, field in fields.items()
        ]
    )
    explained = "\n".join(["", "", "Args:", *(f"    {name}: {field.description}" for name, field in fields.items())])

    def decorate(function: Callable[[M], Coroutine[Any, Any, R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def spread(**given: Any) -> R:
            return await function(model(**given))

        spread.__doc__ = f"{inspect.getdoc(function)}{explained}"
        vars(spread)["__signature__"] = signature
        return spread

    return decorate


def run_parameters() -> Mapping[str, Any]:
    """The parameters of the current flow run, for its name: of the right types, but not checked together."""
    context = FlowRunContext.get()
    return (context and context.parameters) or {}


class ShiftSettings(BaseModel):
    """How long a shift lasts, how often it ticks, and under which Lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval_seconds: float = Field(15, ge=0.2, le=3600, description="seconds from one tick to the next")
    shift_seconds: ShiftSeconds = 600
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
    lease_name: LeaseName
    lease_namespace: str | None = Field(
        None, max_length=63, pattern=NAME, description="namespace of the Lease; unset: the controller's own"
    )
    table_every_ticks: int = Field(
        20, ge=1, le=10_000, description="update the decision table at least every so many ticks, changed or not"
    )

    @property
    def schedule_seconds(self) -> float:
        """From one scheduled start to the next: half a shift, so that there is always a writer and a standby."""
        return self.shift_seconds / 2

    def is_stale(self, late_by: float) -> bool:
        """Whether a scheduled run that begins ``late_by`` seconds late should leave the moment to a newer run."""
        over = self.shift_seconds - self.early_end_seconds if self.shift_seconds else 60.0
        return late_by >= min(over, self.stale_after_seconds or over)

    @model_validator(mode="after")
    def _a_shift_holds_a_tick(self) -> Self:
        if 0 < self.shift_seconds <= self.early_end_seconds:
            raise ValueError(
                f"early_end_seconds ({self.early_end_seconds:g}) must be below shift_seconds ({self.shift_seconds:g}): "
                "the shift would end before its first tick"
            )
        return self


class AutoscaleParameters(ControllerSettings, ShiftSettings):
    """One shift of the autoscaler: how long it lasts, how often it ticks, what it watches over."""

    lease_name: LeaseName = "modelyard-autoscale"

    @property
    def for_controller(self) -> ControllerSettings:
        """The controller's settings, with the interval as the length of a tick that scaling policies count in."""
        tick = self.interval_seconds * self.time_compression
        return self.model_copy(update={"fleet": self.fleet.model_copy(update={"tick": tick})})


class ReconcileParameters(ShiftSettings):
    """One shift of telling statuses and starting runs: how long it lasts, how often it looks, and where."""

    interval_seconds: float = Field(
        5, ge=0.2, le=3600, description="seconds from one look to the next; one at which nothing moved costs nothing"
    )
    shift_seconds: ShiftSeconds = 1800
    lease_name: LeaseName = "modelyard-reconcile"
    lease_namespace: str = Field(
        "workload-variant-autoscaler-system", max_length=63, pattern=NAME, description="namespace of the Lease"
    )
    namespaces: list[str] = Field(default_factory=list, description="only these namespaces; empty: all")


class ReplayParameters(ReplayRequest):
    """A replay request; policies and rates run side by side."""

    parallel: int = Field(2, ge=1, le=256, description="replays at a time, each in a process of its own")
    timeout_seconds: float = Field(1800, gt=0, le=86_400, description="time limit of one policy at one rate")
    artifact_key: str = Field("replay", pattern=NAME, max_length=100, description="of the table in the UI")
