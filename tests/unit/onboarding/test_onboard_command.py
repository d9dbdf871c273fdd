"""``modelyard onboard --dry-run``: by results that were stored, as a user types it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from onboarded import FAST, SLOW, runs
from typer.testing import CliRunner, Result

from flows.parameters import OnboardParameters
from modelyard.benchmarks.measuring.results import RunRecord
from modelyard.cli.onboard import NothingChosen, app
from modelyard.cli.options import UsageError

ASKED = (
    "hf://owner/model --name chat -n shop --candidate fast=H100@10 --candidate slow=L40S@1 --rate 10"
    " --prompt-tokens 100 --output-tokens 50 --results pvc://results/chat --itl 40 --ttft 500"
)


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """The options that name what both candidates measured."""
    for runtime, speed in (("fast", FAST), ("slow", SLOW)):
        for run in runs(speed):
            folder = tmp_path / runtime / "runs" / f"at-{run.concurrency}"
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(RunRecord(run=run).model_dump_json(), "utf-8")
    return " ".join(f"--measured {runtime}={tmp_path / runtime}" for runtime in ("fast", "slow"))


def typed(more: str) -> Result:
    """What the command does with these options."""
    return CliRunner().invoke(app, f"{ASKED} {more}".split())


def test_without_results_it_prints_what_finds_out() -> None:
    made = list(yaml.safe_load_all(typed("--dry-run -o yaml").stdout))
    assert [one["kind"] for one in made] == ["BaseModel", *["InferenceService", "BenchmarkJob"] * 2]


def test_with_results_it_prints_the_service_that_is_chosen(stored: str) -> None:
    made = list(yaml.safe_load_all(typed(f"--dry-run -o yaml {stored}").stdout))
    assert [one["kind"] for one in made] == ["BaseModel", "InferenceService", "ConfigMap", "VariantAutoscaling"]
    assert made[1]["spec"]["runtime"]["name"] == "slow"
    assert "modelyard.dev/min-replicas" not in made[3]["metadata"]["annotations"]
    *_, kept = yaml.safe_load_all(typed(f"--dry-run -o yaml --min-replicas 3 {stored}").stdout)
    assert kept["metadata"]["annotations"]["modelyard.dev/min-replicas"] == "3"
    shown = typed(f"--dry-run {stored}").stdout
    assert "chosen: slow" in shown
    assert "would apply VariantAutoscaling shop/chat" in shown


def test_when_nothing_can_be_chosen_it_fails_and_names_the_nearest(stored: str) -> None:
    found = typed(f"--dry-run --itl 1 {stored}")
    assert isinstance(found.exception, NothingChosen)
    assert "the nearest is TTFT 500 ms" in str(found.exception)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("--measured fast=/nowhere", "are for --dry-run"),
        ("--price H100=10 --dry-run", "either candidates, or prices"),
        ("--dry-run --price H100=much", "write ACCELERATOR=PRICE"),
        ("--dry-run --price H100=²", "write ACCELERATOR=PRICE"),
        ("--dry-run --trace requests.csv", "reads no trace"),
        ("--dry-run --candidate vllm", "write RUNTIME="),
        ("--dry-run --rate 0", "rate"),
        ("--dry-run --measured other=/nowhere", "one of fast, slow"),
    ],
)
def test_what_cannot_be_done_is_a_line_that_says_so(more: str, why: str) -> None:
    found = typed(more)
    assert isinstance(found.exception, UsageError)
    assert why in str(found.exception)


def test_results_of_other_requests_are_refused(stored: str) -> None:
    found = typed(f"--dry-run --output-tokens 60 {stored}")
    assert isinstance(found.exception, UsageError)
    assert "has no run of D(100,60), but D(100,50)" in str(found.exception)


def test_prices_alone_name_no_runtime_to_a_dry_run() -> None:
    asked = ASKED.replace("--candidate fast=H100@10 --candidate slow=L40S@1", "--price H100=10")
    found = CliRunner().invoke(app, f"{asked} --dry-run".split())
    assert isinstance(found.exception, UsageError)
    assert "--candidate" in str(found.exception)


def test_a_run_of_which_too_many_requests_failed_is_left_out(stored: str, tmp_path: Path) -> None:
    file = tmp_path / "slow" / "runs" / "at-32" / "run.json"
    record = RunRecord.model_validate_json(file.read_text("utf-8"))
    spoilt = record.run.model_copy(update={"failed": record.run.requests})
    file.write_text(record.model_copy(update={"run": spoilt}).model_dump_json(), "utf-8")
    found = typed(f"--dry-run {stored}")
    assert f"run D(100,50) at 32 of {tmp_path / 'slow'} is left out" in found.stderr
    assert "slow: measured at 1, 8, 16: " in found.stdout


def test_without_dry_run_the_flow_runs_with_what_was_typed() -> None:
    ran: list[tuple[str, dict[str, Any]]] = []
    asked = ASKED.replace("--candidate fast=H100@10 --candidate slow=L40S@1", "--price H100=10 --price L40S=1.5")
    more = "--check-seconds 0 --parameter endpoint=http://host --min-replicas 2"
    found = CliRunner().invoke(app, f"{asked} {more}".split(), obj=lambda name, given: ran.append((name, given)))
    assert found.exit_code == 0, found.output
    ((name, given),) = ran
    assert name == "onboard"
    parameters = OnboardParameters.model_validate(given)
    assert parameters.prices == {"H100": 10, "L40S": 1.5}
    assert parameters.check_seconds == 0
    assert parameters.asked({}).parameters == {"endpoint": "http://host"}
    assert parameters.asked({}).min_replicas == 2
