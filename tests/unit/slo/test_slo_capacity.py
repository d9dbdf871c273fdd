"""The GPU limiter over groups in SLO form: priorities, other accelerators, and never above what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import NOW, SATURATION, Serving, condition, gpu_node
from decisions import Told
from hypothesis import given, strategies as st
from slo_builders import H100, INSTANT, L40S, SLO, premium, run_slo, targets

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.metrics.vocabulary.values import ModelLoad
from modelyard.objects import Key

LIMITED = {SATURATION: {"default": "enableLimiter: true"}}
GOLD = premium(itl=30, model="gold", name="Gold")
SILVER = premium(itl=30, model="silver", name="Silver", priority=5)
CLASSES = {"gold": GOLD, "premium.yaml": GOLD, "silver": SILVER}


def both(model: str, h100: int = 0, l40s: int = 0, **serving) -> tuple[SLO, SLO]:
    """One model on two accelerators; pods are placed on nodes of their own kind."""
    common = {"model": model, "class_key": model}
    return (
        SLO(f"{model}-h", h100, H100, serving={"pod": {"node": "h", "gpus": 1}, **serving}, **common),
        SLO(f"{model}-l", l40s, L40S, "L40S", batch=48, serving={"pod": {"node": "l", "gpus": 1}}, **common),
    )


def nodes(h100: int, l40s: int):
    return (gpu_node("h", h100), gpu_node("l", l40s, "NVIDIA-L40S"))


def run_limited(*variants: SLO, gpus: tuple[int, int], load: float, **fields) -> dict[str, Told]:
    return run_slo(
        *variants, load=load, nodes=nodes(*gpus), config_maps=LIMITED, classes=CLASSES, settings=INSTANT, **fields
    )


def test_enough_for_everybody_changes_nothing():
    found = run_limited(*both("gold", 1), *both("silver", 1), gpus=(16, 16), load=40.0)
    assert targets(found) == {"gold-h": 1, "gold-l": 2, "silver-h": 1, "silver-l": 2}
    assert {condition(r, "CapacityLimited") for r in found.values()} == {("False", "CapacitySufficient")}


def test_the_important_class_gets_what_is_free():
    found = run_limited(*both("gold", 1), *both("silver", 1), gpus=(3, 0), load=80.0)
    assert targets(found) == {"gold-h": 2, "gold-l": 0, "silver-h": 1, "silver-l": 0}
    for name in ("gold-h", "silver-h"):
        assert condition(found[name], "CapacityLimited") == ("True", "AcceleratorsExhausted")
        assert found[name].why.limited_by == "gpu-limiter"
    assert "56.65 of 80 requests/s" in found["gold-h"].message


def test_the_important_class_takes_back_what_others_hold_beyond_their_last_replica():
    found = run_limited(*both("gold", 1), *both("silver", 3), gpus=(4, 0), load=80.0)
    assert found["silver-h"].target.replicas == 1
    assert found["gold-h"].target.replicas == 1  # its new replicas are granted when the others have let go
    freed = run_limited(*both("gold", 1), *both("silver", 1), gpus=(4, 0), load=80.0)
    assert (freed["gold-h"].target.replicas, freed["silver-h"].target.replicas) == (3, 1)


def test_what_the_cheap_accelerator_lacks_the_other_gives():
    found = run_limited(*both("gold", 1), gpus=(4, 1), load=40.0)
    assert found["gold-h"].target.replicas >= 2
    assert found["gold-l"].target.replicas <= 1


def test_replicas_that_never_come_are_no_part_of_what_is_shared():
    endless = {"spec_replicas": 2**31 - 1, "status_replicas": 0}
    phantom = Serving("phantom", current=0, namespace="theirs", model="theirs", workload=endless)
    found = run_limited(*both("gold", 1), *both("silver", 1), others=[phantom], gpus=(3, 0), load=80.0)
    assert (found["gold-h"].target.replicas, found["silver-h"].target.replicas) == (2, 1)


def test_capacity_below_what_already_runs_is_no_error():
    found = run_limited(*both("gold", 4), gpus=(2, 0), load=100.0)
    assert found["gold-h"].target.decided


def test_without_the_limiter_nothing_is_said_about_capacity():
    found = run_slo(*both("gold", 1), load=400.0, classes=CLASSES, nodes=nodes(1, 0))
    assert "CapacityLimited" not in {c.type for c in found["gold-h"].conditions}


@given(
    gpus=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    load=st.floats(0.5, 120),
    running=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_never_above_capacity_beyond_what_runs(gpus, load, running):
    gold, silver = both("gold", running[0] or 1), both("silver", running[1] or 1)
    found = run_limited(*gold, *silver, gpus=gpus, load=load)
    for kind, total in zip(("h", "l"), gpus, strict=True):
        now = sum(r.now.current or 0 for name, r in found.items() if name.endswith(kind))
        asked = sum(r.target.replicas or 0 for name, r in found.items() if name.endswith(kind))
        assert asked <= max(total, now)


@pytest.mark.parametrize("gpus", [(0, 0), (1, 0)])
@pytest.mark.parametrize("to_zero", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_what_serves_is_never_scaled_to_nothing(gpus, to_zero, placed):
    h, other = both("gold", 2)
    if not placed:  # the list of pods is behind, or they say no node
        h = replace(h, serving={})
    more = run_slo(
        h,
        other,
        *both("silver", 1),
        load=400.0,
        nodes=nodes(*gpus),
        config_maps=LIMITED,
        classes=CLASSES,
        settings=INSTANT.model_copy(update={"scale_to_zero": to_zero}),
    )
    assert (more["gold-h"].target.replicas, more["silver-h"].target.replicas) == (2, 1)
    assert (more["gold-l"].target.replicas, more["silver-l"].target.replicas) == (0, 0)


def test_a_used_model_keeps_its_last_replica_even_where_it_may_go_to_zero():
    found = run_slo(
        *both("gold", 1),
        *both("silver", 3),
        load=200.0,
        nodes=nodes(4, 0),
        config_maps=LIMITED,
        classes=CLASSES,
        settings=INSTANT.model_copy(update={"scale_to_zero": True}),
    )
    assert found["silver-h"].target.replicas == 1


def test_replicas_on_nodes_that_take_no_pods_are_not_taken_for_others():
    gold, silver = both("gold", 1), both("silver", 3)
    away = replace(silver[0], serving={"pod": {"node": "old", "gpus": 1}})
    cordoned = replace(gpu_node("old", 4), schedulable=False)
    found = run_slo(
        *gold,
        away,
        silver[1],
        load=80.0,
        nodes=(*nodes(1, 0), cordoned),
        config_maps=LIMITED,
        classes=CLASSES,
    )
    assert (found["gold-h"].target.replicas, found["silver-h"].target.replicas) == (1, 3)


def test_without_any_known_node_nothing_is_taken():
    found = run_slo(*both("gold", 1), *both("silver", 3), load=80.0, nodes=(), config_maps=LIMITED, classes=CLASSES)
    assert (found["gold-h"].target.replicas, found["silver-h"].target.replicas) == (1, 3)


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_variant_without_a_class_waits_for_the_important_ones(name):
    plain = Serving(name, ((0.95, 9.0),) * 2, model="other", pod={"node": "h", "gpus": 1}, cost=1.0)
    found = run_slo(
        *both("gold", 1),
        others=(plain,),
        load=80.0,
        nodes=nodes(5, 0),
        config_maps=LIMITED,
        classes=CLASSES,
        settings=INSTANT,
    )
    assert found["gold-h"].target.replicas == 3
    assert found[name].target.replicas == 2


def quotas(text: str, limiter: bool = False) -> dict[tuple[str, str], dict[str, str]]:
    return {SATURATION: {"default": f"enableLimiter: {str(limiter).lower()}\nlimiters: [{{type: quota, {text}}}]"}}


@pytest.mark.parametrize("limiter", [False, True], ids=["quota alone", "with the GPUs that exist"])
@pytest.mark.parametrize(
    "text",
    [
        "quotas: {H100: 1, L40S: 16}",
        "namespaceQuotas: {chat: {H100: 1, L40S: 16}}",
        "quotas: {H100: 9, L40S: 16}, namespaceQuotas: {default: {H100: 1, L40S: -1}}",
    ],
    ids=["cluster", "namespace", "both"],
)
def test_a_quota_sends_the_load_to_another_accelerator(text: str, limiter: bool):
    found = run_slo(
        *both("gold", 1),
        load=80.0,
        nodes=nodes(16, 16),
        config_maps=quotas(text, limiter),
        classes=CLASSES,
        settings=INSTANT,
    )
    assert targets(found) == {"gold-h": 1, "gold-l": 9}, "28.3 + 9 times 5.88 are more than 80 requests/s"
    assert found["gold-h"].why.limited_by == "quota quota"
    assert "quota quota does not suffice (1 H100 allowed" in found["gold-h"].message


def test_what_others_hold_counts_in_a_quota_and_nothing_that_runs_is_taken():
    found = run_slo(
        *both("gold", 1),
        *both("silver", 3),
        load=80.0,
        nodes=nodes(16, 0),
        config_maps=quotas("quotas: {H100: 2}"),
        classes=CLASSES,
        settings=INSTANT,
    )
    assert targets(found)["gold-h"] == 1, "four are held, two are allowed: no more are given"
    assert targets(found)["silver-h"] >= 1


def test_a_quota_of_one_namespace_leaves_others_alone():
    found = run_slo(
        *both("gold", 1),
        load=80.0,
        nodes=nodes(16, 16),
        config_maps=quotas("namespaceQuotas: {code: {H100: 1}, default: {H100: -1, L40S: -1}}"),
        classes=CLASSES,
        settings=INSTANT,
    )
    assert targets(found) == {"gold-h": 3, "gold-l": 0}
    assert found["gold-h"].why.limited_by is None


def rivals(
    text: str, *, ours: int, load: float, rival: int, rival_load: float = 300.0, **fields: Any
) -> dict[str, Told]:
    """Two models of two namespaces on one accelerator, neither of which has idle replicas to give at once."""
    first = SLO("first", replicas=ours, model="org/first")
    second = SLO(
        "second",
        replicas=rival,
        model="org/second",
        class_name="mine",
        serving={"namespace": "code"},
        **{"accelerator": "H100", **fields},
    )
    loads = {("chat", "org/first"): load, ("code", "org/second"): rival_load}
    return run_slo(
        first,
        second,
        loads={place: ModelLoad(load, ((NOW - 300, load),)) for place, load in loads.items()},
        classes={"premium.yaml": premium(model="org/first", priority=2)},
        config_maps={**quotas(text), Key("code", "mine"): {"premium.yaml": premium(model="org/second")}},
        nodes=(),
        settings=FleetSettings(headroom=False),
    )


@pytest.mark.parametrize(
    ("text", "ours", "load", "rival", "expected"),
    [
        ("namespaceQuotas: {chat: {H100: 20}, default: {H100: 8}}", 6, 30.0, 3, {"first": 6, "second": 8}),
        ("namespaceQuotas: {code: {H100: 8}}, exclude: [chat]", 6, 30.0, 3, {"first": 6, "second": 8}),
        ("quotas: {H100: 6}", 3, 60.0, 3, {"first": 3, "second": 3}),
        ("quotas: {H100: 8}", 5, 20.0, 1, {"first": 5, "second": 3}),
    ],
    ids=["quotas of namespaces", "excluded", "shared and full", "shared with some room"],
)
def test_no_quota_takes_what_runs(text: str, ours: int, load: float, rival: int, expected: dict[str, int]) -> None:
    assert targets(rivals(text, ours=ours, load=load, rival=rival)) == expected


@pytest.mark.parametrize("accelerator", ["quota 0//H100", "quota 0/chat/H100"])
def test_the_name_of_an_accelerator_is_not_that_of_a_quota(accelerator: str) -> None:
    text = "quotas: {H100: 6}, namespaceQuotas: {chat: {H100: 6}, default: {}}"
    found = rivals(text, ours=3, load=60.0, rival=3, rival_load=60.0, accelerator=accelerator)
    assert targets(found)["first"] == 4


def test_a_replica_of_very_many_accelerators_does_not_use_up_what_nobody_counts() -> None:
    text = "namespaceQuotas: {chat: {H100: 20}, default: {H100: -1}}"
    found = rivals(text, ours=3, load=60.0, rival=1, rival_load=200.0, count=2**31 - 1)
    assert targets(found)["first"] == 4
    assert targets(found)["second"] >= 1
