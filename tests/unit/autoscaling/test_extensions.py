"""A strategy and a stage are added as docs/extending.md shows: its examples run as they stand there."""

from __future__ import annotations

import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from builders import MODEL, PUBLISHED, SATURATION, Serving, make_fleet, one
from slo_builders import SLO, one_slo, run_slo

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.pipeline import stages, strategies
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.stage import PipelineStage, StageResult

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


CHOSEN = {"default": "analyzerName: one-more"}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = example("A strategy")["OneMoreWhileWaiting"]()
    monkeypatch.setitem(strategies.REGISTRY, "one-more", strategies.live(toy, "one-more"))  # type: ignore[misc]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("waiting", "replicas"), [(0.0, 2), (3.0, 3)])
def test_a_strategy(waiting: float, replicas: int) -> None:
    told = one(
        Serving(load=[(0.5, 0)] * 2),
        config=CHOSEN,
        signals={"gateway_queue": {("chat", MODEL): waiting}},
    )
    assert (told.target.replicas, told.why.reason) == (replicas, "RequestsWaiting" if waiting else "NoneWaits")
    assert told.why.message == ("3 requests wait at the gateway" if waiting else "no request waits at the gateway")
    assert told.why.steps[0].detail.startswith("analyzer one-more from ConfigMap ")


@pytest.mark.usefixtures("registered")
def test_a_strategy_beside_latency_targets() -> None:
    waiting = {"gateway_queue": {("chat", MODEL): 3.0}}
    found = run_slo(
        SLO("awake", replicas=2), SLO("asleep", replicas=0), config_maps={SATURATION: CHOSEN}, signals=waiting
    )
    assert (found["awake"].target.replicas, found["awake"].why.reason) == (2, "ScaleDownBlocked")
    assert "(3 requests wait at the gateway)" in found["awake"].why.message
    assert found["asleep"].target.replicas == 0
    unseen = one_slo(SLO("awake", replicas=2), load=None, config_maps={SATURATION: CHOSEN}, signals=waiting)
    assert (unseen.target.replicas, unseen.why.reason) == (3, "RequestsWaiting")


@pytest.mark.usefixtures("registered")
def test_a_strategy_that_is_not_there_in_published_mode() -> None:
    told = one(Serving(load=[(0.5, 0)] * 2), config=CHOSEN, settings=PUBLISHED)
    assert told.why.reason == "SteadyState"
    assert [notice.reason for notice in told.notices] == ["AnalyzerNotAvailable"]


def test_a_problem_of_a_stage_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = PipelineStage(lambda models, variants, tick: StageResult(problem="no list of pairs"))
    for name in ("MODEL_STAGES", "FLEET_STAGES"):
        monkeypatch.setattr(import_module("modelyard.autoscaling.pipeline.decide"), name, [broken])
    found = decide(make_fleet(Serving(load=[(0.5, 0)] * 2)), FleetSettings())
    assert found.errors == ("no list of pairs", "no list of pairs")


def test_a_stage() -> None:
    pairs = PipelineStage(example("A stage")["keep_pairs"])
    first, second = Serving(load=[(0.9, 9)] * 2), Serving(load=[(0.6, 0)] * 3)
    stages.MODEL_STAGES.insert(1, pairs)
    try:
        assert one(first).target.replicas == 4
        told = one(second)
        assert told.target.replicas == 4
        assert [step.stage for step in told.why.steps] == ["configuration", "targets", "pairs"]
        assert told.why.message.startswith("raised from 3 to 4: replicas come in pairs; ")
        assert told.why.reason == "Paired"
        capped = one(Serving(load=[(0.6, 0)] * 3, variant={"annotations": {"modelyard.dev/max-replicas": "3"}}))
        assert capped.target.replicas == 3
    finally:
        stages.MODEL_STAGES.remove(pairs)
