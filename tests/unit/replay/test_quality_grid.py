"""The comparison of docs/replay.md: its compiled engines agree with the replay, and a small form of it holds."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from modelyard.autoscaling.variants.attainment import LOADS, Holding
from modelyard.replay.backtest.report import Timeline
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.traces.latency import SLO

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("quality.fleet")
    return importlib.import_module("quality.cells")


@pytest.mark.long
@pytest.mark.parametrize("changes", [(), ((90.0, 5), (300.0, 1), (330.0, 4), (480.0, 2))])
def test_compiled_engines_do_what_the_replay_does(tools: Any, changes: tuple[tuple[float, int], ...]) -> None:
    """Request by request, through overload, late starts, draining and kills, on an engine of the comparison."""
    agreement = importlib.import_module("quality.agreement")
    cell = tools.Cell("conv", 2, tools.L)
    world = SimulationSettings(seed=3, startup_spread=0.3)
    run = agreement.check(agreement.SmallFleet(cell.trace.stretch(0, 12), cell.spec(), world, changes))
    assert 0.02 < np.logical_and(*run.results.within(SLO())).mean() < 1


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_compiled_engines_do_what_the_replay_does_on_any_small_fleet(tools: Any, seed: int) -> None:
    """Small caches, batches and budgets, preemption, several arrivals at one instant, refusals."""
    agreement = importlib.import_module("quality.agreement")
    agreement.check(agreement.random_fleet(seed), f"random_fleet({seed})")


def test_a_disagreement_names_the_request(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = importlib.import_module("quality.agreement")
    small = agreement.random_fleet(7)
    other = replace(small.spec, engine=replace(small.spec.engine, alpha=2 * small.spec.engine.alpha))
    compiled = agreement.FastFleet
    monkeypatch.setattr(agreement, "FastFleet", lambda trace, spec, slo, given: compiled(trace, other, slo, given))
    with pytest.raises(agreement.Disagreement, match=r"seed 7: .*request \d+"):
        agreement.check(small, "seed 7")
    with pytest.raises(ValueError, match="no compiled engine with jitter"):
        compiled(small.trace, replace(other, engine=replace(other.engine, jitter=0.1)), SLO(), small.settings)


@pytest.mark.long
def test_a_small_form_of_the_comparison(tools: Any, tmp_path: Path) -> None:
    """The aim at attainment on a step it was never tuned on; the schedule is between the bound and the fixed fleet, and
    all minutes are in the calibration."""
    report = importlib.import_module("quality.report")
    cell = tools.Cell("step", 0.5, tools.L, 31)
    assert cell.held_out
    rows = {name: tools.work(cell, name, budget=12) for name in ("reference", "attainment")}
    reference, ours = rows["reference"], rows["attainment"]
    assert reference["schedule_attained"] >= 0.99
    assert reference["bound_hours"] <= reference["schedule_hours"] <= reference["fixed_hours"] + 1e-9
    assert ours["attained"] >= 0.985
    assert ours["problems"] == ""
    assert ours["hours"] <= 2.0 * reference["schedule_hours"]
    tables = report.write(list(rows.values()), [cell.name], tmp_path)
    assert list(tables) == [report.COMPARISON, report.CALIBRATION]
    assert f" | {ours['hours']:.2f} | - | - | - |" in tables[report.COMPARISON]
    loads = [line.split(" | ") for line in tables[report.CALIBRATION].splitlines()[2:]]
    assert sum(int(minutes) for _, minutes, *_ in loads) == ours["minutes"] == 60
    again = tools.work(cell, "attainment")
    assert [again[name] for name in ("hours", "attained", "ups")] == [
        ours[name] for name in ("hours", "attained", "ups")
    ]


def test_the_page_has_what_the_command_prints(tools: Any) -> None:
    """One row of the page, made again."""
    report = importlib.import_module("quality.report")
    begin, end = report.marks(report.COMPARISON)
    page = report.PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    cell = tools.GRID[0]
    row = next(line for line in page.splitlines() if line.startswith(f"| {cell.workload} | {cell.rate:g} | l40s "))
    assert report._cell(tools.work(cell, "attainment")) in row.split(" | "), "stale: python benchmarks/quality --write"


def test_predicted_and_seen_misses_by_load(tools: Any) -> None:
    """A minute counts where its load for the replicas then ready puts it, with its requests' weight."""
    calibration = importlib.import_module("quality.calibration")
    minutes, load = np.arange(4), np.array([0.5, 0.3, 0.6, 1.5])
    ready, arrivals = np.array([1.0, 1.0, 2.0, 1.5]), np.array([9, 100, 50, 10])
    line = Timeline(minutes, arrivals, np.array([0.0, 0.99, 0.98, 0.4]), np.zeros(4), ready, ready)
    missed = np.linspace(0.001, 1.0, len(LOADS))
    found = calibration.tenths(line, load, [Holding(missed)] * 4, begin=60.0)
    assert {n for n, tenth in enumerate(found) if tenth.minutes} == {3, 10}
    predicted = Holding(missed).missing(load[1:3], ready[1:3])
    assert found[3] == pytest.approx((2, 150, arrivals[1:3] @ predicted, 2.0))
    assert found[10] == pytest.approx((1, 10, 10.0, 6.0), rel=0.2)


@pytest.mark.long
def test_several_models_on_scarce_gpus(tools: Any, tmp_path: Path) -> None:
    """Two models with the same traffic, that want four GPUs of three at its peak: no more are held than there are, and
    the one that matters more is the better served; the table has what the rows say."""
    shared, report = importlib.import_module("quality.shared"), importlib.import_module("quality.report")
    cell = shared.SHARED_SMALL
    ours, split = (shared.work(cell, name) for name in ("attainment", shared.SPLIT))
    counted = cell.trace.duration / 2 / 3600
    assert 0 < cell.short < 0.5
    assert ours["problems"] == ""
    assert 2 * counted < ours["hours"] <= cell.gpus * counted
    assert ours["attained_first"] > ours["attained_second"] > 0.9
    assert split["tuned_each"] == "2+1"
    assert split["hours"] == pytest.approx(3 * counted)
    tables = report.write([ours, split], [cell.name], tmp_path)
    assert list(tables) == [report.SHARED]
    assert f"| {split['hours']:.2f} | {split['attained']:.2%} |" in tables[report.SHARED]


RECORDED = json.loads((ROOT / "tests" / "data" / "quality-small.json").read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_small_grid_is_as_recorded(tools: Any, name: str) -> None:
    """Replays decide as they did: each row of ``python benchmarks/quality --small``, apart from its CPU time."""
    shared = importlib.import_module("quality.shared")
    cells = {cell.name: (cell, tools.work) for cell in tools.SMALL}
    cells[shared.SHARED_SMALL.name] = shared.SHARED_SMALL, shared.work
    cell, work = cells[name.partition("/")[0]]
    row = orjson.loads(orjson.dumps(work(cell, name.partition("/")[2])))
    del row["cpu_seconds"]
    for field, value in RECORDED[name].items():
        wanted = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        assert row.pop(field) == wanted, field
    assert not row
