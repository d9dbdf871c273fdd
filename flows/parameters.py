"""The parameters of the flows: what the UI form, ``prefect.yaml`` and the command line offer.

Models that refuse unknown fields. A flow takes a model's fields as keywords (``flat``) and is given them as one model,
so that what fits together is checked in one place. What is seldom set is a closed group in the form of a flow: fields
that are models themselves, and where a model names fields to come ``first``, all the others (``advanced``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from prefect.context import FlowRunContext
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

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


ADVANCED = "advanced"


def form(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of the form, in order. Groups are optional: a form shows one that is unset as a single line."""
    fields = {name: _closed(field) for name, field in model.model_fields.items()}
    first: tuple[str, ...] = getattr(model, "first", ())
    if not first:
        return fields
    rest: dict[str, Any] = {name: (field.annotation, field) for name, field in fields.items() if name not in first}
    group = create_model("Advanced", __config__=ConfigDict(frozen=True, extra="forbid"), **rest)
    others = Field(default_factory=group, description="everything else that can be set; unset: the defaults")
    shown = {name: fields[name] for name in first}
    return {**shown, ADVANCED: _closed(FieldInfo.from_annotated_attribute(group, others))}


def _closed(field: FieldInfo) -> FieldInfo:
    """The field, or if it is a model the same one unset, which stands for its defaults."""
    if not _is_group(field):
        return field
    optional: Any = field.annotation | None  # type: ignore[operator]
    return FieldInfo.from_annotated_attribute(optional, Field(None, description=field.description))


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def arguments(parameters: BaseModel) -> dict[str, Any]:
    """The keywords that a flow takes (``flat``) to be given ``parameters``."""
    shown, values = form(type(parameters)), dict(parameters)
    rest = {name: value for name, value in values.items() if name not in shown}
    return {name: value for name, value in values.items() if name in shown} | ({ADVANCED: rest} if rest else {})


def _fields(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields that a flow's keywords stand for."""
    flattened = {**given, **dict(given.get(ADVANCED) or {})}
    fields = model.model_fields
    return {n: v for n, v in flattened.items() if n in fields and not (v is None and _is_group(fields[n]))}


def flat(
    model: type[M],
) -> Callable[[Callable[[M], Coroutine[Any, Any, R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Make a flow's function take the fields of ``form(model)`` as keywords: shown, checked and stored by themselves.

    Prefect reads types, limits and defaults from the signature, and the descriptions from the docstring.
    """
    fields = form(model)
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
            return await function(model(**_fields(model, given)))

        spread.__doc__ = f"{inspect.getdoc(function)}{explained}"
        vars(spread)["__signature__"] = signature
        return spread

    return decorate


def run_parameters(model: type[M]) -> M:
    """The parameters of the current flow run, for its name: of the right types, but not checked together."""
    context = FlowRunContext.get()
    return model.model_construct(**_fields(model, (context and context.parameters) or {}))


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


class AutoscaleParameters(ShiftSettings, ControllerSettings):
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

    first: ClassVar[tuple[str, ...]] = (
        "trace", "minutes", "manifests", "policies", "rates", "slo_ttft", "slo_itl", "require", "max_cost", "judge",
    )  # fmt: skip
    """What a form shows first."""

    parallel: int = Field(2, ge=1, le=256, description="replays at a time, each in a process of its own")
    timeout_seconds: float = Field(1800, gt=0, le=86_400, description="time limit of one policy at one rate")
    artifact_key: str = Field("replay", pattern=NAME, max_length=100, description="of the table in the UI")


class DeliverParameters(BaseModel):
    """What to deliver: a model by its name, or a URI under a new name. Nothing named: nothing to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(None, max_length=253, description="name of the model to deliver (or to make, with uri)")
    namespace: str = Field("", max_length=63, description="namespace of a BaseModel; empty: a cluster-scoped model")
    uri: str | None = Field(
        None, max_length=2048, description="storage URI: makes a model of this name, or gives the model this URI"
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="with uri: labels a node must carry to receive the files"
    )
    kind: Literal["ClusterBaseModel", "BaseModel", "FineTunedWeight"] = Field(
        "ClusterBaseModel", description="kind of the model; with a namespace it is a BaseModel"
    )
    wait: bool = Field(
        True, description="end Completed only when the model is ready, trying again until the time limit"
    )
    timeout_seconds: float = Field(
        6 * 3600, gt=0, le=7 * 86_400, description="with wait: time limit, after which the run ends Failed"
    )
    controller_namespace: str = Field(
        "workload-variant-autoscaler-system", max_length=63, pattern=NAME, description="where Jobs and reports are"
    )
    run: str = Field("", max_length=512, description="set by reconcile: the claim under which the run works")
    objects: list[str] = Field(default_factory=list, description="set by reconcile: NAMESPACE/NAME of each model")

    @model_validator(mode="after")
    def _what_is_named(self) -> Self:
        if self.uri is not None and not self.name:
            raise ValueError("uri: a name for the model is needed too: set name")
        if self.namespace and self.kind == "FineTunedWeight":
            raise ValueError("namespace: a FineTunedWeight has none: leave it empty")
        return self


class RollOutParameters(BaseModel):
    """Which service to roll out, and whether to wait for it. Nothing named: nothing to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(None, max_length=253, description="name of the InferenceService")
    namespace: str = Field("default", max_length=63, pattern=NAME, description="its namespace")
    wait: bool = Field(
        True, description="end Completed only when the service is ready, staying for it until the time limit"
    )
    timeout_seconds: float = Field(
        3600, gt=0, le=7 * 86_400, description="with wait: time limit, after which the run ends Failed"
    )
    controller_namespace: str = Field(
        "workload-variant-autoscaler-system", max_length=63, pattern=NAME, description="where the settings are"
    )
    run: str = Field("", max_length=512, description="set by reconcile: the claim under which the run works")
    objects: list[str] = Field(default_factory=list, description="set by reconcile: NAMESPACE/NAME of each service")


class VerifyParameters(BaseModel):
    """Which models' files to check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespaces: list[str] = Field(
        default_factory=list, description="only BaseModels of these namespaces; empty: all models"
    )
    names: list[str] = Field(default_factory=list, description="only models of these names; empty: all")
