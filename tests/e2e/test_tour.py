"""The tour of models, services and the router as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_process import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_every_check_of_the_tour_passes(tmp_path: Path) -> None:
    printed = run_demo(tmp_path, "tour")
    assert "20 checks passed" in printed
    for shown in ("LlamaForCausalLM", "NotChosen", "simulated-two-nodes", "--no-such-option", "header tier is 'gold'"):
        assert shown in printed
