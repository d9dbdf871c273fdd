"""Figure of the traffic: load, replicas, latency against its targets and cost per fleet over the minutes of the trace.

A moment that was not observed, and a minute without answers, is a gap in the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.demo.observations import Sample
from deployments.demo.report import Outcome
from deployments.demo.scenario import SLO_ITL, SLO_TTFT, Scenario
from modelyard.traffic.latency import percentile
from modelyard.traffic.replay import columns

COLOURS = ("#8fbcbb", "#5e81ac", "#b48ead")
INK, LOAD, TARGET, COST = "#2e3440", "#bf616a", "#d08770", "#a3be8c"
PANELS = ("requests/s", "replicas", "TTFT p95, s", "ITL p95, ms", "cost per hour")


def by_minute(outcome: Outcome) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return minutes of the trace, and the 95th percentile of TTFT and ITL in seconds of each (NaN: no answer)."""
    results = columns(outcome.results)
    minute = np.floor(results.at / 60)
    minutes = np.arange(minute.max() + 1 if len(minute) else 0)
    of = [results.answered & (minute == each) for each in minutes]
    ttft, itl = ([percentile(values[which], 95) for which in of] for values in (results.ttft, results.itl))
    return minutes, np.array(ttft, dtype=np.float64), np.array(itl, dtype=np.float64)


def draw(outcomes: Sequence[Outcome], scenario: Scenario, path: Path) -> None:
    """Draw the fleets side by side on the same scales into a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(PANELS),
        len(outcomes),
        figsize=(2 + 4.5 * len(outcomes), 10),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=[1, 2, 1, 1, 1],
        layout="constrained",
    )
    for outcome, column in zip(outcomes, axes.T, strict=True):
        _column(outcome, scenario, column)
    for panel in axes.flat:
        panel.set_ylim(bottom=0)
        panel.margins(x=0.01)
        panel.grid(alpha=0.25, lw=0.5)
    for label, row in zip(PANELS, axes, strict=True):
        row[0].set_ylabel(label)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    figure.supxlabel("minutes of the trace", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _column(outcome: Outcome, scenario: Scenario, panels: Sequence[Any]) -> None:
    load, replicas, ttft, itl, cost = panels
    load.set_title(fill(outcome.copy.title, 48), fontsize=10)
    minutes = [moment.minute for moment in outcome.moments]
    load.plot(minutes, [moment.load for moment in outcome.moments], color=LOAD, lw=1.3, label="load")

    looks = [moment if isinstance(moment, Sample) else None for moment in outcome.moments]
    bottom = np.zeros(len(looks))
    for variant, colour in zip(scenario.variants, COLOURS, strict=False):
        top = bottom + np.array([math.nan if look is None else look.ready[variant.name] for look in looks])
        label = f"{variant.accelerator} ready"
        replicas.fill_between(minutes, bottom, top, step="post", color=colour, lw=0, label=label)
        bottom = top
    desired = [math.nan if look is None else sum(look.desired.values()) for look in looks]
    replicas.step(minutes, desired, where="post", color=INK, lw=1.1, ls="--", label="desired")

    when, first, between = by_minute(outcome)
    for panel, values, target in ((ttft, first, SLO_TTFT / 1000), (itl, between * 1000, SLO_ITL)):
        panel.plot(when + 0.5, values, color=INK, lw=1.3, label="measured by clients")
        panel.axhline(target, color=TARGET, lw=1.1, ls=":", label=f"target {target:g}")
    hourly = {variant.name: float(variant.cost) for variant in scenario.variants}
    spent = [
        math.nan if look is None else sum(hourly[name] * count for name, count in look.created.items())
        for look in looks
    ]
    cost.step(minutes, spent, where="post", color=COST, lw=1.5, label="all replicas")
