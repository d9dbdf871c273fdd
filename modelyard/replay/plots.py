"""Plots of replays: load, replicas, and latency against the SLO over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from modelyard.replay.report import Timeline
from modelyard.traffic.latency import SLO

POINTS = 720
"""More minutes than that are averaged together: a week has ten thousand."""


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
    """Means of ``group`` neighbours, NaN left out."""
    if group == 1:
        return values
    padded = np.full(-(-len(values) // group) * group, np.nan)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, group)
    known = ~np.isnan(blocks)
    counts = known.sum(axis=1)
    sums = np.where(known, blocks, 0.0).sum(axis=1)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), dtype=np.float64)
