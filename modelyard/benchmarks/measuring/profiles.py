"""From a benchmark's results to a performance profile: points for the fit, and a library of profiles in a ConfigMap,
for reuse. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelyard.autoscaling.configuration import FleetSettings, read_document
from modelyard.autoscaling.fleet import PROVENANCE, provenance
from modelyard.autoscaling.sizing import FitError, Point
from modelyard.benchmarks.measuring.results import BenchmarkResults
from modelyard.benchmarks.records import patch as patch
from modelyard.objects import Key, shown
from modelyard.resources import VariantProfile

LIBRARY = "modelyard-profiles"
"""The ConfigMap with profiles, one a data key."""
_SPREAD = re.compile(r"([NU])\((\d{1,7}),(\d{1,7})\)/\((\d{1,7}),(\d{1,7})\)")


def points(results: BenchmarkResults, warn: Callable[[str], None]) -> list[Point]:
    """The runs that streamed, in ms. One with too many failed requests, or with figures that cannot be true, is left
    out with a warning: what fails is no load, or takes no time. Raises ``FitError`` where none is left, and for
    runs of several models: they are of no one engine."""
    models = sorted({record.measurement.model for record in results.records})
    if len(models) > 1:
        raise FitError(f"{results.name}: has runs of several models ({', '.join(models[:5])}); fit one at a time")
    found, left_out = [], ""
    for run in results.runs:
        if run.unusable:
            left_out = run.unusable
            warn(f"run {run.scenario} at {run.concurrency} of {results.name} is left out: {run.unusable}")
            continue
        if run.ttft is None or run.itl is None:
            continue
        latencies = (run.ttft.mean, run.itl.mean, run.ttft.p50, run.ttft.p95, run.itl.p50, run.itl.p95)
        point = Point(run.concurrency, run.prompt_tokens, run.output_tokens, *(1000 * one for one in latencies))
        prompts, outputs = _spreads(run.scenario)
        answered = run.requests - run.failed or None
        found.append(point._replace(requests=answered, prompt_spread=prompts, output_spread=outputs))
    if not found and left_out:
        raise FitError(f"{results.name}: no run can be used; the last one: {left_out}; measure again")
    if not found:
        raise FitError(f"{results.name}: no run has a TTFT and an ITL; profiles are of endpoints that stream")
    return found


def _spreads(scenario: str) -> tuple[float | None, float | None]:
    """Standard deviations of the tokens of prompts and answers; none where all are of one length."""
    found = _SPREAD.fullmatch(scenario)
    if found is None:
        return None, None
    kind, *given = found.groups()
    one, two, three, four = map(float, given)
    each = (two, four) if kind == "N" else ((two - one) / math.sqrt(12), (four - three) / math.sqrt(12))
    return each[0] if each[0] > 0 else None, each[1] if each[1] > 0 else None


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile is of: a model on so many of an accelerator (its parallelism), served by a runtime."""

    model: str
    accelerator: str
    count: int
    runtime: str

    @property
    def name(self) -> str:
        """The data key in the library."""
        text = "-".join((self.model, self.accelerator, str(self.count), self.runtime))
        return re.sub(r"[^-._a-zA-Z0-9]+", "-", text)[:240].strip("-.")


class LibraryProfile(BaseModel):
    """An entry of the library."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    model: Annotated[str, Field(alias="model_id", min_length=1, max_length=600)]
    accelerator: Annotated[str, Field(min_length=1, max_length=300)]
    count: Annotated[int, Field(alias="acceleratorCount", ge=1, le=1024)]
    runtime: Annotated[str, Field(max_length=300)] = ""
    profile: Annotated[VariantProfile, Field(alias="variantProfile")]
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> ProfileKey:
        """What it is of."""
        return ProfileKey(self.model, self.accelerator, self.count, self.runtime)

    def patch(self) -> dict[str, Any]:
        """As ``patch``."""
        told = json.dumps(self.provenance, separators=(",", ":"))
        profile = self.profile.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"metadata": {"annotations": {PROVENANCE: told}}, "spec": {"variantProfile": profile}}


def library_patch(key: ProfileKey, body: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that puts a profile, as ``patch`` has it, into the library."""
    entry = {
        "model_id": key.model,
        "accelerator": key.accelerator,
        "acceleratorCount": key.count,
        "runtime": key.runtime,
        "variantProfile": body["spec"]["variantProfile"],
        "provenance": provenance(body),
    }
    return {"data": {key.name: yaml.safe_dump(entry, sort_keys=False)}}


def read_library(where: Key, data: Mapping[str, str]) -> tuple[dict[str, LibraryProfile], list[str]]:
    """The profiles of a library by their data keys, and what is wrong with the others."""
    document = read_document(where, data, FleetSettings())
    found, wrong = {}, list(document.broken.values())
    for entry in document.entries:
        try:
            found[entry.key] = LibraryProfile.model_validate(dict(entry.fields))
        except ValidationError as error:
            first = error.errors()[0]
            wrong.append(f"{entry.where}: {'.'.join(map(str, first['loc']))}: {first['msg']}")
    return found, wrong


def described(told: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Where a profile comes from, a line a fact, for people."""
    facts = ("source", "measured", "runs", "for", "range", "engine", "intervals", "rSquared", "kvTokens")
    for name in (*facts, "startupSeconds"):
        if name in told:
            yield name, shown(told[name]) if isinstance(told[name], str) else json.dumps(told[name])[:300]
