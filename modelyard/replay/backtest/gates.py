"""Requirements that a replay has to meet, for pipelines: ``attainment>=0.99``, ``ttft_p95<800ms``. Pure.

Metrics are called as in ``report.csv``. What is not known (a percentile of no answers) meets no requirement.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from modelyard.objects import parse_go_duration
from modelyard.replay.backtest.report import Summary
from modelyard.replay.request import ReplayRequest
from modelyard.traffic.traces import Percentiles

COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
SHARES: Final = ("attainment", "ttft_attainment", "itl_attainment")
LATENCIES: Final = tuple(
    f"{name}_{part.name}" for name in ("ttft", "itl", "itl_max") for part in dataclasses.fields(Percentiles)
)
COUNTS: Final = (
    *("cost", "replica_hours", "peak_replicas", "scale_ups", "scale_downs", "minutes_below"),
    *("requests", "rejected", "killed", "unfinished", "waited"),
)
METRICS: Final = (*SHARES, *LATENCIES, *COUNTS)
FORM = re.compile(r"\s*(?P<metric>\w+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<limit>\S+)\s*")
NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?")
LONGEST = 100
"""Characters of a requirement."""


class RequirementInvalid(ValueError):
    """A requirement that cannot be read; the message quotes it and says what can be written."""

    exit_code = 2


class RequirementsNotMet(Exception):
    """What was replayed is not what was required; ``problems`` has a sentence for each policy, rate and requirement."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"not as required: {'; '.join(problems)}")
        self.problems = [f"not as required: {problem}" for problem in problems]


class Requirement(NamedTuple):
    """One of them: the metric, how it is compared with the limit (a share, seconds or a number), and its own words."""

    metric: str
    sign: str
    limit: float
    text: str

    def met(self, summary: Summary) -> bool:
        """Whether a replay meets it."""
        return COMPARISONS[self.sign](value(summary, self.metric), self.limit)


def value(summary: Summary, metric: str) -> float:
    """A metric of a replay by its name; NaN when it is not known."""
    name, _, part = metric.rpartition("_")
    found = getattr(getattr(summary, name), part) if metric in LATENCIES else getattr(summary, metric)
    return float(found)


def parse(text: str) -> Requirement:
    """What a requirement says. Raises ``RequirementInvalid``."""
    shown = repr(text[:LONGEST])
    found = FORM.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise RequirementInvalid(f"{shown}: write METRIC>=NUMBER, with one of {' '.join(COMPARISONS)}")
    metric, limit = found["metric"], found["limit"]
    if metric not in METRICS:
        raise RequirementInvalid(f"{shown}: no metric {metric}; there are {', '.join(METRICS)}")
    return Requirement(metric, found["sign"], _limit(shown, metric, limit), text.strip())


def _limit(shown: str, metric: str, text: str) -> float:
    if NUMBER.fullmatch(text):
        limit = float(text)
        if metric in SHARES and limit > 1:
            raise RequirementInvalid(f"{shown}: {metric} is a share from 0 to 1; write for example 0.99 or 99%")
        return limit
    if metric in SHARES and text.endswith("%") and NUMBER.fullmatch(text[:-1]) and float(text[:-1]) <= 100:
        return float(text[:-1]) / 100
    if metric in LATENCIES:
        try:
            seconds = parse_go_duration(text)
        except ValueError:
            seconds = -1
        if seconds >= 0:
            return seconds
    example = "0.99 or 99%" if metric in SHARES else "800ms or 0.8 (seconds)" if metric in LATENCIES else "12.5"
    raise RequirementInvalid(f"{shown}: {text} is no {metric}; write for example {example}")


def unmet(requirements: Iterable[Requirement], summaries: Iterable[Summary]) -> list[str]:
    """What is not met, a sentence each: which policy at which rate, what it has and what is required."""
    requirements = tuple(requirements)
    return [
        f"{one.policy} at rate {one.rate:g} has {_said(one, requirement.metric)}, {requirement.text} is needed"
        for one in summaries
        for requirement in requirements
        if not requirement.met(one)
    ]


def unmet_requirements(request: ReplayRequest, summaries: Iterable[Summary]) -> list[str]:
    """Return what is not as a request requires it, a sentence each."""
    required = [parse(text) for text in request.require]
    if request.max_cost is not None:
        required.append(Requirement("cost", "<=", request.max_cost, f"a cost of at most {request.max_cost:g}"))
    return unmet(required, (each for each in summaries if not request.judge or each.policy in request.judge))


def _said(summary: Summary, metric: str) -> str:
    found = value(summary, metric)
    if math.isnan(found):
        return f"no known {metric}"
    return f"{metric} {found:.6g}{' s' if metric in LATENCIES else ''}"
