"""A strategy and a stage are added as docs/extending.md shows: its examples run as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from builders import MODEL, Serving, one

from modelyard.autoscaling import stages, strategies
from modelyard.autoscaling.variants.stage import PipelineStage

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
EXAMPLES = re.compile(r"^ {4}```python\n(.*?)^ {4}```$", re.DOTALL | re.MULTILINE)


def example(section: str) -> dict[str, Any]:
    """Run the module of a section's example."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2]
    found = EXAMPLES.search(text)
    assert found is not None
    names: dict[str, Any] = {}
    exec(textwrap.dedent(found[1]), names)
    return names


@pytest.mark.parametrize(("waiting", "replicas"), [(0.0, 2), (3.0, 3)])
def test_a_strategy(monkeypatch: pytest.MonkeyPatch, waiting: float, replicas: int) -> None:
    toy = example("A strategy")["OneMoreWhileWaiting"]()
    monkeypatch.setitem(strategies.REGISTRY, "one-more", strategies.live(toy, "one-more"))  # type: ignore[misc]
    told = one(
        Serving(load=[(0.5, 0)] * 2),
        config={"default": "analyzerName: one-more"},
        signals={"gateway_queue": {("chat", MODEL): waiting}},
    )
    assert (told.target.replicas, told.why.reason) == (replicas, "SteadyState")
    assert told.why.message == "as many as needed"


def test_a_stage() -> None:
    pairs = PipelineStage(example("A stage")["keep_pairs"])
    first, second = Serving(load=[(0.9, 9)] * 2), Serving(load=[(0.6, 0)] * 3)
    stages.MODEL_STAGES.insert(1, pairs)
    try:
        assert one(first).target.replicas == 4
        told = one(second)
        assert told.target.replicas == 4
        assert [step.stage for step in told.why.steps] == ["configuration", "targets", "pairs"]
        assert told.why.message.startswith("raised from 3 to 4 by pairs; ")
        capped = one(Serving(load=[(0.6, 0)] * 3, variant={"annotations": {"modelyard.dev/max-replicas": "3"}}))
        assert capped.target.replicas == 3
    finally:
        stages.MODEL_STAGES.remove(pairs)
