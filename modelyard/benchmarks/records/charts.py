"""Results of a benchmark as pictures: what more concurrency brings and costs, how latencies spread, and how a run that
is made again and again comes out."""

from __future__ import annotations

import base64
import tempfile
from contextlib import contextmanager
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from modelyard.benchmarks.records.values import MeasuredRun

THROUGHPUT, PERCENTILES, TREND = "throughput-latency.png", "percentiles.png", "trend.png"
_COLOURS = ("#5e81ac", "#bf616a", "#a3be8c", "#b48ead", "#d08770", "#2e3440")
MOST_DRAWN = 12
"""Scenarios in one picture: more cannot be told apart, and drawing hundreds takes minutes."""
_STYLES = {"p50": "-", "p95": "--", "p99": ":"}


def draw(title: str, found: Sequence[MeasuredRun], folder: Path) -> list[Path]:
    """The pictures of runs in order of scenario and concurrency, as PNG files in a folder."""
    scenarios = [(name, list(runs)) for name, runs in groupby(found, key=lambda run: run.scenario)]
    if len(scenarios) > MOST_DRAWN:
        title = f"{title[:60]} (the first {MOST_DRAWN} of {len(scenarios)} scenarios)"
        del scenarios[MOST_DRAWN:]
    with _drawn(title, folder / THROUGHPUT, 7.5, 5) as figure:
        _throughput(figure, scenarios)
    with _drawn(title, folder / PERCENTILES, 12.0, 5) as figure:
        _percentiles(figure, scenarios)
    return [folder / THROUGHPUT, folder / PERCENTILES]


@contextmanager
def _drawn(title: str, path: Path, width: float, height: float) -> Iterator[Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    yield figure
    figure.suptitle(title.replace("$", r"\$")[:100], fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def data_urls(title: str, runs: Sequence[MeasuredRun]) -> dict[str, str]:
    """The pictures of runs as ``data:`` URLs, by their names without the suffix."""
    with tempfile.TemporaryDirectory(prefix="modelyard-charts-") as folder:
        paths = draw(title, runs, Path(folder))
        return {path.stem: f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in paths}


def trend(title: str, found: Sequence[MeasuredRun], folder: Path) -> Path:
    """The picture of one run made again and again, the oldest first, as a PNG file in a folder."""
    shown = _latencies(found)
    with _drawn(title, folder / TREND, 7.5, 6) as figure:
        *panels, rates = figure.subplots(len(shown) + 1, 1, sharex=True)
        moments = [f"{run.started[:10]}\n{run.started[11:16]}" for run in found]
        places = range(len(found))
        for panel, (name, label, scale, unit) in zip(panels, shown, strict=True):
            for part, style in _STYLES.items():
                spreads = [getattr(run, name) for run in found]
                values = [float("nan") if one is None else getattr(one, part) * scale for one in spreads]
                panel.plot(places, values, style, marker="o", ms=4, color=_COLOURS[0], label=part)
            panel.set_ylabel(f"{label}, {unit}")
            _finish(panel)
        rates.plot(places, [run.output_rate or run.requests_rate for run in found], marker="o", ms=4, color=_COLOURS[1])
        rates.set_ylabel("tokens/s" if any(run.output_rate for run in found) else "requests/s")
        rates.set_ylim(0, 1.05 * rates.get_ylim()[1])
        rates.grid(alpha=0.25, lw=0.5)
        every = max(1, len(found) // 6)
        rates.set_xticks(list(places)[::every], moments[::every], fontsize=7)
    return folder / TREND


def _latencies(runs: Iterable[MeasuredRun]) -> tuple[tuple[str, str, float, str], ...]:
    """Return the latencies drawn: the field, its name, a factor and the unit; of what streams nothing, the latency."""
    if any(run.ttft is not None for run in runs):
        return ("ttft", "TTFT", 1.0, "s"), ("itl", "ITL", 1000.0, "ms")
    return (("latency", "latency", 1.0, "s"),)


def _throughput(figure: Any, scenarios: list[tuple[str, list[MeasuredRun]]]) -> None:
    """Latency of a request over the rate of tokens, a point for each concurrency; of requests where none come out."""
    panel = figure.subplots()
    streams = any(run.output_rate for _, runs in scenarios for run in runs)
    for (scenario, runs), colour in zip(scenarios, cycle(_COLOURS), strict=False):
        rates = [run.output_rate if streams else run.requests_rate for run in runs]
        for part in ("p50", "p95"):
            values = [getattr(run.latency, part) for run in runs]
            panel.plot(rates, values, _STYLES[part], marker="o", ms=4, color=colour, label=f"{scenario}, {part}")
        for run, rate in zip(runs, rates, strict=True):
            place = rate, run.latency.p50
            panel.annotate(f"{run.concurrency}", place, (3, 4), textcoords="offset points", fontsize=8)
    panel.set_xlabel("output tokens per second" if streams else "requests per second")
    panel.set_ylabel("latency of a request, s (numbers: concurrency)")
    _finish(panel)


def _percentiles(figure: Any, scenarios: list[tuple[str, list[MeasuredRun]]]) -> None:
    shown = _latencies(run for _, runs in scenarios for run in runs)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (name, title, scale, unit) in zip(panels, shown, strict=True):
        for (scenario, runs), colour in zip(scenarios, cycle(_COLOURS), strict=False):
            seen = [run for run in runs if getattr(run, name) is not None]
            for part, style in _STYLES.items():
                values = [getattr(getattr(run, name), part) * scale for run in seen]
                levels = [run.concurrency for run in seen]
                panel.plot(levels, values, style, marker="o", ms=4, color=colour, label=f"{scenario}, {part}")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.set_xlabel("concurrency")
        panel.set_ylabel(f"{title}, {unit}")
        _finish(panel)


def _finish(panel: Any) -> None:
    panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    panel.grid(alpha=0.25, lw=0.5)
    panel.legend(fontsize=7, frameon=False)
