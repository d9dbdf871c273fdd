"""Replays side by side: a row of a table for each, and the cheapest in a sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from modelyard.replay.backtest.report import Summary


def row(s: Summary, attainment: float) -> dict[str, Any]:
    """A row of the table artifact: which policy, what it cost, whether it held the targets and why not."""
    return {
        "policy": s.policy,
        "rate": s.rate,
        "cost": round(s.cost, 2),
        "within SLO %": round(100 * s.attainment, 2),
        "why": _verdict(s, attainment),
        "× bound": _ratio(s),
        "replica-hours": round(s.replica_hours, 2),
        "TTFT p95 ms": _milliseconds(s.ttft.p95),
        "ITL p95 ms": _milliseconds(s.itl.p95),
        "up": s.scale_ups,
        "down": s.scale_downs,
        "peak": s.peak_replicas,
    }


def _verdict(s: Summary, attainment: float) -> str:
    held = s.attainment >= attainment
    late = {"TTFT": s.ttft_attainment, "ITL": s.itl_attainment}
    counted = {f"of {s.minutes} minutes below": s.minutes_below, "rejected": s.rejected, "killed": s.killed}
    counts = [f"{count} {name}" for name, count in counted.items() if count]
    missed = [f"{name} in time for {100 * share:.4g} %" for name, share in late.items() if share < attainment]
    return ", ".join([f"{'holds' if held else 'misses'} {100 * attainment:.4g} %", *missed, *counts])


def _ratio(summary: Summary) -> float | None:
    bound = summary.bound
    return round(summary.cost / bound, 2) if bound is not None and 0 < bound < math.inf else None


def _milliseconds(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(1000 * seconds, 1)


def in_short(done: Sequence[Summary], attainment: float) -> str:
    """Return the number of replays and the cheapest of those within the targets, in a sentence."""
    enough = [summary for summary in done if summary.attainment >= attainment]
    if not enough:
        return f"{len(done)} replays; none has {attainment:.4g} of the requests within the targets"
    best = min(enough, key=lambda summary: summary.cost / summary.rate)
    return (
        f"{len(done)} replays, {len(enough)} within the targets; the cheapest of these: {best.policy} at rate "
        f"{best.rate:g} for {best.cost:.2f}"
    )
