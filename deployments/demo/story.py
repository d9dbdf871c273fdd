"""The demonstration's outcome for people: why, cost, latencies, the verdict, and the spread of several runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rich.table import Table

from deployments.demo.scenario import FLOOR, SLO_ITL, SLO_TTFT, Copy, Scenario
from deployments.demo.truth import Truth, spans
from deployments.demo.watch import Moment, Sample
from modelyard.traffic.latency import SLO, Latency
from modelyard.traffic.replay import RequestResult
from modelyard.traffic.replay import columns as columns_of


@dataclass(frozen=True)
class Played:
    """One copy of the pair after the traffic: what was sampled, what the clients saw, whether it may be believed."""

    copy: Copy
    moments: list[Moment]
    results: list[RequestResult]
    truth: Truth

    @property
    def samples(self) -> list[Sample]:
        """The moments at which something was seen."""
        return [moment for moment in self.moments if isinstance(moment, Sample)]

    @property
    def good(self) -> bool:
        """Whether it showed what was to be shown."""
        return self.verdict.good and not self.truth.void

    @property
    def verdict(self) -> Verdict:
        """How it was scaled; a service begins with what its busiest minute needs."""
        return verdict(self.samples, floor=FLOOR if self.copy.service else 0)


@dataclass(frozen=True)
class Verdict:
    """Whether the loop really scaled in both directions. Counts are changes of a variant's published target.

    With a ``floor`` it began with all that its load needs, and being made smaller is what is to be seen, unless it is
    as few as are always kept.
    """

    ups: int
    downs: int
    peak: int
    last: int
    floor: int = 0

    @property
    def good(self) -> bool:
        """Scaled up by decision, and down again."""
        if self.floor and 0 < self.peak <= self.floor:
            return True
        return (self.ups > 0 or self.floor > 0) and self.downs > 0 and self.last < self.peak

    @property
    def words(self) -> str:
        """The same, as a heading."""
        if self.ups > 0 and self.good:
            return "Scaled both ways"
        if self.good and not self.downs:
            return "Began with what its load needs, which is as few as it always keeps"
        return "Began with what its load needs, and was scaled down" if self.good else "Did not scale both ways"


def verdict(samples: Sequence[Sample], floor: int = 0) -> Verdict:
    """Judge by the pods that existed, not by what anybody wanted."""
    ups = downs = 0
    for before, after in pairwise(samples):
        for name, replicas in after.created.items():
            ups += replicas > before.created[name]
            downs += replicas < before.created[name]
    totals = [sum(s.created.values()) for s in samples]
    return Verdict(ups, downs, max(totals, default=0), totals[-1] if totals else 0, floor)


def replica_minutes(moments: Sequence[Moment], scenario: Scenario) -> dict[str, float]:
    """Replica-minutes of trace time per variant, from pods that existed. Time that was not seen is not counted."""
    minutes = dict.fromkeys((variant.name for variant in scenario.variants), 0.0)
    for look, length in spans(moments, scenario.longest_look):
        for name in minutes:
            minutes[name] += look.created[name] * length
    return minutes


def table(samples: Sequence[Sample], scenario: Scenario, rows: int = 24) -> Table:
    """Time, load, replicas per variant (ready/created), KV use, queue and why; changes first, then an even spread."""
    shown = Table(title="What happened, and why", header_style="bold", title_justify="left", expand=False)
    counts = (f"{variant.accelerator}\nready/all" for variant in scenario.variants)
    for column in ("minute", "req/s", *counts, "KV", "queue"):
        shown.add_column(column, justify="right")
    shown.add_column("why", overflow="fold", max_width=88)
    for current in _moments(samples, rows):
        shown.add_row(
            f"{current.minute:.1f}",
            f"{current.load:.1f}",
            *(f"{current.ready[v.name]}/{current.created[v.name]}" for v in scenario.variants),
            "-" if current.kv is None else f"{current.kv:.2f}",
            "-" if current.waiting is None else f"{current.waiting:.0f}",
            _why(current),
        )
    return shown


def _moments(samples: Sequence[Sample], rows: int) -> list[Sample]:
    if not samples:
        return []
    changed = [0]
    changed += [i for i in range(1, len(samples)) if samples[i].desired != samples[i - 1].desired]
    changed.append(len(samples) - 1)
    keep = set(changed if len(changed) <= rows else changed[:: -(-len(changed) // rows)])
    spread = max(1, len(samples) // max(1, rows - len(keep)))
    for index in range(0, len(samples), spread):
        if len(keep) < rows:
            keep.add(index)
    return [samples[i] for i in sorted(keep)]


def _why(current: Sample) -> str:
    texts = list(dict.fromkeys(text for text in current.why.values() if text))
    return texts[0] if len(texts) == 1 else "\n".join(f"{name}: {text}" for name, text in current.why.items() if text)


def latency(results: Sequence[RequestResult]) -> Latency:
    """What the clients saw, against the demonstration's targets."""
    return Latency.of(columns_of(results), SLO(SLO_TTFT / 1000, SLO_ITL / 1000))


def figures(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> Table:
    """A table whose first column is text and whose others are numbers."""
    shown = Table(title=title, header_style="bold", title_justify="left")
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


def latencies(results: Sequence[RequestResult]) -> Table:
    """What the clients saw, altogether and of each variant."""
    columns = ("variant", "requests", "answered", "failed", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99")
    shown = figures("What the clients saw (seconds of the trace's time)", columns)
    variants = sorted({result.variant for result in results if result.variant})
    for variant in ("", *(variants if len(variants) > 1 else ())):
        seen = latency([result for result in results if not variant or result.variant == variant])
        shown.add_row(
            variant or "all",
            *map(str, (seen.requests, seen.answered, seen.requests - seen.answered)),
            *(
                _known(value, ".3f")
                for spread in (seen.ttft, seen.itl)
                for value in (spread.p50, spread.p95, spread.p99)
            ),
        )
    return shown


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


class Numbers(NamedTuple):
    """The outcome of one copy in numbers: times in seconds of the trace's time, ``within`` from 0 to 1."""

    requests: float
    failed: float
    replica_minutes: float
    cost: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    within: float

    @classmethod
    def of(cls, one: Played, scenario: Scenario) -> Numbers:
        """Summed up."""
        used = replica_minutes(one.moments, scenario)
        total = latency(one.results)
        return cls(
            total.requests,
            total.requests - total.answered,
            sum(used.values()),
            sum(used[variant.name] / 60 * float(variant.cost) for variant in scenario.variants),
            *(total.ttft.p50, total.ttft.p95, total.itl.p50, total.itl.p95, total.attainment),
        )


TITLES = (
    ("requests", ",.0f"),
    ("failed", ".0f"),
    ("replica-minutes", ".1f"),
    ("cost", ".2f"),
    ("TTFT p50, s", ".3f"),
    ("TTFT p95, s", ".3f"),
    ("ITL p50, s", ".3f"),
    ("ITL p95, s", ".3f"),
    (f"within {SLO_TTFT / 1000:g} s TTFT, {SLO_ITL} ms ITL", ".1%"),
)
"""The columns of a comparison, and the form of their numbers."""


def comparison(runs: Sequence[Sequence[Played]], scenario: Scenario) -> list[list[str]]:
    """The copies side by side: the same traffic, what it cost, what the clients saw. A heading, and a row for each.

    Of several runs each number is the median, with the least and the greatest.
    """
    rows = [["scaled by", *(title for title, _ in TITLES)]]
    for copies in zip(*runs, strict=True):
        numbers = zip(*(Numbers.of(one, scenario) for one in copies), strict=True)
        cells = (_spread(values, form) for values, (_, form) in zip(numbers, TITLES, strict=True))
        rows.append([str(copies[0].copy.form), *cells])
    return rows


def _spread(values: Sequence[float], form: str) -> str:
    least, middle, most = (_known(of(values), form) for of in (min, statistics.median, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A heading and rows, as a page holds them."""
    heading, *others = rows
    lines = (heading, ["---"] * len(heading), *others)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
