"""What must hold for every fleet."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

from builders import MODEL, NOW, PUBLISHED, REPAIRED, Serving, gpu_node, make_fleet, records, run
from hypothesis import assume, given, strategies as st

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.objects import Key

KV = st.integers(0, 100).map(lambda n: n / 100)
WAITING = st.integers(0, 30).map(float)
LOAD = st.tuples(KV, WAITING)
MAYBE = st.tuples(st.none() | KV, st.none() | WAITING)
POLICIES = st.builds(
    FleetSettings,
    compatibility=st.sampled_from(Compatibility),
    actuation=st.sampled_from(Mode),
    scale_down_delay=st.sampled_from([0.0, 60.0]),
    max_step_down=st.integers(1, 3),
)
MEMORIES = st.builds(
    VariantMemory,
    relax_since=st.none() | st.sampled_from([NOW - 100, NOW - 10]),
    partial_since=st.none() | st.sampled_from([NOW - 500, NOW - 10]),
    transition_since=st.none() | st.sampled_from([NOW - 1000, NOW - 10]),
    transition_target=st.none() | st.integers(0, 6),
)


@st.composite
def variants(draw, name="v", load=LOAD, bounds=False, model=MODEL):
    count = draw(st.integers(0, 6))
    loads = draw(st.lists(load, min_size=count, max_size=count))
    extra = draw(st.integers(0, 2))
    surge = draw(st.integers(0, 2))
    annotations = {}
    if bounds and draw(st.booleans()):
        lower = draw(st.integers(0, 5))
        annotations = {
            "modelyard.dev/min-replicas": str(lower),
            "modelyard.dev/max-replicas": str(draw(st.integers(max(1, lower), 9))),
        }
    return Serving(
        name,
        loads,
        current=count + extra,
        ready=draw(st.integers(count, count + extra)),
        spec=max(1, count + extra - surge) if surge and count + extra else None,
        desired=draw(st.none() | st.integers(0, 8)),
        cost=draw(st.sampled_from([1.0, 5.0, 10.0])),
        model=model,
        ready_age=draw(st.sampled_from([5.0, 120.0, 3600.0])),
        rate=draw(st.sampled_from([None, 0.0, 1.0])),
        memory=draw(MEMORIES),
        variant={"annotations": annotations},
    )


@st.composite
def models(draw, size=3, **options):
    return [draw(variants(f"v{i}", **options)) for i in range(draw(st.integers(1, size)))]


def more(load, extra):
    return [(min(1.0, kv + dkv), waiting + dw) for (kv, waiting), (dkv, dw) in zip(load, extra, strict=True)]


@given(models(load=MAYBE), st.data(), POLICIES, st.sampled_from([{}, {"default": "analyzerName: saturation"}]))
def test_a_replica_is_counted_once_whatever_its_pod_reports(serving, data, policy, config):
    """Told as there and starting are at most the replicas there are or are wanted, also of pods that are not ready."""
    serving = [replace(s, ready=data.draw(st.integers(0, s.replicas))) for s in serving]
    for record in run(*serving, settings=policy, config=config).values():
        found = re.search(r"have (\d+)( tokens)? with (\d+) starting or warming up", record.why.message)
        if found and not found[2]:
            assert int(found[3]) <= int(found[1]), record.why.message
        if found:
            assert int(found[3]) <= sum(max(s.replicas, s.desired or 0, s.spec or 0) for s in serving)


@given(models(), st.data(), st.sampled_from(Mode))
def test_more_load_never_gives_fewer_replicas(serving, data, mode):
    # Throughput stays the same, and is not zero: a queue that does not move is judged apart.
    serving = [replace(s, rate=1.0) for s in serving]
    extra = [data.draw(st.lists(LOAD, min_size=len(s.load), max_size=len(s.load))) for s in serving]
    heavier = [replace(s, load=more(s.load, e)) for s, e in zip(serving, extra, strict=True)]
    policy = FleetSettings(scale_down_delay=0, actuation=mode)
    before, after = run(*serving, settings=policy), run(*heavier, settings=policy)
    assert sum(r.target.replicas for r in after.values()) >= sum(r.target.replicas for r in before.values())


@given(models(bounds=True, load=MAYBE), POLICIES)
def test_bounds_are_never_crossed_by_a_decision(serving, policy):
    for name, record in run(*serving, settings=policy).items():
        annotations = next(s for s in serving if s.name == name).variant["annotations"]
        if record.target.decided and annotations:
            assert int(annotations["modelyard.dev/min-replicas"]) <= record.target.replicas
            assert record.target.replicas <= int(annotations["modelyard.dev/max-replicas"])


@given(models(size=4), models(size=4), st.lists(st.integers(0, 8), max_size=4), st.sampled_from([1, 2, 4]))
def test_limiter_never_exceeds_capacity(first, second, nodes, gpus):
    second = [replace(s, name=f"w{s.name}", model="other") for s in second]
    serving = [
        replace(
            s,
            gpus=gpus,
            pod={"node": "home", "gpus": gpus},
            current=len(s.load),
            ready=len(s.load),
            spec=None,
            desired=None,
        )
        for s in (*first, *second)
    ]
    used = sum(len(s.load) for s in serving) * gpus
    free = [gpu_node(f"n{i}", count) for i, count in enumerate(nodes)]
    fleet = make_fleet(*serving, nodes=[gpu_node("home", used), *free], config={"default": "enableLimiter: true"})
    for policy in (REPAIRED, PUBLISHED):
        growth = sum(max(0, r.target.replicas - r.now.current) * gpus for r in decide(fleet, policy).records)
        assert growth <= sum(nodes)
        if policy is REPAIRED:
            assert growth <= sum(count // gpus * gpus for count in nodes)


@given(models(load=MAYBE))
def test_published_model_goes_up_or_down_by_one_or_not_at_all(serving):
    steady = [replace(s, current=len(s.load), ready=len(s.load), spec=None, desired=None) for s in serving]
    moves = Counter(
        r.target.replicas - r.now.current for r in run(*steady, settings=PUBLISHED).values() if r.target.decided
    )
    moved = {step: count for step, count in moves.items() if step}
    assert moved in ({}, {1: 1}, {-1: 1})


@given(models(load=MAYBE), POLICIES)
def test_no_model_goes_up_and_down_at_once(serving, policy):
    steady = [replace(s, current=len(s.load), ready=len(s.load), spec=None, desired=None) for s in serving]
    actions = {r.target.action for r in run(*steady, settings=policy).values()}
    assert not {Action.UP, Action.DOWN} <= actions


@given(models(load=MAYBE), POLICIES)
def test_no_decision_without_data(serving, policy):
    for signals in ({"error": "down"}, {}):
        fleet = make_fleet(*serving, signals=signals)
        blind = replace(fleet, signals=replace(fleet.signals, pods=()))
        for record in decide(blind, policy).records:
            assert record.writes.scale is None
            assert record.target.replicas == ((record.now.desired or record.now.current) if record.now.current else 0)
            assert not record.target.decided or record.now.current == 0


@given(models(load=MAYBE, bounds=True), models(load=MAYBE), POLICIES, st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(first, second, policy, rng: random.Random):
    second = [replace(s, name=f"w{s.name}", model="other") for s in second]
    fleet = make_fleet(
        *first, *second, nodes=[gpu_node("a", 3), gpu_node("b", 5)], config={"default": "enableLimiter: true"}
    )

    def shuffled(items):
        items = list(items)
        rng.shuffle(items)
        return items

    other = replace(
        fleet,
        variants=tuple(shuffled(fleet.variants)),
        pods=tuple(shuffled(fleet.pods)),
        nodes=tuple(shuffled(fleet.nodes)),
        workloads=dict(shuffled(fleet.workloads.items())),
        signals=replace(fleet.signals, pods=tuple(shuffled(fleet.signals.pods))),
    )
    assert decide(fleet, policy) == decide(fleet, policy)
    assert decide(other, policy) == decide(fleet, policy)


@given(models(load=MAYBE), models(load=MAYBE), POLICIES)
def test_models_do_not_see_each_other(first, second, policy):
    second = [replace(s, name=f"w{s.name}", model="other") for s in second]
    together = run(*first, *second, settings=policy)
    assert together == {**run(*first, settings=policy), **run(*second, settings=policy)}


@given(st.text(min_size=1, max_size=20) | st.sampled_from(['a"b', "a\\b", "a'b", "a|b", "{a}", "a\nb"]), POLICIES)
def test_model_ids_are_just_text(model, policy):
    assume(model != MODEL)
    busy = [(0.9, 9.0)] * 2
    found = run(Serving("odd", busy, model=model), settings=policy)
    plain = run(Serving("odd", busy), settings=policy)
    assert found["odd"].target.replicas == plain["odd"].target.replicas
    assert found["odd"].identity.model_id == model


@given(models(load=MAYBE), POLICIES)
def test_a_decision_is_stable_when_nothing_changes(serving, policy):
    """With the same signals, and the memory carried on, the next tick takes no scale-up back."""
    first = run(*serving, settings=policy)
    assume(all(r.target.decided for r in first.values()))
    again = run(
        *(replace(s, desired=first[s.name].target.replicas, memory=first[s.name].memory) for s in serving),
        settings=policy,
    )
    for name, record in again.items():
        before = first[name]
        if before.target.action is Action.UP and not before.why.reason.startswith(("Above", "Below")):
            assert record.target.replicas >= before.target.replicas


@given(models(load=MAYBE), st.sampled_from(Mode))
def test_surge_is_never_written_up(serving, mode):
    """Without a shortage no more is asked for than the spec or an earlier decision, whatever status counts."""
    for s in serving:
        for record in run(s, settings=FleetSettings(actuation=mode, scale_down_delay=0)).values():
            spec = s.replicas if s.spec is None else s.spec
            assert record.now.current <= spec
            if record.target.decided and not (record.why.evidence and record.why.evidence.scale_up):
                assert record.target.replicas <= max(spec, s.desired or 0)


def test_limiter_input_is_the_whole_cluster():
    """Groups of different namespaces compete for the same GPUs; the more pressed one wins, in any order."""
    a = Serving("a", [(0.95, 0)] * 2, model="a", namespace="x", pod={"node": "n", "gpus": 1})
    b = Serving("b", [(0.75, 0)] * 2, model="b", namespace="y", pod={"node": "n", "gpus": 1})
    for order in ((a, b), (b, a)):
        fleet = make_fleet(*order, nodes=[gpu_node("n", 5)], config={"default": "enableLimiter: true"})
        found = records(decide(fleet, REPAIRED))
        assert (found["a"].target.replicas, found["b"].target.replicas) == (3, 2)
    assert Key("x", "a") < Key("y", "b")
