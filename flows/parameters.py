"""The parameters of the flows: what the UI form, ``prefect.yaml`` and the command line offer.

Models that refuse unknown fields, one of each flow; ``flows.forms`` makes a form of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from flows.forms import Unseen, first_of
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.benchmarks.compare import parse_condition
from modelyard.onboarding.request import OnboardRequest, ServingCandidate
from modelyard.replay.request import ReplayRequest
from modelyard.routing.rolling import RouteRollOut

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
OBJECT = r"^[^/]+/[^/]+$"
SERVICE_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

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


class RunParameters(BaseModel):
    """Parameters of all runs that act: whether they wait, for how long, and where Modelyard's settings are."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    last: ClassVar[tuple[str, ...]] = ("wait", "timeout_seconds", "controller_namespace", "run", "objects")
    """What a form shows last."""

    wait: bool = Field(
        True, description="stay until the work is done, up to the time limit; unset: do what can be done now, and end"
    )
    timeout_seconds: float = Field(
        12 * 3600, gt=0, le=7 * 86_400, description="with wait: time limit in seconds, after which the run ends Failed"
    )
    controller_namespace: str = Field(
        "workload-variant-autoscaler-system",
        max_length=63,
        pattern=NAME,
        description="namespace of Modelyard's own ConfigMaps and Jobs",
    )


class LifecycleParameters(RunParameters):
    """The object that a run works on: named by a person, or by the claim under which ``reconcile`` starts the run."""

    name: str = Field(min_length=1, max_length=253, description="name of the object")
    namespace: str = Field("default", max_length=63, pattern=NAME, description="namespace of the object")
    run: Annotated[str, Unseen()] = Field(
        "", max_length=512, description="set by reconcile: the claim under which the run works"
    )
    objects: Annotated[list[str], Unseen()] = Field(
        default_factory=list, description="set by reconcile: NAMESPACE/NAME of each object"
    )

    @property
    def named(self) -> str:
        """Return the run's objects as its name shows them."""
        return first_of([name.strip("/") for name in self.objects or [f"{self.namespace}/{self.name}"]])


class DeliverParameters(LifecycleParameters):
    """The model to deliver: by its name, or a URI under a new name."""

    name: str = Field(
        min_length=1,
        max_length=253,
        description="name of the model to deliver, for example llama-8b (with uri: a new one)",
    )
    namespace: str = Field("", max_length=63, description="namespace of a BaseModel; empty: a cluster-scoped model")
    uri: str | None = Field(
        None,
        max_length=2048,
        description="storage URI, for example hf://meta-llama/Llama-3.1-8B: creates a model of this name, or gives the"
        " existing one this URI; unset: deliver the existing model",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict,
        description="with uri: labels of the nodes that receive the files, for example node-group: l40s",
    )
    key: str = Field(
        "",
        max_length=253,
        description="with uri: name of the Secret with the source's credentials, in the model's namespace (of a"
        " cluster-scoped model: in the controller's)",
    )
    kind: Literal["ClusterBaseModel", "BaseModel", "FineTunedWeight"] = Field(
        "ClusterBaseModel", description="kind of the model; with a namespace it is a BaseModel"
    )
    timeout_seconds: float = Field(
        6 * 3600, gt=0, le=7 * 86_400, description="with wait: time limit in seconds, after which the run ends Failed"
    )

    @model_validator(mode="after")
    def _what_is_named(self) -> Self:
        if self.namespace and self.kind == "FineTunedWeight":
            raise ValueError("namespace: a FineTunedWeight has none: leave it empty")
        return self


class RollOutParameters(LifecycleParameters):
    """The service or route to roll out, and whether to wait for it."""

    name: str = Field(min_length=1, max_length=253, description="name of the service or route, for example chat")
    kind: Literal["InferenceService", "Model", "ModelRoute"] = Field(
        "InferenceService", description="kind of the object"
    )
    traffic: RouteRollOut | None = Field(
        None,
        description="of a ModelRoute: the ModelServer that receives its requests, and the steps; unset: its annotation",
    )
    dry_run: bool = Field(False, description="of a ModelRoute: only check, and show the weights of each step")
    timeout_seconds: float = Field(
        3600, gt=0, le=7 * 86_400, description="with wait: time limit in seconds, after which the run ends Failed"
    )

    @model_validator(mode="after")
    def _what_is_of_routes(self) -> Self:
        if self.kind != "ModelRoute" and (self.traffic is not None or self.dry_run):
            raise ValueError("traffic and dry_run are of a ModelRoute: set kind: ModelRoute, or leave them out")
        return self


class BenchmarkParameters(LifecycleParameters):
    """The BenchmarkJob to measure, and whether to wait for it."""

    name: str = Field(min_length=1, max_length=253, description="name of the BenchmarkJob, for example nightly")
    re_run: bool = Field(False, description="measure again what has been measured already")
    fail_if: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="with wait: conditions under which the run ends Failed, for example ttft_p95>+10% (a change since"
        " baseline) or itl_p95>30ms",
    )
    baseline: str | None = Field(
        None,
        max_length=320,
        pattern=OBJECT,
        description="NAMESPACE/NAME of the BenchmarkJob to compare with; unset: the previous results of this one",
    )

    @field_validator("fail_if")
    @classmethod
    def _readable(cls, texts: list[str]) -> list[str]:
        for text in texts:
            parse_condition(text)
        return texts


class OnboardParameters(RunParameters):
    """The model to onboard, its target, its load, and what may serve it."""

    first: ClassVar[tuple[str, ...]] = (
        "uri", "name", "namespace", "results", "candidates", "prices", "ttft", "itl", "percentile", "service_class",
        "rate", "prompt_tokens", "output_tokens", "trace", "budget", "min_replicas", "wait",
    )  # fmt: skip

    uri: str = Field(
        min_length=1, max_length=2048, description="URI of the model's files, for example hf://meta-llama/Llama-3.1-8B"
    )
    name: str = Field(
        min_length=1,
        max_length=30,
        pattern=SERVICE_NAME,
        description="name of the new model and its service, for example chat",
    )
    namespace: str = Field("default", max_length=63, pattern=NAME, description="namespace of both")
    results: str = Field(
        min_length=1, max_length=2048, description="storage URI for the measurements, for example pvc://results/onboard"
    )
    candidates: list[ServingCandidate] = Field(
        default_factory=list,
        description="runtimes to measure, and what a replica of each needs; required unless prices are given",
    )
    prices: dict[str, float] = Field(
        default_factory=dict,
        description="price per accelerator and hour, for example H100: 4.5: measures every runtime that fits; required"
        " unless candidates are given",
    )
    ttft: float | None = Field(
        None, gt=0, description="target of the time to first token in milliseconds, for example 500; or service_class"
    )
    itl: float | None = Field(
        None,
        gt=0,
        description="target of the time between two tokens in milliseconds, for example 50; or service_class",
    )
    percentile: float | None = Field(
        None, gt=0, lt=100, description="percentile of the TTFT target, for example 95; unset: its mean"
    )
    service_class: str | None = Field(
        None, max_length=520, description="CONFIGMAP/KEY of an existing service class, instead of ttft and itl"
    )
    rate: float | None = Field(
        None,
        gt=0,
        description="expected load in requests per second; required unless trace is given (then its busiest minute)",
    )
    prompt_tokens: int | None = Field(
        None, ge=1, description="tokens of a prompt; required unless trace is given (then its mean)"
    )
    output_tokens: int | None = Field(
        None, ge=2, description="tokens of an answer; required unless trace is given (then its mean)"
    )
    trace: Path | None = Field(
        None,
        description="CSV file on the worker's machine, as for replay: the expected load, simulated at the end",
    )
    budget: float | None = Field(
        None, gt=0, description="highest cost of the service per hour, in the unit of the prices"
    )
    min_replicas: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="minimum replicas that autoscaling keeps, for a load that begins at once; unset: no minimum",
    )
    levels: list[int] = Field(
        default_factory=list,
        description="concurrent requests to measure with, one run for each; empty: as many as the profile needs",
    )
    max_level: int = Field(
        32, ge=2, le=1024, description="without levels: highest concurrency; the profile holds up to it"
    )
    precision: float = Field(
        0.1,
        gt=0,
        le=1,
        description="without levels: largest half 95 % interval of each parameter, as a share of the latency that it"
        " determines",
    )
    minutes: int = Field(5, ge=1, description="most minutes of a measurement")
    requests: int = Field(300, ge=1, description="most requests of a measurement")
    parameters: dict[str, str] = Field(
        default_factory=dict, description="parameters of the model's storage, for example endpoint"
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="labels of the nodes that receive the model's files"
    )
    patience: int = Field(30, ge=1, description="minutes after which a service that is not ready is given up")
    check_seconds: float = Field(
        60, ge=0, le=3600, description="seconds of the check under load at the end; 0: no check"
    )
    time_compression: float = Field(
        1.0,
        ge=1,
        le=1000,
        description="multiply measured times by this (demonstrations on the simulated engine only)",
    )

    def asked(self, found: Mapping[str, Any]) -> OnboardRequest:
        """What is asked for, checked together; ``found``: what the trace and the class say. Raises ``ValueError``."""
        given = {**self.model_dump(include=set(OnboardRequest.model_fields), exclude_none=True), **found}
        return OnboardRequest.model_validate(given)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.service_class is not None and not (self.ttft is None and self.itl is None):
            raise ValueError("service_class: it has the targets: leave ttft and itl out")
        # Placeholders for the values of a trace or a class, which only the worker can read.
        loads = ("rate", "prompt_tokens", "output_tokens") if self.trace is not None else ()
        placeholders = {name: 2 for name in loads if getattr(self, name) is None}
        placeholders |= {"ttft": 1} if self.service_class is not None else {}
        try:
            self.asked(placeholders)
        except ValidationError as error:
            errors = ((detail["loc"], detail["msg"].removeprefix("Value error, ")) for detail in error.errors())
            problems = [f"{'.'.join(map(str, field))}: {text}" for field, text in errors]
            raise ValueError("; ".join(problem.removeprefix(": ") for problem in problems)) from None
        return self


class ScheduledParameters(RunParameters):
    """The parameters of a run that chooses its objects itself, usually on a schedule."""


class ReRunParameters(ScheduledParameters):
    """The BenchmarkJobs to measure again."""

    jobs: list[Annotated[str, Field(max_length=320, pattern=OBJECT)]] = Field(
        min_length=1, max_length=1000, description="BenchmarkJobs as NAMESPACE/NAME, for example chat/nightly"
    )


class RefitParameters(ScheduledParameters):
    """The profiles to check."""

    namespaces: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="limit to VariantAutoscalings of these namespaces; empty: all",
    )
    step_tokens: int = Field(
        2048, ge=1, description="tokens that engines compute in a step (vLLM's --max-num-batched-tokens)"
    )


class VerifyParameters(ScheduledParameters):
    """The models whose files to check."""

    namespaces: list[str] = Field(
        default_factory=list, description="limit to BaseModels of these namespaces; empty: all models"
    )
    names: list[str] = Field(default_factory=list, description="limit to models of these names; empty: all")
