"""Through the whole decision: a model is woken by its queue, serves, and goes back to sleep only after its grace."""

from __future__ import annotations

from dataclasses import replace

from builders import MODEL, NOW, PUBLISHED, REPAIRED, Serving, condition, hpa, make_fleet, one
from decisions import told
from stages import TOKENS, performance_of, rising

from modelyard.autoscaling.pipeline.decide import decide

QUEUE = {"gateway_queue": {("chat", MODEL): 4.0}}
IDLE = {
    "zero": {"default": "{enable_scale_to_zero: true, retention_period: 10m}"},
    "counts": {("chat", MODEL, 600): 0.0},
}


def test_woken_serving_asleep():
    first = one(Serving(current=0, ready=0, desired=0), signals=QUEUE)
    assert (first.target.replicas, first.writes.scale, first.why.reason, first.target.decided) == (
        1,
        1,
        "WokenByDemand",
        True,
    )
    assert condition(first, "ScaleFromZero") == ("True", "WokenByDemand")
    assert condition(first, "MetricsAvailable") == ("False", "MetricsUnavailable")
    assert (first.memory.woken_at, first.memory.scalings) == (NOW, {"up/WokenByDemand": 1})
    known = {"conditions": first.conditions}
    starting = one(Serving(current=1, ready=0, desired=1, memory=first.memory, variant=known), **IDLE)
    assert starting.target.replicas == 1
    assert condition(starting, "ScaleFromZero") == ("True", "WokenByDemand")
    serving = Serving(load=[(0.0, 0.0)], desired=1, memory=starting.memory, ready_age=5, variant=known)
    served = one(serving, **IDLE)
    assert served.target.replicas == 1
    assert condition(served, "ScaleFromZero") == ("False", "Serving")
    long_ago = served.memory.model_copy(update={"woken_at": NOW - 700})
    assert one(replace(serving, memory=long_ago, ready_age=650), **IDLE).why.reason == "ScaledToZero"


def test_signal_mode_keeps_asking_until_the_scaler_acts():
    scaler = hpa(Serving(), minimum=0, maximum=3)
    first = one(Serving(current=0, ready=0, desired=0), signals=QUEUE, consumers=[scaler])
    assert (first.target.replicas, first.writes.scale) == (1, None)
    later = one(Serving(current=0, ready=0, desired=1, memory=first.memory), consumers=[scaler], now=NOW + 15)
    assert (later.target.replicas, later.why.reason, later.memory.woken_at) == (1, "WokenByDemand", NOW)


def test_token_analyzer_by_config_map():
    fleet = make_fleet(Serving(load=[(0.5, 8)]), config=TOKENS)
    fleet = replace(fleet, signals=replace(fleet.signals, performance=performance_of(fleet)))
    for policy in (REPAIRED, PUBLISHED):
        (record,) = told(decide(fleet, policy))
        assert (record.target.replicas, record.why.reason) == (2, "TokenCapacityLow")
        assert record.memory.compute_limits == {"medium": [8000.0]}


def test_headroom_is_for_repaired_mode():
    signals = {"loads": {("chat", MODEL): rising()}}
    calm = Serving(load=[(0.6, 0)] * 2)
    assert (one(calm, signals=signals).target.replicas, one(calm, signals=signals).why.reason) == (3, "LoadRising")
    assert one(calm, signals=signals, settings=PUBLISHED).target.replicas == 2
