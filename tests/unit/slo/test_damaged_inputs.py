"""Whatever objects, ConfigMaps, memories and metrics say: no group fails, nothing absurd is asked, nothing is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from builders import MODEL, NOW, SATURATION, Serving, condition, gpu_node, records
from decisions import told
from slo_builders import INSTANT, SLO, one_slo, premium, slo_fleet

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, SLOMemory, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.plans.variant_plans import status_of
from modelyard.metrics.vocabulary.values import ModelLoad
from modelyard.objects import Condition
from modelyard.reconcile.plans.memory import parse_memory, render_memory
from modelyard.reconcile.plans.status import patch

NUMBERS = ["7.5", "0.05", "0", "nan", "inf", "-1", "1e400", "", " 3 ", "1e-300", "1e7", "abc"]
HISTORIES = (
    (),
    ((NOW - 300, 5.0),),
    tuple((NOW - 300 + 15 * i, 5 + i * 2.0) for i in range(20)),
    tuple((NOW + 300 + 15 * i, float("nan" if i % 2 else "inf")) for i in range(20)),
)
CONFIGURATIONS = ("", "enableLimiter: true", "analyzerName: saturation", "kvCacheThreshold: 7")


def some_memory(chance: random.Random, replicas: int) -> VariantMemory:
    pick = chance.choice
    slo = SLOMemory(
        prompt_tokens=pick([None, 0, 1e12]),
        output_tokens=pick([None, 0.5, 1e12]),
        tokens_at=pick([None, NOW - 1, NOW + 1e6]),
        ttft_factor=pick([1e-9, 1.0, 1e9]),
        estimate=pick([(), (1.0, 2.0, 3.0), (1.0,)]),
        covariance=pick([(), (1.0,) * 9]),
        updates=pick([0, 9]),
        rejected=pick([0, 4, 99]),
    )
    return VariantMemory(
        transition_target=pick([None, replicas, replicas + 2, 0]),
        transition_since=pick([None, NOW - 10, NOW - 1e5, NOW + 1e5]),
        relax_since=pick([None, NOW - 1e4, NOW + 1e4]),
        shrunk_at=pick([None, NOW - 10]),
        regrets=pick([0, 3, 10**6]),
        regretted=pick([None, 0, 2]),
        regretted_at=pick([None, NOW, 0.0]),
        startup_seconds=pick([None, 0, 1e9]),
        slo=pick([None, slo]),
    )


def some_variant(chance: random.Random, name: str) -> SLO:
    pick = chance.choice
    replicas = chance.randint(0, 4)
    profile = [good if chance.random() < 0.7 else pick(NUMBERS) for good in ("7.5", "0.05", "12", "0.002")]
    serving = {
        "memory": pick([VariantMemory(), some_memory(chance, replicas)]),
        "desired": pick([None, 0, replicas, replicas + 3]),
        "namespace": pick(["chat", "chat", "other"]),
        "pod": pick([{}, {"node": "h", "gpus": 1}, {"node": "gone", "gpus": 1}]),
    }
    annotations = pick(
        [
            {},
            {"modelyard.dev/min-replicas": "2", "modelyard.dev/max-replicas": "1"},
            {"modelyard.dev/actuation": "signal"},
        ]
    )
    return SLO(
        name,
        replicas,
        profile,
        pick(["H100", "L40S", "Nope"]),
        pick([1, 8]),
        pick([1, 2, 96, 10**6, 0, -3]),
        class_key=pick(["a", "b", "missing"]),
        model=pick([MODEL, "other"]),
        load=pick([None, (0.2, 0.0), (0.95, 9.0), (None, 3.0)]),
        running=pick([0.0, 1.0, 1e6]),
        ttft=pick([None, 0.0, 30.0, 1e12]),
        itl=pick([None, 0.0, 8.0, 1e12]),
        completed=pick([None, 0.0, 1.0, 100.0, 1e9]),
        prompt=pick([None, 0.0, 512.0, 1e9]),
        output=pick([None, 0.5, 1.0, 256.0, 1e7]),
        serving=serving,
        variant={"annotations": annotations},
    )


def some_fleet(chance: random.Random) -> tuple[Fleet, FleetSettings, float | None]:
    pick = chance.choice
    load = pick([None, 0.0, 0.01, 5.0, 400.0, 1e9, 1e300, float("nan"), float("inf"), -5.0])
    classes = pick(
        [
            {"a": premium(), "b": premium(itl=pick([0, 7.5, 30]), ttft=pick([0, 10]), name="B", priority=101)},
            {"a": premium(itl="nan"), "b": premium(ttft="1e400", name="B")},
            {"a": "{{{"},
        ]
    )
    settings = FleetSettings(
        estimator=pick([True, False]),
        ttft_percentile=pick([None, 95.0]),
        scale_to_zero=pick([True, False]),
        scale_down_delay=pick([0, 120]),
        max_step_down=pick([1, 50]),
        transition_penalty=pick([0, 0.1, 1]),
    )
    fleet = slo_fleet(
        *(some_variant(chance, f"v{i}") for i in range(chance.randint(1, 4))),
        load=load,
        history=pick(HISTORIES),
        classes=classes,
        costs=pick([{"H100": "100", "L40S": "0"}, {"H100": '{"cost": "1e308"}'}, {"H100": "0"}, {}]),
        others=[Serving("plain", ((0.95, 9.0),) * 2, model=MODEL)] if chance.random() < 0.3 else [],
        signals=pick([{}, {}, {"gateway_queue": {("chat", MODEL): 1e12}}, {"error": "down"}]),
        config_maps={SATURATION: {"default": pick(CONFIGURATIONS)}},
        nodes=pick([(), (gpu_node("h", 3), gpu_node("l", 4, "NVIDIA-L40S"))]),
        counts=pick([{}, {("chat", MODEL, 600): 0.0}]),
    )
    return fleet, settings, load


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_input_breaks_a_decision(seed):
    chance = random.Random(seed)
    for _ in range(40):
        fleet, settings, load = some_fleet(chance)
        decision = decide(fleet, settings)
        assert not decision.errors
        kept = {(r.identity.model_id, r.identity.key.namespace) for r in decision.records if r.target.replicas}
        for record in told(decision):
            assert record.target.replicas is None or record.target.replicas >= 0
            assert (record.target.replicas or 0) <= 4 * max(record.now.current or 0, record.now.desired or 0) + 40
            json.dumps(patch(status_of(record, fleet.now), {}, fleet.now), allow_nan=False)
            assert parse_memory(VariantMemory, AUTOSCALING_STATE, render_memory(record.memory)) == (record.memory, None)
            if load is not None and load > 0.001 and record.now.ready and not settings.scale_to_zero:
                assert (record.identity.model_id, record.identity.key.namespace) in kept


@pytest.mark.parametrize("load", [float("nan"), float("inf"), 1e300])
def test_a_damaged_load_is_not_known(load):
    record = one_slo(SLO(replicas=3), loads={("chat", MODEL): ModelLoad(load)}, settings=FleetSettings())
    assert condition(record, "MetricsAvailable") == ("False", "MetricsMissing")
    assert record.target.replicas == 3


@pytest.mark.parametrize("price", ["1e308", "nan", "-1", "", "1e13"])
def test_a_price_that_cannot_be_meant_is_missing(price):
    record = one_slo(SLO(replicas=2), costs={"H100": f'{{"cost": "{price}"}}'})
    assert condition(record, "AcceleratorResolved") == ("False", "UnitCostMissing")
    assert record.target.decided


@pytest.mark.parametrize("load", [1.0, 40.0, 400.0])
def test_what_costs_nothing_is_sized_like_anything_else(load):
    free = one_slo(SLO(replicas=4), load=load, costs={"H100": "0"})
    assert free.target.replicas == one_slo(SLO(replicas=4), load=load).target.replicas


def test_leaving_the_slo_form_takes_its_memory_and_conditions_along():
    fleet = slo_fleet(SLO(replicas=2))
    first = records(decide(fleet, INSTANT))["v1"]
    assert first.memory.slo is not None
    plain = replace(fleet.variants[0], form="saturation", slo=None, memory=first.memory, conditions=first.conditions)
    second = records(decide(replace(fleet, variants=(plain,)), INSTANT))["v1"]
    assert second.memory.slo is None
    assert not {"ProfileValid", "SLOFeasible", "CapacityLimited"} & {c.type for c in second.conditions}
    stored = [{"type": c.type, "status": c.status} for c in first.conditions]
    written = patch(status_of(second, NOW), {"conditions": stored}, NOW)
    assert {c["type"] for c in written["conditions"]} == {c.type for c in second.conditions}
    assert {name for name, value in written["currentAlloc"].items() if value is not None} == {"numReplicas"}
    assert written["desiredOptimizedAlloc"]["variantID"] is None


def test_a_class_that_vanishes_leaves_the_variant_to_saturation_and_says_so():
    known = (Condition("SLOFeasible", "True", "TargetsReachable", "", 3, NOW - 60),)
    record = one_slo(SLO(replicas=3, variant={"conditions": known}), classes={}, settings=FleetSettings())
    assert (record.target.replicas, record.target.decided) == (3, True)
    assert condition(record, "SLOFeasible") == ("Unknown", "SLOClassNotFound")
    assert condition(record, "OptimizationReady") == ("True", "SaturationOnlyMode")


@pytest.mark.parametrize(
    ("rate", "tokens"), [(5.0, 1e308), (5.0, float("inf")), (5.0, float("nan")), (1e308, 512.0), (1e13, 512.0)]
)
def test_a_damaged_history_is_not_aimed_by(rate: float, tokens: float) -> None:
    times = [NOW - 30.0 * back for back in range(180, -1, -1)]
    damaged = ModelLoad(5.0, tuple((at, rate) for at in times), tuple((at, tokens, 256.0) for at in times))
    whole = ModelLoad(5.0, tuple((at, 5.0) for at in times))

    def found(load: ModelLoad) -> str:
        fleet = slo_fleet(
            SLO("a", replicas=2), SLO("b", replicas=2, accelerator="L40S"), loads={("chat", MODEL): load},
            classes={"premium.yaml": premium(itl=100, ttft=2000)},
        )  # fmt: skip
        decision = decide(fleet, INSTANT)
        assert not decision.errors
        return str(decision)

    assert "the highest load of" in found(whole)
    assert "the highest load of" not in found(damaged)
    assert "nan" not in found(damaged)
