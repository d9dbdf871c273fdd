"""The parameter model of the ``replay`` flow: what the UI form, ``prefect.yaml`` and the command line offer."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from modelyard.autoscaling.settings import FleetSettings
from modelyard.replay.history import Gaps, HistoryRequest
from modelyard.replay.policies.parse import CLAIRVOYANT, HELP, PolicyText, factory, split
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.latency import SLO
from modelyard.traffic.router import Routing
from modelyard.traffic.trace import parse_columns

STRICT = ConfigDict(frozen=True, extra="forbid")


class TraceFile(BaseModel):
    """Recorded requests in a file that the worker can read."""

    model_config = STRICT

    file: Path = Field(description="CSV with a header and a row per request")
    columns: str = Field("", description="column names: time=NAME,prompt=NAME,output=NAME and, if any, model=NAME")
    start_minute: float = Field(0, ge=0, description="begin at this minute of it")
    minutes: float | None = Field(None, gt=0, description="replay so many minutes of it; unset: to its end")

    @field_validator("columns")
    @classmethod
    def _readable(cls, text: str) -> str:
        parse_columns(text)
        return text


class PastTraffic(BaseModel):
    """Traffic that a Prometheus remembers."""

    model_config = STRICT

    prometheus_url: str = Field("", description="default: the worker's environment variable PROMETHEUS_BASE_URL")
    namespace: str = Field(min_length=1, description="whose traffic")
    model: str = Field(min_length=1, description="which model's, as its engines name it")
    begin: datetime = Field(description="since when; UTC unless it says otherwise")
    end: datetime = Field(description="until when")
    step_seconds: float = Field(15, ge=1, le=3600, description="length of the steps in which the rate is constant")
    gaps: Gaps = Field(Gaps.FAIL, description="what steps without data stand for: an error, no requests, a line")
    prompt_tokens: float | None = Field(None, ge=1, description="mean prompt tokens, over what Prometheus says")
    output_tokens: float | None = Field(None, ge=1, description="mean output tokens, over what Prometheus says")

    @property
    def request(self) -> HistoryRequest:
        """For ``modelyard.replay.history``. Raises ``TraceInputError``."""
        from modelyard.replay.inputs import moment

        first, last = (moment(name, when.isoformat(), 0.0) for name, when in (("begin", self.begin), ("end", self.end)))
        return HistoryRequest(
            self.namespace, self.model, first, last, self.step_seconds, self.gaps, self.prompt_tokens,
            self.output_tokens,
        )  # fmt: skip

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _ = self.request
        return self


class Targets(BaseModel):
    """What users expect of each request."""

    model_config = STRICT

    ttft_seconds: float = Field(2.0, gt=0, description="time to first token")
    itl_seconds: float = Field(0.06, gt=0, description="mean inter-token latency")
    attainment: float = Field(0.99, gt=0, le=1, description="share of requests that should be within both")

    @property
    def slo(self) -> SLO:
        """For the simulator."""
        return SLO(self.ttft_seconds, self.itl_seconds, self.attainment)


class ReplayParameters(BaseModel):
    """Which traffic, which fleet, which policies."""

    model_config = STRICT

    manifests: tuple[Path, ...] = Field((), description="files or folders with the fleet, readable by the worker")
    manifest_text: str = Field("", description="the fleet as YAML, instead of files or besides")
    trace: TraceFile | None = Field(None, description="recorded requests; either these or the history")
    history: PastTraffic | None = Field(None, description="traffic out of Prometheus, instead of a trace")
    policies: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("default", "published", "fixed", CLAIRVOYANT), description=f"side by side: {HELP}"
    )
    rates: Annotated[tuple[Annotated[float, Field(gt=0, le=10_000)], ...], Field(min_length=1, max_length=20)] = Field(
        (1.0,), description="each policy at so many times the requests"
    )
    slo: Targets = Field(default_factory=lambda: Targets(), description="what users expect")
    fleet: FleetSettings = Field(default_factory=FleetSettings, description="settings of the decisions")
    startup_seconds: float = Field(120, ge=0, le=7200, description="from a pod's creation to Ready, unless it says so")
    profile: Literal["h100", "a100", "l40s"] | None = Field(
        None, description="engine profile; unset: by the accelerator label"
    )
    engine: dict[str, float] = Field(default_factory=dict, description="engine parameters over everything else")
    routing: Routing = Field(Routing.LEAST_OUTSTANDING, description="how the router chooses")
    diurnal_hours: float | None = Field(None, gt=0, le=24 * 31, description="repeat along the course of a day")
    prompt_scale: float = Field(1.0, gt=0, description="so many times the prompt tokens")
    output_scale: float = Field(1.0, gt=0, description="so many times the output tokens")
    seed: int = Field(0, ge=0, description="equal seeds give equal results")
    out: Path | None = Field(None, description="folder for the report and plots; several rates: one folder each in it")
    parallel: int = Field(2, ge=1, le=256, description="replays at a time, each in a process of its own")
    timeout_seconds: float = Field(1800, gt=0, le=86_400, description="time limit of one policy at one rate")
    artifact_key: str = Field(
        "replay", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=100, description="of the table in the UI"
    )

    @property
    def chosen(self) -> list[PolicyText]:
        """The policies, the bound among them. Raises ``PolicyInputError``."""
        return split(",".join(self.policies))

    @property
    def simulation(self) -> SimulationSettings:
        """The world around the policies."""
        return SimulationSettings(routing=self.routing, seed=self.seed)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.manifests and not self.manifest_text.strip():
            raise ValueError("name the fleet's manifests, or give them as manifest_text")
        if (self.trace is None) == (self.history is None):
            raise ValueError("give the traffic with either trace or history")
        for policy in self.chosen:
            if policy.kind not in (CLAIRVOYANT, "default", "published"):
                factory(policy, (), self.fleet)
        if all(policy.kind == CLAIRVOYANT for policy in self.chosen):
            raise ValueError(f"{CLAIRVOYANT} is a bound: name a policy to compare with it")
        if len(set(self.rates)) < len(self.rates):
            raise ValueError("rates: each only once")
        return self
