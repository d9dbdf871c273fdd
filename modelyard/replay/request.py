"""What is to be replayed: one description for the command line, the flow and files.

Light: nothing of the simulation is imported before there is something to check.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.objects import Cli, check_http_url, parse_go_duration
from modelyard.replay.settings import POLICIES, Gaps
from modelyard.reports import place, within
from modelyard.traffic import Copies, Routing

if TYPE_CHECKING:
    from modelyard.replay.policies import PolicyText


def seconds(value: Any) -> Any:
    """Seconds of a duration such as ``2s``, ``60ms`` or ``1m30s``; a bare number is seconds. Raises ``ValueError``."""
    if not isinstance(value, str):
        return value
    try:
        found = float(value)
    except ValueError:
        found = parse_go_duration(value)
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{value!r} is no duration >= 0 such as 2s or 60ms")
    return found


def moment(text: str, now: float) -> float:
    """Epoch seconds of a time: ISO 8601 (UTC unless it says otherwise), ``now``, or how long ago, as in ``6h``.

    Raises ``ValueError``.
    """
    if text == "now":
        return now
    try:
        return now - parse_go_duration(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r}: write a time (2026-01-31T08:00Z), now, or how long ago (6h)") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def numbers(value: Any) -> Any:
    """The pairs of ``name=number,name=number``. Raises ``ValueError``."""
    if not isinstance(value, str):
        return value
    found: dict[str, float] = {}
    for part in _parts(value):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        try:
            if not equals:
                raise ValueError
            found[name] = float(number)
        except ValueError:
            raise ValueError(f"{part}: write NAME=NUMBER, separated by commas") from None
    return found


def _parts(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in (part.strip() for part in value.split(",")) if part]
    if isinstance(value, list | tuple):
        return [part for one in value for part in (_parts(one) if isinstance(one, str) else [one])]
    return value


def _policies(given: Iterable[str]) -> tuple[str, ...]:
    from modelyard.replay.policies import split

    return tuple(str(policy) for policy in split(",".join(given)))


def _columns(text: str) -> str:
    from modelyard.traffic.traces import parse_columns

    parse_columns(text)
    return text


def _requirements(given: Iterable[str]) -> tuple[str, ...]:
    from modelyard.replay.backtest import parse

    return tuple(parse(text).text for text in given)


def _moment(text: str) -> str:
    moment(text, 0.0)
    return text


def _place(given: Any) -> Any:
    return place(str(given)) if isinstance(given, str | Path) else given


Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0)]
"""In files and on the command line also with a unit: 2s, 60ms, 1m30s."""
Moment = Annotated[str, AfterValidator(_moment)]
Factor = Annotated[float, Field(gt=0, le=10_000)]


class ReplayRequest(BaseModel):
    """Which traffic, which fleet, which policies."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    manifests: Annotated[
        tuple[Path, ...],
        Cli(help="manifest file or folder, '-' for standard input, or a file with a replay request"),
    ] = Field((), description="files or folders with the fleet's manifests")
    manifest_text: str = Field("", description="the fleet's manifests as YAML, instead of files or besides")
    trace: Path | None = Field(None, description="CSV with a header: time, prompt and output tokens of each request")
    columns: Annotated[str, AfterValidator(_columns)] = Field(
        "", description="column names of the trace: time=NAME,prompt=NAME,output=NAME and, if there is one, model=NAME"
    )
    start: float = Field(0, ge=0, description="begin at this minute of the trace")
    minutes: float | None = Field(None, gt=0, description="replay so many minutes of the trace; unset: to its end")
    prometheus_url: Annotated[str, AfterValidator(lambda url: url and check_http_url(url))] = Field(
        "",
        description="instead of a trace, the traffic that this Prometheus remembers, of a namespace and model; unset: "
        "the environment variable PROMETHEUS_BASE_URL",
    )
    namespace: str = Field("", description="namespace of the traffic in Prometheus")
    model: str = Field("", description="model of the traffic, as its engines name it")
    begin: Annotated[Moment, Cli("--from")] = Field(
        "1h", description="start of the traffic: a time (2026-01-31T08:00Z) or how long ago (6h)"
    )
    end: Annotated[Moment, Cli("--to")] = Field("1m", description="end of the traffic: likewise, or now")
    step: Seconds = Field(15, ge=1, le=3600, description="seconds of the steps in which the rate is constant")
    gaps: Gaps = Field(Gaps.FAIL, description="what steps without data stand for: an error, no requests, or a line")
    prompt_tokens: float | None = Field(
        None, ge=1, description="mean prompt tokens of a request, over what Prometheus says"
    )
    output_tokens: float | None = Field(
        None, ge=1, description="mean output tokens of a request, over what Prometheus says"
    )
    policies: Annotated[tuple[str, ...], AfterValidator(_policies), Cli("--policy")] = Field(
        ("default",), min_length=1, description=f"policies to compare: {POLICIES}"
    )
    rates: Annotated[tuple[Factor, ...], BeforeValidator(_parts), Cli("--rate")] = Field(
        (1.0,), min_length=1, max_length=20, description="factor of the request rate, at which each policy is replayed"
    )
    copies: Copies = Field(
        Copies.INDEPENDENT,
        description="what more requests are at a rate above 1: 'independent' (others' sizes, spread over a minute) or "
        "'clumped' (the same ones, at once)",
    )
    warm_up: Seconds = Field(0, description="first seconds of the traffic that are replayed and do not count")
    prompt_scale: float = Field(1.0, gt=0, description="factor of the prompt tokens")
    output_scale: float = Field(1.0, gt=0, description="factor of the output tokens")
    diurnal: float | None = Field(
        None, gt=0, le=24 * 31, description="repeat the traffic for so many hours, along the course of a day"
    )
    slo_ttft: Seconds = Field(2.0, gt=0, description="target in seconds for the time to first token")
    slo_itl: Seconds = Field(0.06, gt=0, description="target in seconds for a request's mean inter-token latency")
    attainment: float = Field(0.99, gt=0, le=1, description="share of requests that should be within both")
    fleet: Annotated[
        FleetSettings, Cli(help="YAML file with fleet settings, for the policies default and published")
    ] = Field(default_factory=FleetSettings, description="settings of the decisions")
    startup: Seconds = Field(
        120, le=7200, description="seconds from a pod's creation to Ready, where the engine's arguments do not say"
    )
    startup_spread: float = Field(
        0, ge=0, le=2, description="spread of start-up times: the standard deviation of their logarithm"
    )
    profile: Literal["h100", "a100", "l40s"] | None = Field(
        None, description="engine profile; unset: by the accelerator label"
    )
    engine: Annotated[dict[str, float], BeforeValidator(numbers)] = Field(
        default_factory=dict, description="engine parameters over everything else: alpha=7,beta=0.05"
    )
    routing: Routing = Field(Routing.LEAST_OUTSTANDING, description="routing policy")
    queue_limit: Seconds = Field(300, description="a request that waits so many seconds for a replica is rejected")
    scrape: Seconds = Field(15, gt=0, description="seconds of Prometheus' scrape interval")
    seed: int = Field(0, ge=0, description="seed of all random numbers; equal seeds give equal results")
    require: Annotated[tuple[str, ...], AfterValidator(_requirements)] = Field(
        (),
        max_length=50,
        description="requirement on each policy at each rate, or the replay fails: attainment>=0.99, ttft_p95<=2s",
    )
    max_cost: float | None = Field(
        None, gt=0, description="highest cost that each policy may reach, or the replay fails"
    )
    judge: Annotated[tuple[str, ...], AfterValidator(lambda given: _policies(given) if given else ())] = Field(
        (), description="of the policies, those for which require and max_cost hold; unset: all"
    )
    out: Annotated[str, BeforeValidator(_place)] | None = Field(
        None, description="folder or s3://bucket/prefix for report, timeline and plots; several rates: one each in it"
    )

    @property
    def chosen(self) -> list[PolicyText]:
        """The policies, the bound among them."""
        from modelyard.replay.policies import split

        return split(",".join(self.policies))

    def places(self) -> dict[float, str]:
        """Where the report of each rate goes, if anywhere."""
        if self.out is None:
            return {}
        return {rate: self.out if len(self.rates) == 1 else within(self.out, f"rate-{rate:g}") for rate in self.rates}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        from modelyard.replay.backtest import requested_past
        from modelyard.replay.policies import CLAIRVOYANT, make

        if not self.manifests and not self.manifest_text.strip():
            raise ValueError("name the fleet's manifests, or give them as manifest_text")
        if (self.trace is None) != bool(self.namespace and self.model) or (self.trace and self.prometheus_url):
            raise ValueError(
                "give the traffic with either a trace or a Prometheus' namespace and model, whose traffic it is"
            )
        if self.trace is None:
            requested_past(self, time.time())
        for policy in self.chosen:
            if policy.kind not in (CLAIRVOYANT, "default", "published"):
                make(policy, (), self.fleet)
        if all(policy.kind == CLAIRVOYANT for policy in self.chosen):
            raise ValueError(f"{CLAIRVOYANT} is a bound: name a policy to compare with it")
        named = [str(policy) for policy in self.chosen if policy.kind != CLAIRVOYANT]
        for policy_text in self.judge:
            if policy_text not in named:
                raise ValueError(f"--judge {policy_text}: is not replayed; there are {', '.join(named)}")
        if len({f"{rate:g}" for rate in self.rates}) < len(self.rates):
            raise ValueError("rates: each only once (by six digits, which name the folders of their reports)")
        return self
