"""Reports on the terminal and as files: a table, JSON, CSV, and a folder (or bucket) with everything and the plots."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from modelyard.replay.backtest.report import Summary, Timeline
from modelyard.reports import written
from modelyard.traffic.traces import SLO

REPORT = "report.json"
WIDE = 10_000
"""Columns where nobody is watching: a pipe has no width."""
POINTS = 720
"""More minutes than that are averaged together: a week has ten thousand."""


def table(summaries: Sequence[Summary], slo: SLO, remarks: Sequence[str] = ()) -> str:
    """The comparison for people."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(
        f"SLO: TTFT {_seconds(slo.ttft)}, ITL {_seconds(slo.itl)}, both for {slo.attainment:.4g} of "
        f"{summaries[0].requests:,} requests"
        if summaries
        else "nothing was replayed"
    )
    bounds = any(summary.bound is not None for summary in summaries)
    grid = Table(header_style="bold", box=None, pad_edge=False)
    titles = ["POLICY", "REPLICA-H", "COST", *(["× BOUND"] if bounds else []), "WITHIN SLO", "TTFT P50", "P95", "P99"]
    titles += ["ITL P50", "P95", "P99", "UP", "DOWN", "PEAK", "MIN BELOW", "REJECTED", "KILLED", "WAITED"]
    for title in titles:
        justify: Literal["right", "left"] = "left" if title == "POLICY" else "right"
        grid.add_column(title, justify=justify, no_wrap=title != "POLICY")
    for s in summaries:
        cells = [
            s.policy,
            f"{s.replica_hours:.2f}",
            f"{s.cost:.2f}",
            *([f"{s.cost / s.bound:.2f}" if s.bound and s.bound > 0 else "-"] if bounds else []),
            f"{s.attainment:.2%}",
            *(_seconds(value) for p in (s.ttft, s.itl) for value in (p.p50, p.p95, p.p99)),
            *(str(n) for n in (s.scale_ups, s.scale_downs, s.peak_replicas)),
            f"{s.minutes_below}/{s.minutes}",
            *(str(n) for n in (s.rejected, s.killed, s.waited)),
        ]
        colour = "" if s.attainment >= slo.attainment else "yellow"
        grid.add_row(*(Text(cell, style=colour if n else "") for n, cell in enumerate(cells)))
    console.print(grid)
    for s in summaries:
        for problem in s.problems:
            console.print(f"{s.policy}: {problem}", soft_wrap=True)
        if s.unfinished:
            console.print(f"{s.policy}: {s.unfinished} requests were not done when the simulation stopped")
    for remark in remarks:
        console.print(remark, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def as_json(summaries: Sequence[Summary], slo: SLO, context: dict[str, Any]) -> str:
    """Everything as a document; NaN becomes null."""
    document = {**context, "slo": slo, "policies": summaries}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode()


def as_csv(summaries: Sequence[Summary]) -> str:
    """One row per policy; nested numbers as ``ttft_p95``; an empty cell is not known."""
    file = io.StringIO()
    rows = [_flat(summary) for summary in summaries]
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["policy"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().rstrip("\n")


def _flat(summary: Summary) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in dataclasses.asdict(summary).items():
        if name == "by_output":
            for part in value:
                limit = part["tokens"]
                row[f"attainment_{'longer' if limit is None else f'to_{limit}'}"] = _cell(part["attainment"])
        elif name == "problems":
            row[name] = "; ".join(value)
        elif name == "hours_by_variant":
            continue
        elif isinstance(value, dict):
            row.update({f"{name}_{part}": _cell(number) for part, number in value.items()})
        else:
            row[name] = _cell(value)
    return row


def _cell(value: object) -> object:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return value


def write_report(
    out: str,
    lines: Sequence[tuple[str, Timeline]],
    summaries: Sequence[Summary],
    slo: SLO,
    context: dict[str, Any],
) -> None:
    """``report.json``, ``report.csv``, ``timeline.csv`` (all policies, minute by minute) and the plots.

    An older report in the same place is replaced as a whole. Raises ``OutputError`` when something else is there or the
    place cannot be written.
    """
    with written(out, REPORT) as folder:
        (folder / REPORT).write_text(as_json(summaries, slo, context) + "\n", encoding="utf-8")
        (folder / "report.csv").write_text(as_csv(summaries) + "\n", encoding="utf-8")
        (folder / "timeline.csv").write_text(_timelines(lines), encoding="utf-8")
        draw(folder, lines, slo)


def _timelines(lines: Sequence[tuple[str, Timeline]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [field.name for field in dataclasses.fields(Timeline)]
    writer.writerow(["policy", *names])
    for policy, line in lines:
        for row in zip(*(getattr(line, name).tolist() for name in names), strict=True):
            writer.writerow([policy, *(_cell(value) for value in row)])
    return file.getvalue()


def draw(folder: Path, lines: Sequence[tuple[str, Timeline]], slo: SLO) -> None:
    """``replay.png``: all policies over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    if not lines:
        return
    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(11, 11), layout="constrained")
    first = lines[0][1]
    group = max(1, -(-len(first.minute) // POINTS))
    hours = _grouped(first.minute.astype(np.float64), group) / 60
    axes[0].fill_between(hours, _grouped(first.arrivals / 60.0, group), color="0.8", step="mid")
    axes[0].set_ylabel("requests per second")
    axes[0].set_title("Load")
    for policy, line in lines:
        axes[1].plot(hours, _grouped(line.replicas, group), label=policy, drawstyle="steps-mid")
        axes[2].plot(hours, _grouped(line.ttft_p95, group), label=policy)
        axes[3].plot(hours, 100 * _grouped(line.attainment, group), label=policy)
    axes[1].set_title("Replicas")
    axes[1].set_ylabel("replicas")
    axes[1].set_ylim(bottom=0)
    axes[2].axhline(slo.ttft, color="k", linestyle="--", linewidth=1, label="SLO")
    axes[2].set_yscale("log")
    axes[2].set_title("Time to first token, 95th percentile of each minute")
    axes[2].set_ylabel("seconds")
    axes[3].axhline(100 * slo.attainment, color="k", linestyle="--", linewidth=1, label="SLO")
    axes[3].set_title("Requests within both targets")
    axes[3].set_ylabel("%")
    axes[3].set_xlabel("hours")
    axes[1].legend(loc="upper left", fontsize="small")
    figure.savefig(folder / "replay.png", dpi=110)
    plt.close(figure)


def _grouped(values: np.typing.NDArray[np.float64], group: int) -> np.typing.NDArray[np.float64]:
    import pandas as pd

    means = pd.Series(values).groupby(np.arange(len(values)) // group).mean()
    return np.asarray(means, dtype=np.float64)
