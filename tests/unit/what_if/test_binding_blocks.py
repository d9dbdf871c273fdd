"""What holds back the next change of a binding, and until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from binding_decisions import decide_binding
from policy_builders import FREE, NO_PANIC, SETTINGS, WRITTEN, binding, each, policy, target

from modelyard.autoscaling.bindings.explain import binding_lines, blocks
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.fleet.binding_view import Behaviour, BindingView, DirectionLimits, Panic

NOW = 1000.0
LATE = Behaviour(DirectionLimits(4, 100, 60, "Or", 120), WRITTEN.down, NO_PANIC)
PANIC = Behaviour(WRITTEN.up, WRITTEN.down, Panic(100, 60, 150, 90))


def decided(view: BindingView, now: float = NOW) -> tuple[BindingDecision, BindingView]:
    found = decide_binding(view, SETTINGS, now)
    return found, replace(view, memory=found.memory)


def held(found: BindingDecision, view: BindingView, now: float = NOW) -> list[tuple[str, str, float | None]]:
    return [(block.code, block.direction, block.until) for block in blocks(found, view, SETTINGS, now)]


@pytest.mark.parametrize(
    ("behaviour", "current", "each_has", "expected"),
    [
        (WRITTEN, 2, 10.0, []),  # on target
        (FREE, 2, 30.0, []),  # nothing limits
        (WRITTEN, 2, 100.0, [("RateLimited", "up", 1060.0)]),
        (WRITTEN, 4, 4.0, [("Stabilizing", "down", 1300.0)]),
        (LATE, 2, 30.0, [("Stabilizing", "up", 1120.0)]),
        (PANIC, 2, 100.0, [("RateLimited", "up", 1060.0)]),
    ],
)
def test_what_blocks(
    behaviour: Behaviour, current: int, each_has: float, expected: list[tuple[str, str, float | None]]
) -> None:
    seen = target("w", current, high=50, instances=each(current, each_has))
    found, view = decided(binding(seen, policy_view=policy(behaviour)))
    assert held(found, view) == expected


@pytest.mark.parametrize(("behaviour", "each_has"), [(WRITTEN, 100.0), (WRITTEN, 4.0), (LATE, 30.0), (PANIC, 100.0)])
def test_the_change_comes_with_the_first_tick_after_that_time(behaviour: Behaviour, each_has: float) -> None:
    """Told times are kept: nothing changes before, something does after, the metrics being held."""
    first = binding(target("w", 4, high=50, instances=each(4, each_has)), policy_view=policy(behaviour))
    found, view = decided(first)
    (block,) = blocks(found, view, SETTINGS, NOW)
    assert block.until is not None
    replicas = found.records[0].target.replicas
    assert replicas is not None
    # The instances are there at once and the load is as heavy as before on each.
    view = replace(view, targets=(target("w", replicas, high=50, instances=each(replicas, each_has)),))
    now = NOW + SETTINGS.tick
    while now <= block.until:
        found, view = decided(view, now)
        assert found.records[0].target.replicas == replicas, now
        now += SETTINGS.tick
    found, _ = decided(view, now)
    assert found.records[0].target.replicas != replicas


def test_panic_holds_scale_down_back() -> None:
    view = binding(target("w", 4, high=50, instances=each(4, 30.0)), policy_view=policy(PANIC))
    found, view = decided(view)
    replicas = found.records[0].target.replicas or 0
    calm = replace(view, targets=(target("w", replicas, high=50, instances=each(replicas, 1.0)),))
    found, view = decided(calm, NOW + 15)
    assert ("Panicking", "down", NOW + 90) in held(found, view, NOW + 15)
    assert found.panic


@pytest.mark.parametrize(
    ("low", "high", "each_has", "expected"), [(1, 4, 30.0, ("AtMaximum", "up")), (4, 9, 1.0, ("AtMinimum", "down"))]
)
def test_at_a_bound_no_time_helps(low: int, high: int, each_has: float, expected: tuple[str, str]) -> None:
    seen = target("w", 4, low, high, instances=each(4, each_has))
    found, view = decided(binding(seen, policy_view=policy(FREE)))
    assert held(found, view) == [(*expected, None)]
    assert any("for as long as the binding stays as it is" in x for x in binding_lines(found, view, SETTINGS, NOW))


def test_the_last_instance_waits_for_its_grace() -> None:
    seen = target("w", 1, 0, instances=each(1, 0.0), demand=0.0)
    found, view = decided(binding(seen, policy_view=policy(FREE), grace=45.0))
    assert held(found, view) == [("WaitingForIdle", "down", NOW + 45)]


@pytest.mark.parametrize("problem", [{"problem": "broken"}, {"deleting": True}])
def test_what_is_not_decided_is_not_blocked(problem: dict[str, Any]) -> None:
    found, view = decided(binding(target("w", 2, instances=each(2, 50.0)), **problem))
    assert held(found, view) == []
    assert not any("next change" in line for line in binding_lines(found, view, SETTINGS, NOW))


def test_lines_tell_mode_blocks_conditions_and_notices() -> None:
    seen = target("w", 2, high=50, instances=each(2, 100.0))
    view = binding(seen, target("x", None, problem="gone"), optimizer=True)
    found, view = decided(view)
    lines = binding_lines(found, view, SETTINGS, NOW)
    assert lines[0].startswith("mode Stable; policy ns/pol: ")
    assert any("next scale-up is held back until 00:17:40Z (RateLimited): rate limit: 4 instances" in x for x in lines)
    assert any(line.startswith("condition TargetFound=False (TargetInvalid)") for line in lines)
    assert any(line.startswith("Warning TargetInvalid") for line in lines)
