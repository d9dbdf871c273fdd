"""The comparison in docs/replay.md is what its command makes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("replay_table")


def test_the_page_has_what_the_command_prints(tool: Any) -> None:
    page = tool.published((ROOT / "docs/replay.md").read_text(encoding="utf-8")).splitlines()
    made = tool.table(tool.EXCERPT, [1.0], tool.half()).splitlines()
    assert page[:2] == made[:2]
    assert len(made) == 2 + len(tool.EXCERPT)
    for line in made[2:]:
        assert line in page, "stale: python benchmarks/replay.py --table --write"
    names = [line.split("|")[2].strip() for line in page[2:]]
    entries = [entry.name for entry in tool.ENTRIES]
    assert names == entries * (len(names) // len(entries))


def test_the_forms_scale_the_same_workloads(tool: Any, tmp_path: Path) -> None:
    for form in {entry.form for entry in tool.ENTRIES}:
        file = tmp_path / f"{form}.yaml"
        file.write_text(tool.manifests(form, 5.0))
        fleet = fleet_from_files(read_manifests([file]), Snapshot(), 0.0)
        assert {id_.name: one.spec_replicas for id_, one in fleet.workloads.items()} == {
            "llama-8b-l40s": 3,
            "llama-8b-h100": 3,
        }
        assert all(view.problem is None and view.policy is not None for view in fleet.bindings), form
