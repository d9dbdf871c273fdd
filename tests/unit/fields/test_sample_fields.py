"""Shipped samples and runtimes: none sets a field without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.resources.field_effects import warning_of

CONFIG = Path(__file__).parents[3] / "config"


@pytest.mark.parametrize("folder", ["samples", "runtimes"])
def test_shipped_objects_set_no_field_without_effect(folder: str) -> None:
    paths = sorted((CONFIG / folder).rglob("*.yaml"))
    bodies = [(path.name, body) for path in paths for body in yaml.safe_load_all(path.read_text("utf-8"))]
    objects: list[tuple[str, dict[str, Any]]] = [
        (name, body) for name, body in bodies if isinstance(body, dict) and body.keys() >= {"apiVersion", "kind"}
    ]
    warnings = [
        (name, body["kind"], text)
        for name, body in objects
        if (text := warning_of(body["apiVersion"].partition("/")[0], body["kind"], body))
    ]
    assert objects
    assert warnings == []
