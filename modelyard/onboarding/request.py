"""Parameters of an onboarding: one Pydantic model for the request, the form of the flow and the command line.

Light: nothing of resources and workloads is imported before there is a request to check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from modelyard.benchmarks.records import FEWEST_OUTPUT_TOKENS, MOST_TOKENS
from modelyard.models.storage import FetchError, parse
from modelyard.objects import Cli

MOST_CANDIDATES = 8
_CANDIDATE = re.compile(
    r"(?P<runtime>[^=\s]+)=(?P<accelerator>[A-Za-z0-9]+?)(?::(?P<count>[1-9][0-9]{0,2}))?@(?P<price>[0-9]+(?:\.[0-9]+)?)"
)

_Name = Annotated[str, Field(min_length=1, max_length=30, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
_Accelerator = Annotated[str, Field(min_length=2, max_length=63, pattern=r"^[A-Za-z0-9]+$")]
_Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]
_Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
_OutputTokens = Annotated[int, Field(ge=FEWEST_OUTPUT_TOKENS, le=MOST_TOKENS)]
_Rate = Annotated[float, Field(gt=0, le=1e6)]
_Level = Annotated[int, Field(ge=1, le=1024)]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServingCandidate(_Asked):
    """A runtime to try and what one replica of it takes. ``price`` is that of one accelerator for an hour."""

    runtime: str = Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="name of the runtime")
    accelerator: _Accelerator = Field(description="accelerator, for example H100")
    count: int = Field(1, ge=1, le=999, description="accelerators of one replica")
    price: float = Field(gt=0, le=1e6, description="price of one accelerator per hour")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Read the form of the command line, RUNTIME=ACCELERATOR[:COUNT]@PRICE."""
        if not isinstance(given, str):
            return given
        parts = _CANDIDATE.fullmatch(given)
        if parts is None:
            raise ValueError(f"{given!r} is no candidate")
        return {name: value for name, value in parts.groupdict().items() if value is not None}

    @property
    def cost(self) -> float:
        """Of one replica for an hour."""
        return self.price * self.count


class OnboardFields(_Asked):
    """The fields of an onboarding. Times in milliseconds, costs in the unit of the prices.

    Their order is that of ``OnboardRequest.digest``, which clusters keep.
    """

    uri: str = Field(
        min_length=1, max_length=2048, description="URI of the model's files, for example hf://meta-llama/Llama-3.1-8B"
    )
    name: _Name = Field(description="name of the new model and of its service, for example chat")
    namespace: str = Field(
        "default",
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="namespace of the model and its service",
    )
    candidates: Annotated[
        tuple[ServingCandidate, ...], Cli("--candidate", metavar="RUNTIME=ACCELERATOR[:COUNT]@PRICE")
    ] = Field(
        (),
        max_length=MOST_CANDIDATES,
        description="runtimes to measure, and what a replica of each needs; required unless prices are given",
    )
    prices: Annotated[
        dict[_Accelerator, Annotated[float, Field(gt=0, le=1e6)]], Cli("--price", metavar="ACCELERATOR=PRICE")
    ] = Field(
        default_factory=dict,
        max_length=MOST_CANDIDATES,
        description="price per accelerator and hour, for example H100 and 4.5; measures every runtime that fits;"
        " required unless candidates are given",
    )
    parameters: Annotated[dict[str, str], Cli("--parameter")] = Field(
        default_factory=dict, max_length=20, description="parameters of the model's storage, for example endpoint"
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, max_length=20, description="labels of the nodes that receive the model's files"
    )
    ttft: _Milliseconds | None = Field(
        None, description="target of the time to first token in milliseconds, for example 500; or service_class"
    )
    itl: _Milliseconds | None = Field(
        None, description="target of the time between two tokens in milliseconds, for example 50; or service_class"
    )
    service_class: Annotated[str | None, Cli(metavar="CONFIGMAP/KEY")] = Field(
        None,
        max_length=520,
        pattern=r"^[a-z0-9][-a-z0-9.]*/[^/\s]+$",
        description="CONFIGMAP/KEY of an existing service class, instead of ttft and itl",
    )
    percentile: float | None = Field(
        None, gt=0, lt=100, description="percentile of the TTFT target, for example 95; unset: its mean"
    )
    rate: _Rate | None = Field(
        None, description="expected load in requests per second; required unless trace is given (its busiest minute)"
    )
    prompt_tokens: _Tokens | None = Field(
        None, description="tokens of a prompt; required unless trace is given (its mean)"
    )
    output_tokens: _OutputTokens | None = Field(
        None, description="tokens of an answer; required unless trace is given (its mean)"
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
    levels: Annotated[tuple[_Level, ...], Cli("--level")] = Field(
        (),
        max_length=12,
        description="concurrent requests to measure with, one run for each; empty: as many as the profile needs",
    )
    max_level: Annotated[_Level, Field(ge=2)] = Field(
        32, description="without levels: highest concurrency; the profile holds up to it"
    )
    precision: float = Field(
        0.1,
        gt=0,
        le=1,
        description="without levels: largest half 95 % interval of each parameter, as a share of the latency that it"
        " determines",
    )
    minutes: int = Field(5, ge=1, le=120, description="most minutes of a measurement")
    requests: int = Field(300, ge=1, le=100_000, description="most requests of a measurement")
    patience: int = Field(30, ge=1, le=1440, description="minutes after which a service that is not ready is given up")
    results: str = Field(
        min_length=1, max_length=2048, description="storage URI for the measurements, for example pvc://results/onboard"
    )
    time_compression: float = Field(
        1.0, ge=1, le=1000, description="multiply measured times by this (demonstrations on the simulated engine only)"
    )


class OnboardRequest(OnboardFields):
    """A model, a target, a load, and what may serve it, checked together."""

    rate: _Rate
    prompt_tokens: _Tokens
    output_tokens: _OutputTokens

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
        from modelyard.benchmarks.records import check_output
        from modelyard.workloads.rendering import Refusal

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


class OnboardInput(OnboardFields):
    """All that may be given for an onboarding; a trace or a service class stands for values of the request."""

    trace: Path | None = Field(
        None, description="CSV file on the worker's machine, as for replay: the expected load, simulated at the end"
    )
    check_seconds: float = Field(
        60, ge=0, le=3600, description="seconds of the check under load at the end; 0: no check"
    )

    def asked(self, values: Mapping[str, Any]) -> OnboardRequest:
        """Return the request, checked together; ``values`` come from trace and class. Raises ``ValueError``."""
        given = {**self.model_dump(include=set(OnboardRequest.model_fields), exclude_none=True), **values}
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
