"""What each question makes of a fleet, what the decision then says, and what is said about names that do not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CONTROLLER, NOW, SATURATION, Serving, gpu_node, make_fleet, records
from hypothesis import given, strategies as st
from policy_builders import binding, each, target
from slo_builders import L40S, SLO, premium, slo_fleet

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.what_if import WhatIfError, imagine, parse
from modelyard.autoscaling.what_if.targets import LatencyTarget
from modelyard.metrics.vocabulary.values import ModelLoad, PodPerformance
from modelyard.objects import Key

DEFAULT = FleetSettings()


def two(**fields: Any) -> Fleet:
    """One model on two variants, each pod with 30 requests in a half full cache."""
    return make_fleet(
        Serving("a", load=[(0.5, 0.0)] * 2, running=30, cost=10, accelerator="L40S"),
        Serving("b", load=[(0.5, 0.0)], running=30, cost=40),
        **fields,
    )


def asked(fleet: Fleet, settings: FleetSettings = DEFAULT, **question: list[str]) -> tuple[Fleet, FleetSettings, str]:
    found = imagine(fleet, settings, parse(**question))
    return found.fleet, found.settings, "; ".join(found.said)


# Load


@pytest.mark.parametrize(("text", "factor"), [("2x", 2.0), ("1.5", 1.5), ("150%", 1.5), ("0", 0.0), (" 3x ", 3.0)])
def test_factors(text: str, factor: float) -> None:
    assert parse(load=[text]).load == (("", factor),)
    assert parse(load=[f"org/m={text}"]).load == (("org/m", factor),)


@pytest.mark.parametrize("text", ["", "x", "twice", "-1", "nan", "inf", "2xx", "m=", "1e999"])
def test_a_bad_factor_is_named(text: str) -> None:
    with pytest.raises(WhatIfError, match=r"--load .*150%"):
        parse(load=[text])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"load": ["2x", "3x"]}, "all are given twice"),
        ({"load": ["m=2x", "m=3x"]}, "m is given twice"),
        ({"load": ["m=2x", "3x"]}, "for all and for m"),
        ({"capacity": ["H100=1", "H100=2"]}, "H100 is given twice"),
    ],
)
def test_contradictions_are_refused(given: dict[str, list[str]], said: str) -> None:
    with pytest.raises(WhatIfError, match=said):
        parse(**given)


def test_once_the_load_is_no_change() -> None:
    fleet = two()
    assert asked(fleet, load=["1x"])[0] == fleet
    assert asked(fleet)[0] is fleet


@pytest.mark.parametrize(
    ("factor", "kv", "running", "waiting"),
    [
        ("1.5x", 0.75, 45, 0),
        ("2x", 1.0, 60, 0),
        ("3x", 1.0, 60, 30),  # what does not fit the cache waits
        ("0.5", 0.25, 15, 0),
        ("0", 0, 0, 0),
    ],
)
def test_pods_fill_up_and_then_queue(factor: str, kv: float, running: float, waiting: float) -> None:
    fleet, _, said = asked(two(), load=[factor])
    for pod in fleet.signals.pods:
        assert (pod.kv, pod.running, pod.waiting) == pytest.approx((kv, running, waiting))
    assert "times the load of everything" in said


def test_a_batch_that_is_full_queues_too() -> None:
    fleet = make_fleet(Serving("a", load=[(0.1, 0.0)], running=200))
    (pod,) = asked(fleet, load=["2x"])[0].signals.pods
    assert (pod.running, pod.waiting) == (256, 144)  # the engine's default batch
    assert pod.kv == pytest.approx(0.128)


def test_a_pod_that_does_not_say_how_many_run_is_told() -> None:
    fleet = make_fleet(Serving("a", load=[(0.9, 1.0)], running=None))
    fleet, _, said = asked(fleet, load=["2x"])
    (pod,) = fleet.signals.pods
    assert (pod.kv, pod.waiting, pod.running) == (1.0, 2.0, None)
    assert "1 pods do not say how many requests run" in said


def test_everything_that_comes_from_load_is_scaled_and_nothing_else() -> None:
    performance = PodPerformance("chat", "a-0", "meta/llama", 10.0, 512.0, 128.0, 200.0, 20.0, 4000)
    signals = {
        "loads": {("chat", "meta/llama"): ModelLoad(3.0, ((NOW - 60, 2.0), (NOW, 3.0)))},
        "gateway_queue": {("chat", "meta/llama"): 4.0, ("", "meta/llama"): 1.0, ("", "other"): 4.0},
        "performance": (performance,),
        "wake": {Key("chat", "a"): 2.0},
    }
    counts = {("chat", "meta/llama", 600): 5.0, ("chat", "other", 600): 5.0}
    fleet = make_fleet(Serving("a", load=[(0.1, 0.0)]), signals=signals, counts=counts)
    found = asked(fleet, load=["2x"])[0].signals
    assert found.loads == {("chat", "meta/llama"): ModelLoad(6.0, ((NOW - 60, 4.0), (NOW, 6.0)))}
    assert found.gateway_queue == {("chat", "meta/llama"): 8.0, ("", "meta/llama"): 2.0, ("", "other"): 4.0}
    assert found.request_counts == {("chat", "meta/llama", 600): 10.0, ("chat", "other", 600): 5.0}
    assert found.wake == {Key("chat", "a"): 4.0}
    # Latencies of another load teach nothing.
    assert found.performance == (replace(performance, completed=20.0, ttft=None, itl=None),)


def test_one_model_alone() -> None:
    fleet = make_fleet(Serving("a", load=[(0.2, 0.0)], model="x"), Serving("b", load=[(0.2, 0.0)], model="y"))
    found = {p.model: p.kv for p in asked(fleet, load=["x=2x"])[0].signals.pods}
    assert found == {"x": 0.4, "y": 0.2}


def test_metrics_of_a_binding_are_scaled_shares_too() -> None:
    seen = target("w", 2, instances=({"waiting": 3.0, "kv_usage": 0.8},) * 2, external={"queue": 4.0}, demand=6.0)
    fleet = Fleet(NOW, bindings=(binding(seen), binding(replace(seen, name="v"), key=Key("ns", "other"))))
    found = asked(fleet, load=["ns/b=2x"])[0].bindings
    assert found[0].targets[0].instances == ({"waiting": 6.0, "kv_usage": 1.6},) * 2
    assert (found[0].targets[0].external, found[0].targets[0].demand) == ({"queue": 8.0}, 12.0)
    assert found[1].targets[0] == replace(seen, name="v")


def test_an_unknown_model_is_told_with_those_there_are() -> None:
    fleet = replace(two(), bindings=(binding(target("w", 2)),))
    with pytest.raises(WhatIfError, match=r"--load gpt: no such model .*: meta/llama, ns/b"):
        asked(fleet, load=["gpt=2x"])


loads = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 20)), min_size=1, max_size=4)


@given(first=loads, second=loads, running=st.integers(0, 200), factors=st.tuples(st.floats(0, 4), st.floats(0, 4)))
def test_more_load_never_asks_for_fewer(
    first: list[tuple[float, float]], second: list[tuple[float, float]], running: int, factors: tuple[float, float]
) -> None:
    fleet = make_fleet(Serving("a", load=first, running=running), Serving("b", load=second, running=running, cost=30))
    totals = []
    for factor in sorted(factors):
        imagined, chosen, _ = asked(fleet, load=[f"{factor:.6f}"])
        totals.append(sum(r.target.replicas or 0 for r in decide(imagined, chosen).records))
    assert totals[0] <= totals[1]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_more_load_never_asks_for_fewer_with_an_slo_and_by_policy(replicas: int) -> None:
    sized = slo_fleet(SLO("v", replicas, running=10), load=20)
    seen = target("w", replicas, instances=each(replicas, 10.0))
    fleet = replace(sized, bindings=(binding(seen),))
    before = (0, 0)
    for factor in ("0.2x", "1x", "1.7x", "3x", "9x"):
        imagined, chosen, _ = asked(fleet, load=[factor])
        decision = decide(imagined, chosen)
        now = (decision.records[0].target.replicas or 0, decision.bindings[0].records[0].target.replicas or 0)
        assert now >= before
        assert all(a >= b for a, b in zip(now, before, strict=True))
        before = now


# Latency targets


@pytest.mark.parametrize(
    ("text", "subject", "wanted"),
    [
        ("300ms", "", LatencyTarget(300.0)),
        ("0.3s", "", LatencyTarget(300.0)),
        ("1m", "", LatencyTarget(60000.0)),
        ("80%", "", LatencyTarget(factor=0.8)),
        ("0.5x", "", LatencyTarget(factor=0.5)),
        ("Premium=40ms", "Premium", LatencyTarget(40.0)),
    ],
)
def test_targets_are_read(text: str, subject: str, wanted: LatencyTarget) -> None:
    assert parse(slo_ttft=[text]).ttft == parse(slo_itl=[text]).itl == ((subject, wanted),)


@pytest.mark.parametrize("text", ["300", "fast", "0ms", "-3ms", "0%", "", "Premium=", "nan%"])
def test_a_bad_target_is_named_with_its_option(text: str) -> None:
    with pytest.raises(WhatIfError, match=r"--slo-itl .*300ms"):
        parse(slo_itl=[text])


CLASSES = {"premium.yaml": premium(), "free.yaml": premium(itl=40, ttft=2000, model="other", name="Free", priority=9)}


@pytest.mark.parametrize(
    ("question", "fewer_than_before"),
    [({"slo_itl": ["9ms"]}, False), ({"slo_itl": ["20ms"]}, True), ({"slo_itl": ["Premium=20ms"]}, True)],
)
def test_a_tighter_target_takes_more_and_a_looser_one_fewer(
    question: dict[str, list[str]], fewer_than_before: bool
) -> None:
    fleet = slo_fleet(SLO("v", 1), load=60, classes=CLASSES)
    before = records(decide(fleet, DEFAULT))["v"].target.replicas or 0
    imagined, chosen, _ = asked(fleet, **question)
    after = records(decide(imagined, chosen))["v"].target.replicas or 0
    assert (after < before) is fewer_than_before
    assert after != before


def test_other_classes_and_the_other_target_stay() -> None:
    fleet = slo_fleet(SLO("v", 1), SLO("w", 1, model="other", class_key="free.yaml"), load=5, classes=CLASSES)

    def told(imagined: Fleet) -> dict[str, str]:
        return {
            one.key.name: next(c.message for c in one.conditions if c.type == "SLOFeasible")
            for one in decide(imagined, DEFAULT).variants
        }

    found = told(asked(fleet, slo_ttft=["Premium=300ms"])[0])
    assert "TTFT 300 ms and ITL 10 ms" in found["v"]
    assert "TTFT 2000 ms and ITL 40 ms" in found["w"]
    found = told(asked(fleet, slo_itl=["free.yaml=50%"], slo_ttft=["50%"])[0])
    assert "TTFT 250 ms and ITL 10 ms" in found["v"]
    assert "TTFT 1000 ms and ITL 20 ms" in found["w"]


def test_no_notice_comes_of_rewriting() -> None:
    written = "name: Premium\npriority: 1\ndata:\n- {model: meta/llama, slo-itl: 10, slo-ttft: 500}\n"
    fleet = slo_fleet(SLO("v", 1), classes={"premium.yaml": written})
    before = decide(fleet, DEFAULT).notices
    assert decide(asked(fleet, slo_itl=["20ms"])[0], DEFAULT).notices == before


@pytest.mark.parametrize(
    ("fleet", "question", "said"),
    [
        (slo_fleet(SLO("v"), classes=CLASSES), ["Gold=1ms"], r"--slo-itl Gold: no such service class.*: Free, Premium"),
        (two(), ["9ms"], r"--slo-itl: no variant in SLO form"),
    ],
)
def test_an_unknown_class_is_told_with_those_there_are(fleet: Fleet, question: list[str], said: str) -> None:
    with pytest.raises(WhatIfError, match=said):
        asked(fleet, slo_itl=question)


# Accelerators


def drowning(**fields: Any) -> Fleet:
    """Three replicas that need many more."""
    return make_fleet(
        Serving("a", load=[(0.95, 9.0)] * 2, accelerator="L40S"), Serving("b", load=[(0.95, 9.0)], cost=40), **fields
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_capacity_is_never_exceeded(count: int) -> None:
    fleet, chosen, said = asked(drowning(), capacity=[f"H100={count}"])
    found = records(decide(fleet, chosen))
    assert (found["b"].target.replicas or 0) <= max(count, 0)
    assert found["a"].target.replicas == 2  # of what is not named there is no more than what is in use
    assert f"{count} H100" in said
    assert "of L40S no more than is in use" in said


@pytest.mark.parametrize(
    ("accelerator", "resource", "pool"),
    [
        ("A100", "nvidia.com/mig-3g.40gb", "A100-MIG-3g.40gb"),
        ("MI300X", "amd.com/cpx_nps4", "MI300X-cpx_nps4"),
        ("Gaudi-3", "habana.ai/gaudi", "Gaudi-3"),
        ("tpu-v6e-slice", "google.com/tpu", "tpu-v6e-slice"),
        ("Ascend910B", "huawei.com/Ascend910B", "Ascend910B"),
        ("N150", "tenstorrent.com/n150", "N150"),
    ],
)
def test_the_inventory_has_accelerators_of_every_vendor(accelerator: str, resource: str, pool: str) -> None:
    serving = Serving("a", load=[(0.95, 9.0)] * 2, accelerator=accelerator, workload={"gpu_resource": resource})
    fleet, chosen, said = asked(make_fleet(serving), capacity=[f"{pool}=3"])
    assert records(decide(fleet, chosen))["a"].target.replicas == 3
    assert f"3 {pool}" in said


def test_the_inventory_replaces_the_nodes_and_needs_no_config_map() -> None:
    free = decide(drowning(), DEFAULT)
    node = gpu_node("n", 1)
    fleet, chosen, _ = asked(
        drowning(nodes=[node]), DEFAULT.model_copy(update={"node_selector": "zone=x"}), capacity=["h100=9", "L40S=9"]
    )
    assert [r.target.replicas for r in decide(fleet, chosen).records] == [r.target.replicas for r in free.records]
    assert yaml_of(fleet) == "enableLimiter: true\n"


def yaml_of(fleet: Fleet) -> str:
    return fleet.config_maps[SATURATION]["default"]


def test_the_written_configuration_is_kept() -> None:
    fleet = drowning(config={"default": "kvCacheThreshold: 0.7\nenableLimiter: false\n", "m": "model_id: x\n"})
    fleet, _, _ = asked(fleet, capacity=["H100=1"])
    assert yaml_of(fleet) == "kvCacheThreshold: 0.7\nenableLimiter: true\n"
    assert fleet.config_maps[SATURATION]["m"] == "model_id: x\n"


def test_with_fewer_than_there_are_the_dearest_replicas_go_and_their_load_stays() -> None:
    fleet = make_fleet(
        Serving("a", load=[(0.2, 0.0)] * 2, running=10), Serving("b", load=[(0.2, 0.0)] * 2, running=10, cost=40)
    )
    fleet, _, said = asked(fleet, capacity=["H100=3"])
    assert "1 of 2 replicas of chat/b have no H100 and are gone" in said
    assert sum(p.running or 0 for p in fleet.signals.pods) == pytest.approx(40)
    assert len(fleet.signals.pods) == 3
    assert {r.identity.key.name: r.now.current for r in decide(fleet, DEFAULT).records} == {"a": 2, "b": 1}


def test_under_an_slo_the_allocation_stays_within_the_inventory() -> None:
    for count in (1, 2, 3, 6):
        fleet = slo_fleet(SLO("v", 2), SLO("w", 1, L40S, "L40S"), load=200)
        imagined, chosen, _ = asked(fleet, capacity=[f"H100={count}", "L40S=1"])
        found = records(decide(imagined, chosen))
        assert (found["v"].target.replicas or 0) <= count
        assert (found["w"].target.replicas or 0) <= 1


@pytest.mark.parametrize("text", ["H100", "H100=", "H100=-1", "H100=1.5", "=3", "H100=many"])
def test_a_bad_capacity_is_named(text: str) -> None:
    with pytest.raises(WhatIfError, match=r"--capacity .*H100=16"):
        parse(capacity=[text])


def test_an_unknown_accelerator_is_told_with_those_there_are() -> None:
    with pytest.raises(WhatIfError, match=r"--capacity MI300X=4: .*: A100, H100, L40S"):
        asked(two(nodes=[gpu_node("n", 8, "NVIDIA-A100-PCIE-80GB")]), capacity=["MI300X=4"])


def test_a_broken_configuration_is_not_replaced() -> None:
    with pytest.raises(WhatIfError, match="key 'default'"):
        asked(two(config={"default": "a: ["}), capacity=["H100=4"])


# Without a variant


@pytest.mark.parametrize("name", ["b", "chat/b"])
def test_the_load_of_an_absent_variant_goes_to_the_others(name: str) -> None:
    fleet, chosen, said = asked(two(), without=[name])
    assert [v.key.name for v in fleet.variants] == ["a"]
    assert [(p.pod, p.running, p.kv) for p in fleet.signals.pods] == [
        ("a-0", pytest.approx(45), pytest.approx(0.75)),
        ("a-1", pytest.approx(45), pytest.approx(0.75)),
    ]
    assert {id_.name for id_ in fleet.workloads} == {"a"}
    decision = decide(fleet, chosen)
    assert decision.records[0].target.replicas == 3
    assert decision.unattributed_signals == 0
    assert said == "chat/b is not there; its load goes to chat/a"


def test_with_nobody_running_it_waits_at_the_gateway() -> None:
    fleet = make_fleet(Serving("a", current=0, spec=0), Serving("b", load=[(0.5, 2.0)] * 2, running=10))
    fleet, chosen, said = asked(fleet, without=["b"])
    assert fleet.signals.gateway_queue == {("chat", "meta/llama"): 24}
    assert decide(fleet, chosen).records[0].why.reason == "WokenByDemand"
    assert "wait at the gateway" in said


def test_request_sizes_are_remembered_for_the_others() -> None:
    fleet = slo_fleet(SLO("v", 2), SLO("w", 1, L40S, "L40S", load=None, completed=None), load=5)
    imagined, chosen, _ = asked(fleet, without=["v"])
    found = records(decide(imagined, chosen))["w"]
    assert "512 + 256 tokens" in found.why.message


@pytest.mark.parametrize(
    ("fleet", "name", "said"),
    [
        (two(), "c", r"--without c: no such VariantAutoscaling; there are: chat/a, chat/b"),
        (
            make_fleet(Serving("a", load=[(0.1, 0.0)]), Serving("a", namespace="dev", load=[(0.1, 0.0)])),
            "a",
            r"--without a: there are several: chat/a, dev/a",
        ),
        (
            make_fleet(Serving("a", load=[(0.1, 0.0)])),
            "a",
            r"chat/a is the only variant of model 'meta/llama' in namespace chat: without it nothing serves",
        ),
    ],
)
def test_a_variant_that_cannot_be_left_out(fleet: Fleet, name: str, said: str) -> None:
    with pytest.raises(WhatIfError, match=said):
        asked(fleet, without=[name])


def test_all_at_once() -> None:
    fleet = slo_fleet(SLO("v", 2), SLO("w", 1, L40S, "L40S"), SLO("x", 1, SLO().profile, "A100"), load=20)
    imagined, chosen, said = asked(
        fleet, load=["2x"], slo_ttft=["90%"], slo_itl=["Premium=12ms"], capacity=["H100=3"], without=["w"]
    )
    assert said.count(";") >= 4
    found = records(decide(imagined, chosen))
    assert found.keys() == {"v", "x"}
    assert (found["v"].target.replicas or 0) <= 3
    assert CONTROLLER in {key.namespace for key in imagined.config_maps}
