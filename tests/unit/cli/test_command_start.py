"""The command as a process: what it loads before it has something to do, and how it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from modelyard import __version__
from modelyard.resources import KINDS

HEAVY = {"kubernetes", "prefect", "pandas", "numpy", "aiohttp", "sqlalchemy", "matplotlib", "prometheus_api_client"}


def modelyard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "modelyard.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.parametrize(
    "arguments", [["version"], ["--help"], ["plan", "--help"], ["replay", "--help"], ["exporter", "--help"]]
)
def test_nothing_heavy_is_loaded_to_say_a_few_words(arguments: list[str]) -> None:
    result = modelyard(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0
    assert result.stdout.strip()
    loaded = {line.split("|")[2].strip().split(".")[0] for line in result.stderr.splitlines() if line.count("|") == 2}
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_the_version_is_the_packages() -> None:
    assert modelyard("version").stdout.strip() == __version__


def test_help_names_every_command() -> None:
    shown = modelyard("--help").stdout
    for command in ("plan", "replay", "autoscale", "exporter", "crds", "demo", "version", "local"):
        assert f" {command} " in shown


def test_commands_of_a_group_that_is_loaded_late_are_found() -> None:
    shown = modelyard("local", "--help")
    assert shown.returncode == 0
    assert " up " in shown.stdout
    refused = modelyard("local", "sideways")
    assert refused.returncode == 2
    assert "sideways" in refused.stderr


def test_crds_prints_every_kind() -> None:
    documents = list(yaml.safe_load_all(modelyard("crds").stdout))
    assert [d["kind"] for d in documents] == ["CustomResourceDefinition"] * 13
    assert {d["spec"]["names"]["kind"] for d in documents} == {name for _, name in KINDS}


@pytest.mark.parametrize("arguments", [["plan"], ["exporter", "--port", "0"], ["crds", "--install"]])
def test_without_a_cluster_one_line_says_what_to_do(tmp_path: Path, arguments: list[str]) -> None:
    home = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""}
    result = modelyard(*arguments, **home)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "KUBECONFIG" in line


def test_a_bad_file_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("kind: [\n")
    result = modelyard("plan", "-f", str(tmp_path / "m.yaml"), "--metrics", str(tmp_path / "m.yaml"))
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'm.yaml'}, line 2")
