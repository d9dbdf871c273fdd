"""Product code imports declared runtime dependencies only: users have nothing of a development environment."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from command_line import modelyard
from packaging.requirements import Requirement

import deployments.server
import deployments.worker

ROOT = Path(__file__).resolve().parents[3]
OWN = ("modelyard", "tasks", "flows", "deployments")
EXTRAS = {
    "modelyard/router/process/ext_proc.py": "gateway",  # imported by `--ext-proc-port` alone, which names the extra
    "modelyard/monitoring/dashboards.py": "dev",  # `make monitoring`, in a development environment
}
"""Files that need an optional extra, and which one."""
PINNED = ("gateway", "dev")
"""Extras that `constraints.txt` covers."""


def canonical(requirement: str) -> str:
    """The name of a requirement, as package indexes compare it."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared() -> tuple[set[str], dict[str, set[str]]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return set(map(canonical, project["dependencies"])), {name: set(map(canonical, extras[name])) for name in extras}


def imported(source: str) -> Iterator[str]:
    """Top-level names of every import in a module, also of those inside functions and for type checking."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def undeclared(source: str, allowed: set[str], distributions: Mapping[str, list[str]]) -> set[str]:
    """Imports that no allowed distribution provides."""
    outside = {name for name in imported(source) if name not in (*OWN, *sys.stdlib_module_names)}
    return {name for name in outside if not allowed & set(map(canonical, distributions.get(name, [])))}


def test_product_code_imports_declared_runtime_dependencies_only() -> None:
    runtime, extras = declared()
    distributions = packages_distributions()
    undeclared_imports = {}
    for package in OWN:
        for file in (ROOT / package).rglob("*.py"):
            path = str(file.relative_to(ROOT))
            allowed = runtime | extras.get(EXTRAS.get(path, ""), set())
            if names := undeclared(file.read_text(encoding="utf-8"), allowed, distributions):
                undeclared_imports[path] = names
    assert not undeclared_imports, "declare it in [project] dependencies of pyproject.toml, or do without it"


def test_every_requirement_has_a_pin_that_satisfies_it() -> None:
    """`pip install -c constraints.txt .` resolves: a pin outside its range, or a range without a pin, is a defect."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in PINNED for line in project["optional-dependencies"][extra])]
    pins: dict[str, list[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if pin := re.match(r"([A-Za-z0-9._-]+)==(\S+)", line):
            pins.setdefault(canonical(pin[1]), []).append(pin[2])
    for requirement in map(Requirement, wanted):
        if canonical(requirement.name) != "modelyard":
            versions = pins.get(canonical(requirement.name), [])
            assert versions, requirement
            assert all(requirement.specifier.contains(version, prereleases=True) for version in versions), requirement


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import psutil", {"psutil"}),
        ("def f():\n    from hypothesis.strategies import text", {"hypothesis"}),
        ("import pytest as p, json", {"pytest"}),
        ("import nowhere.at.all", {"nowhere"}),
        ("from google.protobuf import json_format", {"google"}),
        ("import yaml, re2, os.path\nfrom . import sibling", set()),
        ("from modelyard.objects import Key", set()),
    ],
)
def test_an_undeclared_import_is_seen_wherever_it_stands(source: str, names: set[str]) -> None:
    runtime, _ = declared()
    assert undeclared(source, runtime - {"psutil"}, packages_distributions()) == names


@pytest.mark.parametrize("command", [("server", "--port", "4299"), ("worker",)])
def test_a_command_that_reads_the_checkout_says_so_where_there_is_none(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments.server, "SERVER_PROFILE", tmp_path / "server.env")
    monkeypatch.setattr(deployments.worker, "WORKER_PROFILE", tmp_path / "worker.env")
    done = modelyard(*command)
    assert done.code == 1
    assert done.err == (
        f"error: {tmp_path / command[0]}.env is missing: this command reads files of the project; install it from its "
        "checkout, with `make install` or `pip install -c constraints.txt -e .`\n"
    )
