"""Pods that a rolling update runs beyond the replicas are not replicas: desired never follows them, tick after tick."""

from __future__ import annotations

from math import ceil

import pytest
from builders import EAGER, NOW, Serving, condition, hpa, one, run
from examples import few
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.memory.variants import VariantMemory

TICK = 15
HOUR = 240
CALM = (0.65, 1.0)


def rollout(first, ticks, progress=None, mode=Mode.DIRECT, desired=True, unavailable=False, load=CALM):
    """Replicas asked for in each tick of a rolling update with 25 % surge, every target carried out at once.

    ``progress`` is the ticks a new pod takes to become ready, ``None`` when none ever does.
    """
    spec, memory, known, asked = first, VariantMemory(), first if desired else None, []
    for tick in range(ticks):
        surge = ceil(spec / 4)
        missing = spec // 4 if unavailable else 0
        ready = max(1, spec - missing)
        if progress and tick % progress == progress - 1:
            ready = spec + surge
        s = Serving(load=[load] * ready, current=spec + surge, spec=spec, ready=ready, desired=known, memory=memory)
        consumers = [hpa(s, maximum=1000)] if mode is Mode.SIGNAL else []
        record = one(s, now=NOW + tick * TICK, settings=FleetSettings(actuation=mode), consumers=consumers)
        known, memory = record.target.replicas, record.memory
        spec = (
            record.target.replicas
            if mode is Mode.SIGNAL
            else spec
            if record.writes.scale is None
            else record.writes.scale
        )
        asked.append(spec)
    return asked


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("desired", [True, False], ids=["decided", "adopted in mid-rollout"])
@pytest.mark.parametrize("unavailable", [True, False])
@pytest.mark.parametrize("progress", [None, 8], ids=["stuck", "long"])
@pytest.mark.parametrize("first", [4, 10])
def test_an_hour_of_rolling_update_changes_nothing(first, progress, unavailable, desired, mode):
    assert set(rollout(first, HOUR, progress, mode, desired, unavailable)) == {first}


@given(st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 69).map(lambda n: n / 100))
@few
def test_without_a_shortage_nothing_grows(first, unavailable, desired, kv):
    assert max(rollout(first, 100, None, Mode.DIRECT, desired, unavailable, (kv, 0.0))) <= first


def test_surge_is_no_spare_capacity():
    s = Serving(load=[(0.4, 0)] * 5, current=5, spec=4, ready=5, desired=4)
    record = one(s, settings=EAGER)
    assert (record.now.current, record.target.replicas, record.writes.scale, record.why.reason) == (
        4,
        4,
        None,
        "InTransition",
    )
    assert "1 more than its 4 replicas" in record.why.message
    # Not either when the update takes so long that it no longer holds the model.
    late = VariantMemory(transition_since=NOW - 9999, transition_target=4)
    tight = Serving(load=[(0.5, 0)] * 5, current=5, spec=4, ready=5, desired=4, memory=late)
    record = one(tight, settings=EAGER)
    assert (record.target.replicas, record.why.reason) == (4, "SteadyState")
    idle = Serving(load=[(0.1, 0)] * 5, current=5, spec=4, ready=5, desired=4, memory=late)
    assert one(idle, settings=EAGER).target.replicas == 3


def test_load_still_grows_the_model_during_a_rolling_update():
    late = VariantMemory(transition_since=NOW - 9999, transition_target=4)
    for memory in (VariantMemory(), late):
        s = Serving(load=[(0.95, 0)] * 4, current=5, spec=4, ready=4, desired=4, memory=memory)
        record = one(s)
        assert (record.target.action, record.target.replicas, record.writes.scale) == (Action.UP, 6, 6)


def test_mixed_compatibility_leaves_the_surge_out_too():
    published = {"annotations": {"modelyard.dev/compatibility": "published"}}
    a = Serving("a", [CALM] * 4, current=5, spec=4, ready=4, desired=4, variant=published)
    found = run(a, Serving("b", [CALM] * 2))
    assert (found["a"].now.current, found["a"].target.replicas) == (4, 4)


def test_published_mode_counts_what_status_says():
    s = Serving(load=[CALM] * 5, current=5, spec=4, ready=5, desired=4)
    assert one(s, settings=FleetSettings(compatibility="published")).now.current == 5


def test_a_replica_that_is_replaced_late_in_a_long_update_is_not_given_up():
    """A StatefulSet's status dips below its spec whenever a pod is replaced."""
    memory = VariantMemory()
    for tick in range(HOUR // 4):
        dip = tick % 10 == 9
        s = Serving(load=[CALM] * 3, current=3 if dip else 4, spec=4, ready=3, desired=4, memory=memory)
        record = one(s, now=NOW + tick * TICK)
        assert (record.target.replicas, record.writes.scale) == (4, None), tick
        memory = record.memory
    late = VariantMemory(transition_since=NOW - 9999)
    record = one(Serving(load=[CALM] * 3, current=3, spec=4, ready=3, desired=4, memory=late))
    assert (record.target.replicas, record.memory.transition_since) == (4, NOW)


def test_giving_up_starts_the_clock_anew():
    memory = VariantMemory(transition_since=NOW - 600, transition_target=4)
    record = one(Serving(load=[CALM] * 2, spec=4, desired=4, memory=memory))
    assert (record.target.replicas, record.memory.transition_since, record.memory.transition_target) == (2, NOW, 2)
    assert condition(record, "OptimizationReady") == ("False", "SkippedProcessing")


class TestReplicaThatNeverStarts:
    MEMORY = VariantMemory(transition_since=NOW - 601, transition_target=4)
    BUSY = Serving(load=[(0.95, 0)] * 3, current=4, ready=3, desired=4, memory=MEMORY)

    def test_does_not_forbid_growth_for_ever(self):
        record = one(self.BUSY)
        assert (record.target.replicas, record.why.reason) == (6, "KvCacheAndQueueSpareLow"), "need 5, three serve"

    def test_growth_stays_bounded_by_what_is_ready(self):
        s = Serving(load=[(0.95, 9)] * 3, current=12, ready=3, desired=12, memory=self.MEMORY)
        record = one(s, now=NOW)
        stuck = one(
            Serving(load=[(0.95, 9)] * 3, current=12, ready=3, desired=12, memory=record.memory), now=NOW + 9999
        )
        assert (record.target.replicas, stuck.target.replicas, stuck.why.reason) == (12, 12, "AtMaximum")

    def test_another_variant_is_still_preferred(self):
        found = run(self.BUSY, Serving("whole", [(0.95, 0)], cost=99))
        assert (found["v1"].target.replicas, found["whole"].target.replicas) == (4, 2)

    def test_unschedulable_or_wholly_unready_still_cannot_grow(self):
        blocked = Serving(
            load=[(0.95, 0)] * 3, current=4, ready=3, desired=4, memory=self.MEMORY, pod={"unschedulable": "no GPU"}
        )
        assert (one(blocked).target.replicas, one(blocked).why.reason) == (4, "AtMaximum")
        full = Serving("full", [(0.95, 0)], variant={"annotations": {"modelyard.dev/max-replicas": "1"}})
        dead = Serving(
            "dead",
            current=1,
            ready=0,
            desired=1,
            cost=1,
            memory=VariantMemory(transition_since=NOW - 601, transition_target=1),
        )
        assert run(dead, full)["dead"].target.replicas == 1
