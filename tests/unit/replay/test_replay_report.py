"""The numbers of a report by hand, its forms, the folder that is written whole or not at all, and the command."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from replay_fleets import KEY, Script, poisson, spec, trace_of
from typer.testing import CliRunner

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.cli.replay import replay
from modelyard.replay.backtest import output
from modelyard.replay.backtest.compare import Batch, replay as compare
from modelyard.replay.backtest.output import write_report
from modelyard.replay.backtest.report import Summary, Timeline, summarize, timeline
from modelyard.replay.backtest.scenario import ReplayedFleet, Scenario
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.base import Fixed
from modelyard.replay.policies.parse import split
from modelyard.replay.request import numbers, seconds
from modelyard.replay.settings import SimulationError, SimulationSettings
from modelyard.reports import OutputError
from modelyard.traffic.traces.latency import SLO

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "config/samples/plan/manifests.yaml"
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
QUICK = SimulationSettings(pre_roll=60, actuation_delay=0)


def small() -> Run:
    # TTFT of 10 ms + 0.1 ms a token: 60 ms for the short prompts, 260 ms for the long one. ITL 10.5 ms alone.
    rows = [(0.0, 500, 11), (5.0, 500, 11), (10.0, 2500, 11), (65.0, 500, 1), (70.0, 90_000, 5)]
    return simulate(trace_of(rows, 180.0), [spec(initial=1, cost=36.0)], Script((90, 2), (150, 1)), QUICK)


def test_a_summary_by_hand() -> None:
    one = summarize(small(), SLO(0.1, 0.011, attainment=0.7))
    assert one.requests == 5
    assert one.attainment == pytest.approx(3 / 5)
    assert one.ttft_attainment == pytest.approx(3 / 5)
    assert one.itl_attainment == pytest.approx(4 / 5), "a single token misses no ITL target, a refused request does"
    assert one.ttft.p50 == pytest.approx(0.06)
    assert one.ttft.p99 == pytest.approx(0.06 + 0.97 * 0.2)
    assert one.itl.p50 == pytest.approx(0.0105)
    assert (one.rejected, one.killed, one.unfinished, one.waited) == (1, 0, 0, 0)
    assert (one.scale_ups, one.scale_downs, one.peak_replicas) == (1, 1, 2)
    assert one.replica_hours == pytest.approx((180 + 60) / 3600)
    assert one.cost == pytest.approx(36 * 240 / 3600)
    assert one.hours_by_variant == {str(KEY): pytest.approx(240 / 3600)}
    # Two thirds of the first minute's three and half of the second's two are within: both below 0.7.
    assert (one.minutes, one.minutes_below) == (2, 2)
    assert summarize(small(), SLO(0.1, 0.011, attainment=0.6)).minutes_below == 1
    assert summarize(small(), SLO(1.0, 0.011, attainment=0.6)).attainment == pytest.approx(4 / 5)


def test_a_warm_up_is_replayed_and_does_not_count() -> None:
    run = small()
    warm = summarize(replace(run, begin=60.0), SLO(0.1, 0.011, attainment=0.7))
    assert (warm.requests, warm.minutes, warm.minutes_below) == (2, 1, 1)
    assert warm.attainment == pytest.approx(1 / 2)
    assert warm.replica_hours == pytest.approx((120 + 60) / 3600)
    late = summarize(replace(run, begin=140.0), SLO(0.1, 0.011))
    assert (late.requests, late.scale_ups, late.scale_downs, late.peak_replicas) == (0, 0, 1, 2)
    with pytest.raises(SimulationError, match="no requests after the warm-up of 100 s"):
        simulate(run.trace, [spec()], Fixed(1), replace(QUICK, warm_up=100.0))


def test_attainment_is_told_by_the_length_of_the_answer() -> None:
    told = summarize(small(), SLO(0.1, 0.011)).by_output
    assert [(one.tokens, one.requests) for one in told] == [(10, 2), (50, 3), (200, 0), (None, 0)]
    assert [one.attainment for one in told[:2]] == pytest.approx([1 / 2, 2 / 3])
    assert math.isnan(told[2].attainment)


def test_start_ups_are_drawn_around_their_mean() -> None:
    settings = replace(QUICK, startup_spread=0.3, seed=5)
    drawn = [settings.drawn_startup(120.0, serial) for serial in range(4000)]
    assert np.mean(drawn) == pytest.approx(120, rel=0.02)
    assert np.std(np.log(drawn)) == pytest.approx(0.3, rel=0.05)
    assert drawn[7] == settings.drawn_startup(120.0, 7) != replace(settings, seed=6).drawn_startup(120.0, 7)
    run = simulate(poisson(1, 300), [spec(startup=60)], Script((15, 3)), settings)
    waited = [pod.ready_at - pod.created for pod in run.pods[1:]]
    assert waited == pytest.approx([settings.drawn_startup(60.0, serial) for serial in (1, 2)])


def test_the_ratio_to_the_bound_is_only_told_where_the_target_was_held() -> None:
    fleet = ReplayedFleet((), (spec(startup=30),), (), FleetSettings())
    scenario = Scenario(fleet, poisson(20, 150, seed=1), SLO(1.0, 0.02), QUICK)
    rows = [compare(Batch(scenario, split(f"fixed:{count}")[0], 1.0, bound=True)).summary for count in (1, 6)]
    assert [row.attainment >= 0.99 for row in rows] == [False, True]
    assert rows[0].bound is None
    assert 0 < (rows[1].bound or 0) <= rows[1].cost


def test_a_timeline_by_hand() -> None:
    line = timeline(small(), SLO(0.1, 0.011))
    assert line.arrivals.tolist() == [3, 2, 0]
    assert line.attainment[:2].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert math.isnan(line.attainment[2])
    assert line.replicas.tolist() == pytest.approx([1, 1.5, 1.5])
    assert line.ready.tolist() == pytest.approx([1, 1, 1.5])


def test_the_areas_of_a_timeline_are_the_replica_hours() -> None:
    run = simulate(poisson(5, 333.0), [spec()], Script((20, 3), (100, 2), (200, 4), (290, 1)), QUICK)
    line = timeline(run, SLO())
    minutes = np.append(np.full(5, 60.0), 33.0)
    assert float((line.replicas * minutes).sum()) == pytest.approx(run.replica_seconds(KEY))
    assert int(line.arrivals.sum()) == len(run.trace)


def summaries() -> tuple[list[Run], list[Summary]]:
    runs = [small(), simulate(small().trace, [spec()], Fixed(2), QUICK)]
    return runs, [summarize(run, SLO()) for run in runs]


def lines(runs: list[Run]) -> list[tuple[str, Timeline]]:
    return [(run.policy, timeline(run, SLO())) for run in runs]


def test_json_and_csv_say_the_same() -> None:
    runs, rows = summaries()
    document = json.loads(output.as_json(rows, SLO(), {"seed": 1}))
    assert document["seed"] == 1
    assert document["slo"] == {"ttft": 2.0, "itl": 0.06, "attainment": 0.99}
    table = list(csv.DictReader(io.StringIO(output.as_csv(rows))))
    assert [row["policy"] for row in table] == [run.policy for run in runs]
    for row, plain in zip(table, document["policies"], strict=True):
        assert float(row["cost"]) == plain["cost"]
        assert float(row["ttft_p95"]) == plain["ttft"]["p95"]
        assert row["bound"] == ""
        assert plain["bound"] is None


def test_what_is_not_known_is_no_number() -> None:
    run = simulate(trace_of([(0.0, 90_000, 5)], 10), [spec()], Fixed(), QUICK)
    row = summarize(run, SLO())
    assert math.isnan(row.ttft.p50)
    assert json.loads(output.as_json([row], SLO(), {}))["policies"][0]["ttft"]["p50"] is None
    assert next(csv.DictReader(io.StringIO(output.as_csv([row]))))["ttft_p50"] == ""
    assert " - " in output.table([row], SLO())


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    runs, rows = summaries()
    folder = tmp_path / "deep" / "report"
    write_report(str(folder), lines(runs), rows, SLO(), {})
    names = {"report.json", "report.csv", "timeline.csv", "replay.png"}
    assert {path.name for path in folder.iterdir()} == names
    (folder / "left-over").write_text("x")
    write_report(str(folder), lines(runs[:1]), rows[:1], SLO(), {})
    assert {path.name for path in folder.iterdir()} == names
    assert len(json.loads((folder / "report.json").read_text())["policies"]) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["report"], "nothing temporary stays"


def test_an_interrupt_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, rows = summaries()
    folder = tmp_path / "report"
    write_report(str(folder), lines(runs), rows, SLO(), {})
    before = (folder / "report.json").read_text()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(str(folder), lines(runs[:1]), rows[:1], SLO(), {})
    assert (folder / "report.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(OutputError, match="holds something else"):
        write_report(str(tmp_path), [], [], SLO(), {})
    with pytest.raises(OutputError, match="is a file"):
        write_report(str(tmp_path / "thesis.txt"), [], [], SLO(), {})


@pytest.mark.parametrize(("text", "found"), [("2s", 2.0), ("60ms", 0.06), ("1m30s", 90.0), ("15", 15.0), ("0", 0.0)])
def test_durations(text: str, found: float) -> None:
    assert seconds(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["soon", "-2s", "-1", "nan", "inf", ""])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(text)


def test_numbers() -> None:
    assert numbers("alpha=7, beta=0.5") == {"alpha": 7.0, "beta": 0.5}
    assert numbers("") == {}
    with pytest.raises(ValueError, match="alpha: write NAME=NUMBER"):
        numbers("alpha")


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(replay)


def invoke(*arguments: object) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, ["-f", str(SAMPLE), "--trace", str(TRACE), *map(str, arguments)])
    return result.stdout, result.exception


def test_the_command_compares_policies(tmp_path: Path) -> None:
    shown, error = invoke("--policy", "fixed:1,default", "--minutes", 5, "--out", tmp_path / "r", "--rate", 2)
    assert error is None
    lines = shown.splitlines()
    assert "TTFT 2 s, ITL 60 ms, both for 0.99" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["POLICY", "fixed:1", "default"]
    assert (tmp_path / "r" / "replay.png").stat().st_size > 10_000


def test_the_command_wants_to_know_which_model(tmp_path: Path) -> None:
    other = SAMPLE.read_text().replace("llama-8b", "other").replace("Llama-3.1-8B", "Other")
    (tmp_path / "other.yaml").write_text(other)
    _, error = invoke("-f", tmp_path / "other.yaml", "--minutes", 1)
    assert "the fleet serves 2 models" in str(error)
    assert type(error).__module__.startswith("modelyard.")


def test_the_command_prints_json_with_the_bound() -> None:
    shown, error = invoke("--policy", "fixed:1", "--policy", "clairvoyant", "--minutes", 3, "-o", "json", "--start", 10)
    assert error is None
    document = json.loads(shown)
    (one,) = document["policies"]
    assert 0 < one["bound"] <= one["cost"]
    assert document["clairvoyant"]["attainment"] == 0.99
    assert document["trace"]["seconds"] == 180


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "magic"], "--policy magic"),
        (["--slo-ttft", "soon"], "--slo-ttft: 'soon' is not a Go duration"),
        (["--attainment", "2"], "--attainment: input should be less than or equal to 1 (found 2.0)"),
        (["--minutes", "90"], "do not lie within the trace of 59 minutes"),
        (["--columns", "time=when"], "no column when"),
        (["--engine", "speed=1"], "--engine speed: unknown; known: alpha"),
        (["--rate", "0"], "--rate: input should be greater than 0"),
        (["--diurnal", "-1"], "--diurnal: input should be greater than 0"),
    ],
)
def test_what_the_command_refuses_is_one_line(arguments: list[str], message: str) -> None:
    shown, error = invoke(*arguments)
    assert shown == ""
    assert message in str(error)
    assert type(error).__module__.startswith("modelyard."), "the entry point prints errors of our own without traceback"


def test_a_file_may_hold_the_request_and_options_come_first(tmp_path: Path) -> None:
    file = tmp_path / "request.yaml"
    file.write_text(
        f"manifests: [{SAMPLE}]\ntrace: {TRACE}\nminutes: 2\npolicies: [fixed:1]\nrates: [1, 2]\nslo_itl: 50ms\n"
    )
    runner = CliRunner()
    document = json.loads(runner.invoke(app, ["-f", str(file), "-o", "json", "--slo-ttft", "3s"]).stdout)
    assert [one["slo"]["ttft"] for one in document] == [3.0, 3.0]
    assert [one["slo"]["itl"] for one in document] == [0.05, 0.05]
    assert [one["policies"][0]["rate"] for one in document] == [1.0, 2.0]
    assert document[1]["trace"]["requests"] == 2 * document[0]["trace"]["requests"]
    shown = runner.invoke(app, ["-f", str(file), "--rate", "1", "--policy", "fixed:2"]).stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["SLO:", "POLICY", "fixed:2"]
    file.write_text("trase: x.csv\n")
    assert "trase: unknown field - write 'trace'" in str(runner.invoke(app, ["-f", str(file)]).exception)
