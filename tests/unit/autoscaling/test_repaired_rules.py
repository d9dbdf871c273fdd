"""The repaired analysis and targets: each documented defect, and what happens instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import (
    EAGER,
    MODEL,
    NOW,
    PUBLISHED,
    REPAIRED,
    Serving,
    condition,
    hpa,
    make_fleet,
    one,
    records,
    run,
)
from decisions import told

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.targets import grow_limit, hpa_step
from modelyard.objects import Key, OwnerRef, Pod

SHORT = [(0.75, 0)] * 2
IDLE = [(0.10, 0)] * 4
SIGNAL = FleetSettings(actuation=Mode.SIGNAL, scale_down_delay=0, scale_down_margin=0, scale_down_elasticity=1)


class TestSaturatedLoad:
    DROWNING = ((0.95, 9), (0.95, 9), (0.95, 9), (0.10, 1), (0.10, 1))

    def test_published_loses_a_replica_while_three_drown(self):
        assert one(Serving(load=self.DROWNING), settings=PUBLISHED).target.replicas == 4

    def test_repaired_grows(self):
        record = one(Serving(load=self.DROWNING), settings=EAGER)
        assert record.target.action is Action.UP
        assert record.why.evidence.saturated == 3
        # 29 waiting requests at 2 per replica need 15; a variant at most doubles.
        assert record.target.replicas == 10
        assert "need 15" in record.why.message

    def test_one_saturated_replica_whose_load_fits_elsewhere_does_not_block_shrinking(self):
        record = one(Serving(load=[(0.85, 0), *[(0.05, 0)] * 5]), settings=EAGER)
        assert record.target.action is Action.DOWN

    def test_empty_cache_of_a_saturated_replica_is_not_spare(self):
        """One replica is full by its queue: the 0.70 of KV cache it has left helps nobody."""
        load = [(0.1, 5), *[(0.72, 0)] * 9]
        record = one(Serving(load=load), settings=EAGER)
        assert record.why.evidence.spare_kv == pytest.approx(0.072)
        assert (record.target.action, record.why.reason) == (Action.UP, "KvCacheSpareLow")


class TestMissingSignals:
    def test_missing_kv_is_not_idle(self):
        load = [(0.75, 0), (0.75, 0), (None, 0)]
        assert one(Serving(load=load), settings=PUBLISHED).target.action is Action.NONE
        assert one(Serving(load=load), settings=EAGER).target.action is Action.UP

    def test_missing_signal_refuses_to_shrink(self):
        record = one(Serving(load=[*IDLE, (0.1, None)]), settings=EAGER)
        assert record.target.action is Action.NONE
        assert "1 with a signal missing" in record.why.message

    def test_pod_without_any_signal_does_not_report(self):
        record = one(Serving(load=[(0.5, 1), (0.5, 1), (None, None)]), settings=EAGER)
        assert record.now.reporting == 2


LATE = VariantMemory(transition_since=NOW - 4000)


@pytest.mark.parametrize("config", [None, {"default": "analyzerName: saturation"}], ids=["percentages", "tokens"])
class TestReportsWithoutBeingReady:
    """A pod may report before it is ready, or when it no longer is: it is starting, and nothing besides."""

    SILENT = (None, None)

    def test_it_is_starting_and_not_warming_up_as_well(self, config):
        load = [(0.95, 9), (0.95, 9), (0.0, 0), (0.0, 0)]
        message = one(Serving(load=load, ready=2, desired=4), settings=EAGER, config=config).why.message
        assert "with 2 starting or warming up" in message
        assert "over 4 reporting, 2 saturated, 2 not ready" in message

    def test_one_that_hangs_and_is_overdue_is_lost_once(self, config):
        hangs = VariantMemory(
            transition_since=LATE.transition_since, stuck_since={"v1-3": NOW - 900}, stuck_waiting={"v1-3": 9.0}
        )
        load = [(0.8, 1)] * 3
        reports, silent = (
            one(
                Serving(load=[*load, last], ready=3, desired=4, memory=hangs, rate=0.0), settings=EAGER, config=config
            ).target
            for last in ((0.8, 9), self.SILENT)
        )
        assert (reports.action, reports.replicas) == (silent.action, silent.replicas) == (Action.UP, 5)

    def test_it_does_not_stand_in_for_a_ready_one_that_is_silent(self, config):
        load = [(0.1, 0), *[self.SILENT] * 4, *[(0.0, 0)] * 4]
        found = one(Serving(load=load, ready=5), settings=EAGER, config=config)
        assert found.why.reason == "PartialMetrics"
        assert "1 of 5 ready replicas report metrics: holding still" in found.why.message


class TestWarmUp:
    def test_new_pod_is_not_spare(self):
        busy, new = Serving("old", [(0.60, 0)] * 2), Serving("new", [(0.0, 0)] * 2, ready_age=10)
        assert run(busy, new, settings=PUBLISHED)["old"].target.action is Action.DOWN, "the defect"
        found = run(busy, new, settings=EAGER)
        assert all(r.target.action is Action.NONE for r in found.values())
        assert found["old"].why.evidence.spare_kv == pytest.approx(0.20)
        assert "2 warming up" in found["old"].why.message

    def test_what_is_overdue_is_no_capacity_on_its_way(self):
        """Full, with as many as are needed, of which the second variant's are too young to help: it needs one more."""
        fleet = [
            Serving("old", [(0.74, 0)] * 2),
            Serving("new", [(None, None), (0.0, 0)], ready=1, desired=2, ready_age=10, memory=LATE),
        ]
        found = run(*fleet, settings=EAGER)
        assert sum(record.target.replicas for record in found.values()) == 5
        assert "starting or warming up" not in found["old"].why.message

    def test_new_pod_counts_after_the_warm_up(self):
        found = run(Serving("a", [(0.30, 0)] * 2), Serving("b", [(0.0, 0)], ready_age=61), settings=EAGER)
        assert sum(r.target.replicas for r in found.values()) == 2

    def test_pod_that_never_served_is_not_idle_while_the_model_serves(self):
        fresh = Serving("b", [(0.0, 0)] * 2, ready_age=120, rate=0.0)
        assert all(
            r.target.action is Action.NONE for r in run(Serving("a", [(0.6, 0)] * 2), fresh, settings=EAGER).values()
        )
        old = replace(fresh, ready_age=600)
        assert run(Serving("a", [(0.35, 0)] * 2), old, settings=EAGER)["b"].target.action is Action.DOWN

    def test_a_wholly_idle_model_still_shrinks(self):
        assert one(Serving(load=IDLE, rate=0.0, ready_age=120), settings=EAGER).target.action is Action.DOWN

    def test_loaded_new_pods_do_count_for_growing(self):
        record = one(Serving(load=[(0.9, 9), (0.9, 9)], ready_age=5), settings=EAGER)
        assert record.why.evidence.scale_up

    def test_growth_is_not_ordered_twice_while_pods_warm_up(self):
        found = run(Serving("a", [(0.76, 0)] * 2), Serving("b", [(0.0, 0)], ready_age=5), settings=EAGER)
        assert {r.why.reason for r in found.values()} == {"CapacityOnItsWay"}
        assert all(r.target.action is Action.NONE for r in found.values())


class TestStuckPods:
    LOAD = ((0.1, 7), (0.1, 0), (0.1, 0), (0.1, 0))

    def fleet(self, memory, now=NOW, waiting=7.0):
        fleet = make_fleet(Serving(load=[(0.1, waiting), *self.LOAD[1:]], memory=memory), now=now)
        first, *rest = fleet.signals.pods
        return replace(fleet, signals=replace(fleet.signals, pods=(replace(first, completed_rate=0.0), *rest)))

    def test_aged_out_after_a_while(self):
        settings = EAGER
        first = told(decide(self.fleet(VariantMemory()), settings))[0]
        assert first.memory.stuck_since == {"v1-0": NOW}
        later = NOW + settings.stale_after
        fleet = self.fleet(first.memory, later)
        record = told(decide(fleet, settings))[0]
        assert "1 stuck and left out" in record.why.message
        assert record.target.action is Action.DOWN
        assert record.memory == first.memory.model_copy(
            update={
                "transition_since": later,
                "transition_target": 3,
                "shrunk_at": later,
                "scalings": {"down/CapacitySpare": 1},
            }
        )

    def test_a_queue_that_moves_starts_again(self):
        first = told(decide(self.fleet(VariantMemory()), EAGER))[0]
        record = told(decide(self.fleet(first.memory, NOW + 400, waiting=9.0), EAGER))[0]
        assert record.memory.stuck_since == {"v1-0": NOW + 400}
        assert "stuck" not in record.why.message

    def test_when_every_pod_is_stuck_none_is_left_out(self):
        memory = VariantMemory(stuck_since={"v1-0": NOW - 999}, stuck_waiting={"v1-0": 7.0})
        record = one(Serving(load=[(0.1, 7.0)], rate=0.0, memory=memory), settings=EAGER)
        assert record.target.action is Action.UP

    def test_forgotten_when_it_drains(self):
        memory = VariantMemory(stuck_since={"v1-0": NOW - 10}, stuck_waiting={"v1-0": 7.0})
        assert one(Serving(load=IDLE, memory=memory)).memory.stuck_since == {}


class TestDemandSizedSteps:
    @pytest.mark.parametrize(
        ("load", "target"),
        [
            ([(0.71, 0)] * 10, 11),  # 7.1 / 0.69
            ([(0.95, 0)] * 10, 14),  # 9.5 / 0.69
            ([(0.30, 4)] * 5, 10),  # 20 waiting / 1.7 = 12, at most doubled
            ([(0.30, 4)] * 30, 40),  # 120 / 1.7 = 71, at most ten more
            ([(0.85, 0)], 2),
            ([(0.10, 50)], 2),  # one replica: at least one more
            ([(0.79, 3)] * 3, 6),
        ],
    )
    def test_need(self, load, target):
        assert one(Serving(load=load)).target.replicas == target

    def test_caps_are_settings(self):
        load = [(0.30, 4)] * 10
        assert one(Serving(load=load), settings=FleetSettings(max_step_up=3)).target.replicas == 13
        assert one(Serving(load=load), settings=FleetSettings(max_step_up_factor=1.5)).target.replicas == 15
        assert (
            one(Serving(load=load), settings=FleetSettings(max_step_up=100, max_step_up_factor=4)).target.replicas == 24
        )
        assert one(Serving(load=[(0.9, 0)]), settings=FleetSettings(max_step_up_factor=1.01)).target.replicas == 2

    def test_grow_limit(self):
        settings = FleetSettings()
        assert [grow_limit(n, settings) for n in (0, 1, 2, 5, 10, 11, 50)] == [1, 2, 4, 10, 20, 21, 60]

    def test_spills_to_the_next_cheapest_when_one_is_at_its_maximum(self):
        cheap = Serving("cheap", [(0.95, 0)] * 5, cost=1, variant={"annotations": {"modelyard.dev/max-replicas": "6"}})
        dear = Serving("dear", [(0.95, 0)] * 5, cost=9)
        found = run(cheap, dear)
        assert (found["cheap"].target.replicas, found["dear"].target.replicas) == (6, 8)

    def test_at_maximum_says_so(self):
        record = one(Serving(load=SHORT, variant={"annotations": {"modelyard.dev/max-replicas": "2"}}))
        assert (record.target.replicas, record.why.reason) == (2, "AtMaximum")
        assert "annotation modelyard.dev/max-replicas (2)" in record.why.message

    def test_gateway_backlog_counts_where_one_namespace_serves_the_model(self):
        load = [(0.2, 1), (0.2, 1)]
        quiet = one(Serving(load=load))
        backlog = one(Serving(load=load), signals={"gateway_queue": {("", MODEL): 40.0}})
        assert quiet.target.action is Action.NONE
        assert (backlog.target.action, backlog.why.evidence.total_waiting) == (Action.UP, 42.0)
        other = Serving("other", load, namespace="elsewhere")
        shared = run(Serving(load=load), other, signals={"gateway_queue": {("", MODEL): 40.0}})
        assert all(r.target.action is Action.NONE for r in shared.values())

    def test_a_queue_shown_in_another_namespace_neither_wakes_nor_grows_a_model(self):
        load = [(0.2, 1), (0.2, 1)]
        signals = {"gateway_queue": {("elsewhere", MODEL): 40.0}}
        found = run(Serving("awake", load), Serving("other", load, namespace="elsewhere"), signals=signals)
        assert {name: r.target.action for name, r in found.items()} == {"awake": Action.NONE, "other": Action.UP}
        assert one(Serving(current=0, ready=0, desired=0), signals=signals).target.replicas == 0
        mine = {"gateway_queue": {("chat", MODEL): 4.0}}
        assert one(Serving(current=0, ready=0, desired=0), signals=mine).target.replicas == 1

    def test_no_room_between_threshold_and_trigger_still_steps_by_one(self):
        config = {"default": "{kvCacheThreshold: 0.5, kvSpareTrigger: 0.5}"}
        assert one(Serving(load=[(0.2, 0)] * 4), config=config).target.replicas == 5


class TestTransitions:
    ONE_OF_SIX = Serving(
        load=[(0.0, 0.0)],
        current=6,
        ready=1,
        desired=6,
        memory=VariantMemory(transition_since=NOW - 7200, relax_since=NOW - 7200),
    )

    def test_pending_variant_without_reporting_pods_is_counted(self):
        """The documented rule does not see the cheap variant that is still loading and scales the dear one."""
        loading = Serving("cheap", current=1, ready=0, cost=1)
        busy = Serving("dear", SHORT, cost=9)
        published = run(loading, busy, settings=PUBLISHED)
        assert published["dear"].target.replicas == 3
        repaired = run(loading, busy)
        assert (repaired["cheap"].target.replicas, repaired["dear"].target.replicas) == (1, 2)
        assert repaired["dear"].why.reason == "CapacityOnItsWay"
        assert "need 3, have 3 with 1 starting" in repaired["dear"].why.message

    def test_growth_beyond_what_is_coming_is_possible(self):
        record = one(Serving(load=[(0.95, 9)] * 4, current=5, ready=4, desired=5))
        assert record.target.action is Action.UP

    def test_growth_stays_within_two_decisions_of_what_is_ready(self):
        s = Serving(load=[(0.9, 200)], current=4, ready=1, desired=4)
        record = one(s)
        assert (record.target.replicas, record.why.reason) == (4, "AtMaximum")
        assert "far ahead of its 1 ready" in record.why.message
        assert one(replace(s, current=2, desired=2)).target.replicas == 4

    def test_never_shrinks_in_transition(self):
        record = one(Serving(load=IDLE, current=5, ready=4, desired=5), settings=EAGER)
        assert (record.target.replicas, record.why.reason) == (5, "InTransition")
        assert "v1 has 4 of 5 replicas ready" in record.why.message

    def test_desired_not_yet_reached_is_kept_and_written(self):
        record = one(Serving(load=[(0.5, 0)] * 2, desired=3))
        assert (record.target.replicas, record.writes.scale, record.why.reason) == (3, 3, "InTransition")
        assert "in transition: v1 desired 3 ≠ current 2" in record.why.message
        assert record.memory.transition_since == NOW
        assert record.memory.transition_target == 3

    def test_the_clock_starts_with_the_decision_and_runs_on(self):
        first = one(Serving(load=SHORT, desired=2))
        assert (first.memory.transition_since, first.memory.transition_target) == (NOW, 3)
        later = one(Serving(load=SHORT, current=3, ready=2, desired=3, memory=first.memory), now=NOW + 50)
        assert (later.memory.transition_since, later.memory.transition_target) == (NOW, None)
        done = one(Serving(load=[(0.5, 0)] * 3, desired=3, memory=later.memory), now=NOW + 90)
        assert (done.memory.transition_since, done.memory.transition_target) == (None, None)

    def test_a_new_decision_does_not_inherit_an_old_clock(self):
        stale = VariantMemory(transition_since=NOW - 9999, transition_target=3)
        record = one(Serving(load=SHORT, desired=2, memory=stale))
        assert (record.target.replicas, record.memory.transition_since) == (3, NOW)

    def test_desired_that_is_never_reached_is_reset(self):
        memory = VariantMemory(transition_since=NOW - 600, transition_target=4)
        s = Serving("stuck", SHORT, desired=4, memory=memory, cost=1)
        other = Serving("other", SHORT, cost=9)
        before = run(replace(s, memory=VariantMemory(transition_since=NOW - 599, transition_target=4)), other)
        assert before["stuck"].target.replicas == 4
        found = run(s, other)
        assert found["stuck"].target.replicas == 2
        assert condition(found["stuck"], "OptimizationReady") == ("False", "SkippedProcessing")
        assert "from 2 to 4 did not happen within 600 s" in found["stuck"].why.message
        assert found["other"].target.replicas > 2, "the model is free to use its other variant"
        assert condition(found["other"], "OptimizationReady")[0] == "True"

    def test_slow_starters_get_twice_their_learnt_start_up(self):
        memory = VariantMemory(transition_since=NOW - 900, transition_target=4, startup_seconds=500)
        record = one(Serving(load=SHORT, desired=4, memory=memory, startup=500))
        assert record.target.replicas == 4
        assert condition(record, "OptimizationReady")[0] == "True"

    @pytest.mark.parametrize(("startup", "limit"), [(None, 600), (200, 600), (500, 1000), (7000, 1800)])
    def test_a_learnt_start_up_is_trusted_within_limits(self, startup, limit):
        memory = VariantMemory(transition_target=4, transition_since=NOW - limit + 1, startup_seconds=startup)
        s = Serving(load=SHORT, spec=4, desired=4, memory=memory, startup=startup or 60)
        assert one(s).target.replicas == 4
        assert one(replace(s, memory=memory.model_copy(update={"transition_since": NOW - limit}))).target.replicas == 2

    def test_replicas_that_never_start_stop_holding_the_model_back(self):
        memory = VariantMemory(transition_since=NOW - 601, transition_target=3)
        broken = Serving("broken", SHORT, current=3, ready=2, desired=3, cost=1, memory=memory)
        found = run(broken, Serving("whole", SHORT, cost=9))
        assert (found["broken"].target.replicas, found["whole"].target.replicas) == (3, 3), "need 5, four serve"
        assert found["broken"].memory.transition_since == NOW - 601

    def test_shrinks_in_spite_of_a_replica_that_never_starts(self):
        memory = VariantMemory(transition_since=NOW - 601, transition_target=5)
        assert (
            one(Serving(load=IDLE, current=5, ready=4, desired=5, memory=memory), settings=EAGER).target.replicas == 4
        )

    @pytest.mark.parametrize("kv", [0.0, 0.5])
    def test_replicas_that_never_became_ready_are_given_back(self, kv):
        """Six replicas, one ready, two hours long: the five carry nothing, whatever the one does carry."""
        record = one(replace(self.ONE_OF_SIX, load=[(kv, 0.0)]))
        assert (record.target.replicas, record.writes.scale, record.why.reason) == (1, 1, "CapacitySpare")
        held = one(replace(self.ONE_OF_SIX, variant={"annotations": {"modelyard.dev/min-replicas": "4"}}))
        assert held.target.replicas == 4

    def test_not_while_they_are_needed_nor_before_the_delay(self):
        assert one(replace(self.ONE_OF_SIX, load=[(0.75, 0.0)])).target.replicas >= 6
        fresh = replace(self.ONE_OF_SIX, memory=VariantMemory(transition_since=NOW - 7200))
        assert one(fresh).why.reason == "ScaleDownDelayed"

    def test_in_a_rolling_update_that_got_stuck_nobody_knows_who_would_go(self):
        fleet = make_fleet(self.ONE_OF_SIX)
        new = OwnerRef("apps/v1", "ReplicaSet", "v1-new", "rs-new")
        owners = {**fleet.owners, ("chat", "ReplicaSet", "v1-new"): fleet.owners["chat", "ReplicaSet", "v1-rs"]}
        pods = [pod if pod.ready else replace(pod, owner=new) for pod in fleet.pods]
        (record,) = told(decide(replace(fleet, pods=tuple(pods), owners=owners), REPAIRED))
        assert (record.target.replicas, record.why.reason) == (6, "SteadyState")

    @pytest.mark.parametrize(("ready", "target"), [(0, 1), (3, 4), (5, 6)])
    def test_numbered_replicas_go_from_the_end(self, ready, target):
        """A StatefulSet deletes its highest ordinal, ready or not: the one that serves must not be it."""
        fleet = make_fleet(replace(self.ONE_OF_SIX, kind="StatefulSet"))
        names = {"v1-0": f"v1-{ready}", f"v1-{ready}": "v1-0"}
        pods = [replace(p, key=Key("chat", names.get(p.key.name, p.key.name))) for p in fleet.pods]
        signals = replace(fleet.signals, pods=(replace(fleet.signals.pods[0], pod=f"v1-{ready}"),))
        (record,) = told(decide(replace(fleet, pods=tuple(pods), signals=signals), REPAIRED))
        assert record.target.replicas == target

    def test_unschedulable_pods_move_growth_elsewhere(self):
        full = Serving("full", [(0.95, 0)] * 4, current=5, ready=4, desired=5, cost=1)
        fleet = make_fleet(full, Serving("roomy", [(0.95, 0)] * 4, cost=9))
        pods = [replace(p, unschedulable="no GPU") if p.key.name == "full-4" else p for p in fleet.pods]
        found = records(decide(replace(fleet, pods=tuple(pods)), REPAIRED))
        assert (found["full"].target.replicas, found["roomy"].target.replicas) == (5, 7)
        quiet = make_fleet(Serving(load=[(0.6, 0)] * 2, current=3, ready=2, desired=3))
        pods = [replace(p, unschedulable="no GPU") if p.key.name == "v1-2" else p for p in quiet.pods]
        record = told(decide(replace(quiet, pods=tuple(pods)), REPAIRED))[0]
        assert "pod v1-2 cannot be scheduled: no GPU" in record.why.message

    def test_idle_variant_at_zero_is_preferred_when_it_may_be_woken(self):
        zero = Serving("cheap", current=0, spec=0, cost=1)
        busy = Serving("dear", SHORT, cost=9)
        assert run(zero, busy)["dear"].target.replicas == 3
        enabled = run(zero, busy, zero={"default": "enable_scale_to_zero: true"})
        assert (enabled["cheap"].target.replicas, enabled["cheap"].writes.scale, enabled["dear"].target.replicas) == (
            1,
            1,
            2,
        )

    def test_shrinking_is_cancelled_by_load(self):
        record = one(Serving(load=[(0.76, 0)] * 3, desired=2))
        assert record.target.replicas >= 3
        assert record.target.action in (Action.NONE, Action.UP)


class TestPartialMetrics:
    def short(self, memory=None):
        return Serving(load=[(0.76, 0)] * 3, current=5, ready=5, desired=5, memory=memory or VariantMemory())

    def test_hold_first(self):
        record = one(self.short())
        assert (record.target.replicas, record.why.reason) == (5, "PartialMetrics")
        assert "3 of 5 ready replicas report" in record.why.message
        assert record.memory.partial_since == NOW

    def test_then_grow_with_missing_pods_at_the_mean(self):
        record = one(self.short(VariantMemory(partial_since=NOW - 120)))
        assert record.target.replicas == 6  # 5 * 0.76 / 0.69

    def test_but_never_shrink(self):
        s = Serving(load=IDLE, current=6, ready=6, desired=6, memory=VariantMemory(partial_since=NOW - 500))
        record = one(s, settings=EAGER)
        assert (record.target.replicas, record.why.reason) == (6, "PartialMetrics")

    def test_nine_of_ten_is_enough(self):
        record = one(Serving(load=[(0.1, 0)] * 9, current=10, ready=10, desired=10), settings=EAGER)
        assert record.target.replicas == 9
        assert record.memory.partial_since is None

    def test_a_pod_that_has_just_become_ready_is_no_gap(self):
        fleet = make_fleet(Serving(load=[(0.76, 0)] * 3, current=4, ready=4, desired=4))
        pods = [replace(p, ready_since=NOW - 5) if p.key.name == "v1-3" else p for p in fleet.pods]
        record = told(decide(replace(fleet, pods=tuple(pods)), REPAIRED))[0]
        assert record.why.reason != "PartialMetrics"

    def test_one_of_eight_pods_missing_does_not_stop_published_only(self):
        s = Serving(load=[(0.76, 0)] * 19, current=20, ready=20)
        assert one(s, settings=PUBLISHED).why.reason == "InTransition"
        assert one(s).target.action is Action.UP


class TestScaleDown:
    def test_needs_margin(self):
        # Exactly on the documented boundary: 2 × 0.35 on one replica leaves 0.10.
        edge = [(0.35, 1), (0.35, 1)]
        proportional = FleetSettings(scale_down_delay=0, scale_down_elasticity=1)
        assert one(Serving(load=edge), settings=EAGER).target.replicas == 1
        assert one(Serving(load=edge), settings=proportional).target.replicas == 2
        assert one(Serving(load=[(0.34, 0.8)] * 2), settings=proportional).target.replicas == 1

    def test_a_fuller_replica_is_slower(self):
        # One replica instead of two has twice the load, and is taken to hold four times as much, not twice.
        now = FleetSettings(scale_down_delay=0)
        assert one(Serving(load=[(0.17, 0.4)] * 2), settings=now).target.replicas == 1
        held = one(Serving(load=[(0.18, 0.4)] * 2), settings=now)
        assert (held.target.replicas, held.why.reason) == (2, "SteadyState")
        # Among many replicas one more or less makes little difference.
        assert one(Serving(load=[(0.55, 0.4)] * 10), settings=now).target.replicas == 9

    def test_needs_time_without_a_break(self):
        minute = FleetSettings(scale_down_delay=60)
        first = one(Serving(load=IDLE), settings=minute)
        assert (first.target.replicas, first.why.reason, first.memory.relax_since) == (4, "ScaleDownDelayed", NOW)
        early = one(Serving(load=IDLE, memory=first.memory), settings=minute, now=NOW + 59)
        assert (early.target.replicas, early.memory) == (4, first.memory)
        done = one(Serving(load=IDLE, memory=first.memory), settings=minute, now=NOW + 60)
        assert (done.target.replicas, done.why.reason, done.memory.relax_since) == (3, "CapacitySpare", None)
        broken = one(Serving(load=[(0.69, 0)] * 4, memory=first.memory), settings=minute, now=NOW + 30)
        assert broken.memory.relax_since is None

    def test_a_blind_tick_is_a_break(self):
        memory = VariantMemory(relax_since=NOW - 500)
        record = one(Serving(load=IDLE, memory=memory), signals={"error": "connection refused"})
        assert record.memory.relax_since is None

    def test_most_expensive_first_and_never_below_one(self):
        found = run(Serving("a", [(0.1, 0)], cost=9), Serving("b", [(0.1, 0)] * 2, cost=5), settings=EAGER)
        assert (found["a"].target.replicas, found["b"].target.replicas) == (1, 1)
        last = run(Serving("a", [(0.1, 0)], cost=9), Serving("b", [(0.1, 0)], cost=5), settings=EAGER)
        assert {r.why.reason for r in last.values()} == {"AtMinimum"}

    def test_where_zero_is_allowed_the_dear_variant_may_go_altogether(self):
        zero = {"default": "enable_scale_to_zero: true"}
        found = run(Serving("a", [(0.1, 0)], cost=9), Serving("b", [(0.1, 0)], cost=5), settings=EAGER, zero=zero)
        assert (found["a"].target.replicas, found["b"].target.replicas) == (0, 1)

    def test_minimum_annotation(self):
        s = Serving(load=IDLE, variant={"annotations": {"modelyard.dev/min-replicas": "4"}})
        assert (one(s, settings=EAGER).target.replicas, one(s, settings=EAGER).why.reason) == (4, "AtMinimum")

    def test_several_at_once_when_allowed_and_safe(self):
        several = FleetSettings(scale_down_delay=0, max_step_down=8, scale_down_elasticity=1)
        assert one(Serving(load=[(0.1, 0)] * 10), settings=several).target.replicas == 2
        assert one(Serving(load=[(0.3, 0)] * 10), settings=several).target.replicas == 5


class TestHpaTolerance:
    def test_smallest_step_an_hpa_takes(self):
        assert [hpa_step(n) for n in (0, 1, 9, 10, 11, 19, 20, 100)] == [1, 1, 1, 2, 2, 2, 3, 11]
        for n in range(1, 300):
            assert (n + hpa_step(n)) / n > 1.1 or n < 10
            assert n - hpa_step(n) < 0.9 * n or n < 10

    def test_up_by_enough(self):
        s = Serving(load=[(0.705, 0)] * 20)
        assert one(s).target.replicas == 21
        assert one(s, settings=SIGNAL).target.replicas == 23

    def test_down_by_enough_when_that_is_safe(self):
        assert one(Serving(load=[(0.3, 0)] * 20), settings=SIGNAL).target.replicas == 17
        held = one(Serving(load=[(0.65, 0)] * 20), settings=SIGNAL)
        assert (held.target.replicas, held.why.reason) == (20, "BelowHPATolerance")
        assert "ignores less than 3 of 20" in held.why.message
        assert one(Serving(load=[(0.65, 0)] * 20), settings=EAGER).target.replicas == 19

    def test_maximum_of_the_hpa_wins(self):
        s = Serving(load=[(0.705, 0)] * 20)
        assert one(s, settings=SIGNAL, consumers=[hpa(s, maximum=21)]).target.replicas == 21


class TestPendingPodsFallback:
    def test_ready_is_counted_from_pods_when_the_kind_does_not_say(self):
        s = Serving(load=[(0.6, 0)] * 2, current=3, ready=2, workload={"ready": None})
        record = one(s)
        assert record.now.ready == 2
        assert record.why.reason == "InTransition"

    def test_foreign_pods_do_not_count(self):
        stray = Pod(Key("chat", "stray"), "x", None, NOW, NOW, "Running")
        s = Serving(load=[(0.6, 0)] * 2, workload={"ready": None})
        assert one(s, extra_pods=[stray]).now.ready == 2


class TestBacklog:
    """What waits in an engine is served there: it asks for no replicas of its own."""

    @pytest.mark.parametrize("waiting", [10.0, 100.0, 9000.0])
    def test_a_long_queue_asks_for_no_more_than_a_full_one(self, waiting):
        record = one(Serving(load=((0.3, waiting), *((0.3, 0.0),) * 7), desired=8))
        assert (record.target.replicas, record.why.reason) == (8, "ScaleDownDelayed")
        assert record.why.evidence.total_waiting == waiting

    def test_where_every_replica_queues_growth_is_as_fast_as_ever(self):
        assert one(Serving(load=((0.95, 9000.0),) * 4, desired=4)).target.replicas == 8

    def test_the_queue_of_the_gateway_counts_in_full(self):
        queue = {"gateway_queue": {("chat", MODEL): 100.0}}
        assert one(Serving(load=((0.3, 0.0),) * 8, desired=8), signals=queue).target.replicas == 16
