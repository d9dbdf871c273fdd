"""The command: what it loads before it has something to do, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import modelyard

from modelyard import __version__
from modelyard.resources import KINDS

HEAVY = {"kubernetes", "prefect", "pandas", "numpy", "aiohttp", "sqlalchemy", "matplotlib", "prometheus_api_client"}


LOADED = """
import sys
from modelyard.cli.main import main
for arguments in {lines}:
    sys.argv = ["modelyard", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    print({mark!r}, *sorted(name for name in sys.modules if "." not in name))
"""


def test_nothing_heavy_is_loaded_to_say_a_few_words() -> None:
    lines = [["version"], ["--help"], ["plan", "--help"], ["replay", "--help"], ["exporter", "--help"]]
    script = LOADED.format(lines=lines, mark="loaded:")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    said = done.stdout.split("loaded:")
    assert len(said) == len(lines) + 1
    assert said[0].strip()
    assert all(len(text.splitlines()) > 1 for text in said[1:-1]), "every line is answered"
    for line, loaded in zip(lines, said[1:], strict=True):
        names = set(loaded.splitlines()[0].split())
        assert "typer" in names
        assert not names & HEAVY, line


def test_the_version_is_the_packages() -> None:
    assert modelyard("version").out.strip() == __version__


def test_help_names_every_command() -> None:
    shown = modelyard("--help").out
    for command in ("plan", "replay", "autoscale", "exporter", "crds", "demo", "version", "local"):
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
