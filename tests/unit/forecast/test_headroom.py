"""Head-room: growing for a load that is on its way, never against the present one, and not flapping afterwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from builders import NOW, Serving
from hypothesis import given, strategies as st
from stages import percentages_decide, rising, tokens_decide

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.variants.forecast import expected
from modelyard.autoscaling.variants.headroom import plan_ahead
from modelyard.metrics.vocabulary.values import ModelLoad

REPAIRED = FleetSettings()
EAGER = FleetSettings(scale_down_delay=0)
OFF = FleetSettings(headroom=False, scale_down_delay=0)
STEADY = ModelLoad(22.0, tuple((NOW - 300 + i * 15.0, 22.0) for i in range(21)))
CALM = [(0.6, 0.0)] * 2
"""0.6 of 0.7 that are allowed: 22 → 27.4 requests/s would make it 0.75."""


class TestGrowingAhead:
    def test_reason_and_numbers(self):
        state = percentages_decide(Serving(load=CALM), settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (3, "LoadRising")
        assert state.message.startswith(
            "load is rising: 22 requests/s now, 27.4 expected in 135 s (× 1.25; load rose by 12 requests/s within "
            "300 s); need then 3, have 2: v1 2 → 3; spare KV 0.200"
        )

    @pytest.mark.parametrize(
        ("load", "changes"),
        [
            (STEADY, {}),
            (None, {}),
            (ModelLoad(None, rising().history), {}),
            (ModelLoad(22.0), {}),
            (rising(until=NOW - 200), {}),
            (rising(), {"headroom": False}),
            (rising(), {"headroom_limit": 1.0}),
            (rising(), {"startup_default": 0, "tick": 1}),
        ],
        ids=["steady", "no load", "rate unknown", "no history", "old history", "off", "limit 1", "starts at once"],
    )
    def test_only_for_a_rise_that_matters(self, load, changes):
        state = percentages_decide(Serving(load=CALM), settings=FleetSettings(**changes), load=load)["v1"]
        assert (state.target, state.reason) == (2, "SteadyState")

    def test_a_step_is_no_rise(self):
        # A mean over a minute makes a rise of a minute of a step, and a history of less than two says no more.
        steep = rising(2, 0.2)
        short, long = (ModelLoad(steep.arrivals, steep.history[-points:]) for points in (8, 9))
        assert plan_ahead(short, [], REPAIRED, NOW).factor == 1
        assert plan_ahead(short, [], REPAIRED.model_copy(update={"load_window": 30}), NOW).factor > 1
        assert plan_ahead(long, [], REPAIRED, NOW).factor > 1

    def test_further_ahead_for_a_slow_start(self):
        slow = Serving(load=[(0.55, 0)] * 2, memory=VariantMemory(startup_seconds=285))
        fast = replace(slow, memory=VariantMemory(startup_seconds=20))
        assert percentages_decide(slow, settings=REPAIRED, load=rising())["v1"].target == 3
        assert percentages_decide(fast, settings=REPAIRED, load=rising())["v1"].target == 2

    def test_the_slowest_that_can_grow_decides(self):
        slow = Serving("slow", [(0.55, 0)], memory=VariantMemory(startup_seconds=285))
        full = replace(slow, variant={"annotations": {"modelyard.dev/max-replicas": "1"}})
        fast = Serving("fast", [(0.55, 0)], cost=99, memory=VariantMemory(startup_seconds=20))
        assert percentages_decide(slow, fast, settings=REPAIRED, load=rising())["slow"].target == 2
        assert percentages_decide(full, fast, settings=REPAIRED, load=rising())["fast"].target == 1

    def test_what_is_coming_counts(self):
        memory = VariantMemory(transition_since=NOW - 30, transition_target=3)
        coming = Serving(load=CALM, current=2, desired=3, memory=memory)
        state = percentages_decide(coming, settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (3, "InTransition")

    def test_a_present_shortage_is_sized_for_what_is_expected(self):
        short = Serving(load=[(0.75, 0)] * 6)
        now = percentages_decide(short, settings=OFF, load=rising())["v1"]
        ahead = percentages_decide(short, settings=REPAIRED, load=rising())["v1"]
        assert (now.target, ahead.target) == (7, 9)
        assert ahead.reason == "KvCacheSpareLow"
        assert "load is rising: 22 requests/s now" in ahead.message

    def test_bounds_and_steps_hold(self):
        bound = Serving(load=CALM, variant={"annotations": {"modelyard.dev/max-replicas": "2"}})
        state = percentages_decide(bound, settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (2, "SteadyState")
        steep = rising(1.0, 0.2)
        wide = FleetSettings(headroom_limit=10)
        assert percentages_decide(Serving(load=CALM), settings=wide, load=steep)["v1"].target == 3
        signal = FleetSettings(actuation=Mode.SIGNAL)
        twenty = percentages_decide(Serving(load=[(0.6, 0)] * 20), settings=signal, load=rising())["v1"]
        assert twenty.target == 23

    def test_too_few_reports_hold_still(self):
        state = percentages_decide(Serving(load=CALM, current=4, ready=4), settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (4, "PartialMetrics")

    def test_tokens_as_well(self):
        state = tokens_decide(Serving(load=[(0.6, 0)] * 2), settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (3, "LoadRising")
        assert "need then 28133 tokens, have 25600: v1 2 → 3" in state.message


class TestNotShrinkingAgainstARise:
    IDLE = Serving(load=[(0.29, 0)] * 3, memory=VariantMemory(relax_since=NOW - 500))

    def test_held(self):
        assert percentages_decide(self.IDLE, settings=OFF, load=rising())["v1"].target == 2
        state = percentages_decide(self.IDLE, settings=REPAIRED, load=rising())["v1"]
        assert (state.target, state.reason) == (3, "LoadRising")
        assert state.message.startswith("could shrink, but load is rising")
        assert state.proposed.tracked.relax_since is None, "the delay begins anew after the rise"

    def test_normal_rules_afterwards(self):
        state = percentages_decide(self.IDLE, settings=REPAIRED, load=STEADY)["v1"]
        assert (state.target, state.reason) == (2, "CapacitySpare")

    def test_far_too_many_may_still_go(self):
        many = replace(self.IDLE, load=[(0.1, 0)] * 6)
        assert percentages_decide(many, settings=REPAIRED, load=rising())["v1"].target == 5


def follow(rates, policy, replicas=3, per_request=0.09):
    """Replicas tick by tick for a rate given every 15 s, the first 21 of them being the past."""
    sizes, since = [], None
    for tick in range(20, len(rates)):
        window = rates[tick - 20 : tick + 1]
        load = ModelLoad(window[-1], tuple((NOW - 300 + i * 15.0, rate) for i, rate in enumerate(window)))
        kv = min(1.0, per_request * window[-1] / replicas)
        # Every tick happens at NOW: what is remembered grows older instead.
        memory = VariantMemory(relax_since=None if since is None else since - 15)
        serving = Serving(load=[(kv, 0.0)] * replicas, desired=replicas, memory=memory)
        state = percentages_decide(serving, settings=policy, load=load)["v1"]
        since, replicas = state.proposed.tracked.relax_since, state.target
        sizes.append(replicas)
    return sizes


def test_a_rise_is_followed_ahead_and_without_flapping():
    """From 20 to 50 requests/s within 15 minutes: 3, then up to 7 are needed."""
    rates = [20.0] * 30 + [20 + 0.5 * i for i in range(60)] + [50.0] * 60
    # What these replicas hold is proportional to their load.
    proportional = {"scale_down_elasticity": 1.0}
    ahead, reactive = (follow(rates, policy.model_copy(update=proportional)) for policy in (REPAIRED, OFF))
    for size in (5, 6, 7):
        assert reactive.index(size) - ahead.index(size) in (8, 9), "about 135 s, start-up and a tick, earlier"
    assert ahead[-1] == reactive[-1] == 7
    turns = [b - a for a, b in pairwise(ahead) if a != b]
    assert turns in ([1] * 4, [1] * 5 + [-1]), "at most one replica too many, given back once"


KV = st.integers(0, 100).map(lambda n: n / 100)
LOADS = st.lists(st.tuples(KV, st.integers(0, 12).map(float)), min_size=1, max_size=5)
RISES = st.builds(rising, st.floats(1, 50), st.floats(0, 0.3))


@given(st.lists(LOADS, min_size=1, max_size=3), RISES, st.sampled_from(Mode), st.booleans())
def test_never_below_the_reactive_answer(loads, load, mode, by_tokens):
    serving = [
        Serving(f"v{i}", found, cost=i + 1.0, memory=VariantMemory(relax_since=NOW - 500))
        for i, found in enumerate(loads)
    ]
    decide = tokens_decide if by_tokens else percentages_decide
    ahead = decide(*serving, settings=EAGER.model_copy(update={"actuation": mode}), load=load)
    reactive = decide(*serving, settings=OFF.model_copy(update={"actuation": mode}), load=load)
    assert sum(s.target for s in ahead.values()) >= sum(s.target for s in reactive.values())
    for s in serving:
        if ahead[s.name].target < reactive[s.name].target:
            assert ahead[s.name].reason == reactive[s.name].reason


def test_the_lead_is_start_up_and_one_tick():
    load, policy = rising(), FleetSettings(tick=20, startup_default=100, headroom_limit=3)
    found, forecast = plan_ahead(load, [], policy, NOW), expected(load.history, 22.0, 120.0, 3.0)
    assert found.factor == forecast.factor > 1
    told = f"22 requests/s now, {forecast.rate:.3g} expected in 120 s (× {forecast.factor:.2f}; {forecast.why})"
    assert told in str(found.why)
