"""The demonstration's outcome for people: a table of why, cost, a picture, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from deployments.demo.scenario import SLO_ITL, SLO_TTFT, Copy, Scenario
from deployments.demo.watch import Sample
from modelyard.traffic.latency import SLO, Latency
from modelyard.traffic.replay import RequestResult
from modelyard.traffic.replay import columns as columns_of


@dataclass(frozen=True)
class Played:
    """One copy of the pair after the traffic: what was sampled, and what the clients saw."""

    copy: Copy
    samples: list[Sample]
    results: list[RequestResult]


@dataclass(frozen=True)
class Verdict:
    """Whether the loop really scaled in both directions. Counts are changes of a variant's published target."""

    ups: int
    downs: int
    peak: int
    last: int

    @property
    def good(self) -> bool:
        """Scaled up by decision, and down again."""
        return self.ups > 0 and self.downs > 0 and self.last < self.peak


def verdict(samples: Sequence[Sample]) -> Verdict:
    """Judge by the pods that existed, not by what anybody wanted."""
    ups = downs = 0
    for before, after in pairwise(samples):
        for name, replicas in after.created.items():
            ups += replicas > before.created[name]
            downs += replicas < before.created[name]
    totals = [sum(s.created.values()) for s in samples]
    return Verdict(ups, downs, max(totals, default=0), totals[-1] if totals else 0)


def replica_minutes(samples: Sequence[Sample], scenario: Scenario) -> dict[str, float]:
    """Replica-minutes of trace time per variant, from pods that existed."""
    minutes = {variant.name: 0.0 for variant in scenario.variants}
    for before, after in pairwise(samples):
        for name in minutes:
            minutes[name] += before.created[name] * (after.minute - before.minute)
    return minutes


def table(samples: Sequence[Sample], scenario: Scenario, rows: int = 24) -> Table:
    """Time, load, replicas per variant (ready/created), KV use, queue and why; changes first, then an even spread."""
    shown = Table(title="What happened, and why", header_style="bold", title_justify="left", expand=False)
    shown.add_column("minute", justify="right")
    shown.add_column("req/s", justify="right")
    for variant in scenario.variants:
        shown.add_column(f"{variant.accelerator}\nready/all", justify="right")
    shown.add_column("KV", justify="right")
    shown.add_column("queue", justify="right")
    shown.add_column("why", overflow="fold", max_width=88)
    for current in _moments(samples, rows):
        counts = [f"{current.ready[v.name]}/{current.created[v.name]}" for v in scenario.variants]
        shown.add_row(
            f"{current.minute:.1f}",
            f"{current.load:.1f}",
            *counts,
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


def figures(title: str, columns: Sequence[str]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    shown = Table(title=title, header_style="bold", title_justify="left")
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number else "left")
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


def comparison(played: Sequence[Played], scenario: Scenario) -> Table:
    """The copies side by side: the same traffic, what it cost, what the clients saw."""
    slo = f"within {SLO_TTFT / 1000:g} s TTFT, {SLO_ITL} ms ITL"
    columns = ("scaled by", "requests", "failed", "replica-minutes", "cost", "TTFT p50", "p95", "ITL p50", "p95", slo)
    shown = figures("The same traffic, scaled three ways", columns)
    for one in played:
        used = replica_minutes(one.samples, scenario)
        cost = sum(used[v.name] / 60 * float(v.cost) for v in scenario.variants)
        total = latency(one.results)
        shown.add_row(
            str(one.copy.form),
            str(total.requests),
            str(total.requests - total.answered),
            f"{sum(used.values()):.1f}",
            f"{cost:.2f}",
            *(_known(value, ".3f") for spread in (total.ttft, total.itl) for value in (spread.p50, spread.p95)),
            _known(total.attainment, ".1%"),
        )
    return shown


def plot(samples: Sequence[Sample], scenario: Scenario, path: Path, title: str) -> None:
    """Load against replicas, and KV use, over trace minutes, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    minutes = [s.minute for s in samples]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=[3, 1.2], layout="constrained"
    )
    bottom = [0.0] * len(samples)
    for variant, colour in zip(scenario.variants, ("#8fbcbb", "#5e81ac", "#b48ead"), strict=False):
        values = [s.ready[variant.name] for s in samples]
        top = [b + v for b, v in zip(bottom, values, strict=True)]
        upper.fill_between(minutes, bottom, top, step="post", color=colour, label=f"{variant.accelerator} ready")
        bottom = top
    upper.step(
        minutes,
        [sum(s.desired.values()) for s in samples],
        where="post",
        color="#2e3440",
        lw=1.2,
        ls="--",
        label="desired",
    )
    upper.set_ylabel("replicas")
    upper.set_ylim(bottom=0)
    load = upper.twinx()
    load.plot(minutes, [s.load for s in samples], color="#bf616a", lw=1.5, label="load")
    load.set_ylabel("requests/s", color="#bf616a")
    load.set_ylim(bottom=0)
    handles = [h for axis in (upper, load) for h in axis.get_legend_handles_labels()[0]]
    upper.legend(handles=handles, loc="upper left", ncols=2, fontsize=8)
    upper.set_title(f"Real traffic, and the replicas that served it\n{title}", fontsize=10)
    lower.plot(minutes, [s.kv if s.kv is not None else float("nan") for s in samples], color="#a3be8c", label="KV use")
    lower.set_ylabel("KV-cache use")
    lower.set_ylim(0, 1.05)
    queue = lower.twinx()
    queue.plot(minutes, [s.waiting or 0 for s in samples], color="#d08770", lw=1, label="queue")
    queue.set_ylabel("waiting", color="#d08770")
    queue.set_ylim(bottom=0)
    lower.set_xlabel("minutes of the trace")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
