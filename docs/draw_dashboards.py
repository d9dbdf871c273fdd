"""Draws the pictures of docs/monitoring.md: the panels of config/dashboards, asked of a Prometheus as Grafana would.

    python docs/draw_dashboards.py --prometheus http://127.0.0.1:9090 --minutes 5 [--model NAME] [fleet model ...]

Not Grafana's own drawing; queries, titles, units and legends are those of the files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parent
BOARDS = FOLDER.parent / "config" / "dashboards"
COLUMNS, ROW = 24, 0.42
POINTS = 240
Series = list[dict[str, Any]]


def filled(expression: str, variables: Mapping[str, str], step: float) -> str:
    """The expression with Grafana's variables put in."""
    for name, value in variables.items():
        expression = expression.replace(f"${name}", value)
    # As Grafana has it: four scrapes, and the step in between.
    return expression.replace("$__rate_interval", f"{max(20, round(4 * step))}s")


def legend(text: str, labels: Mapping[str, str]) -> str:
    """The legend of a series."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), text)


def shown(value: float, unit: str) -> str:
    """A number with its unit."""
    return f"{value:.0%}" if unit == "percentunit" else f"{value:.3g}{' s' if unit == 's' else ''}"


async def ask(session: aiohttp.ClientSession, url: str, **question: Any) -> Series:
    """The answer of one query; an error that says which."""
    async with session.get(url, params=question) as answer:
        told = await answer.json()
    if told["status"] != "success":
        raise SystemExit(f"{question['query']}: {told['error']}")
    return list(told["data"]["result"])


def draw(
    axes: Axes, panel: Mapping[str, Any], answers: Sequence[tuple[str, Series]], begin: float, minutes: float
) -> None:
    """One panel."""
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    axes.set_title(panel["title"], fontsize=9, loc="left")
    if panel["type"] != "timeseries":
        axes.axis("off")
        lines = []
        for text, series in answers:
            for one in series:
                named = {k: v for k, v in one["metric"].items() if k in ("name", "type", "status", "reason")}
                what = "  ".join(named.values()) if panel["type"] == "table" else legend(text, one["metric"])
                lines.append(what if panel["type"] == "table" else f"{shown(float(one['value'][1]), unit)}  {what}")
        size = 8 if panel["type"] == "table" else 14
        axes.text(0, 0.9, "\n".join(lines[:12]) or "no data", va="top", fontsize=size, transform=axes.transAxes)
        return
    lines_of = [
        (legend(text, one["metric"]), {float(at): float(value) for at, value in one["values"] if value != "NaN"})
        for text, series in answers
        for one in series
    ]
    stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
    if stacked and lines_of:
        times = sorted({at for _, values in lines_of for at in values})
        heights = [[values.get(at, 0.0) for at in times] for _, values in lines_of]
        axes.stackplot([(at - begin) / 60 for at in times], heights, labels=[name for name, _ in lines_of], alpha=0.6)
    else:
        for name, values in lines_of:
            axes.plot(
                [(at - begin) / 60 for at in values],
                list(values.values()),
                ".-",
                label=name,
                linewidth=1,
                markersize=1.5,
            )
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    if unit == "percentunit":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlim(0, minutes)
    if lines_of:
        axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(0, -0.12), ncol=2, frameon=False)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, color="0.5")


async def board(name: str, address: str, variables: Mapping[str, str], minutes: float) -> None:
    """One dashboard's picture."""
    panels = json.loads((BOARDS / f"{name}.json").read_text("utf-8"))["panels"]
    end = time.time()
    begin, step = end - 60 * minutes, max(1.0, 60 * minutes / POINTS)
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(13, ROW * height), layout="constrained")
    grid = figure.add_gridspec(height, COLUMNS)
    async with aiohttp.ClientSession() as session:
        for panel in panels:
            answers = []
            for target in panel["targets"]:
                query = filled(target["expr"], variables, step)
                if panel["type"] == "timeseries":
                    url, when = f"{address}/api/v1/query_range", {"start": begin, "end": end, "step": step}
                else:
                    url, when = f"{address}/api/v1/query", {"time": end}
                answers.append((target.get("legendFormat", ""), await ask(session, url, query=query, **when)))
            place = panel["gridPos"]
            rows, columns = slice(place["y"], place["y"] + place["h"]), slice(place["x"], place["x"] + place["w"])
            draw(figure.add_subplot(grid[rows, columns]), panel, answers, begin, minutes)
    figure.savefig(FOLDER / "images" / f"dashboard-{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Draw the named dashboards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boards", nargs="*", default=sorted(path.stem for path in BOARDS.glob("*.json")))
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--namespace", default=".*")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    variables = {"namespace": options.namespace, "model": options.model}
    for name in options.boards:
        asyncio.run(board(name, options.prometheus, variables, options.minutes))


if __name__ == "__main__":
    main()
