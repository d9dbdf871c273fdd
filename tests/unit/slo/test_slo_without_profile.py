"""Variants in saturation form with a learnt speed: where targets cannot be aimed at, all is as without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, condition, records
from decisions import Told
from slo_builders import SLO, carry_on, premium, slo_fleet

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, SLOMemory, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad, SizeBuckets
from modelyard.reconcile.plans.memory import parse_memory, render_memory

H100 = (6.0, 20.0, 80.0, 90.0, 300.0, 0.06)
"""15 ms a step."""
HOUR = tuple((NOW - 60 * i, 16.0) for i in range(90, -1, -1))
SETTINGS = FleetSettings()
MEAN = FleetSettings(aim="mean")


def learnt(
    name: str = "v1", speed: tuple[float, ...] = H100, memory: Mapping[str, Any] | None = None, **fields: Any
) -> SLO:
    serving = {"memory": VariantMemory(slo=SLOMemory(speed=speed, **(memory or {}))), **fields.pop("serving", {})}
    given = {"replicas": 2, "completed": 480.0, "itl": 16.0, "ttft": 45.0, **fields}
    return SLO(name, variant={"form": "saturation", "slo": None}, serving=serving, **given)


def fleet_of(
    *variants: SLO, load: float = 16.0, history: tuple[tuple[float, float], ...] = HOUR, **fields: Any
) -> Fleet:
    return slo_fleet(*variants, load=load, history=history, classes=fields.pop("classes", {}), **fields)


def decided(fleet: Fleet, settings: FleetSettings = SETTINGS) -> dict[str, Told]:
    decision = decide(fleet, settings)
    assert not decision.errors
    return records(decision)


def mode(record: Told) -> str:
    return condition(record, "OptimizationReady")[1]


def test_it_aims() -> None:
    assert mode(decided(fleet_of(learnt()))["v1"]) == "OptimizationSucceeded"


def test_head_room_is_kept_where_targets_cannot_be_met() -> None:
    rising = tuple((NOW - 15 * i, 16.0 - 0.6 * i) for i in range(20, -1, -1))
    fleet = fleet_of(learnt(load=(0.65, 1.0)), history=rising)
    aimed = decided(fleet, SETTINGS.model_copy(update={"target_itl": 8.0}))["v1"]
    alone = decided(fleet, MEAN)["v1"]
    assert alone.target.replicas > 2
    assert (aimed.target, aimed.why.reason) == (alone.target, alone.why.reason)
    assert mode(aimed) == "SaturationOnlyMode"


def test_what_cannot_be_sized_with_leaves_its_model_to_saturation() -> None:
    sizes = {("chat", "meta/llama"): SizeBuckets(((float("nan"), 0.5), (100.0, 0.5)), ())}
    decision = decide(fleet_of(learnt(load=(0.95, 20.0)), signals={"sizes": sizes}), SETTINGS)
    record = records(decision)["v1"]
    assert record.target.decided
    assert record.target.replicas > 2


def test_who_has_a_profile_is_sized_whoever_is_beside_it() -> None:
    """Without a history nothing can be aimed at: saturation decides about the one, the forecast about the other."""
    fleet = fleet_of(SLO("slo", replicas=2), learnt(), load=60.0, history=(), classes={"premium.yaml": premium()})
    found = decided(fleet)
    assert mode(found["slo"]) == "OptimizationSucceeded"
    assert mode(found["v1"]) == "SaturationOnlyMode"


def test_a_model_that_is_partly_left_to_saturation_is_so_wholly() -> None:
    broken = SLO("slo", replicas=2, profile=("fast", 0, 0, 0))
    found = decided(fleet_of(broken, learnt(), classes={"premium.yaml": premium(itl=100, ttft=2000)}))
    assert {mode(record) for record in found.values()} == {"SaturationOnlyMode"}


@pytest.mark.parametrize(("alpha", "aims"), [(30.0, True), (75.0, False), (99.0, False)])
def test_targets_nobody_asked_for_cost_no_multiple(alpha: float, aims: bool) -> None:
    slow = learnt(speed=(6.0, 20.0, 80.0, 6 * alpha, 20 * alpha, 0.6), itl=1.1 * alpha)
    fleet = fleet_of(slow, load=4.0, history=tuple((at, 4.0) for at, _ in HOUR))
    assert (mode(decided(fleet)["v1"]) == "OptimizationSucceeded") is aims


def test_what_was_aimed_with_shrinks_more_slowly_while_its_load_is_not_known() -> None:
    before = learnt(memory={"rule": (1, 0, 0, 0)}, replicas=6)
    fleet = replace(fleet_of(before), signals=replace(fleet_of(before).signals, loads={}))
    sizes = []
    for _ in range(24):
        found = decided(fleet)
        sizes.append(found["v1"].target.replicas)
        fleet = carry_on(fleet, found, SETTINGS.tick)
    assert sizes.index(5) * SETTINGS.tick == pytest.approx(2.5 * SETTINGS.scale_down_delay, abs=SETTINGS.tick)


def test_a_namespace_tries_no_more_rules_than_its_share() -> None:
    many = [learnt(f"v{i}", model=f"m{i}", serving={"namespace": "many"}) for i in range(40)]
    loads = {("many", one.model): ModelLoad(1e6, tuple((at, 1e6) for at, _ in HOUR)) for one in many}
    loads["chat", "meta/llama"] = ModelLoad(16.0, HOUR)
    found = decided(fleet_of(*many, learnt("other"), loads=loads))
    tried = [name for name, record in found.items() if record.memory.slo.rule is not None]
    assert "other" in tried
    assert 1 < len(tried) < 30


def test_a_namespace_is_decided_on_within_its_share_by_what_learnt_speeds_cost() -> None:
    many = [learnt(f"v{i}", model=f"m{i}", serving={"namespace": "many"}, replicas=0) for i in range(1100)]
    found = decided(fleet_of(*many, learnt("other")))
    beyond = [name for name, record in found.items() if mode(record) == "BeyondShare"]
    assert 50 < len(beyond) < 200
    assert "other" not in beyond


@pytest.mark.parametrize("sizes", [(1e308, 256.0), (512.0, 1e308), (float("inf"), 256.0)])
def test_damaged_sizes_are_not_remembered(sizes: tuple[float, float]) -> None:
    record = records(decide(fleet_of(learnt(prompt=sizes[0], output=sizes[1])), SETTINGS))["v1"]
    assert parse_memory(VariantMemory, AUTOSCALING_STATE, render_memory(record.memory)) == (record.memory, None)
    assert record.target.decided
