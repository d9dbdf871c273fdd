"""What a fleet operator can set for a run of the loop. Per-model thresholds live in ConfigMaps (``config_maps.py``).

The flow's parameter model embeds this one, so the field descriptions are the texts of the Prefect UI form.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from modelyard.metrics.vocabulary import Allowed
from modelyard.objects import CONTROLLER_NAMESPACE


class Mode(StrEnum):
    """Who moves the workload: we do (``direct``), or an HPA/KEDA reading the gauge (``signal``)."""

    DIRECT = "direct"
    SIGNAL = "signal"


class Compatibility(StrEnum):
    """``repaired`` (default) or ``published``: the algorithm exactly as its references document it."""

    REPAIRED = "repaired"
    PUBLISHED = "published"


class SizingAim(StrEnum):
    """What the forecast of a model's replicas aims at: ``mean`` latencies of the queueing model, or the share of
    requests within their targets (``attainment``), learnt from the model's own history."""

    MEAN = "mean"
    ATTAINMENT = "attainment"


ATTAINMENT_HISTORY = 5400.0
"""Seconds of load that rules are tried on, where a load window has 60."""
TAIL = 99.0
"""Per cent of the requests that should be within their targets, where nothing else is said."""


class FleetSettings(BaseModel):
    """Settings of one controller installation. Durations are seconds of wall time."""

    # Forms show the fields by the names that JSON, YAML and the documentation use.
    model_config = ConfigDict(frozen=True, extra="forbid", field_title_generator=lambda name, _: name)

    compatibility: Compatibility = Field(
        Compatibility.REPAIRED,
        description="'repaired' (default) or 'published': the documented algorithm with its known defects",
    )
    actuation: Mode = Field(
        Mode.DIRECT,
        description="who moves the workload by default: 'direct' (we do) or 'signal' (HPA or KEDA reads the gauge)",
    )
    dry_run: bool = Field(False, description="decide and explain, write nothing")
    controller_namespace: str = Field(
        CONTROLLER_NAMESPACE, min_length=1, description="namespace of the global ConfigMaps"
    )
    controller_instance: str | None = Field(
        None,
        description="handle only resources labelled wva.llmd.ai/controller-instance with this value; unset: unlabelled",
    )
    expressions: Allowed = Field(
        Allowed.OWN,
        description="what PromQL in annotations may read: 'own' (its namespace), 'any', or 'none' (it is not asked)",
    )
    gateway_namespaces: list[str] = Field(
        default_factory=list,
        description="namespaces of gateways that serve all: what waits there counts for every namespace, "
        "at a router for that of the ModelServer. A gateway "
        "elsewhere counts for its own; an empty text stands for series without a namespace",
    )
    watch_namespace: str | None = Field(None, description="handle one namespace only; unset: all")
    saturation_config_map: str = Field(
        "wva-saturation-scaling-config", min_length=1, description="thresholds ConfigMap"
    )
    scale_to_zero_config_map: str = Field(
        "wva-model-scale-to-zero-config", min_length=1, description="scale-to-zero ConfigMap"
    )
    unit_cost_config_map: str = Field(
        "accelerator-unit-costs", min_length=1, description="ConfigMap of accelerator prices (SLO form)"
    )
    service_class_config_map: str = Field(
        "service-classes-config", min_length=1, description="ConfigMap of service classes and their SLOs"
    )
    scale_to_zero: bool = Field(False, description="fleet default of scale-to-zero (WVA_SCALE_TO_ZERO)")
    node_selector: str = Field("", description="label selector of the nodes the GPU limiter counts (WVA_NODE_SELECTOR)")
    peak_window: float = Field(60, gt=0, description="seconds over which the peak of KV use and queue is taken")
    warm_up: float = Field(
        60, ge=0, description="seconds after Ready during which a pod does not count as spare capacity"
    )
    scale_down_margin: float = Field(
        0.10, ge=0, le=1, description="extra spare, as a share of the trigger, that a scale-down must leave behind"
    )
    scale_down_elasticity: float = Field(
        2.0,
        ge=1,
        le=4,
        description="per cent by which what a replica holds (KV cache, queue) is taken to rise for one per cent more "
        "load, when saturation judges a scale-down; 2 is true at half of an engine's highest rate, 1 is proportional",
    )
    scale_down_delay: float = Field(
        120,
        ge=0,
        description="seconds for which scale-down must have been safe without a break before it happens; four "
        "times as long, at most 32, for each time that the same scale-down was taken back within five delays",
    )
    transition_limit: float = Field(
        600, gt=0, description="seconds a scaling may take before the desired count is reset to the real one"
    )
    reporting_share: float = Field(
        0.9, gt=0, le=1, description="share of a model's ready pods that must report before the normal rules apply"
    )
    partial_limit: float = Field(
        120, ge=0, description="seconds to hold still on partial metrics before deciding on worst-case bounds"
    )
    max_step_up: int = Field(10, ge=1, description="most replicas added to one variant in one decision")
    max_step_up_factor: float = Field(
        2.0,
        gt=1,
        description="a variant grows at most by this factor in one decision (with targets: or by max_step_up if more)",
    )
    max_step_down: int = Field(
        1, ge=1, description="most replicas removed from one model in one decision (a tenth of them if that is more)"
    )
    stale_after: float = Field(300, gt=0, description="age in seconds after which metrics count as stale")
    status_refresh: float = Field(300, gt=0, description="seconds within which an unchanged status is written again")

    tick: float = Field(
        15, gt=0, description="seconds between two decisions, for plans and replays; the flow uses its interval_seconds"
    )
    load_window: float = Field(60, gt=0, description="seconds over which request rates and token means are taken")
    min_completions: int = Field(
        5, ge=1, description="finished requests in the window below which token means are not believed"
    )
    token_memory: float = Field(600, gt=0, description="seconds for which the last good token means are kept")
    utilisation_cap: float = Field(
        0.9, gt=0, le=1, description="most load on a replica, as a share of its highest rate, where no TTFT target is"
    )
    ttft_percentile: float | None = Field(
        None,
        ge=50,
        lt=100,
        description="size for this percentile of TTFT instead of the mean; unset: the mean (aim 'attainment': 99)",
    )
    itl_percentile: float | None = Field(
        None, ge=50, lt=100, description="aim 'attainment': the percentile of ITL that is aimed at; unset: 99"
    )
    target_ttft: float = Field(
        2000,
        ge=0,
        description="aim 'attainment', saturation form: TTFT in ms that is aimed at where no service class "
        "has the model; 0: none",
    )
    target_itl: float = Field(
        100,
        ge=0,
        description="aim 'attainment', saturation form: ITL in ms that is aimed at where no service class "
        "has the model; 0: none",
    )
    transition_penalty: float = Field(
        0.1, ge=0, le=1, description="share of a replica's cost that moving it between variants counts for"
    )
    aim: SizingAim = Field(
        SizingAim.ATTAINMENT,
        description="size for the share of requests within both targets ('attainment'), or for 'mean' latencies (SLO "
        "form) and saturation alone (saturation form)",
    )
    feedback: bool = Field(True, description="correct predicted TTFT and ITL by what is observed")
    estimator: bool = Field(False, description="learn performance parameters online instead of using the profile's")
    allocation_effort: int = Field(
        20_000_000, ge=0, description="work the exact allocation may take, counted and not timed; then greedy"
    )
    headroom: bool = Field(
        True, description="when load rises, size for the load expected when a new replica would be ready"
    )
    headroom_limit: float = Field(2.0, ge=1, description="most growth of the load that is ever planned ahead, a factor")
    trend_window: float = Field(300, gt=0, description="seconds of load history the trend is taken from")
    startup_default: float = Field(
        120, ge=0, description="start-up time in seconds of a variant whose own has not been learnt yet"
    )

    @property
    def load_history(self) -> float:
        attained = ATTAINMENT_HISTORY * self.load_window / 60 if self.aim is SizingAim.ATTAINMENT else 0.0
        return max(self.trend_window, attained)

    @property
    def allowed(self) -> tuple[float, float]:
        """The shares of requests that may miss their TTFT and their ITL."""
        return 1 - (self.ttft_percentile or TAIL) / 100, 1 - (self.itl_percentile or TAIL) / 100

    def compressed(self, factor: float) -> FleetSettings:
        """The same for a world that runs ``factor`` times faster than the wall clock (demonstrations)."""
        durations = (
            *("peak_window", "warm_up", "scale_down_delay", "transition_limit", "partial_limit", "stale_after"),
            *("status_refresh", "tick", "load_window", "token_memory", "trend_window", "startup_default"),
            *("target_ttft", "target_itl"),
        )
        return self.model_copy(update={name: getattr(self, name) / factor for name in durations})
