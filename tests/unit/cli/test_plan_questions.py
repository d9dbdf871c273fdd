"""``modelyard plan`` for every form, and what-if questions, as a user types them on the shipped examples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.what_if import Move, WhatIfError
from modelyard.cli.main import app

SAMPLES = Path(__file__).resolve().parents[3] / "config" / "samples" / "plan"
SATURATION = ("-f", SAMPLES / "manifests.yaml", "--metrics", SAMPLES / "metrics.yaml")
SLO = ("-f", SAMPLES / "slo", "--metrics", SAMPLES / "slo" / "metrics.yaml")
POLICY = ("-f", SAMPLES / "policy" / "manifests.yaml", "--metrics", SAMPLES / "policy" / "metrics.yaml")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result


def decided(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "-o", "json").stdout)
    return found


def targets(found: dict[str, Any]) -> dict[str, int]:
    records = [*found["records"], *(r for b in found["bindings"] for r in b["records"])]
    return {r["variantId"] or r["variant"]["name"]: r["target"] for r in records}


def camel(cls: Any) -> set[str]:
    return {
        "".join(part.title() if i else part for i, part in enumerate(field.name.split("_")))
        for field in dataclasses.fields(cls)
    }


def test_an_slo_is_explained_with_its_alternatives() -> None:
    out = run(*SLO, "-v").stdout
    assert "expected: " in out
    assert "options for meta-llama/Llama-3.1-8B-Instruct in chat" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  chat-a100 ")]
    assert [row[-1] for row in rows].count("chosen") == 1
    assert rows[0][:5] == ["chat-a100", "2,", "chat-h100", "1", "180"]
    assert "Next tick" not in out
    assert "Settled" not in out


def test_policies_are_explained_with_what_blocks_the_next_change() -> None:
    out = run(*POLICY, "-v").stdout
    row = next(line for line in out.splitlines() if line.startswith("chat/embed "))
    assert row.split()[:5] == ["chat/embed", "4", "→", "6", "4"]
    assert "next scale-up is held back until 12:01:00Z (RateLimited): rate limit: 2 instances or 50 % per 60 s" in out
    assert "embed: recommendation 4 → 8" in out
    assert "embed: rate limit 8 → 6" in out
    assert "chat/mixed" in out


def test_the_json_of_bindings_is_complete_and_the_same_every_time() -> None:
    found = decided(*POLICY)
    assert found == decided(*POLICY)
    assert [b["binding"]["name"] for b in found["bindings"]] == ["embed", "mixed"]
    for binding in found["bindings"]:
        assert binding.keys() == {
            *("binding", "uid", "generation", "resourceVersion", "records", "mode", "message", "units", "totals"),
            *("conditions", "notices", "memory", "blocks"),
        }
    (block,) = found["bindings"][0]["blocks"]
    assert block == {
        "code": "RateLimited",
        "direction": "up",
        "until": "2026-06-01T12:01:00Z",
        "text": "rate limit: 2 instances or 50 % per 60 s",
    }
    assert found["bindings"][0]["memory"]["recommended"]["newest"][1] == 8


@pytest.mark.parametrize(
    ("arguments", "assumed", "next_tick"),
    [
        ((*SATURATION, "--load", "50%"), "0.5 times the load of everything", {"llama-8b-l40s": 2, "llama-8b-h100": 1}),
        ((*SATURATION, "--without", "llama-8b-h100"), "chat/llama-8b-h100 is not there", {"llama-8b-l40s": 4}),
        ((*SATURATION, "--capacity", "H100=8", "--capacity", "L40S=2"), "8 H100, 2 L40S", {"llama-8b-l40s": 2}),
        ((*POLICY, "--load", "chat/embed=30%"), "0.3 times the load of chat/embed", {"embed": 4}),
        ((*SLO, "--slo-itl", "9ms"), "ITL target 9 ms in every service class", {}),
        ((*SLO, "--slo-ttft", "Premium=100ms"), "TTFT target 100 ms in service class Premium", {}),
    ],
)
def test_a_question_says_what_was_assumed_and_where_it_settles(
    arguments: tuple[str | Path, ...], assumed: str, next_tick: dict[str, int]
) -> None:
    out = run(*arguments).stdout
    assert out.startswith("assumed: ")
    assert assumed in out.split("Next tick")[0]
    assert "Settled after" in out
    found = decided(*arguments)
    assert assumed in "; ".join(found["assumptions"])
    assert next_tick.items() <= targets(found).items()
    assert found["settled"]["end"] == "settled"
    for move in found["settled"]["path"]:
        assert move.keys() == camel(Move)


def test_twice_the_load_ends_with_more_than_the_next_tick_can_give() -> None:
    found = decided(*SATURATION, "--load", "2x")
    assert max(m["seconds"] for m in found["settled"]["path"]) > 0
    assert targets(found["settled"])["llama-8b-l40s"] > targets(found)["llama-8b-l40s"]
    assert found["settled"]["records"][0].keys() == found["records"][0].keys()


def test_settling_can_be_left_out_and_asked_for() -> None:
    assert decided(*SATURATION, "--load", "2x", "--no-settle")["settled"] is None
    found = decided(*POLICY, "--settle")
    assert (found["assumptions"], found["settled"]["end"]) == ([], "settled")
    assert targets(found["settled"])["embed"] == 8


def test_more_than_there_is_is_never_promised() -> None:
    found = decided(*SLO, "--load", "4x", "--capacity", "H100=2", "--capacity", "A100=3")
    for decision in (found, found["settled"]):
        used = targets(decision)
        assert used["meta-llama/Llama-3.1-8B-Instruct-H100-1"] <= 2
        assert used["meta-llama/Llama-3.1-8B-Instruct-A100-1"] <= 3


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (["--load", "much"], "--load much"),
        (["--load", "gpt=2x"], "there are: meta-llama"),
        (["--without", "x"], "there are: chat/llama-8b-h100, chat/llama-8b-l40s"),
        (["--capacity", "TPU=4"], "there are: H100, L40S"),
        (["--slo-ttft", "100ms"], "no variant in SLO form"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(question: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", *map(str, SATURATION), *question])
    assert isinstance(result.exception, WhatIfError)
    assert said in str(result.exception)


def test_a_saved_snapshot_holds_what_was_measured_not_what_was_assumed(tmp_path: Path) -> None:
    run(*POLICY, "--load", "2x", "--save-snapshot", tmp_path / "again.yaml")
    again = yaml.safe_load((tmp_path / "again.yaml").read_text())
    assert again["policies"][0]["instances"][0] == {"vllm:num_requests_waiting": 9.0}
    found = decided(*POLICY[:2], "--metrics", tmp_path / "again.yaml")
    assert found == decided(*POLICY)


def test_bindings_are_selected_by_namespace_and_label(tmp_path: Path) -> None:
    manifests = list(yaml.safe_load_all((SAMPLES / "policy" / "manifests.yaml").read_text()))
    for body in manifests:
        if body["metadata"]["name"] == "mixed":
            body["metadata"]["labels"] = {"team": "x"}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump_all(manifests))
    files = ("-f", tmp_path / "m.yaml", *POLICY[2:])
    assert [b["binding"]["name"] for b in decided(*files, "-l", "team=x")["bindings"]] == ["mixed"]
    assert decided(*files, "-n", "other")["bindings"] == []


def test_a_slip_in_the_policies_of_a_snapshot_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("policies: [{namespace: chat, binding: embedd}]\n")
    result = CliRunner().invoke(app, ["plan", *map(str, POLICY[:2]), "--metrics", str(tmp_path / "s.yaml")])
    assert isinstance(result.exception, PlanInputError)
    assert "metrics snapshot: policies[0]: no AutoscalingPolicyBinding chat/embedd" in str(result.exception)
