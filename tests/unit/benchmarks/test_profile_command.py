"""``modelyard profile``: from results of a benchmark to a profile and what it predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard

from modelyard.autoscaling.fleet.provenance import PROVENANCE
from modelyard.autoscaling.sizing.fit import Point
from modelyard.benchmarks.measuring.results import RunRecord, as_csv
from modelyard.engine.config import EngineConfig
from modelyard.profiles.fitting.closed_loop import closed_loop

ENGINE = EngineConfig(alpha=9, beta=0.1, gamma=30, delta=0.02, max_num_seqs=64)


def record(concurrency: int, prompt: int, **changes: Any) -> RunRecord:
    """What a benchmark of the engine finds, where prompts fit into a step."""
    ttft = 30 + 0.02 * prompt * concurrency
    found = closed_loop(ENGINE, Point(concurrency, prompt, 64, 1, 1))
    assert found.ttft_p50 == pytest.approx(ttft)
    spreads = {
        "ttft": dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), found.ttft_p50 / 1000),
        "itl": dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), found.itl_p50 / 1000),
    }
    run = {
        "scenario": f"D({prompt},64)",
        "concurrency": concurrency,
        "started": "2026-01-01T00:00:00Z",
        "seconds": 100,
        "requests": 100,
        "failed": 0,
        "requests_rate": 1,
        "output_rate": 64,
        "prompt_tokens": prompt,
        "output_tokens": 64,
    }
    run |= spreads | changes
    if run["ttft"] is not None:
        run = {"latency": {name: run["ttft"][name] + 63 * run["itl"][name] for name in run["ttft"]}} | run
    run = {"latency": spreads["itl"]} | run
    return RunRecord.model_validate({"measurement": {"model": "m"}, "run": run})


def results(folder: Path, *records: RunRecord) -> Path:
    path = folder / "summary.csv"
    path.write_text(as_csv(records), encoding="utf-8")
    return path


RUNS = [(1, 32), (8, 128), (16, 32), (1, 128), (16, 128), (32, 32)]


def test_a_profile_is_fitted_and_printed_as_a_patch(tmp_path: Path) -> None:
    path = results(tmp_path, *(record(*run) for run in RUNS))
    done = modelyard("profile", "fit", path, "-o", "yaml", "--max-batch", "64")
    assert done.code == 0, done.err
    found = yaml.safe_load(done.out)
    profile = found["spec"]["variantProfile"]
    told = json.loads(found["metadata"]["annotations"][PROVENANCE])
    assert (told["runs"], told["range"]["concurrency"], told["source"]) == (6, [1, 32], str(path))
    assert told["engine"] == pytest.approx({"alpha": 9, "beta": 0.1, "gamma": 30, "delta": 0.02}, rel=0.05)
    assert told["measured"] == "2026-01-01T00:00:00Z"
    # Alone a request has what it has; others' prompts show between its tokens, and little in its TTFT.
    decode = {name: float(text) for name, text in profile["perfParms"]["decodeParms"].items()}
    prefill = {name: float(text) for name, text in profile["perfParms"]["prefillParms"].items()}
    prompt, output = told["for"]["prompt_tokens"], told["for"]["output_tokens"]
    assert decode["alpha"] == pytest.approx(9, rel=0.03)
    assert decode["beta"] == pytest.approx(0.1 + 0.02 * prompt / (output - 1), rel=0.15)
    assert 30 + 0.02 * prompt < prefill["gamma"] + prefill["delta"] * prompt < 30 + 0.02 * prompt + 9.1
    assert profile["maxBatchSize"] == 64
    small = modelyard("profile", "fit", path, "-o", "yaml", "--kv-tokens", "1500")
    assert yaml.safe_load(small.out)["spec"]["variantProfile"]["maxBatchSize"] == int(1500 / (prompt + output))
    table = modelyard("profile", "fit", path)
    assert table.code == 0
    assert "usable batch 32" in table.out


def test_what_a_profile_predicts_is_held_against_what_was_measured(tmp_path: Path) -> None:
    records = [record(*run) for run in RUNS]
    assert modelyard("profile", "check", results(tmp_path, *records)).code == 0
    late = {"mean": 0.1, "p50": 0.1, "p90": 0.1, "p95": 0.3, "p99": 0.3}
    done = modelyard("profile", "check", results(tmp_path, *records[1:], record(1, 32, ttft=late)))
    assert done.code == 1
    assert " of 24 are more than 10% off" in done.out


@pytest.mark.parametrize(("failed", "counts"), [(1, True), (2, False), (30, False), (100, False)])
def test_a_run_with_too_many_failed_requests_is_left_out_and_named(tmp_path: Path, failed: int, counts: bool) -> None:
    """What fails at once leaves an engine to the others: they are served twice as fast."""
    fast = {"ttft": dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 0.02)}
    fast["itl"] = dict.fromkeys(fast["ttft"], 0.004)
    spoilt = record(16, 128, failed=failed, **({} if counts else fast))
    path = results(tmp_path, *(record(*run) for run in RUNS if run != (16, 128)), spoilt)
    done = modelyard("profile", "fit", path, "-o", "yaml")
    assert done.code == 0, done.err
    told = json.loads(yaml.safe_load(done.out)["metadata"]["annotations"][PROVENANCE])
    assert told["engine"] == pytest.approx({"alpha": 9, "beta": 0.1, "gamma": 30, "delta": 0.02}, rel=0.05)
    assert told["runs"] == (6 if counts else 5)
    said = f"run D(128,64) at 16 of {path} is left out: {failed} of 100 requests failed, of which 1 % may"
    assert (said in " ".join(done.err.split())) is not counts
    checked = modelyard("profile", "check", path)
    assert (checked.code, " of 24 " in checked.out) == (0, counts), checked.out


def test_results_of_which_too_many_requests_failed_everywhere_are_refused(tmp_path: Path) -> None:
    done = modelyard("profile", "fit", results(tmp_path, *(record(*run, failed=30) for run in RUNS)))
    assert done.code == 1
    assert "no run can be used; the last one: 30 of 100 requests failed" in done.err


def test_results_that_determine_no_profile_are_refused(tmp_path: Path) -> None:
    done = modelyard("profile", "fit", results(tmp_path, record(1, 32), record(8, 32)))
    assert done.code == 1
    assert "prompts of 8 or 128 tokens is missing" in done.err
    done = modelyard("profile", "fit", results(tmp_path, record(8, 32), record(8, 128)))
    assert done.code == 1
    assert "1 different concurrency level(s), which cannot tell alpha from beta" in done.err
    done = modelyard("profile", "fit", results(tmp_path, record(1, 32, ttft=None, itl=None)))
    assert "no run has a TTFT" in done.err
