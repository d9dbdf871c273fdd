"""What an onboarding is asked for: one Pydantic model, for forms and command lines."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from modelyard.benchmarks.preflight import FEWEST_OUTPUT_TOKENS, MOST_TOKENS, check_output
from modelyard.models.errors import FetchError
from modelyard.models.uri import parse
from modelyard.workloads.values import Refusal

MOST_CANDIDATES = 8
_CANDIDATE = re.compile(
    r"(?P<runtime>[^=\s]+)=(?P<accelerator>[A-Za-z0-9]+?)(?::(?P<count>[1-9][0-9]{0,2}))?@(?P<price>[0-9]+(?:\.[0-9]+)?)"
)

_Name = Annotated[str, Field(min_length=1, max_length=30, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
_Accelerator = Annotated[str, Field(min_length=2, max_length=63, pattern=r"^[A-Za-z0-9]+$")]
_Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]
_Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
_OutputTokens = Annotated[int, Field(ge=FEWEST_OUTPUT_TOKENS, le=MOST_TOKENS)]
_Level = Annotated[int, Field(ge=1, le=1024)]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServingCandidate(_Asked):
    """A runtime to try and what one replica of it takes. ``price`` is that of one accelerator for an hour."""

    runtime: str = Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="Name of the runtime.")
    accelerator: _Accelerator = Field(description="Such as H100.")
    count: int = Field(1, ge=1, le=999, description="Accelerators of one replica.")
    price: float = Field(gt=0, le=1e6, description="Cost of one accelerator for an hour.")

    @classmethod
    def of(cls, text: str) -> Self:
        """From RUNTIME=ACCELERATOR[:COUNT]@PRICE; ``ValueError`` where it is none."""
        found = _CANDIDATE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no candidate; write RUNTIME=ACCELERATOR[:COUNT]@PRICE, as vllm=H100:2@4.5")
        return cls.model_validate({name: value for name, value in found.groupdict().items() if value is not None})

    @property
    def cost(self) -> float:
        """Of one replica for an hour."""
        return self.price * self.count


class OnboardRequest(_Asked):
    """A model, a target, a load, and what may serve it. Times in milliseconds, costs in the unit of the prices."""

    uri: str = Field(description="Where the model's files are, such as hf://OWNER/NAME.")
    name: _Name = Field(description="Name of the model and of its service.")
    namespace: str = Field("default", max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    candidates: tuple[ServingCandidate, ...] = Field(
        (), max_length=MOST_CANDIDATES, description="What may serve it; none: with prices, all that fits."
    )
    prices: dict[_Accelerator, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict,
        max_length=MOST_CANDIDATES,
        description="Without candidates: accelerators that may serve it, and what one of them costs for an hour.",
    )
    parameters: dict[str, str] = Field(
        default_factory=dict, max_length=20, description="Parameters of the model's storage, such as endpoint."
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, max_length=20, description="Labels that a node must carry to receive the model's files."
    )
    ttft: _Milliseconds | None = Field(None, description="Target of the time to first token.")
    itl: _Milliseconds | None = Field(None, description="Target of the time between two tokens.")
    service_class: str | None = Field(
        None,
        max_length=520,
        pattern=r"^[a-z0-9][-a-z0-9.]*/[^/\s]+$",
        description="CONFIGMAP/KEY of a service class that is there, which the targets are of.",
    )
    percentile: float | None = Field(None, gt=0, lt=100, description="Of the TTFT target; default: its mean.")
    rate: float = Field(gt=0, le=1e6, description="Expected requests per second.")
    prompt_tokens: _Tokens = Field(description="Tokens of a prompt.")
    output_tokens: _OutputTokens = Field(description="Tokens of an answer; the time between two of them is measured.")
    budget: float | None = Field(None, gt=0, description="The most that the service may cost an hour.")
    min_replicas: int | None = Field(
        None, ge=1, le=1000, description="Replicas that autoscaling keeps at least, however little comes; default: any."
    )
    levels: tuple[_Level, ...] = Field(
        (),
        max_length=12,
        description="Requests at a time to measure with, a run for each; none: as many as the figures need.",
    )
    max_level: Annotated[_Level, Field(ge=2)] = Field(
        32, description="Without levels: the highest. The profile holds up to there."
    )
    precision: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Without levels: measured until half of each parameter's 95 % interval is at most this share of "
        "the latency that it decides.",
    )
    minutes: int = Field(5, ge=1, le=120, description="The most minutes of a run.")
    requests: int = Field(300, ge=1, le=100_000, description="The most requests of a run.")
    patience: int = Field(30, ge=1, le=1440, description="Minutes after which a service that is not ready is given up.")
    results: str = Field(description="Storage URI for what is measured.")
    time_compression: float = Field(
        1.0,
        ge=1,
        le=1000,
        description="Of simulated engines: how many times faster than life they run. Load and targets are as in life.",
    )

    @field_validator("uri")
    @classmethod
    def _storage(cls, uri: str) -> str:
        try:
            parse(uri)
        except FetchError as error:
            raise ValueError(str(error)) from None
        return uri

    @model_validator(mode="after")
    def _can_be_stored(self) -> Self:
        try:
            check_output(self.results, {}, "results", namespace=self.namespace)
        except Refusal as refusal:
            raise ValueError(str(refusal)) from None
        return self

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.ttft is None and self.itl is None:
            raise ValueError("there is no target: give ttft, itl, or both")
        if self.percentile is not None and self.ttft is None:
            raise ValueError("percentile is that of the TTFT target: give ttft")
        if bool(self.candidates) == bool(self.prices):
            raise ValueError("give either candidates, or prices of the accelerators that may serve it")
        if len({one.runtime for one in self.candidates}) < len(self.candidates):
            raise ValueError("two candidates have one runtime: a service is told by its runtime what it runs on")
        if len(self.levels) == 1:
            raise ValueError("levels: one does not tell how the speed falls with the load; give two or none")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError("levels has a number twice")
        return self

    @property
    def digest(self) -> str:
        """Tells requests apart, in 16 hex digits; candidates that were found by their prices are not asked for."""
        text = self.model_dump_json(exclude={"candidates"} if self.prices else None, exclude_defaults=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
