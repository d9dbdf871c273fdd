"""Outcome of the traffic: checks, costs, latencies and a chart. Pure, apart from what is printed and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from deployments.demo.console import Check
from deployments.demo.observations import Sample, changes, replica_minutes
from deployments.demo.scenario import FLOOR, SLO_ITL, SLO_TTFT, DemoVariant, Scenario
from modelyard.objects import counted, cut
from modelyard.traffic.clients import RequestResult, columns
from modelyard.traffic.traces import SLO, Ending, Latency, percentile

SIZED = "a replica takes"
"""Words of a decision that knows the load and the performance profile."""


@dataclass(frozen=True)
class Outcome:
    """The service after the traffic: what was observed in the cluster, and what its clients measured."""

    samples: list[Sample]
    results: list[RequestResult]

    @cached_property
    def latency(self) -> Latency:
        return Latency.of(columns(self.results), SLO(SLO_TTFT / 1000, SLO_ITL / 1000))


def checks(outcome: Outcome) -> list[Check]:
    """Return the functional claims. None depends on how fast the machine is."""
    results, samples, decided = outcome.results, outcome.samples, changes(outcome.samples)
    failed = [result for result in results if result.ending is not Ending.OK]
    lost = f"; {len(failed)} failed: {cut(failed[0].error, 200)}" if failed else ", none was lost"
    answered = f"{len(results) - len(failed):,} of {len(results):,} requests were answered{lost}"
    explained = all(after.why for _, after in decided) and any(sample.why for sample in samples)
    return [
        Check(answered, bool(results) and not failed),
        Check(
            "The autoscaler sized the service with its measured profile for the observed load",
            any(SIZED in sample.why for sample in samples),
        ),
        _scaled(samples),
        Check(f"The status of the VariantAutoscaling explains each scaling decision ({len(decided)})", explained),
    ]


def _scaled(samples: Sequence[Sample]) -> Check:
    """Count pods that existed, not numbers that were only asked for.

    The service starts with the replicas that the busiest minute needs: scaling down is enough, and so is staying at its
    minimum.
    """
    steps = [after.created - before.created for before, after in pairwise(samples)]
    ups, downs = sum(step > 0 for step in steps), sum(step < 0 for step in steps)
    totals = [sample.created for sample in samples] or [0]
    peak, last = max(totals), totals[-1]
    text = f"Scaled up {counted(ups, 'time')} and down {counted(downs, 'time')}"
    text += f" (peak {counted(peak, 'replica')}, {last} at the end, minimum {FLOOR})"
    return Check(text, 0 < peak <= FLOOR or (downs > 0 and last < peak))


def decision_table(samples: Sequence[Sample]) -> Table:
    """Show load, replicas and reasons at every scaling decision, at the start and at the end."""
    shown = Table(title="Scaling decisions", title_justify="left", header_style="bold")
    for column in ("minute", "req/s", "replicas\nready/all", "KV cache", "queue"):
        shown.add_column(column, justify="right")
    shown.add_column("reason", overflow="fold", max_width=80)
    changed = [after for _, after in changes(samples)]
    step = max(1, math.ceil(len(changed) / 8))
    for current in [*samples[:1], *changed[::step], *samples[-1:]]:
        shown.add_row(
            f"{current.minute:.1f}",
            f"{current.load:.1f}",
            f"{current.ready}/{current.created}",
            "-" if current.kv is None else f"{current.kv:.0%}",
            "-" if current.waiting is None else f"{current.waiting:.0f}",
            cut(current.why, 160),
        )
    return shown


def describe_result(outcome: Outcome, variant: DemoVariant, scenario: Scenario) -> str:
    """Return cost and latencies in a sentence each. Times are simulated times."""
    seen, minutes = outcome.latency, replica_minutes(outcome.samples, scenario.longest_gap)
    return (
        f"{seen.answered:,} requests took {minutes:.1f} replica-minutes of {variant.accelerator}, which cost "
        f"{minutes / 60 * float(variant.cost):.2f}. "
        f"TTFT p95 {seen.ttft.p95:.2f} s (target {SLO_TTFT / 1000:g} s), ITL p95 {1000 * seen.itl.p95:.0f} ms (target "
        f"{SLO_ITL} ms): {seen.attainment:.1%} of the requests within both targets."
    )


def latency_by_minute(results: Sequence[RequestResult]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 95th percentiles of TTFT and ITL in seconds for each minute of the trace (NaN: no answer)."""
    seen = columns(results)
    minute = np.floor(seen.at / 60)
    of = [seen.answered & (minute == number) for number in range(int(minute.max(initial=-1)) + 1)]
    ttft, itl = (np.array([percentile(each[chosen], 95) for chosen in of]) for each in (seen.ttft, seen.itl))
    return ttft, itl


def draw(outcome: Outcome, longest_gap: float, path: Path) -> None:
    """Draw load, replicas and latencies over the minutes of the trace into a PNG file; a gap in samples is one."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows: list[tuple[float, float, float, float]] = []
    for sample in outcome.samples:
        if rows and sample.minute - rows[-1][0] > longest_gap:
            rows.append((rows[-1][0], math.nan, math.nan, math.nan))
        rows.append((sample.minute, sample.load, sample.ready, sample.desired))
    minutes, load, ready, desired = np.array(rows).reshape(-1, 4).T
    figure, panels = pyplot.subplots(4, 1, figsize=(8, 8), sharex=True, layout="constrained")
    panels[0].plot(minutes, load, label="requests/s")
    panels[1].fill_between(minutes, ready, step="post", alpha=0.4, label="replicas, ready")
    panels[1].step(minutes, desired, where="post", color="black", linestyle="--", label="replicas, desired")
    ttft, itl = latency_by_minute(outcome.results)
    targets = (panels[2], ttft, SLO_TTFT / 1000, "TTFT p95, s"), (panels[3], itl * 1000, SLO_ITL, "ITL p95, ms")
    for panel, values, target, label in targets:
        panel.plot(np.arange(len(values)) + 0.5, values, marker=".", label=label)
        panel.axhline(target, color="black", linestyle=":", label="target")
    for panel in panels:
        panel.set_ylim(bottom=0)
        panel.legend(loc="upper right", fontsize="small")
    panels[-1].set_xlabel("minutes of the trace")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
