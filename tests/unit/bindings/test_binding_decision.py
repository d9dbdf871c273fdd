"""What one binding's decision says: skip rules, problems, optimizer, zero, status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from binding_decisions import decide_binding, decide_bindings
from policy_builders import FREE, METRIC, SETTINGS, WRITTEN, World, binding, each, policy, target

from modelyard.autoscaling.bindings.problems import conflicts
from modelyard.autoscaling.bindings.story import totals, units
from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import Action, BindingDecision
from modelyard.autoscaling.fleet.binding_view import BindingView, DirectionLimits, Panic
from modelyard.autoscaling.memory.bindings import POLICY_STATE, BindingMemory
from modelyard.autoscaling.plans.binding_plans import status_of
from modelyard.autoscaling.reading.bindings.gauges import gauges_of
from modelyard.objects import Key
from modelyard.reconcile.plans.memory import parse_memory, render_memory
from modelyard.reconcile.plans.status import patch

PUBLISHED = FleetSettings(compatibility=Compatibility.PUBLISHED)


def decide(view: BindingView, now: float = 1000.0, settings: FleetSettings = SETTINGS) -> BindingDecision:
    return decide_binding(view, settings, now)


def condition(decision: BindingDecision, type_: str) -> tuple[str, str, str]:
    found = next(c for c in decision.conditions if c.type == type_)
    return found.status, found.reason, found.message


def reasons(decision: BindingDecision) -> list[str]:
    return [notice.reason for notice in decision.notices]


def test_growth_is_written_and_explained() -> None:
    decision = decide(binding(target(current=2, instances=each(2, 30), ready=2)))
    record = decision.records[0]
    assert (record.target.replicas, record.writes.scale, record.target.action, record.target.decided) == (
        6,
        6,
        Action.UP,
        True,
    )
    assert record.why.reason == "MetricsAboveTarget"
    assert record.identity.form == "policy"
    assert "waiting 30 each over 2 instances, target 10: asks for 6" in record.why.message
    assert [step.stage for step in record.why.steps] == ["recommendation"]
    assert reasons(decision) == []
    assert condition(decision, "Ready")[:2] == ("True", "Reconciled")
    assert condition(decision, "TargetFound")[:2] == ("True", "TargetFound")
    assert condition(decision, "MetricsAvailable")[:2] == ("True", "MetricsFound")
    assert units(decision) == [{"name": "w", "currentReplicas": 2, "desiredReplicas": 6, "mode": "Stable"}]
    bounds = {"minReplicas": 1, "maxReplicas": 20}
    assert totals(decision) == {"targets": "w", "mode": "Stable", "currentReplicas": 2, "desiredReplicas": 6, **bounds}


def test_a_limit_says_how_far_and_until_when() -> None:
    decision = decide(binding(target(current=2, instances=each(2, 90))))
    record = decision.records[0]
    assert (record.target.replicas, record.why.reason) == (6, "MetricsAboveTarget")
    assert "at most the larger of 4 or 100 % more than 2 within 60 s" in record.why.message
    after = replace(binding(target(current=6, instances=each(6, 30))), memory=decision.memory)
    held = decide(after, 1015).records[0]
    assert (held.target.replicas, held.writes.scale, held.why.reason) == (6, None, "RateLimited")
    assert "more is possible after 00:17:40Z" in held.why.message


def test_a_stabilization_window_says_until_when() -> None:
    busy = decide(binding(target(current=5, instances=each(5, 10))))
    calm = decide(replace(binding(target(current=5, instances=each(5, 2))), memory=busy.memory), 1015)
    record = calm.records[0]
    assert (record.target.replicas, record.writes.scale, record.why.reason) == (5, None, "Stabilizing")
    assert "highest recommendation of the last 300 s is 5; 1 is possible after 00:21:40Z" in record.why.message


def test_no_metrics_no_change() -> None:
    seen = target(current=3, instances=({}, {}), scrape_errors=("pod a: timed out",))
    decision = decide(binding(seen))
    record = decision.records[0]
    assert (record.target.replicas, record.writes.scale, record.target.decided, record.why.reason) == (
        3,
        None,
        False,
        "MetricsUnavailable",
    )
    assert "pod a: timed out" in record.why.message
    assert condition(decision, "MetricsAvailable")[:2] == ("False", "MetricsUnavailable")
    assert condition(decision, "Ready")[0] == "True", "it may only take a second look"
    assert reasons(decision) == ["MetricsUnavailable"]
    assert decision.memory.recommended.newest is None


def test_a_binding_that_none_of_its_metrics_decide_is_not_ready_and_has_no_gauges() -> None:
    view = binding(target(current=3, instances=({}, {}), scrape_errors=("pod a: refused",)))
    first = decide(view)
    assert list(gauges_of(view.key, patch(status_of(first), {}, 1000.0))) != []
    second = decide(replace(view, conditions=first.conditions), 1015.0)
    status, why, message = condition(second, "Ready")
    assert (status, why) == ("False", "ReconcileFailed")
    assert "pod a: refused" in message
    assert list(gauges_of(view.key, patch(status_of(second), {}, 1015.0))) == []
    seen = replace(view, conditions=second.conditions, targets=(target(current=3, instances=each(3, 10)),))
    assert condition(decide(seen, 1030.0), "Ready")[0] == "True"
    raised = replace(view, conditions=second.conditions, targets=(replace(view.targets[0], minimum=5),))
    assert condition(decide(raised, 1030.0), "Ready")[0] == "True", "a bound decides without metrics"
    starting = replace(view, conditions=second.conditions, targets=(target(current=3, unready=3),))
    assert condition(decide(starting, 1030.0), "Ready")[0] == "True"


def test_starting_up_is_no_alarm() -> None:
    decision = decide(binding(target(current=2, unready=2)))
    assert condition(decision, "MetricsAvailable")[:2] == ("False", "NoReadyInstance")
    assert reasons(decision) == []


def test_partial_metrics_are_named() -> None:
    decision = decide(binding(target(current=2, instances=({METRIC: 10.0}, {}), scrape_errors=("pod b: 500",))))
    assert condition(decision, "MetricsAvailable")[:2] == ("True", "MetricsPartial")
    assert "waiting of 1 of 2 ready instances: pod b: 500" in condition(decision, "MetricsAvailable")[2]


@pytest.mark.parametrize(("current", "low", "high", "expected"), [(1, 3, 9, 3), (12, 3, 9, 9)])
def test_bounds_need_no_metrics_and_no_patience(current: int, low: int, high: int, expected: int) -> None:
    decision = decide(binding(target(current=current, low=low, high=high)))
    assert decision.records[0].writes.scale == expected
    assert decision.records[0].why.reason == ("BelowMinimum" if expected == low else "AboveMaximum")


def test_at_the_maximum() -> None:
    record = decide(binding(target(current=4, high=4, instances=each(4, 90)))).records[0]
    assert (record.target.replicas, record.writes.scale, record.why.reason) == (4, None, "AtMaximum")


def test_signal_mode_and_annotations() -> None:
    view = binding(target(current=2, instances=each(2, 30)), annotations={"modelyard.dev/actuation": "signal"})
    decision = decide(view)
    assert (decision.records[0].writes.mode, decision.records[0].target.replicas, decision.records[0].writes.scale) == (
        Mode.SIGNAL,
        6,
        None,
    )
    assert reasons(decision) == []
    broken = decide(replace(view, annotations={"modelyard.dev/actuation": "loud", "modelyard.dev/compatibility": "x"}))
    assert broken.records[0].writes.scale == 6
    assert reasons(broken) == ["InvalidConfiguration", "InvalidConfiguration"]
    assert "modelyard.dev/actuation" in broken.notices[0].message


@pytest.mark.parametrize(("mode", "expected"), [("signal", 6), ("direct", 2)])
def test_without_metrics_a_signal_stays_as_it_was(mode: str, expected: int) -> None:
    status = {"units": [{"name": "w", "desiredReplicas": 6}]}
    blind = binding(target(current=2, instances=({},)), status=status, annotations={"modelyard.dev/actuation": mode})
    assert (decide(blind).records[0].target.replicas, decide(blind).records[0].writes.scale) == (expected, None)


def test_published_by_annotation() -> None:
    view = binding(target(current=5, instances=each(5, 2)), annotations={"modelyard.dev/compatibility": "published"})
    assert decide(view).records[0].why.reason == "OnTarget"


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"policy": None}, "PolicyNotFound", "AutoscalingPolicy ns/pol does not exist"),
        ({"problem": "both are given"}, "InvalidConfiguration", "both are given"),
        ({"problem": "taken", "problem_reason": "TargetClaimed"}, "TargetClaimed", "taken"),
        ({"targets": ()}, "InvalidConfiguration", "neither"),
        ({"targets": (target("a"), target("b"))}, "InvalidConfiguration", "takes one target"),
        ({"targets": (target(low=5, high=4),)}, "InvalidConfiguration", "minReplicas: 5 is above maxReplicas 4"),
        ({"targets": (target(name=""),)}, "InvalidConfiguration", "targetRef.name: is empty"),
        (
            {"optimizer": True, "targets": (target("a"), target("a"))},
            "InvalidConfiguration",
            r"params[1].target.targetRef: Deployment ns/a is given twice",
        ),
        ({"policy": policy(targets={METRIC: float("nan")})}, "InvalidConfiguration", "targetValue of waiting is nan"),
    ],
)
def test_problems_keep_everything(changes: dict[str, Any], reason: str, text: str) -> None:
    decision = decide(replace(binding(target(current=2, instances=each(2, 30))), **changes))
    assert all(
        record.writes.scale is None and not record.target.decided and not record.writes.publish
        for record in decision.records
    )
    assert [notice.reason for notice in decision.notices] == [reason]
    status, why, message = condition(decision, "Ready")
    assert (status, why) == ("False", "ReconcileFailed")
    assert text in message


def test_a_binding_that_is_being_deleted_does_nothing() -> None:
    decision = decide(binding(target(current=2, instances=each(2, 30)), deleting=True))
    assert decision.records[0].writes.scale is None
    assert reasons(decision) == []


def test_a_missing_workload() -> None:
    decision = decide(binding(target(current=None, problem="not found")))
    assert decision.records[0].target.replicas is None
    assert not decision.records[0].writes.publish
    assert condition(decision, "TargetFound")[:2] == ("False", "TargetInvalid")
    assert condition(decision, "Ready")[:2] == ("False", "ReconcileFailed")
    assert reasons(decision) == ["TargetInvalid"]


def test_the_older_of_two_bindings_scales() -> None:
    old = binding(target("a"), key=Key("ns", "z"), created=1)
    both = binding(target("a"), target("b"), key=Key("ns", "y"), created=2, optimizer=True)
    young = binding(target("b", current=2, instances=each(2, 30)), key=Key("ns", "x"), created=3)
    found = conflicts([young, both, old])
    assert list(found) == [both.key]
    assert "older AutoscalingPolicyBinding ns/z" in found[both.key]
    decisions, errors = decide_bindings([young, both, old], SETTINGS, 1000)
    assert errors == ()
    assert [decision.records[0].writes.scale for decision in decisions] == [6, None, None]
    assert reasons(decisions[1]) == ["TargetConflict"]
    assert conflicts([young, both, replace(old, deleting=True)]) != found


def test_one_failure_stops_no_other() -> None:
    broken = binding(target(current=2, instances=each(2, 30), cost="x"), target("b"), optimizer=True)
    good = binding(target("g", current=2, instances=each(2, 30)), key=Key("ns", "good"))
    decisions, errors = decide_bindings([broken, good], SETTINGS, 1000)
    assert [decision.key.name for decision in decisions] == ["good"]
    assert "AutoscalingPolicyBinding ns/b: deciding failed" in errors[0]


def pair(a: int | None, h: int | None, load: float, **rest: Any) -> BindingView:
    running = (a or 0) + (h or 0)
    share = load / running if running else 0.0
    return binding(
        target("A100", a, 1, 8, cost=60.0, instances=each(a or 0, share), demand=load),
        target("H100", h, 0, 4, cost=100.0, instances=each(h or 0, share), demand=load),
        policy_view=policy(rest.pop("behaviour", FREE)),
        optimizer=True,
        **rest,
    )


@pytest.mark.parametrize(("total", "a100", "h100"), [(1, 1, 0), (4, 2, 2), (6, 4, 2), (9, 5, 4), (20, 8, 4)])
def test_optimizer_shares_the_total_out(total: int, a100: int, h100: int) -> None:
    decision = decide(pair(3, 0, total * 10))
    assert [record.target.replicas for record in decision.records] == [a100, h100]
    assert totals(decision)["desiredReplicas"] == a100 + h100
    bounds = [(target.minimum, target.maximum) for target in pair(3, 0, total * 10).targets]
    shown = totals(decision)["minReplicas"], totals(decision)["maxReplicas"]
    assert shown == tuple(map(sum, zip(*bounds, strict=True))), "those of all targets together"
    assert decision.records[1].identity.form == "optimizer"
    assert decision.records[1].why.steps[-1].stage == "share"


def test_optimizer_without_instances_of_a_target() -> None:
    low = pair(3, 0, 5)
    assert [record.target.replicas for record in decide(low).records] == [1, 0]
    assert [record.target.replicas for record in decide(low, settings=PUBLISHED).records] == [2, 0]


def test_optimizer_with_a_missing_target_never_shrinks_the_others() -> None:
    view = pair(4, 2, 60)
    first = decide(view)
    assert [record.target.replicas for record in first.records] == [4, 2]
    gone = replace(pair(4, None, 5), memory=first.memory)
    second = decide(gone, 1015)
    assert [record.writes.scale for record in second.records] == [None, None]
    assert condition(second, "TargetFound")[0] == "False"
    assert condition(second, "Ready")[0] == "True"
    grown = decide(replace(pair(4, None, 70), memory=second.memory), 1030)
    assert grown.records[0].writes.scale == 7
    assert "total 6 → 9" in grown.records[0].why.message
    back = decide(replace(pair(7, 2, 90), memory=grown.memory), 1045)
    assert [record.target.replicas for record in back.records] == [5, 4]


def test_exact_optimizer_weighs_capacity() -> None:
    annotations = {"modelyard.dev/optimizer": "exact", "modelyard.dev/capacity": "A100=1, H100=3"}
    view = binding(
        target("A100", 9, 0, 20, cost=60.0, instances=each(9, 10), demand=9.0),
        target("H100", 0, 0, 20, cost=100.0, demand=9.0),
        policy_view=policy(FREE),
        optimizer=True,
        annotations=annotations,
    )
    decision = decide(view)
    # Nine A100 carry the load; the last one goes only once it is idle, and carries its part until then.
    assert [record.target.replicas for record in decision.records] == [3, 2]
    settled = replace(
        view,
        targets=(
            replace(view.targets[0], current=0, instances=()),
            target("H100", 3, 0, 20, cost=100.0, instances=each(3, 30), demand=9.0),
        ),
    )
    assert [record.writes.scale for record in decide(settled).records] == [None, None]
    more = replace(settled, targets=(settled.targets[0], replace(settled.targets[1], instances=each(3, 40))))
    assert [record.target.replicas for record in decide(more).records] == [0, 4]


def test_a_last_instance_that_stays_is_part_of_the_total() -> None:
    """Beside it, an unchanged load would ask for one instance more in every tick."""
    view, seen = pair(3, 1, 40), []
    targets = tuple(replace(t, minimum=0, demand=5.0) for t in view.targets)
    view = replace(view, targets=targets, expansion_percent=100)  # the cheapest takes everything
    for tick in range(6):
        decision = decide(view, 1000 + 15 * tick)
        seen.append([record.target.replicas for record in decision.records])
        moved = zip(view.targets, decision.records, strict=True)
        targets = tuple(
            replace(
                t, current=r.target.replicas, ready=r.target.replicas, instances=each(r.target.replicas or 0, 40 / 4)
            )
            for t, r in moved
        )
        view = replace(view, targets=targets, memory=decision.memory)
    assert seen == [[3, 1]] * 6


def test_broken_optimizer_annotations_are_told() -> None:
    view = pair(1, 0, 10, annotations={"modelyard.dev/optimizer": "best", "modelyard.dev/capacity": "A100=0,X=2,y"})
    decision = decide(view)
    assert reasons(decision) == ["InvalidConfiguration"] * 4
    assert [record.target.replicas for record in decision.records] == [1, 0]


def idle(current: int, now: float, memory: BindingMemory, demand: float | None = 0.0, **rest: Any) -> BindingDecision:
    seen = target(current=current, low=0, instances=each(current, 0.0), demand=demand)
    view = replace(binding(seen, policy_view=policy(FREE), grace=30.0), memory=memory, **rest)
    return decide(view, now)


def test_the_last_instance_goes_after_true_idleness() -> None:
    first = idle(3, 0, BindingMemory())
    assert (first.records[0].writes.scale, first.records[0].why.reason) == (1, "WaitingForIdle")
    second = idle(1, 15, first.memory)
    assert second.records[0].writes.scale is None
    assert "until 00:00:30Z: idle since 00:00:00Z" in second.records[0].why.message
    assert idle(1, 30, second.memory).records[0].writes.scale == 0


@pytest.mark.parametrize("demand", [2.0, None], ids=["a request", "not known"])
def test_a_break_starts_the_grace_again(demand: float | None) -> None:
    first = idle(1, 0, BindingMemory())
    broken = idle(1, 15, first.memory, demand)
    assert broken.records[0].writes.scale is None
    again = idle(1, 30, broken.memory)
    assert again.records[0].writes.scale is None
    assert idle(1, 45, again.memory).records[0].writes.scale is None
    assert idle(1, 60, again.memory).records[0].writes.scale == 0


def test_a_missing_metric_is_never_zero() -> None:
    seen = target(current=1, low=0, instances=({},), demand=0.0)
    view = binding(seen, policy_view=policy(FREE), grace=0.0)
    assert decide(view).records[0].writes.scale is None


def test_published_goes_to_zero_at_once_and_never_comes_back() -> None:
    annotations = {"modelyard.dev/compatibility": "published"}
    assert idle(1, 0, BindingMemory(), None, annotations=annotations).records[0].writes.scale == 0
    assert idle(0, 0, BindingMemory(), 5.0, annotations=annotations).records[0].writes.scale is None


SLOW = replace(WRITTEN, up=DirectionLimits(1, 0, 600, "And", 600))


@pytest.mark.parametrize(("low", "expected"), [(0, 1), (2, 2)])
def test_pending_demand_wakes_past_all_limits(low: int, expected: int) -> None:
    view = binding(target(current=0, low=low, demand=3.0), policy_view=policy(SLOW))
    record = decide(view).records[0]
    assert (record.writes.scale, record.why.reason) == (expected, "WokenByDemand")


def test_an_external_total_wakes() -> None:
    view = binding(target(current=0, low=0, external={METRIC: 25.0}), policy_view=policy(SLOW))
    record = decide(view).records[0]
    assert (record.writes.scale, record.why.reason) == (1, "WokenByDemand")
    quiet = decide(binding(target(current=0, low=0, external={METRIC: 0.0}), policy_view=policy(SLOW)))
    assert quiet.records[0].writes.scale is None


@pytest.mark.parametrize("demand", [None, 0.0])
def test_at_zero_nothing_happens_and_the_way_out_is_told(demand: float | None) -> None:
    decision = decide(binding(target(current=0, low=0, demand=demand)))
    record = decision.records[0]
    assert (record.target.replicas, record.writes.scale, record.why.reason) == (0, None, "AtZero")
    assert ("modelyard.dev/wake-query" in record.why.message) == (demand is None)
    assert reasons(decision) == []


def test_optimizer_keeps_each_last_instance_until_it_is_idle() -> None:
    view = pair(3, 1, 10, grace=30.0)
    busy = decide(view, 0)
    assert [record.target.replicas for record in busy.records] == [1, 1]
    assert busy.records[1].why.reason == "WaitingForIdle"
    calm = replace(view, targets=(view.targets[0], replace(view.targets[1], demand=0.0)))
    first = decide(replace(calm, memory=busy.memory), 15)
    assert first.records[1].target.replicas == 1
    assert decide(replace(calm, memory=first.memory), 45).records[1].target.replicas == 0


def test_optimizer_wakes_the_cheapest() -> None:
    view = pair(0, 0, 7)
    view = replace(view, targets=(replace(view.targets[0], minimum=0), view.targets[1]))
    assert [record.target.replicas for record in decide(view).records] == [1, 0]


def test_last_scale_time_moves_only_when_the_change_is_seen() -> None:
    asked = decide(binding(target(current=2, instances=each(2, 30))), 1000)
    assert "lastScaleTime" not in units(asked)[0]
    refused = decide(replace(binding(target(current=2, instances=each(2, 30))), memory=asked.memory), 1015)
    assert "lastScaleTime" not in units(refused)[0]
    arrived = decide(replace(binding(target(current=6, instances=each(6, 10))), memory=refused.memory), 1030)
    assert units(arrived)[0]["lastScaleTime"] == 1000
    later = decide(replace(binding(target(current=6, instances=each(6, 10))), memory=arrived.memory), 1045)
    assert later.memory is arrived.memory


def test_windows_start_afresh_with_another_workload_and_not_with_another_policy() -> None:
    first = decide(binding(target("a", current=9, instances=each(9, 10))), 0)
    other = replace(binding(target("b", current=9, instances=each(9, 1))), memory=first.memory)
    assert decide(other, 15).memory.recommended.past == ((15.0, 9),)
    longer = replace(WRITTEN, down=DirectionLimits(0, 100, 60, "Or", 900))
    same = replace(binding(target("a", current=9, instances=each(9, 1)), policy_view=policy(longer)))
    held = decide(replace(same, memory=first.memory), 600)
    assert held.records[0].why.reason == "Stabilizing"


def test_what_was_desired_before_comes_from_the_status() -> None:
    status = {"units": [{"name": "w", "desiredReplicas": 4}, "junk"]}
    assert decide(binding(target(current=2, instances=each(2, 30)), status=status)).records[0].now.desired == 4


def test_unreadable_memory_is_told() -> None:
    memory, problem = parse_memory(BindingMemory, POLICY_STATE, '{"recommended": {"newest": ["x", 3]}}')
    assert memory == BindingMemory()
    assert problem is not None
    assert "recommended.newest" in problem
    assert "StateUnreadable" in reasons(decide(binding(target(), memory_problem=problem)))
    assert parse_memory(BindingMemory, POLICY_STATE, None) == (BindingMemory(), None)
    assert render_memory(BindingMemory()) is None


def test_a_clock_set_back_blocks_nothing_for_long() -> None:
    ahead = decide(binding(target(current=9, instances=each(9, 10))), 1e9).memory
    world = World(WRITTEN, 9)
    world.memory = ahead
    assert world.run(lambda _: 1, 400) == {315: 1}


def test_panic_is_told_and_outlasts_missing_metrics() -> None:
    hectic = replace(WRITTEN, panic=Panic(1000, 0, 200, 60))
    seen = target(current=2, instances=each(2, 30))
    first = decide(binding(seen, policy_view=policy(hectic)))
    assert (first.panic, first.records[0].writes.scale) == (True, 6)
    assert "panic" in [step.stage for step in first.records[0].why.steps]
    blind = decide(
        replace(binding(target(current=6, instances=({},)), policy_view=policy(hectic)), memory=first.memory), 1015
    )
    assert blind.panic
    calm = binding(target(current=6, instances=each(6, 1)), policy_view=policy(hectic))
    held = decide(replace(calm, memory=blind.memory), 1030).records[0]
    assert (held.writes.scale, held.why.reason) == (None, "Panicking")
    assert "panic until 00:17:40Z: no scale-down" in held.why.message


def test_the_story_of_several_targets_speaks_of_none_of_them_alone() -> None:
    cheap = target("cheap", 1, high=3, cost=1, instances=each(1, 30.0))
    dear = target("dear", 1, high=5, cost=9, instances=each(1, 30.0))
    decision = decide_binding(binding(cheap, dear, optimizer=True), SETTINGS, 0.0)
    assert decision.message.startswith("cheap 1 → 3, dear 1 → 3: waiting 30 each over 2 instances")
    assert decision.message.endswith("total 2 → 6")
    assert [record.why.message.rpartition(", ")[2] for record in decision.records] == ["of which 3 here"] * 2
