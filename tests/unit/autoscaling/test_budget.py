"""What one namespace may ask of a decision: its share, and who waits for the next one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from binding_decisions import decide_bindings
from builders import Serving, condition, records, run
from hypothesis import given, strategies as st
from policy_builders import SETTINGS, binding, each, target
from slo_builders import SLO, P, carry_on, slo_fleet

from modelyard.autoscaling.bindings.shares import OPTIMIZER, Candidate, blocks, most_blocks
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.budget import BEYOND
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.select import MOST_TOGETHER
from modelyard.objects import Key

NOTHING = FleetSettings(headroom=False)


def dear(count: int) -> list[SLO]:
    """Variants of a tenant, each with an engine of its own that works on as much as can be said at a time."""
    return [
        SLO(f"dear-{i:02}", 2, (7.5 + i / 1000, *P[1:]), batch=65_536, model=f"m{i}", serving={"namespace": "theirs"})
        for i in range(count)
    ]


def test_dear_profiles_have_their_share_and_keep_nobody_waiting() -> None:
    classes = {"premium.yaml": "name: P\ndata:\n- {model: default/default, slo-tpot: 30, slo-ttft: 500}\n"}
    mine = SLO("mine", 2)
    alone = decide(slo_fleet(mine, classes=classes), NOTHING)
    fleet = slo_fleet(mine, *dear(50), classes=classes)
    had: Counter[str] = Counter()
    for _ in range(4):
        decision = decide(fleet, NOTHING)
        found = records(decision)
        assert not decision.errors
        waiting = [name for name, one in found.items() if one.why.reason == BEYOND]
        assert waiting
        for name in waiting:
            one = found[name]
            assert (one.target.replicas, one.target.decided, one.writes.scale) == (2, False, None)
            assert condition(one, "OptimizationReady") == ("False", BEYOND)
        had.update(found.keys() - set(waiting))
        fleet = carry_on(fleet, found, 15)
    (expected,) = records(alone).values()
    assert found["mine"].target == expected.target
    assert set(had.values()) <= {1, 2, 4}
    assert len(had) == 51, "after four ticks everyone has had a turn"


@pytest.mark.parametrize("count", [MOST_TOGETHER, MOST_TOGETHER + 1])
def test_a_model_with_variants_without_end_is_not_decided_on(count: int) -> None:
    found = run(*(Serving(f"v{i:03}", [(0.95, 9.0)]) for i in range(count)), Serving("mine", [(0.95, 9.0)], model="m"))
    told = {one.why.reason == BEYOND for name, one in found.items() if name != "mine"}
    assert told == {count > MOST_TOGETHER}
    assert found["mine"].target.replicas == 2


def test_bindings_have_their_share_too() -> None:
    targets = [target(f"w{i}", 1, 0, 10**6, cost=1 + i, instances=each(1, 30), ready=1) for i in range(32)]
    many = [
        binding(
            *(replace(one, workload=one.workload._replace(name=f"{one.name}-{number}")) for one in targets),
            optimizer=True,
            key=Key("theirs", f"b{number:02}"),
            expansion_percent=200,
            annotations={} if number % 2 else {OPTIMIZER: "exact"},
        )
        for number in range(12)
    ]
    mine = binding(target(current=2, instances=each(2, 30), ready=2))
    (alone,), _ = decide_bindings([mine], SETTINGS, 1000.0)
    turns = []
    for tick in range(2):
        decisions, errors = decide_bindings([*many, mine], SETTINGS, 1000.0 + tick)
        assert not errors
        assert decisions[-1].records[0].target == alone.records[0].target
        waiting = {one.key for one in decisions if one.records[0].why.reason == BEYOND}
        turns.append({view.key for view in many} - waiting)
        for one in decisions[:-1]:
            ready = next(c for c in one.conditions if c.type == "Ready")
            assert ((ready.status, ready.reason) == ("False", BEYOND)) is (one.key in waiting)
            assert one.key not in waiting or all(record.writes.scale is None for record in one.records)
        many = [replace(view, conditions=one.conditions) for view, one in zip(many, decisions[:-1], strict=True)]
    assert turns[0]
    assert turns[1]
    assert not turns[0] & turns[1], "who waited comes first"


@given(st.integers(0, 10**6), st.integers(100, 1000))
def test_blocks_are_not_more_than_counted(instances: int, expansion: int) -> None:
    assert len(blocks([Candidate("w", 1, 0, instances)], expansion)) <= most_blocks(instances, expansion)
