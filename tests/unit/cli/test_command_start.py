"""The command: what it loads before it has something to do, and how it fails."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from command_line import modelyard

from deployments.command import app
from modelyard import __version__
from modelyard.cli.options import CONTEXT
from modelyard.cluster import ClusterSettings
from modelyard.cluster.connection import load_configuration
from modelyard.resources import KINDS

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "config" / "samples" / "plan"
TRACE = ROOT / "benchmarks" / "data" / "azure-llm-inference-2023-conversation.csv"
HEAVY = {"kubernetes", "prefect", "pandas", "numpy", "aiohttp", "sqlalchemy", "matplotlib", "prometheus_api_client"}
COMMANDS = ("plan", "replay", "runtimes", "services", "exporter", "crds", "convert")
FLOWS = ("autoscale", "run", "server", "worker", "bootstrap", "demo")
"""What needs Prefect."""
LOADED = """
import sys
from deployments.command import main
for arguments in {lines}:
    sys.argv = ["modelyard", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    print({mark!r}, *sorted(name for name in sys.modules if "." not in name))
"""


def test_nothing_heavy_is_loaded_to_say_a_few_words() -> None:
    lines = [["--version"], ["--help"], *([one, "--help"] for one in (*COMMANDS, *FLOWS))]
    script = LOADED.format(lines=lines, mark="loaded:")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=True)
    said = done.stdout.split("loaded:")
    assert len(said) == len(lines) + 1
    assert said[0].strip()
    assert all(len(text.splitlines()) > 1 for text in said[1:-1]), "every line is answered"
    for line, loaded in zip(lines, said[1:], strict=True):
        names = set(loaded.splitlines()[0].split())
        assert "typer" in names
        assert not names & HEAVY, line


def test_a_plan_of_files_loads_neither_clients_nor_solver() -> None:
    """Most of the time that a small plan takes is loading; of what this leaves, nothing can go."""
    files = ("-f", SAMPLES / "manifests.yaml", "--metrics", SAMPLES / "metrics.yaml")
    script = LOADED.format(lines=[["plan", *map(str, files)]], mark="loaded:")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=True)
    plan, loaded = done.stdout.split("loaded:")
    assert "chat/llama-8b-l40s" in plan
    assert not set(loaded.split()) & (HEAVY - {"numpy"} | {"requests", "pulp", "highspy"})


def test_the_version_is_the_packages() -> None:
    assert modelyard("--version").out.strip() == __version__


def test_help_names_every_command() -> None:
    shown = modelyard("--help").out
    for command in (*COMMANDS, *FLOWS, "local"):
        assert f" {command} " in shown


def test_commands_of_a_group_that_is_loaded_late_are_found() -> None:
    shown = modelyard("local", "--help")
    assert shown.code == 0
    assert " up " in shown.out
    refused = modelyard("local", "sideways")
    assert refused.code == 2
    assert "sideways" in refused.err


def test_crds_prints_every_kind() -> None:
    documents = list(yaml.safe_load_all(modelyard("crds").out))
    assert [d["kind"] for d in documents] == ["CustomResourceDefinition"] * 13
    assert {d["spec"]["names"]["kind"] for d in documents} == {name for _, name in KINDS}


@pytest.mark.parametrize("arguments", [["plan"], ["exporter", "--port", "0"], ["crds", "--install"]])
def test_without_a_cluster_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    for name, value in {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""}.items():
        monkeypatch.setenv(name, value)
    result = modelyard(*arguments)
    assert result.code == 1
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert "KUBECONFIG" in line


def test_a_bad_file_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("kind: [\n")
    result = modelyard("plan", "-f", str(tmp_path / "m.yaml"), "--metrics", str(tmp_path / "m.yaml"))
    assert result.code == 1
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'm.yaml'}, line 2")


READ_A_CLUSTER = (
    "models",
    "onboard",
    "add",
    "why",
    "plan",
    "exporter",
    "crds",
    "explain",
    "autoscale",
    "run",
    "worker",
    "supervise",
    "services",
    "router",
    "gateway",
    "show",
    "compare",
    "fit",
    "check",
    "sources",
)
ONE_SPELLING = {
    "namespace": ("-n", "--namespace"),
    "prometheus": ("--prometheus",),
    "settings": ("--settings",),
    "selector": ("-l", "--selector"),
    "output": ("-o", "--output"),
    "context": ("--context",),
}
OTHERS = {
    *("lease_namespace", "controller_namespace", "node_selector", "output_scale", "output_tokens"),
    *("namespace_percent", "namespace_bytes", "namespace_files"),
}
COMMAND = typer.main.get_command(app)


def parameters_of(command: Any) -> Iterator[tuple[str, Any]]:
    """Every option of a command and of those below it, with the command's name."""
    for name, one in getattr(command, "commands", {}).items():
        module = getattr(one, "module", None)
        real = typer.main.get_command(import_module(module).app) if module else one
        yield from ((name, parameter) for parameter in getattr(real, "params", ()))
        yield from parameters_of(real)


def test_an_option_is_spelled_the_same_everywhere() -> None:
    seen = set()
    for command, parameter in parameters_of(COMMAND):
        for name, spelling in ONE_SPELLING.items():
            if any(name in one.removeprefix("--") for one in parameter.opts) and parameter.name not in OTHERS:
                assert tuple(parameter.opts) == spelling, (command, parameter.name)
                seen.add((command, name))
            elif set(spelling) & set(parameter.opts):
                raise AssertionError(f"{command}: {parameter.opts} is no {name}")
    assert {command for command, name in seen if name == "context"} == set(READ_A_CLUSTER)
    assert {command for command, name in seen if name == "namespace"} == {
        *(
            "models",
            "add",
            "why",
            "plan",
            "replay",
            "exporter",
            "autoscale",
            "explain",
            "load",
            "render",
            "services",
            "onboard",
            "router",
            "gateway",
            "show",
            "fit",
            "bootstrap",
        )
    }
    assert {command for command, name in seen if name == "settings"} == {"plan", "replay", "autoscale"}
    printed = {"plan", "replay", "status", "explain", "render", "show", "compare", "fit", "onboard", "check-images"}
    assert {command for command, name in seen if name == "output"} == printed


def test_the_page_about_commands_names_all_of_them() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `modelyard (\w+)", text, re.MULTILINE) == list(COMMAND.commands)


def test_every_output_has_json_and_yaml_of_the_same(tmp_path: Path) -> None:
    policy = SAMPLES / "policy"
    plan = ("plan", "-f", policy / "manifests.yaml", "--metrics", policy / "metrics.yaml")
    replay = ("replay", "-f", SAMPLES / "manifests.yaml", "--trace", TRACE, "--minutes", "1", "--policy", "fixed")
    status = ("local", "status", "--dir", tmp_path)
    samples = ROOT / "config" / "samples"
    explain = ("runtimes", "explain", "llama-3-1-8b", "-f", samples / "clusterbasemodel.yaml")
    for command in (plan, replay, status, explain):
        as_json, as_yaml = (modelyard(*command, "-o", form).out for form in ("json", "yaml"))
        assert yaml.safe_load(as_yaml) == json.loads(as_json), command
        assert as_yaml.splitlines()[0][0] != "{"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sideways"], "sideways"),
        (["plan", "--sideways"], "--sideways"),
        (["plan", "-o", "xml"], "yaml"),
        (["plan", "-f", SAMPLES / "manifests.yaml"], "-f: manifests alone"),
        (["plan", "-f", "m.yaml", "--metrics", "s.yaml", "--load", "much"], "--load much"),
        (["replay", "-f", SAMPLES / "manifests.yaml", "--trace", "t.csv", "--slo-ttft", "soon"], "--slo-ttft: 'soon'"),
        (["replay", "--policy", "magic"], "--policy magic"),
        (["runtimes", "explain", "m", "--mode", "fast"], "--mode fast"),
        (["run", "sideways"], "sideways: no such flow; there are autoscale"),
        (["run", "replay", "--parameters", '{"rates": [-1]}'], "rates[0]: input should be greater than 0 (found -1)"),
        (["autoscale", "--once", "--shift", "5"], "--once, --shift: give one of the two"),
        (["bootstrap", "--autoscale", "{"], "--autoscale: Expecting property name"),
        (["worker", "--limit", "0"], "--limit"),
        (["demo", "--compression", "0"], "--compression"),
    ],
)
def test_a_command_line_that_cannot_be_used_ends_with_2(arguments: list[Any], said: str) -> None:
    done = modelyard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_context_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("one", "two")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "users": [{"name": "me", "user": {}}],
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}.example"}} for name in names],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in names],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv(CONTEXT, raising=False)

    def server(**given: Any) -> str:
        found, _ = asyncio.run(load_configuration(ClusterSettings(**given)))
        return str(found.host)

    assert (server(), server(context="two")) == ("http://one.example", "http://two.example")
    monkeypatch.setenv(CONTEXT, "two")
    assert (server(), server(context="one")) == ("http://two.example", "http://one.example")
    for command in (["crds", "--install"], ["plan"], ["exporter", "--port", "0"]):
        done = modelyard(*command, "--context", "three")
        assert done.code == 1
        assert "three" in done.err, command
