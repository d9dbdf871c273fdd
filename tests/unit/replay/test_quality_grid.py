"""The comparison of docs/replay.md: its compiled engines agree with the replay, and a small form of it holds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.objects import Key
from modelyard.replay.fleet import SimulatedFleet
from modelyard.replay.metrics import Metrics
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulate import simulate
from modelyard.replay.variants import VariantSpec
from modelyard.traffic.latency import SLO

ROOT = Path(__file__).resolve().parents[3]
FLEET = Key("chat", "llama-8b-l40s")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("quality.fleet")
    return importlib.import_module("quality.cells")


class Schedule:
    """Replicas by time."""

    name, interval, keep = "schedule", 15.0, 0.0

    def __init__(self, *changes: tuple[float, int]) -> None:
        self.changes = dict(changes)

    def initial(self, variants: list[VariantSpec]) -> dict[Key, int]:
        return {}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> dict[Key, int]:
        return {FLEET: self.changes[now]} if now in self.changes else {}


@pytest.mark.parametrize("changes", [(), ((90.0, 5), (300.0, 1), (330.0, 4), (480.0, 2))])
def test_compiled_engines_do_what_the_replay_does(tools: Any, changes: tuple[tuple[float, int], ...]) -> None:
    """Request by request, through overload, preemption, late starts, draining and kills."""
    fleets = importlib.import_module("quality.fleet")
    cell = tools.Cell("conv", 2, tools.L)
    trace = cell.trace.stretch(0, 12)
    settings = SimulationSettings(seed=3, startup_spread=0.3)
    spec = cell.spec()
    run = simulate(trace, [spec], Schedule(*changes), settings)
    fast = fleets.FastFleet(trace, spec, SLO(), settings)
    outcome = fleets.follow(fast, [(at + settings.actuation_delay, count) for at, count in changes])
    met = np.logical_and(*run.results.within(SLO()))
    assert np.array_equal(met, outcome.met)
    assert 0.02 < met.mean() < 1
    assert outcome.seconds == pytest.approx(run.replica_seconds(spec.key))
    first = fast.world.moment[:, fleets.engines.FIRST]
    assert np.nanmax(np.abs(first - run.results.first)) < 1e-6


def test_a_small_form_of_the_comparison(tools: Any) -> None:
    """The aim at attainment on a step it was never tuned on; the schedule is between the bound and the fixed fleet."""
    cell = tools.Cell("step", 0.5, tools.L, 31)
    assert cell.held_out
    rows = {name: tools.work(cell, name, budget=12) for name in ("reference", "attainment")}
    reference, ours = rows["reference"], rows["attainment"]
    assert reference["schedule_attained"] >= 0.99
    assert reference["bound_hours"] <= reference["schedule_hours"] <= reference["fixed_hours"] + 1e-9
    assert ours["attained"] >= 0.985
    assert ours["problems"] == ""
    assert ours["hours"] <= 2.0 * reference["schedule_hours"]
    again = tools.work(cell, "attainment")
    assert [again[name] for name in ("hours", "attained", "ups")] == [
        ours[name] for name in ("hours", "attained", "ups")
    ]


def test_the_page_has_what_the_command_prints(tools: Any) -> None:
    """One row of the page, made again."""
    report = importlib.import_module("quality.report")
    page = report.PAGE.read_text(encoding="utf-8").partition(report.BEGIN)[2].partition(report.END)[0]
    cell = tools.GRID[0]
    row = next(line for line in page.splitlines() if line.startswith(f"| {cell.workload} | {cell.rate:g} | l40s "))
    assert report._cell(tools.work(cell, "attainment")) in row.split(" | "), "stale: python benchmarks/quality --write"
