"""``modelyard plan`` on files, as a user types it: tables, JSON, the shipped example, messages on bad input."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard
from typer.testing import CliRunner, Result

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.decisions.decision import Evidence, Now, Target, Why, Writes
from modelyard.cli.main import app
from modelyard.cli.options import UsageError

SAMPLES = Path(__file__).resolve().parents[3] / "config" / "samples" / "plan"
PLAIN = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
MANIFESTS = ("-f", SAMPLES / "manifests.yaml")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files are enough: there is no cluster to be found."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], input=stdin)


def decided(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def write(path: Path, *documents: Any) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def variant(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {
            "name": name,
            "namespace": "chat",
            "labels": {"inference.optimization/acceleratorName": "H100", "team": name},
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "modelID": name,
            **spec,
        },
    }


def deployment(name: str, replicas: int = 2) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "chat"},
        "spec": {"replicas": replicas},
    }


def metrics(path: Path, model: str, *load: tuple[float, float]) -> Path:
    pods = [
        {"namespace": "chat", "pod": f"{model}-{i}", "model": model, "workload": f"Deployment/{model}", "kv": kv}
        | {"waiting": waiting}
        for i, (kv, waiting) in enumerate(load)
    ]
    return write(path, {"at": "2026-06-01T12:00:00Z", "pods": pods})


def test_the_shipped_example_scales_up_and_says_why() -> None:
    result = run("-f", SAMPLES / "manifests.yaml", "--metrics", SAMPLES / "metrics.yaml", "-v")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith("chat/llama-8b-l40s "))
    assert row.split()[:5] == ["chat/llama-8b-l40s", "2", "→", "3", "2"]
    assert "short of capacity" in row
    assert "writes 3 replicas to Deployment chat/llama-8b-l40s" in result.stdout
    assert result.stderr == ""


def test_a_plan_is_short_unless_the_story_is_asked_for() -> None:
    arguments = ("-f", SAMPLES / "manifests.yaml", "--metrics", SAMPLES / "metrics.yaml")
    short, long = run(*arguments).stdout, run(*arguments, "-v").stdout
    assert [line.split()[0] for line in short.splitlines()] == ["VARIANT", "chat/llama-8b-h100", "chat/llama-8b-l40s"]
    assert long.startswith(short)
    assert "DefaultConfiguration" in long


def test_one_thing_is_complained_about_once(tmp_path: Path) -> None:
    names = [f"llama-{number}" for number in range(5)]
    files = write(tmp_path / "m.yaml", *(variant(name) for name in names), *map(deployment, names))
    nowhere = [{"namespace": "chat", "pod": f"lost-{number}", "model": "m", "kv": 0.5} for number in range(30)]
    dead = run("-f", files, "--metrics", write(tmp_path / "dead.yaml", {"error": "connection refused by 10.0.0.9"}))
    assert dead.output.count("10.0.0.9") == 1
    assert dead.stdout.count("as above") == 4
    lost = run("-f", files, "--metrics", write(tmp_path / "lost.yaml", {"pods": nowhere}))
    (line,) = (line for line in lost.stderr.splitlines() if "count for nothing" in line)
    assert "chat/lost-0, chat/lost-1" in line
    assert "and 20 more" in line


def test_a_plan_wraps_to_the_terminal() -> None:
    """At 60 columns, in a terminal of its own."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = [sys.executable, "-m", "deployments.command", "plan", "-v", *map(str, MANIFESTS)]
    metrics_file = ["--metrics", str(SAMPLES / "metrics.yaml")]
    process = subprocess.Popen([*command, *metrics_file], stdin=follower, stdout=follower, stderr=follower, env=PLAIN)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(leader, 4096):
            shown += part
    os.close(leader)
    assert process.wait(120) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 60
    assert "spare queue 3.0" in " ".join(" ".join(lines).split())


def test_the_exit_code_of_a_plan_is_for_pipelines(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("llama"), deployment("llama"))
    scope = ("plan", "--exit-code", "-f", files, "--metrics")
    quiet, busy = ((0.5, 0), (0.5, 0)), ((0.76, 1), (0.76, 1))
    settings = write(tmp_path / "settings.yaml", {"scale_down_delay": 600})
    same = modelyard(*scope, metrics(tmp_path / "quiet.yaml", "llama", *quiet), "--settings", settings)
    assert (same.code, same.err) == (0, "")
    more = metrics(tmp_path / "busy.yaml", "llama", *busy)
    changed = modelyard(*scope, more)
    assert (changed.code, changed.err) == (2, "")
    assert "2 → 3" in changed.out
    assert modelyard(*scope[:1], *scope[2:], more).code == 0, "only when it is asked for"
    blind = modelyard(*scope, write(tmp_path / "none.yaml", {"pods": []}))
    assert blind.code == 1
    assert "error: chat/llama: MetricsUnavailable: " in blind.err
    one_of_two = write(tmp_path / "two.yaml", variant("llama"), deployment("llama"), variant("lost"))
    assert modelyard("plan", "--exit-code", "-f", one_of_two, "--metrics", more).code == 1, "doubt outweighs a change"
    asleep = write(tmp_path / "zero.yaml", variant("llama"), deployment("llama", 0))
    assert modelyard("plan", "--exit-code", "-f", asleep, "--metrics", tmp_path / "none.yaml").code == 0


@pytest.mark.parametrize(
    "arguments",
    [["--exit-code", "--sideways"], ["--exitcode"], ["--exit-code", "--load", "much"], ["--exit-code", "-f", "m.yaml"]],
)
def test_a_slip_in_a_pipeline_is_no_change(arguments: list[str]) -> None:
    done = modelyard("plan", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err


def test_a_whole_folder_will_do(tmp_path: Path) -> None:
    for name in ("manifests.yaml", "metrics.yaml"):
        shutil.copy(SAMPLES / name, tmp_path)
    found = decided("-f", tmp_path, "--metrics", tmp_path / "metrics.yaml")
    assert {r["variant"]["name"]: r["target"] for r in found["records"]} == {"llama-8b-h100": 1, "llama-8b-l40s": 3}


def test_json_is_complete_and_the_same_every_time(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("llama"), deployment("llama"))
    arguments = ("-f", files, "--metrics", metrics(tmp_path / "s.yaml", "llama", (0.76, 1), (0.76, 1)))
    found = decided(*arguments)
    assert found == decided(*arguments)
    assert found.keys() == {
        *("at", "compatibility", "assumptions", "records", "bindings", "notices", "errors", "unattributedSignals"),
        *("settled", "services"),
    }
    assert (found["assumptions"], found["bindings"], found["settled"]) == ([], [], None)
    assert found["at"] == "2026-06-01T12:00:00Z"
    (record,) = found["records"]

    def camel(cls: Any) -> set[str]:
        return {
            "".join(part.title() if i else part for i, part in enumerate(name.split("_")))
            for name in (getattr(cls, "_fields", None) or [field.name for field in dataclasses.fields(cls)])
        }

    parts = set().union(*(camel(part) for part in (Now, Target, Why, Writes)))
    renamed = {"desired": "desiredBefore", "allocation": "currentAlloc", "replicas": "target", "scale": "write"}
    about = {"variant", "uid", "generation", "resourceVersion", "form", "modelId", "variantId", "bounds"}
    said = {"conditions", "notices", "memory"}
    assert record.keys() == {renamed.get(name, name) for name in parts} | about | said
    assert record["evidence"].keys() == camel(Evidence)
    assert record["variant"] == {"namespace": "chat", "name": "llama"}
    assert record["workload"] == {"namespace": "chat", "group": "apps", "kind": "Deployment", "name": "llama"}
    assert (record["current"], record["target"], record["write"], record["action"]) == (2, 3, 3, "scale-up")
    assert {c["type"] for c in record["conditions"]} >= {"TargetResolved", "MetricsAvailable", "OptimizationReady"}
    assert record["memory"]["scalings"]


def test_the_published_algorithm_decides_otherwise_where_it_is_known_to_err(tmp_path: Path) -> None:
    """Three of five replicas are drowning; the two idle ones alone are looked at."""
    files = write(tmp_path / "m.yaml", variant("llama"), deployment("llama", 5))
    load = metrics(tmp_path / "s.yaml", "llama", *[(0.95, 9)] * 3, *[(0.10, 1)] * 2)
    ours, published = decided("-f", files, "--metrics", load), decided("-f", files, "--metrics", load, "--published")
    assert (ours["compatibility"], published["compatibility"]) == ("repaired", "published")
    assert ours["records"][0]["target"] > 5
    assert published["records"][0]["target"] == 4


def test_brackets_and_colons_in_messages_are_printed_as_they_are(tmp_path: Path) -> None:
    model = "org/[bold]odd[/bold]:smile:[/]"
    files = write(tmp_path / "m.yaml", variant("llama", modelID=model), deployment("llama"))
    problem = 'bad_data: parse error in vllm:x{a=~"[a-z]+"}[60s] [/red]'
    load = write(tmp_path / "s.yaml", {"error": problem})
    result = run("-f", files, "--metrics", load, "-v", "--load", f"{model}=2x")
    assert result.exit_code == 0, result.output
    assert model in result.stdout
    assert problem in result.stdout


def test_namespaces_and_labels_select(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("one"), variant("two"), deployment("one"), deployment("two"))
    load = write(tmp_path / "s.yaml", {"pods": []})

    def names(*more: str) -> list[str]:
        return [r["variant"]["name"] for r in decided("-f", files, "--metrics", load, *more)["records"]]

    assert names() == ["one", "two"]
    assert names("-l", "team=two") == ["two"]
    assert names("-l", "team in (one,two),team!=two") == ["one"]
    assert names("-n", "chat") == ["one", "two"]
    assert names("-n", "other") == []


def test_standard_input_is_a_file_too(tmp_path: Path) -> None:
    text = yaml.safe_dump_all([variant("llama"), deployment("llama")])
    result = run("-f", "-", "--metrics", metrics(tmp_path / "s.yaml", "llama", (0.5, 0), (0.5, 0)), stdin=text)
    assert result.exit_code == 0, result.output
    assert "chat/llama" in result.stdout


def test_a_variant_without_its_workload_is_decided_on_with_a_warning(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("llama"))
    result = run("-f", files, "--metrics", write(tmp_path / "s.yaml", {"pods": []}), "-o", "json")
    assert result.exit_code == 0
    assert f"warning: {files} document 1" in result.stderr
    assert "Deployment chat/llama" in result.stderr
    assert "add its manifest with -f" in result.stderr
    conditions = {c["type"]: c["reason"] for c in json.loads(result.stdout)["records"][0]["conditions"]}
    assert conditions["TargetResolved"] == "TargetNotFound"


def test_a_percentage_where_a_fraction_is_meant_is_pointed_out(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("llama"), deployment("llama"))
    result = run("-f", files, "--metrics", metrics(tmp_path / "s.yaml", "llama", (75, 0)))
    assert "pods[0].kv is 75" in result.stderr


def test_no_variant_in_the_files_is_said(tmp_path: Path) -> None:
    result = run("-f", write(tmp_path / "m.yaml", deployment("llama")), "--metrics", write(tmp_path / "s.yaml", {}))
    assert result.exit_code == 0
    assert "No VariantAutoscaling, AutoscalingPolicyBinding or service in these files" in result.stdout


def test_a_snapshot_can_be_written_from_files_too(tmp_path: Path) -> None:
    files = write(tmp_path / "m.yaml", variant("llama"), deployment("llama"))
    load = metrics(tmp_path / "s.yaml", "llama", (0.76, 1), (0.76, 1))
    result = run("-f", files, "--metrics", load, "--save-snapshot", tmp_path / "again.yaml")
    assert result.exit_code == 0
    again = yaml.safe_load((tmp_path / "again.yaml").read_text())
    assert [p["kv"] for p in again["pods"]] == [0.76, 0.76]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("scale_down_dely: 5", ["policy.yaml", "scale_down_dely", "scale_down_delay"]),
        ("max_step_up: 0", ["policy.yaml", "max_step_up"]),
        ("a: [", ["policy.yaml, line 2", "not YAML"]),
    ],
)
def test_a_bad_policy_is_named_by_field(tmp_path: Path, policy: str, said: list[str]) -> None:
    (tmp_path / "policy.yaml").write_text(policy + "\n")
    result = run(*MANIFESTS, "--metrics", SAMPLES / "metrics.yaml", "--settings", tmp_path / "policy.yaml")
    assert isinstance(result.exception, PlanInputError)
    for part in said:
        assert part in str(result.exception)


def test_a_policy_changes_the_decision(tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.yaml", {"actuation": "signal"})
    found = decided(*MANIFESTS, "--metrics", SAMPLES / "metrics.yaml", "--settings", policy)
    assert {r["mode"] for r in found["records"]} == {"signal"}
    assert {r["write"] for r in found["records"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*MANIFESTS], "--metrics"),
        (["-f", SAMPLES / "absent.yaml", "--metrics", SAMPLES / "metrics.yaml"], "absent.yaml: No such file"),
        ([*MANIFESTS, "--metrics", SAMPLES / "absent.yaml"], "absent.yaml: No such file"),
        ([*MANIFESTS, "--metrics", SAMPLES / "metrics.yaml", "-l", "a b"], "-l a b"),
        (
            [*MANIFESTS, "--metrics", SAMPLES / "metrics.yaml", "--save-snapshot", SAMPLES / "absent" / "s.yaml"],
            "--save-snapshot",
        ),
    ],
)
def test_what_cannot_be_done_is_said_with_the_remedy(arguments: list[Any], said: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, PlanInputError | UsageError)
    assert said in str(result.exception)


def test_an_unknown_output_is_refused() -> None:
    result = run(*MANIFESTS, "--metrics", SAMPLES / "metrics.yaml", "-o", "xml")
    assert result.exit_code == 2
    assert "json" in result.output
