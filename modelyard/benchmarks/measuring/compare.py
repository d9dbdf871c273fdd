"""How one benchmark compares with another, run by run, and whether that is good enough. Pure."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from modelyard.benchmarks.measuring.results import BenchmarkResults
from modelyard.benchmarks.records import LatencySpread, MeasuredRun
from modelyard.objects import parse_go_duration

LATENCIES: Final = tuple(f"{name}_{part}" for name in ("latency", "ttft", "itl") for part in LatencySpread.model_fields)
RATES: Final = ("requests_rate", "output_rate")
SHARES: Final = ("error_share",)
METRICS: Final = (*RATES, *SHARES, *LATENCIES)
LONGEST = 100
"""Characters of a condition."""
_FORM = re.compile(r"\s*(?P<metric>\w+)\s*(?P<sign>[<>])\s*(?P<limit>\S+)\s*")
_CHANGE = re.compile(r"[+-]\d{1,9}(\.\d{1,9})?%")
_SHARE = re.compile(r"\d{1,9}(\.\d{1,9})?%")
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,12})?")


class ConditionInvalid(ValueError):
    """A condition that cannot be read; the message quotes it and says what can be written."""

    exit_code = 2


class GateTripped(Exception):
    """What was measured is not good enough; ``problems`` has a sentence for each run and condition."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


def figure(run: MeasuredRun, metric: str) -> float | None:
    """One of ``METRICS`` of a run; latencies in seconds, rates per second, shares from 0 to 1."""
    name, _, part = metric.rpartition("_")
    found = getattr(getattr(run, name), part, None) if metric in LATENCIES else getattr(run, metric)
    return None if found is None else float(found)


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """The same load in both; ``None`` where one has not measured it."""

    scenario: str
    concurrency: int
    before: MeasuredRun | None
    after: MeasuredRun | None

    def change(self, metric: str) -> float | None:
        """The relative change of a figure, such as 0.1 for ten per cent more; ``None``: not in both."""
        before, after = (figure(run, metric) if run is not None else None for run in (self.before, self.after))
        if before is None or after is None:
            return None
        if before == 0:
            return 0.0 if after == 0 else math.inf
        return after / before - 1

    @property
    def name(self) -> str:
        """Which load."""
        return f"{self.scenario} at {self.concurrency}"


def pairs(before: BenchmarkResults, after: BenchmarkResults) -> list[ComparedRuns]:
    """All loads of both, in order."""
    one, other = ({(run.scenario, run.concurrency): run for run in found.runs} for found in (before, after))
    return [ComparedRuns(*load, one.get(load), other.get(load)) for load in sorted(one.keys() | other.keys())]


def changes(pair: ComparedRuns) -> dict[str, str | int]:
    """A row of a table: the load, and of each rate and the usual percentiles how much it has changed."""
    found: dict[str, str | int] = {"scenario": pair.scenario, "concurrency": pair.concurrency}
    for metric in (*RATES, "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "latency_p95"):
        change = pair.change(metric)
        found[metric] = "-" if change is None else f"{change:+.1%}"
    return found


@dataclass(frozen=True, slots=True)
class FailIf:
    """A condition that must not hold: of a figure, or with ``relative`` of its change. ``text`` is as it was given."""

    metric: str
    sign: str
    limit: float
    relative: bool
    text: str

    def holds(self, value: float) -> bool:
        """Whether a value is on the wrong side."""
        return value > self.limit if self.sign == ">" else value < self.limit

    def problem(self, pair: ComparedRuns) -> str | None:
        """What is not good enough in a pair, if anything is; what cannot be told is not."""
        if pair.after is None:
            return f"{pair.name}: was not measured again, so {self.text} cannot be told"
        if pair.before is None and self.relative:
            return None
        value = pair.change(self.metric) if self.relative else figure(pair.after, self.metric)
        if value is None:
            return f"{pair.name}: there is no {self.metric}, so {self.text} cannot be told"
        if not self.holds(value):
            return None
        shown = f"is {value:.6g} s" if self.metric in LATENCIES else f"is {value:.4g}"
        shown = f"changed by {value:+.1%}" if self.relative else shown
        return f"{pair.name}: {self.metric} {shown}, which is {self.text}"


def parse_condition(text: str) -> FailIf:
    """What a condition says: ``ttft_p95>+10%``, ``itl_p50>30ms``, ``output_rate<1000``, ``error_share>1%``.

    With a sign before the number it is about the change. Raises ``ConditionInvalid``.
    """
    shown = repr(text[:LONGEST])
    found = _FORM.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise ConditionInvalid(f"--fail-if {shown}: write METRIC>+N%, METRIC<-N%, METRIC>N or METRIC<N")
    metric, sign, limit = found["metric"], found["sign"], found["limit"]
    if metric not in METRICS:
        raise ConditionInvalid(f"--fail-if {shown}: no metric {metric}; there are {', '.join(METRICS)}")
    if _CHANGE.fullmatch(limit):
        return FailIf(metric, sign, float(limit[:-1]) / 100, True, text.strip())
    return FailIf(metric, sign, _limit(shown, metric, limit), False, text.strip())


def _limit(shown: str, metric: str, text: str) -> float:
    if metric in SHARES and _SHARE.fullmatch(text) and float(text[:-1]) <= 100:
        return float(text[:-1]) / 100
    if _NUMBER.fullmatch(text) and not (metric in SHARES and float(text) > 1):
        return float(text)
    if metric in LATENCIES:
        with contextlib.suppress(ValueError):
            return parse_go_duration(text)
    example = "800ms or 0.8 (seconds)" if metric in LATENCIES else "0.01 or 1%" if metric in SHARES else "1000"
    raise ConditionInvalid(
        f"--fail-if {shown}: {text} is no limit of {metric}; write +10% for its change, or {example}"
    )


def tripped(conditions: Iterable[FailIf], found: Sequence[ComparedRuns]) -> list[str]:
    """What is not good enough, a sentence each."""
    return [problem for one in conditions for pair in found if (problem := one.problem(pair)) is not None]
