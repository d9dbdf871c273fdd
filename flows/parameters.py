"""Models of the flows' parameters, which refuse unknown fields; ``flows.forms`` makes a form of each."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.forms import Unseen
from modelyard.autoscaling.live import ControllerSettings
from modelyard.benchmarks.measuring import parse_condition
from modelyard.objects import CONTROLLER_NAMESPACE, first_of
from modelyard.onboarding import OnboardInput
from modelyard.replay import ReplayRequest
from modelyard.routing import RouteRollOut

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
OBJECT = r"^[^/]+/[^/]+$"


Namespace = Annotated[str, Field(max_length=63, pattern=NAME)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
Timeout = Annotated[
    float,
    Field(gt=0, le=7 * 86_400, description="with wait: time limit in seconds, after which the run ends Failed"),
]
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
    lease_namespace: Namespace | None = Field(None, description="namespace of the Lease; unset: the controller's own")
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
    lease_namespace: Namespace = Field(CONTROLLER_NAMESPACE, description="namespace of the Lease")
    namespaces: list[str] = Field(default_factory=list, description="only these namespaces; empty: all")


class ReplayParameters(ReplayRequest):
    """A replay request; policies and rates run side by side."""

    first: ClassVar[tuple[str, ...]] = (
        "trace", "minutes", "manifests", "policies", "rates", "slo_ttft", "slo_itl", "require", "max_cost", "judge",
    )  # fmt: skip

    parallel: int = Field(2, ge=1, le=256, description="replays at a time, each in a process of its own")
    timeout_seconds: float = Field(1800, gt=0, le=86_400, description="time limit of one policy at one rate")
    artifact_key: str = Field("replay", pattern=NAME, max_length=100, description="of the table in the UI")


class RunParameters(BaseModel):
    """Parameters of all runs that act: whether they wait, for how long, and where Modelyard's settings are."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    last: ClassVar[tuple[str, ...]] = ("wait", "timeout_seconds", "controller_namespace", "run", "objects")

    wait: bool = Field(
        True, description="stay until the work is done, up to the time limit; unset: do what can be done now, and end"
    )
    timeout_seconds: Timeout = 12 * 3600
    controller_namespace: Namespace = Field(
        CONTROLLER_NAMESPACE, description="namespace of Modelyard's own ConfigMaps and Jobs"
    )


class LifecycleParameters(RunParameters):
    """The object that a run works on: named by a person, or by the claim under which ``reconcile`` starts the run."""

    name: ObjectName = Field(description="name of the object")
    namespace: Namespace = Field("default", description="namespace of the object")
    run: Annotated[str, Unseen()] = Field(
        "", max_length=512, description="set by reconcile: the claim under which the run works"
    )
    objects: Annotated[list[str], Unseen()] = Field(
        default_factory=list, description="set by reconcile: NAMESPACE/NAME of each object"
    )

    @property
    def named(self) -> str:
        return first_of([name.strip("/") for name in self.objects or [f"{self.namespace}/{self.name}"]])


class DeliverParameters(LifecycleParameters):
    """The model to deliver: by its name, or a URI under a new name."""

    name: ObjectName = Field(description="name of the model to deliver, for example llama-8b (with uri: a new one)")
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
    timeout_seconds: Timeout = 6 * 3600

    @model_validator(mode="after")
    def _what_is_named(self) -> Self:
        if self.namespace and self.kind == "FineTunedWeight":
            raise ValueError("namespace: a FineTunedWeight has none: leave it empty")
        return self


class RollOutParameters(LifecycleParameters):
    """The service or route to roll out, and whether to wait for it."""

    name: ObjectName = Field(description="name of the service or route, for example chat")
    kind: Literal["InferenceService", "Model", "ModelRoute"] = Field(
        "InferenceService", description="kind of the object"
    )
    traffic: RouteRollOut | None = Field(
        None,
        description="of a ModelRoute: the ModelServer that receives its requests, and the steps; unset: its annotation",
    )
    dry_run: bool = Field(False, description="of a ModelRoute: only check, and show the weights of each step")
    timeout_seconds: Timeout = 3600

    @model_validator(mode="after")
    def _what_is_of_routes(self) -> Self:
        if self.kind != "ModelRoute" and (self.traffic is not None or self.dry_run):
            raise ValueError("traffic and dry_run apply only to kind ModelRoute: set kind, or leave them out")
        return self


class BenchmarkParameters(LifecycleParameters):
    """The BenchmarkJob to measure, and whether to wait for it."""

    name: ObjectName = Field(description="name of the BenchmarkJob, for example nightly")
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


class OnboardParameters(OnboardInput, RunParameters):
    """The model to onboard, its target, its load, and what may serve it."""

    first: ClassVar[tuple[str, ...]] = (
        "uri", "name", "namespace", "results", "candidates", "prices", "ttft", "itl", "percentile", "service_class",
        "rate", "prompt_tokens", "output_tokens", "trace", "budget", "min_replicas", "wait",
    )  # fmt: skip


class ReRunParameters(RunParameters):
    """The BenchmarkJobs to measure again."""

    jobs: list[Annotated[str, Field(max_length=320, pattern=OBJECT)]] = Field(
        min_length=1, max_length=1000, description="BenchmarkJobs as NAMESPACE/NAME, for example chat/nightly"
    )


class RefitParameters(RunParameters):
    """The profiles to check."""

    namespaces: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="limit to VariantAutoscalings of these namespaces; empty: all",
    )
    step_tokens: int = Field(
        2048, ge=1, description="tokens that engines compute in a step (vLLM's --max-num-batched-tokens)"
    )


class VerifyParameters(RunParameters):
    """The models whose files to check."""

    namespaces: list[str] = Field(
        default_factory=list, description="limit to BaseModels of these namespaces; empty: all models"
    )
    names: list[str] = Field(default_factory=list, description="limit to models of these names; empty: all")
