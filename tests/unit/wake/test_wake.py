"""Scale from zero: only demand that was really seen wakes, the cheapest variant first, and once."""

from __future__ import annotations

import math

import pytest
from builders import MODEL, NOW, PUBLISHED, REPAIRED, Serving, hpa, make_fleet
from hypothesis import given, strategies as st
from stages import make_demand, results, with_args

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.decisions.conditions import SCALE_FROM_ZERO
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.published.zero import wake_all
from modelyard.autoscaling.variants.wake import REASON, scale_from_zero, wake
from modelyard.objects import Condition, Key

SIGNAL = FleetSettings(actuation=Mode.SIGNAL)


def asleep(name="v1", **changes):
    return Serving(name, current=0, ready=0, **changes)


def limited(maximum, minimum=0):
    return {"annotations": {"modelyard.dev/min-replicas": str(minimum), "modelyard.dev/max-replicas": str(maximum)}}


def woken(*serving, backlog=0.0, policy=REPAIRED, published=False, seen=None, **fields):
    """(what is proposed for the variants at zero by name, names of those woken)."""
    signals = {"wake": {Key("chat", name): value for name, value in (seen or {}).items()}}
    fleet = make_fleet(*serving, signals=signals, **fields)
    demand = make_demand(fleet, policy, published, backlog=backlog)
    proposed = (wake_all if published else wake)(demand, fleet.signals, policy, fleet.now)
    found = results(demand, proposed)
    return found, [name for name, result in found.items() if result.reason == REASON]


def condition(*serving, **fields):
    """The condition ScaleFromZero of a single variant after waking."""
    fleet = make_fleet(*serving, **fields)
    demand = make_demand(fleet, REPAIRED)
    (seen,) = demand.variants
    value = scale_from_zero(seen, "SteadyState", "as before")
    return None if value is None else tuple(value)


class TestWhoWakes:
    def test_the_cheapest(self):
        states, names = woken(asleep("b", cost=5), asleep("c", cost=5), asleep("a", cost=9), backlog=3)
        assert names == ["b"]
        assert [(s.target, s.reason) for s in states.values()] == [(0, "AtZero"), (1, REASON), (0, "AtZero")]
        assert states["b"].message == "3 requests wait for the model, and nothing of it serves: woken to 1 replica"
        assert states["b"].learnt["woken_at"] == NOW
        assert states["b"].proposed.decided

    @pytest.mark.parametrize("enabled", ["true", "false"])
    def test_whether_or_not_scale_to_zero_is_enabled(self, enabled):
        zero = {"default": f"enable_scale_to_zero: {enabled}"}
        assert woken(asleep(), backlog=1, zero=zero)[1] == ["v1"]

    def test_a_variant_of_its_own_demand(self):
        states, names = woken(asleep("a", cost=1), asleep("b", cost=9), seen={"b": 2.0})
        assert names == ["a"], "the model is asked for; who serves it is a matter of cost"
        assert "2 requests wait" in states["a"].message

    def test_one_queue_seen_twice_is_one_queue(self):
        assert woken(asleep("a"), asleep("b"), seen={"a": 200.0, "b": 200.0}, backlog=200)[1] == ["a"]

    def test_to_its_minimum(self):
        scaler = hpa(asleep(), minimum=3)
        assert woken(asleep(), backlog=1, policy=SIGNAL, consumers=[scaler])[0]["v1"].target == 3

    def test_not_above_a_maximum_of_zero(self):
        scaler = hpa(asleep("a"), minimum=0, maximum=0)
        states, names = woken(asleep("a", cost=1), asleep("b", cost=9), backlog=1, consumers=[scaler])
        assert names == ["b"]
        states, names = woken(asleep("a"), backlog=1, consumers=[scaler])
        assert names == []
        assert states["a"].message.startswith("1 request waits and no variant may be woken")

    def test_a_second_only_where_the_queue_outgrows_the_first(self):
        """One replica takes a batch of 256 and 5 more before it counts as saturated."""
        assert woken(asleep("a"), asleep("b"), asleep("c"), backlog=261)[1] == ["a"]
        states, names = woken(asleep("a"), asleep("b"), asleep("c"), backlog=262)
        assert names == ["a", "b"]
        assert "what was started before can take 261" in states["b"].message
        small = with_args(asleep("a"), "--max-num-seqs=8")
        assert woken(small, asleep("b"), backlog=14)[1] == ["a", "b"]

    def test_what_a_minimum_starts_counts(self):
        states, names = woken(asleep("a", variant=limited(3, 1)), asleep("b"), backlog=10)
        assert names == []
        assert states["a"].target == 1


class TestAlreadyStarted:
    STARTING = Serving("a", current=1, ready=0, desired=1, cost=1)

    def test_enough(self):
        assert woken(self.STARTING, asleep("b"), backlog=200)[1] == []

    def test_the_queue_outgrew_it(self):
        assert woken(self.STARTING, asleep("b"), backlog=300)[1] == ["b"]

    def test_it_cannot_be_placed(self):
        stuck = Serving("a", current=1, ready=0, desired=1, cost=1, pod={"unschedulable": "0/3 nodes"})
        assert woken(stuck, asleep("b"), backlog=1)[1] == ["b"]

    def test_it_should_have_been_ready_long_ago(self):
        memory = VariantMemory(transition_since=NOW - 700)
        late = Serving("a", current=1, ready=0, desired=1, cost=1, memory=memory)
        assert woken(late, asleep("b"), backlog=1)[1] == ["b"]

    def test_something_serves(self):
        assert woken(Serving("a", [(0.9, 50)]), asleep("b"), backlog=900)[1] == []
        assert woken(Serving("a", current=1, ready=1), asleep("b"), backlog=900)[1] == []


class TestOnlyWhatWasSeen:
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_numbers_that_are_none(self, value):
        assert woken(asleep(), backlog=0.0, seen={"v1": value})[1] == []

    def test_nothing_known(self):
        states, names = woken(asleep())
        assert (names, states["v1"].target, states["v1"].reason) == ([], 0, "AtZero")

    def test_nothing_is_asleep(self):
        assert woken(Serving("a", current=1, ready=0), backlog=5)[1] == []


class TestSignalMode:
    def test_held_until_the_scaler_acts_even_if_the_queue_is_gone(self):
        memory = VariantMemory(woken_at=NOW - 60, transition_target=1, transition_since=NOW - 60)
        states, names = woken(asleep(desired=1, memory=memory), policy=SIGNAL)
        assert names == ["v1"]
        assert (states["v1"].target, states["v1"].reason) == (1, REASON)
        assert "woken_at" not in states["v1"].learnt, "or the grace period would never end"

    def test_not_for_ever(self):
        memory = VariantMemory(woken_at=NOW - 601, transition_target=1, transition_since=NOW - 601)
        assert woken(asleep(desired=1, memory=memory), policy=SIGNAL)[1] == []

    def test_the_one_on_its_way_counts(self):
        memory = VariantMemory(woken_at=NOW - 60, transition_target=1, transition_since=NOW - 60)
        names = woken(asleep("a", desired=1, memory=memory), asleep("b"), policy=SIGNAL, backlog=9)[1]
        assert names == ["a"]

    def test_direct_mode_asks_anew(self):
        memory = VariantMemory(woken_at=NOW - 60, transition_target=1, transition_since=NOW - 60)
        assert woken(asleep(desired=1, memory=memory))[1] == []


def test_published_wakes_every_variant():
    _, names = woken(asleep("a"), asleep("b"), backlog=1, policy=PUBLISHED, published=True)
    assert names == ["a", "b"]
    assert woken(Serving("r", [(0.1, 0)]), asleep("b"), backlog=1, policy=PUBLISHED, published=True)[1] == ["b"]


class TestCondition:
    def test_while_waking(self):
        states, _ = woken(asleep(), backlog=1)
        result = states["v1"]
        value = scale_from_zero(result.seen, result.reason, result.message)
        assert tuple(value) == ("True", REASON, result.message)

    def test_never_woken(self):
        assert condition(asleep()) is None

    @pytest.mark.parametrize(
        ("serving", "expected"),
        [
            (Serving(load=[(0.1, 0)]), ("False", "Serving", "1 replica is ready")),
            (asleep(), ("False", "AtZero", "the workload is at zero replicas and nothing waits for it")),
            (Serving(current=1, ready=0), ("True", REASON, "woken")),
        ],
    )
    def test_afterwards(self, serving, expected):
        serving.variant = {"conditions": (Condition(SCALE_FROM_ZERO, "True", REASON, "woken"),)}
        assert condition(serving) == expected


VARIANTS = st.lists(
    st.tuples(st.sampled_from([1.0, 5.0]), st.sampled_from(["asleep", "starting", "serving"])), min_size=1, max_size=4
)


@given(VARIANTS, st.integers(0, 1000), st.integers(0, 1000))
def test_a_longer_queue_wakes_no_fewer_and_nobody_is_put_to_sleep(made, short, more):
    def serving():
        for i, (cost, what) in enumerate(made):
            if what == "serving":
                yield Serving(f"v{i}", [(0.1, 0)], cost=cost)
            else:
                yield Serving(f"v{i}", current=0 if what == "asleep" else 1, ready=0, cost=cost)

    few = woken(*serving(), backlog=float(short))[1]
    states, many = woken(*serving(), backlog=float(short + more))
    assert set(few) <= set(many)
    for name in many:
        assert states[name].target == 1
        assert states[name].seen.spec == 0
    if short and all(what == "asleep" for _, what in made):
        assert few[0] == min(states.values(), key=lambda s: (s.variant.cost, s.seen.name)).seen.name
    assert all(state.variant.model_id == MODEL for state in states.values())
