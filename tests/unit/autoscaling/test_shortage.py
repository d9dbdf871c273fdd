"""A model that is short and cannot grow says so, and an idle one says why its last replica stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, PUBLISHED, REPAIRED, Serving, condition, hpa, make_fleet, one, run
from decisions import Told
from slo_builders import SLO, one_slo

from modelyard.autoscaling.configuration.handling import MAX_REPLICAS, MIN_REPLICAS
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.objects import Condition, Node

BUSY = [(0.95, 12.0), (0.9, 8.0)]


def limited(decision: Told) -> Condition | None:
    return next((c for c in decision.conditions if c.type == "CapacityLimited"), None)


def bounded(load: list[tuple[float, float]], upper: int, **fields: Any) -> Serving:
    return Serving("chat", load=load, variant={"annotations": {MAX_REPLICAS: str(upper)}}, **fields)


def test_a_model_that_is_short_at_its_maximum_says_so() -> None:
    record = one(bounded(BUSY, 2))
    assert record.target.replicas == 2
    assert condition(record, "OptimizationReady") == ("True", "SaturationOnlyMode")
    told = limited(record)
    assert told is not None
    assert (told.status, told.reason) == ("True", "AtMaximum")
    assert told.message == (
        "Cannot scale chat 2 -> 11: annotation modelyard.dev/max-replicas is 2; 20 requests waiting."
    )


@pytest.mark.parametrize("settings", [REPAIRED, PUBLISHED])
def test_the_maximum_of_a_scaler_is_named(settings: Any) -> None:
    s = Serving("chat", load=BUSY)
    told = limited(one(s, settings=settings, consumers=[hpa(s, maximum=2)]))
    if settings is PUBLISHED:  # which takes no notice of a scaler's bounds
        assert told is None
    else:
        assert told is not None
        assert "maximum of HorizontalPodAutoscaler chat/chat-hpa is 2" in told.message


def test_the_published_mode_says_so_as_well() -> None:
    told = limited(one(bounded(BUSY, 2), settings=PUBLISHED))
    assert told is not None
    assert (told.reason, told.message) == (
        "AtMaximum",
        "Cannot scale chat 2 -> 3: annotation modelyard.dev/max-replicas is 2.",
    )


def test_every_variant_of_the_model_says_so() -> None:
    cheap, dear = bounded(BUSY, 2), Serving("zero", current=0, ready=0, cost=20)
    found = run(cheap, dear)
    for name in ("chat", "zero"):
        told = limited(found[name])
        assert told is not None
        assert told.message.startswith("Cannot scale chat 2 -> ")
        assert "zero is at zero and may not be woken" in told.message


@pytest.mark.parametrize(
    ("load", "upper"),
    [
        ([(0.95, 12.0), (0.9, 8.0)], 5),  # it grows
        ([(0.5, 1.0), (0.5, 1.0)], 2),  # it is not short
    ],
)
def test_a_model_that_grows_or_is_not_short_says_nothing(load: list[tuple[float, float]], upper: int) -> None:
    assert limited(one(bounded(load, upper))) is None


def test_the_condition_ends_with_the_shortage_and_outlives_a_tick_without_metrics() -> None:
    before = limited(one(bounded(BUSY, 2)))
    assert before is not None
    annotations = {"annotations": {MAX_REPLICAS: "2"}, "conditions": (before,)}
    calm = limited(one(Serving("chat", load=[(0.3, 0.0)] * 2, variant=annotations)))
    assert calm is not None
    assert (calm.status, calm.reason) == ("False", "CapacitySufficient")
    again = limited(one(Serving("chat", load=[(0.3, 0.0)] * 2, variant={**annotations, "conditions": (calm,)})))
    assert again == calm
    blind = limited(one(Serving("chat", load=BUSY, variant=annotations), signals={"error": "down"}))
    assert blind == before


def test_too_few_gpus_are_told_without_latency_targets() -> None:
    config = {"default": "enableLimiter: true"}
    node = Node("n1", {"nvidia.com/gpu.product": "H100"}, {"nvidia.com/gpu": 2})
    record = one(Serving("chat", load=BUSY, pod={"node": "n1"}), config=config, nodes=[node])
    told = limited(record)
    assert told is not None
    assert (told.status, told.reason) == ("True", "AcceleratorsExhausted")


def test_an_idle_single_replica_explains_itself() -> None:
    record = one(Serving("chat", load=[(0.0, 0.0)]))
    assert (record.target.replicas, record.why.reason) == (1, "SteadyState")
    assert record.why.message.startswith("Idle; keeping the last replica: scale to zero is off")
    assert next(c.message for c in record.conditions if c.type == "OptimizationReady") == record.why.message


def test_an_idle_single_replica_at_its_minimum_explains_itself() -> None:
    zero = {"default": "enable_scale_to_zero: true"}
    s = Serving("chat", load=[(0.0, 0.0)], variant={"annotations": {MIN_REPLICAS: "1"}})
    record = one(s, zero=zero)
    assert record.target.replicas == 1
    assert "Idle; keeping the last replica: annotation modelyard.dev/min-replicas is 1" in record.why.message


@pytest.mark.parametrize("signals", [{"running": 1.0}, {"waiting": 2.0}, {"kv": 0.2}])
def test_a_replica_with_anything_to_do_is_not_idle(signals: dict[str, float]) -> None:
    fleet = make_fleet(Serving("chat", load=[(0.0, 0.0)]))
    busy = tuple(replace(pod, **signals) for pod in fleet.signals.pods)
    (record,) = decide(replace(fleet, signals=replace(fleet.signals, pods=busy)), REPAIRED).records
    assert "Idle" not in record.why.message


def test_a_forecast_that_cannot_be_met_at_the_maximum_says_so() -> None:
    """37.5 of 500 requests/s: by the caches alone, all would be well."""
    at_most = {"annotations": {MAX_REPLICAS: "2"}}
    told = limited(one_slo(SLO("chat", replicas=2, variant=at_most), load=500.0))
    assert told is not None
    assert (told.status, told.reason) == ("True", "AtMaximum")
    assert told.message == "Cannot scale chat 2 -> 27: annotation modelyard.dev/max-replicas is 2."
    calm = limited(one_slo(SLO("chat", replicas=2, variant={**at_most, "conditions": (told,)}), load=20.0))
    assert calm is not None
    assert (calm.status, calm.reason) == ("False", "CapacitySufficient")


def test_an_idle_single_replica_with_latency_targets_explains_itself() -> None:
    idle = SLO("chat", replicas=1, load=(0.0, 0.0), running=0.0, completed=0.0)
    record = one_slo(idle, load=0.0, history=tuple((NOW - ago, 0.0) for ago in range(600, 0, -30)))
    assert record.target.replicas == 1
    assert record.why.message.startswith("Idle; keeping the last replica: scale to zero is off")
