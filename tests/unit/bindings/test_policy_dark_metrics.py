"""What is not known takes nothing away: metrics in the dark, pods that are all down, clocks that go back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binding_decisions import decide_binding
from policy_builders import FREE, METRIC, SETTINGS, World, binding, each, policy, target

from modelyard.autoscaling.bindings.recommend import recommend
from modelyard.autoscaling.fleet.binding_view import Behaviour, BindingView, DirectionLimits, Panic
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.objects import Key, WorkloadId

TWO = {METRIC: 10.0, "latency": 100.0}


@pytest.mark.parametrize(
    ("load", "unknown", "expected"),
    [
        (2.0, {"latency"}, None),
        (10.0, {"latency"}, None),
        (25.0, {"latency"}, 10),
        (2.0, set(), 1),
        (2.0, {METRIC}, 1),
    ],
    ids=["down", "stay", "up", "a metric nobody has is no metric", "known all the same"],
)
def test_what_another_metric_would_say_takes_nothing_away(load: float, unknown: set[str], expected: int | None) -> None:
    found = recommend(4, 1, 20, 0.1, TWO, each(4, load), unknown=unknown)
    assert found.replicas == expected
    assert (found.why.code == "MetricsIncomplete") is (expected is None)
    documented = recommend(4, 1, 20, 0.1, TWO, each(4, load), unknown=unknown, doubts=False)
    assert documented.replicas == {2.0: 1, 10.0: 4, 25.0: 10}[load]


def test_bounds_hold_in_the_dark() -> None:
    assert recommend(9, 1, 5, 0.1, TWO, each(9, 2.0), unknown={"latency"}).replicas == 5
    assert recommend(1, 3, 5, 0.1, TWO, each(1, 2.0), unknown={"latency"}).replicas == 3


def test_a_tick_in_the_dark_leaves_no_trace_in_the_windows() -> None:
    """Else a process that starts anew every five minutes would never let a window of five minutes end."""
    slow = Behaviour(DirectionLimits(4, 100, 60, "Or", 300), FREE.down, FREE.panic)
    both = policy(slow, TWO)
    view = binding(policy_view=both)
    memory, decided = BindingMemory(), []
    for number in range(22):
        dark = number % 20 == 0 and number > 0
        values = {METRIC: 5.0} if dark else {METRIC: 5.0, "latency": 250.0}
        seen = target("w", 2, instances=(values,) * 2, unknown=frozenset({"latency"} if dark else ()))
        decision = decide_binding(replace(view, targets=(seen,), memory=memory), SETTINGS, 15.0 * number)
        memory = decision.memory
        decided.append(decision.records[0].target.replicas)
    assert decided == [2] * 21 + [5]
    dark_record = decide_binding(
        replace(view, targets=(target("w", 2, instances=each(2, 5.0), unknown=frozenset({"latency"})),)), SETTINGS, 0
    ).records[0]
    assert dark_record.why.reason == "MetricsIncomplete"
    assert "latency cannot be measured now" in dark_record.why.message


@pytest.mark.parametrize("low", [0, 1])
def test_with_all_pods_down_nothing_is_taken_away(low: int) -> None:
    """The gateway's queue is empty because nobody gets through, not because nobody comes."""
    down = target("w", 5, low, unready=5, ready=0, external={METRIC: 0.0}, demand=0.0)
    view = binding(down, policy_view=policy(FREE))
    memory = BindingMemory()
    for now in range(0, 3600, 15):
        decision = decide_binding(replace(view, memory=memory), SETTINGS, float(now))
        memory = decision.memory
        assert decision.records[0].writes.scale is None
    assert decision.records[0].why.reason == "NoReadyInstance"
    more = replace(down, external={METRIC: 80.0})
    assert decide_binding(replace(view, targets=(more,), memory=memory), SETTINGS, 3600.0).records[0].writes.scale == 8


def test_a_woken_instance_is_not_given_up_before_it_was_ever_ready() -> None:
    """Requests that waited for it have timed out long before a large model is loaded."""
    memory, current = BindingMemory(), 0
    view = binding(policy_view=policy(FREE))
    for now in range(0, 900, 15):
        pending = 3.0 if now < 60 else 0.0
        ready = now >= 600
        seen = target(
            "w",
            current,
            0,
            unready=0 if ready else current,
            instances=each(current, 0.0) if ready else (),
            external={"other": 0.0},
            demand=pending if ready or pending or not current else None,
        )
        decision = decide_binding(replace(view, targets=(seen,), memory=memory), SETTINGS, float(now))
        memory = decision.memory
        current = decision.records[0].target.replicas or 0
        assert current == (1 if now < 630 else 0), now


def test_the_last_instance_that_was_held_is_what_the_limits_count_from() -> None:
    narrow = Behaviour(DirectionLimits(2, 100, 60, "And", 0), FREE.down, FREE.panic)
    world = World(narrow, 1, low=0)
    view = binding(policy_view=policy(narrow))
    held = target("w", 1, 0, instances=each(1, 0.0), demand=None)
    decision = decide_binding(replace(view, targets=(held,)), SETTINGS, 0.0)
    assert decision.records[0].target.replicas == 1
    assert decision.memory.corrected.newest == (0.0, 1)
    world.memory = decision.memory
    assert world.tick(15.0, 6) == 2


PANIC = Behaviour(DirectionLimits(1, 0, 60, "Or", 0), FREE.down, Panic(100, 30, 200, 60))


def test_a_clock_set_back_does_not_prolong_a_panic() -> None:
    world = World(PANIC, 2)
    world.tick(36_000.0, 8)
    assert world.last is not None
    assert world.last.panic
    assert world.tick(0.0, 3) >= 4
    assert world.memory.panic_until == 60.0
    assert world.tick(75.0, 3) == 3
    assert not world.last.panic


def test_a_hold_that_was_shortened_ends_sooner() -> None:
    world = World(replace(PANIC, panic=Panic(100, 30, 200, 1800)), 2)
    world.tick(0.0, 8)
    world.policy = policy(PANIC, tolerance=0)
    world.tick(15.0, 3)
    assert world.tick(90.0, 3) == 3


def test_a_reference_that_cannot_be_resolved_for_a_moment_forgets_nothing() -> None:
    """A kind that stands for any workload is known by another name while the workload is not to be found."""
    real = target("w", 6, instances=each(6, 10.0))
    lost = replace(
        real, workload=WorkloadId("ns", "", "ModelInfer", "w"), current=None, instances=(), problem="not found"
    )
    memory = BindingMemory()
    decisions = []
    for number, seen in enumerate((real, lost, replace(real, instances=each(6, 1.0)))):
        view: BindingView = replace(binding(seen), memory=memory)
        decisions.append(decide_binding(view, SETTINGS, 15.0 * number))
        memory = decisions[-1].memory
    assert [decision.records[0].target.replicas for decision in decisions] == [6, None, 6]
    assert decisions[-1].records[0].why.reason == "Stabilizing"
    assert decisions[1].memory.recommended == decisions[0].memory.recommended
    assert decisions[-1].memory.subject == f"Deployment {Key('ns', 'w')}"
