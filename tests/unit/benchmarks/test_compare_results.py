"""Results side by side: changes, the gate of a pipeline, and results as files of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import modelyard
from hypothesis import given, strategies as st

from modelyard.benchmarks import records
from modelyard.benchmarks.measuring import compare, results
from modelyard.benchmarks.measuring.compare import ConditionInvalid, parse_condition
from modelyard.benchmarks.measuring.outputs import FolderStore
from modelyard.benchmarks.measuring.results import BenchmarkResults, RunRecord, ordered
from modelyard.benchmarks.records.program import MeasureError
from modelyard.benchmarks.records.values import LatencySpread, MeasuredRun


def spread(mean: float) -> LatencySpread:
    return LatencySpread(mean=mean, p50=mean * 0.9, p90=mean * 1.5, p95=mean * 2, p99=mean * 3)


def record(concurrency: int = 4, **changes: Any) -> RunRecord:
    run = {
        "scenario": "D(100,50)",
        "concurrency": concurrency,
        "started": "2026-01-01T00:00:00Z",
        "seconds": 10.0,
        "requests": 100,
        "failed": 0,
        "requests_rate": 10.0,
        "output_rate": 500.0,
        "prompt_tokens": 100.0,
        "output_tokens": 50.0,
        "latency": spread(1.0),
        "ttft": spread(0.1),
        "itl": spread(0.02),
    }
    about = {"reference": "chat/a", "service": "chat/llama", "model": "llama", "server": {"gpu_type": "H100"}}
    return RunRecord.model_validate({"measurement": about, "run": MeasuredRun(**{**run, **changes})})


def benchmark(*records: RunRecord) -> BenchmarkResults:
    return ordered("b", records)


def stored(folder: Path, name: str, *records: RunRecord) -> Path:
    for number, one in enumerate(records):
        file = folder / name / "runs" / f"run-{number}" / "run.json"
        file.parent.mkdir(parents=True)
        file.write_text(one.model_dump_json())
    return folder / name


@pytest.mark.parametrize(
    ("text", "trips"),
    [
        ("ttft_p95>+10%", True),
        ("ttft_p95>+20%", False),
        ("ttft_p95 > 200ms", True),
        ("ttft_p95>0.25", False),
        ("ttft_p95<250ms", True),
        ("output_rate<-5%", True),
        ("output_rate<-15%", False),
        ("output_rate<460", True),
        ("output_rate>460", False),
        ("error_share>1%", True),
        ("error_share>0.02", False),
        ("itl_p50>+0%", False),
    ],
)
def test_a_condition_holds_or_not(text: str, trips: bool) -> None:
    before = benchmark(record())
    after = benchmark(record(ttft=spread(0.115), output_rate=450.0, failed=2))
    problems = compare.tripped([parse_condition(text)], compare.pairs(before, after))
    assert bool(problems) == trips
    assert all(text.strip() in problem and "D(100,50) at 4" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p95", "write METRIC"),
        ("ttft_p95>=5", "is no limit"),
        ("speed>5", "no metric speed"),
        ("ttft_p95>10%", "write [+]10% for its change"),
        ("output_rate<5ms", "or 1000"),
        ("error_share>2", "0.01 or 1%"),
        ("error_share>120%", "0.01 or 1%"),
        ("ttft_p95>+nan%", "is no limit"),
        ("x" * 10_000, "write METRIC"),
    ],
)
def test_a_condition_that_says_nothing_is_refused_with_what_can_be_written(text: str, says: str) -> None:
    with pytest.raises(ConditionInvalid, match=says) as refused:
        parse_condition(text)
    assert len(str(refused.value)) < 800


def test_what_was_not_measured_again_or_has_no_such_figure_does_not_pass_a_gate() -> None:
    before = benchmark(record(1), record(4), record(8, ttft=None, itl=None))
    after = benchmark(record(4), record(8, ttft=None, itl=None), record(16))
    problems = compare.tripped([parse_condition("ttft_p95>+10%")], compare.pairs(before, after))
    assert problems == [
        "D(100,50) at 1: was not measured again, so ttft_p95>+10% cannot be told",
        "D(100,50) at 8: there is no ttft_p95, so ttft_p95>+10% cannot be told",
    ]


def test_from_nothing_every_change_is_without_limit() -> None:
    (pair,) = compare.pairs(benchmark(record()), benchmark(record(failed=1)))
    assert pair.change("error_share") == float("inf")
    assert pair.change("ttft_p95") == 0
    assert parse_condition("error_share>+10%").problem(pair)


_POSITIVE = st.floats(1e-6, 1e6)


@given(_POSITIVE, _POSITIVE, _POSITIVE)
def test_results_come_back_from_every_kind_of_file(rate: float, latency: float, seconds: float) -> None:
    given = benchmark(
        record(1, output_rate=rate, latency=spread(latency), seconds=seconds), record(2, ttft=None, itl=None)
    )
    rows = results._parquet_rows(results.parquet(given.records), Path("x"))
    assert [results._unflat(row, "x").run for row in rows] == list(given.runs)
    assert [row["gpu_type"] for row in rows] == ["H100", "H100"]


def test_every_kind_of_source_is_read(tmp_path: Path) -> None:
    folder = stored(tmp_path, "a", record(2), record(1))
    store = FolderStore(tmp_path)
    results.summarize(store, "a", "run-0")
    results.summarize(store, "a", "run-1")
    assert {path.name for path in folder.iterdir()} == {
        *("runs", "summary.csv", "throughput-latency.png", "percentiles.png")
    }
    sources = [folder, f"local://{folder}", folder / "summary.csv", tmp_path / "history"]
    assert [[run.concurrency for run in results.load(str(one)).runs] for one in sources] == [[1, 2]] * 4
    (one,) = results.load(str(folder / "runs/run-0/run.json")).records
    assert (one.run, one.measurement.service) == (record(2).run, "chat/llama")


def test_the_newest_of_several_runs_of_one_load_counts(tmp_path: Path) -> None:
    again = record(2, started="2026-01-02T00:00:00Z", requests=7)
    assert [run.requests for run in results.load(str(stored(tmp_path, "a", again, record(2)))).runs] == [7]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("run.json", b"{"),
        ("run.json", b'{"run": {"scenario": 5}}'),
        ("run.json", record().model_dump_json().replace("10.0", "NaN").encode()),
        ("summary.csv", b"scenario,concurrency\nD(1;1),x\n"),
        ("summary.csv", b"\x00\xff\n1,2\n"),
        ("x.parquet", b"PAR1nonsensePAR1"),
        ("x.parquet", b"PAR1" + b"x" * 100 + (90).to_bytes(4, "little") + b"PAR1"),
    ],
)
def test_files_that_hold_something_else_are_one_line(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(MeasureError) as refused:
        results.load(str(tmp_path / name))
    assert refused.value.reason in ("ResultInvalid", "OutputNotFound")
    done = modelyard("benchmarks", "show", tmp_path / name)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done.err


def test_a_run_that_is_made_again_has_a_trend_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, list[int]]] = []
    draw = records.trend

    def noted(title: str, found: list[MeasuredRun], folder: Path) -> Path:
        drawn.append((title, [run.requests for run in found]))
        return draw(title, found, folder)

    monkeypatch.setattr(records, "trend", noted)
    store, other = FolderStore(tmp_path), record(2, requests=9)
    for day, one in enumerate([record(2), other, record(2, requests=5, ttft=None, itl=None), record(2, requests=7)]):
        run = one.run.model_copy(update={"started": f"2026-01-0{day + 1}T00:00:00Z"})
        about = one.measurement.model_copy(update={"reference": "chat/b"} if one is other else {})
        stored(tmp_path, f"day-{day}", RunRecord(run=run, measurement=about))
        results.summarize(store, f"day-{day}", "run-0")
        if day == 1:
            assert not drawn, "each was made once"
            (tmp_path / "history/chat/a/20260101-damaged-run-0.parquet").write_bytes(b"PAR1nonsensePAR1")
    assert drawn == [("chat/a: D(100,50) at 2", [100, 5]), ("chat/a: D(100,50) at 2", [100, 5, 7])]
    assert (tmp_path / "trends/chat/a/run-0.png").read_bytes().startswith(b"\x89PNG")
    kept = [path.relative_to(tmp_path / "history").parts[:-1] for path in (tmp_path / "history").rglob("*.parquet")]
    assert sorted(kept) == [("chat", "a")] * 4 + [("chat", "b")]


def test_one_bad_record_spoils_no_summary(tmp_path: Path) -> None:
    stored(tmp_path, "a", record(1), record(2))
    (tmp_path / "a/runs/run-0/run.json").write_text("{")
    results.summarize(FolderStore(tmp_path), "a", "run-1")
    assert [run.concurrency for run in results.load(str(tmp_path / "a/summary.csv")).runs] == [2]


def test_the_command_compares_and_fails_a_pipeline(tmp_path: Path) -> None:
    long = "N(480,240)/(300,150)"
    before = stored(tmp_path, "a", record(), record(64, scenario=long))
    after = stored(tmp_path, "b", record(ttft=spread(0.13)), record(64, scenario=long))
    done = modelyard("benchmarks", "compare", before, after)
    assert done.code == 0
    assert "260ms +30%" in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    gated = modelyard("benchmarks", "compare", before, after, "--fail-if", "ttft_p95>+10%", "-o", "json")
    assert gated.code == 1
    assert json.loads(gated.out)["runs"][0]["change"]["ttft_p95"] == pytest.approx(0.3)
    assert gated.err.splitlines() == [
        "error: D(100,50) at 4: ttft_p95 changed by +30.0%, which is ttft_p95>+10%",
    ]
    assert modelyard("benchmarks", "compare", before, after, "--fail-if", "ttft_p95>+10").code == 2
    assert modelyard("benchmarks", "compare", before, tmp_path / "none").code == 1
    shown = modelyard("benchmarks", "show", before)
    assert max(map(len, shown.out.splitlines())) <= 110
    assert "90ms" in shown.out


def test_two_that_have_nothing_in_common_are_not_compared(tmp_path: Path) -> None:
    one, other = stored(tmp_path, "a", record(1)), stored(tmp_path, "b", record(2))
    done = modelyard("benchmarks", "compare", one, other)
    assert done.code == 2
    assert "in both" in done.err
