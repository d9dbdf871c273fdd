"""The repaired token analysis: each documented defect, and what happens instead; and what must always hold."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import EAGER, MODEL, NOW, REPAIRED, Serving, make_fleet
from hypothesis import given, strategies as st
from stages import TOKENS, analyse, make_demand, performance_of, tokens_decide, with_args

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.decisions.strategy import TickContext
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.saturation import Tokens
from modelyard.autoscaling.variants.tokens.analysis import Queue


def tokens(*serving, settings=REPAIRED, backlog=0.0, total=16_000, prompt=100.0, output=100.0, change=None, **fields):
    fleet = make_fleet(*serving, config=TOKENS)
    found = [p if change is None else change(p) for p in performance_of(fleet, total, prompt, output)]
    return tokens_decide(*serving, settings=settings, performance=found, backlog=backlog, **fields)


def analysed(*serving, settings=REPAIRED, backlog=0.0, total=16_000, prompt=100.0, output=100.0, change=None):
    fleet = make_fleet(*serving, config=TOKENS)
    found = [p if change is None else change(p) for p in performance_of(fleet, total, prompt, output)]
    return analyse(make_demand(fleet, settings), found, settings, backlog)


class TestDocumentedCases:
    """The worked examples again: the same verdicts, with steps that are bounded."""

    @pytest.mark.parametrize(
        ("load", "prompt", "target"),
        [
            ([(11_000 / 16_000, 3)], 100.0, 2),
            ([(10_000 / 16_000, 0)], 100.0, 1),
            ([(1_000 / 16_000, 0)] * 2, 100.0, 1),
            ([(0.5, 6)], 100.0, 2),
            # 72 000 tokens over 12 000 each ask for 8; a variant of three at most doubles.
            ([(0.75, 12)] * 3, 1_000.0, 6),
        ],
        ids=["short", "steady", "spare", "observed", "bounded"],
    )
    def test_same_verdict(self, load, prompt, target):
        assert tokens(Serving(load=load), settings=EAGER, prompt=prompt)["v1"].target == target

    def test_pending_counts(self):
        state = tokens(Serving(load=[(0.75, 0)], current=2, ready=1, desired=2))["v1"]
        assert (state.target, state.reason) == (2, "CapacityOnItsWay")

    def test_the_message_has_the_numbers(self):
        state = tokens(Serving(load=[(11_000 / 16_000, 3)]))["v1"]
        assert state.reason == "TokenCapacityLow"
        assert state.message == (
            "short of capacity (need 13294 tokens, have 12800): v1 1 → 2; "
            "demand 11300 tokens, capacity 12800 over 1 reporting, 0 saturated"
        )


class TestRunaway:
    LOAD = ((100 / 16_000, 10),)

    def test_118_replicas_become_one(self):
        """Published: 119 (see there). 100 tokens in use are no limit: a quarter of the cache is the least."""
        wide = FleetSettings(max_step_up=1000, max_step_up_factor=1000)
        assert tokens(Serving(load=self.LOAD), settings=wide, prompt=1_000.0)["v1"].target == 4
        assert tokens(Serving(load=self.LOAD), prompt=1_000.0)["v1"].target == 2

    def test_the_floor_is_what_is_remembered(self):
        state = tokens(Serving(load=self.LOAD), prompt=1_000.0)["v1"]
        assert state.learnt["compute_limits"] == {"medium": [3_200.0]}

    def test_a_pod_that_has_just_started_teaches_nothing(self):
        young = Serving(load=self.LOAD, ready_age=10)
        assert analysed(young, prompt=1_000.0).variants["v1"].worth == 12_800
        assert not analysed(young, prompt=1_000.0).compute_limits

    def test_what_is_held_without_a_queue_can_be_held(self):
        memory = VariantMemory(compute_limits={"medium": [4_000.0]})
        assert analysed(Serving(load=[(0.5, 4)], memory=memory)).variants["v1"].worth == 8_000


class TestHistory:
    BUSY = ((0.5, 8),)

    def test_applies_without_a_queue(self):
        memory = VariantMemory(compute_limits={"medium": [8_000.0]})
        assert analysed(Serving(load=[(0.1, 0)], memory=memory)).variants["v1"].worth == 8_000
        assert analysed(Serving(load=[(0.1, 0)], memory=memory), output=700.0).variants["v1"].worth == 12_800

    def test_is_written_only_when_it_says_something_new(self):
        first = tokens(Serving(load=self.BUSY))["v1"].learnt["compute_limits"]
        assert first == {"medium": [8_000.0]}
        again = tokens(Serving(load=[(0.51, 8)], memory=VariantMemory(compute_limits=first)))["v1"]
        assert "compute_limits" not in again.learnt
        moved = tokens(Serving(load=[(0.7, 8)], memory=VariantMemory(compute_limits=first)))["v1"]
        assert moved.learnt["compute_limits"] == {"medium": [8_000.0, 11_200.0]}

    def test_one_value_per_tick(self):
        state = tokens(Serving(load=[(0.4, 8), (0.5, 8), (0.6, 8)]))["v1"]
        assert state.learnt["compute_limits"] == {"medium": [8_000.0]}


class TestUnknownCache:
    def test_use_of_the_cache_still_decides(self):
        """No size is known at all: one assumed scale for all, on which use of the cache is what it is."""
        busy = tokens(Serving(load=[(0.75, 0)] * 2), total=None)["v1"]
        assert (busy.target, busy.reason) == (3, "TokenCapacityLow")
        assert "2 whose cache size is not known and assumed" in busy.message
        assert tokens(Serving(load=[(0.05, 0)] * 2), total=None, settings=EAGER)["v1"].target == 1

    def test_siblings_know(self):
        def forget(p):
            return replace(p, kv_tokens=None) if p.pod in ("a-1", "b-0") else p

        a, b = Serving("a", [(0.5, 0)] * 2), Serving("b", [(0.5, 0)])
        found = analysed(a, b, change=forget)
        assert found.assumed == 2
        assert found.demand == 24_000

    def test_another_accelerator_gives_the_scale(self):
        def forget(p):
            return replace(p, kv_tokens=None) if p.pod == "b-0" else replace(p, kv_tokens=500_000)

        found = analysed(Serving("a", [(0.5, 0)]), Serving("b", [(0.5, 0)], accelerator="L40S"), change=forget)
        assert found.demand == 500_000

    def test_arguments_fix_it(self):
        fixed = with_args(Serving(load=[(0.5, 0)]), "--num-gpu-blocks-override=1000", "--block-size=16")
        assert analysed(fixed, total=None).demand == 8_000

    def test_missing_token_means_do_not_shrink(self):
        """A queue of requests whose size is not known."""
        found = analysed(Serving(load=[(0.01, 1)] * 4), prompt=None)
        assert found.incomplete == 4
        assert not found.scale_down_safe
        assert analysed(Serving(load=[(0.01, 0)] * 4), prompt=None).scale_down_safe


class TestSilentVariants:
    def test_the_resource_says_what_it_costs(self):
        """Published takes a silent variant for free, chooses it and drops it: the model never scales."""
        silent = Serving("silent", current=0, cost=99, ready=0)
        states = tokens(Serving("a", [(0.9, 0)], cost=1), silent)
        assert (states["a"].target, states["silent"].target) == (2, 0)

    def test_a_cheap_one_that_is_at_zero_may_be_chosen(self):
        states = tokens(
            Serving("a", [(0.75, 0)], cost=9),
            Serving("cheap", current=0, cost=1, ready=0),
            zero={"default": "enable_scale_to_zero: true"},
        )
        assert (states["a"].target, states["cheap"].target) == (1, 1)

    @pytest.mark.parametrize(
        ("changes", "arguments", "worth"),
        [
            ({}, (), 12_800),
            ({}, ("--max-model-len=99",), 12_800),
            ({"accelerator": "L40S"}, (), 12_800),
            ({"accelerator": "L40S"}, ("--num-gpu-blocks-override=500",), 6_400),
            ({"accelerator": "L40S"}, ("--max-num-seqs=8",), 1_200),
            ({"gpus": 2}, ("--max-num-seqs=8",), 1_200),
        ],
        ids=["like its sibling", "compatible", "smallest known", "its own cache", "its own batch", "other GPUs"],
    )
    def test_capacity(self, changes, arguments, worth):
        silent = with_args(Serving("silent", current=1, ready=0, **changes), *arguments)
        assert analysed(Serving("a", [(0.5, 0)]), silent).variants["silent"].worth == worth

    def test_nothing_known_anywhere(self):
        assert analysed(Serving(current=1, ready=0)).variants["v1"].worth == int(8192 * 0.8)


class TestSilentPods:
    def test_ready_and_silent_counts_as_average(self):
        found = analysed(Serving(load=[(0.5, 0)] * 3, current=4, ready=4))
        assert (found.demand, found.silent) == (32_000, 1)
        assert found.supply == 4 * 12_800

    def test_one_that_has_just_become_ready_does_not(self):
        found = analysed(Serving(load=[(0.5, 0)] * 3, current=4, ready=4, ready_age=5))
        assert (found.demand, found.silent) == (24_000, 0)

    def test_a_pod_without_its_cache_use_counts_as_average_and_forbids_shrinking(self):
        found = analysed(Serving(load=[(0.2, 0), (None, 0.0), (0.2, 0), (0.2, 0)]))
        assert (found.demand, found.incomplete) == (12_800, 1)
        assert not found.scale_down_safe


class TestScaleDown:
    def test_expensive_first(self):
        states = tokens(
            Serving("dear", [(0.1, 0)] * 2, cost=9), Serving("cheap", [(0.1, 0)] * 2, cost=1), settings=EAGER
        )
        assert (states["dear"].target, states["cheap"].target) == (1, 2)
        assert states["dear"].reason == "CapacitySpare"

    def test_not_where_its_tokens_do_not_fit_elsewhere(self):
        """What one big replica holds is more than the small ones can take: a small one goes instead."""

        def sizes(p):
            return replace(p, kv_tokens=100_000 if p.pod.startswith("big") else 4_000)

        big, small = Serving("big", [(0.05, 0)] * 2, cost=9), Serving("small", [(0.01, 0)] * 4, cost=1)
        found = analysed(big, small, change=sizes)
        assert found.fits({"small": 1})
        assert not found.fits({"big": 2})
        assert found.fits({"big": 1})
        heavy = Serving("big", [(0.3, 0)] * 2, cost=9)
        states = tokens(heavy, small, change=sizes, settings=EAGER)
        assert (states["big"].target, states["small"].target) == (2, 3)

    def test_one_at_a_time_and_after_the_delay(self):
        idle = Serving(load=[(0.01, 0)] * 6)
        state = tokens(idle)["v1"]
        assert (state.target, state.reason) == (6, "ScaleDownDelayed")
        relaxed = replace(idle, memory=VariantMemory(relax_since=NOW - 500))
        assert tokens(relaxed)["v1"].target == 5

    def test_what_never_became_ready_goes_first(self):
        memory = VariantMemory(transition_since=NOW - 7200, relax_since=NOW - 7200)
        state = tokens(Serving(load=[(0.5, 0)], current=6, ready=1, desired=6, memory=memory))["v1"]
        assert (state.target, state.reason) == (1, "CapacitySpare")

    def test_an_hpa_gets_a_step_it_does_not_ignore(self):
        signal = FleetSettings(actuation=Mode.SIGNAL, scale_down_delay=0)
        assert tokens(Serving(load=[(0.01, 0)] * 20), settings=signal)["v1"].target == 17

    def test_bounds(self):
        bound = {"annotations": {"modelyard.dev/min-replicas": "2", "modelyard.dev/max-replicas": "3"}}
        assert tokens(Serving(load=[(0.01, 0)] * 2, variant=bound), settings=EAGER)["v1"].reason == "AtMinimum"
        assert tokens(Serving(load=[(0.9, 9)] * 2, variant=bound))["v1"].target == 3


class TestGrowth:
    def test_cheapest_for_what_it_carries(self):
        def sizes(p):
            return replace(p, kv_tokens=40_000 if p.pod.startswith("big") else 10_000)

        states = tokens(Serving("big", [(0.82, 0)], cost=20), Serving("small", [(0.82, 0)], cost=15), change=sizes)
        assert (states["big"].target, states["small"].target) == (2, 1)

    def test_the_queue_at_the_gateway_counts_with_both_its_ends(self):
        found = analysed(Serving(load=[(0.5, 0)]), backlog=50)
        assert found.demand == 8_000 + 50 * 200
        assert found.scale_up

    def test_what_prefix_caches_have_of_the_queue_at_the_gateway_does_not_count(self):
        def hit(p):
            return replace(p, prefix_hit_rate=0.8 if p.pod == "v1-0" else 0.4)

        found = analysed(Serving(load=[(0.5, 0)] * 2), backlog=50, change=hit)
        assert found.demand == pytest.approx(16_000 + 50 * (100 * 0.4 + 100))

    @pytest.mark.parametrize(
        ("requests", "size", "prompt", "output", "hits", "demand"),
        [
            (50, 0, 100, 100, 0.0, 50 * 200),  # no bytes known
            (50, 8_000, 100, 100, 0.0, 50 * 200),  # 2000 tokens by bytes, 5000 by requests
            (50, 80_000, 100, 100, 0.0, 20_000 + 50 * 100),  # prompts that are longer than usual
            (50, 80_000, 100, 100, 0.5, 10_000 + 50 * 100),
            (2, 400_000, 0, 0, 0.0, 100_000),  # no request has finished yet: bytes are all that is known
            (0, 0, 100, 100, 0.9, 0),
        ],
    )
    def test_bytes_of_the_queue_at_the_gateway_count(self, requests, size, prompt, output, hits, demand):
        assert Queue(requests, size).tokens(prompt, output, hits) == pytest.approx(demand)

    def test_a_long_prompt_at_the_gateway_scales_before_an_engine_has_it(self):
        """Ten requests of 20 000 tokens each, where a mean prompt has 100."""
        fleet = make_fleet(Serving(load=[(0.1, 0)]), config=TOKENS, signals={"gateway_queue": {("chat", MODEL): 10.0}})
        fleet = replace(fleet, signals=replace(fleet.signals, performance=performance_of(fleet)))
        assert [record.target.replicas for record in decide(fleet, REPAIRED).records] == [1]
        known = replace(fleet.signals, gateway_bytes={("chat", MODEL): 800_000.0})
        assert [record.target.replicas for record in decide(replace(fleet, signals=known), REPAIRED).records] == [2]

    def test_too_few_reports_hold_still(self):
        state = tokens(Serving(load=[(0.9, 9)], current=4, ready=4))["v1"]
        assert (state.target, state.reason) == (4, "PartialMetrics")

    def test_stuck_pods_are_left_out(self):
        memory = VariantMemory(stuck_since={"v1-0": NOW - 900}, stuck_waiting={"v1-0": 50.0})
        fleet = make_fleet(Serving(load=[(0.3, 50), (0.1, 0)], memory=memory), config=TOKENS)
        broken = replace(fleet.signals.pods[0], completed_rate=0.0)
        fleet = replace(fleet, signals=replace(fleet.signals, pods=(broken, fleet.signals.pods[1])))
        found = analyse(make_demand(fleet, REPAIRED), performance_of(fleet), REPAIRED)
        assert (found.stuck, found.demand, found.supply) == (1, 1_600, 12_800)
        assert found.lost == 12_800


def test_the_strategy_proposes_for_every_variant():
    fleet = make_fleet(Serving("a", [(0.5, 8)]), Serving("b", current=0, ready=0), config=TOKENS)
    signals = replace(fleet.signals, performance=performance_of(fleet))
    fleet = replace(fleet, signals=signals)
    proposal = Tokens().propose(make_demand(fleet, REPAIRED), TickContext(fleet, REPAIRED))
    assert {name: proposed.replicas for name, proposed in proposal.variants.items()} == {"a": 2, "b": 0}
    assert proposal.variants["a"].learnt["compute_limits"] == {"medium": [8_000.0]}
    assert proposal.evidence.scale_up
    assert proposal.scale_down_safe is False


KV = st.integers(0, 100).map(lambda n: n / 100)
WAITING = st.integers(0, 30).map(float)
MEMORIES = st.builds(
    VariantMemory,
    relax_since=st.sampled_from([None, NOW - 500]),
    compute_limits=st.sampled_from([{}, {"medium": [3_000.0, 5_000.0]}, {"medium": [20_000.0]}]),
)


@st.composite
def models(draw, memories=MEMORIES, waiting=WAITING, kv=KV):
    made = []
    for i in range(draw(st.integers(1, 3))):
        load = draw(st.lists(st.tuples(kv, waiting), min_size=1, max_size=5))
        made.append(
            Serving(
                f"v{i}",
                load,
                cost=draw(st.sampled_from([1.0, 5.0, 10.0])),
                accelerator=draw(st.sampled_from(["H100", "L40S"])),
                ready_age=draw(st.sampled_from([5.0, 3600.0])),
                memory=draw(memories),
            )
        )
    return made


def total_of(states):
    return sum(state.target for state in states.values())


@given(models(), st.data())
def test_a_longer_queue_never_gives_fewer_replicas(serving, data):
    longer = [replace(s, load=[(kv, waiting + data.draw(WAITING)) for kv, waiting in s.load]) for s in serving]
    assert total_of(tokens(*longer, settings=EAGER)) >= total_of(tokens(*serving, settings=EAGER))


@given(models(memories=st.just(VariantMemory()), waiting=st.just(0.0)), st.data())
def test_a_fuller_cache_never_gives_fewer_replicas(serving, data):
    fuller = [replace(s, load=[(min(1.0, kv + data.draw(KV)), 0.0) for kv, _ in s.load]) for s in serving]
    assert total_of(tokens(*fuller, settings=EAGER)) >= total_of(tokens(*serving, settings=EAGER))


@given(models(), st.randoms(use_true_random=False))
def test_order_does_not_matter(serving, shuffle: random.Random):
    fleet = make_fleet(*serving, config=TOKENS)
    found = list(performance_of(fleet))
    mixed = replace(
        fleet,
        variants=tuple(shuffle.sample(fleet.variants, len(fleet.variants))),
        pods=tuple(shuffle.sample(fleet.pods, len(fleet.pods))),
        signals=replace(fleet.signals, pods=tuple(shuffle.sample(fleet.signals.pods, len(fleet.signals.pods)))),
    )
    first = analyse(make_demand(fleet, REPAIRED), found, REPAIRED)
    second = analyse(make_demand(mixed, REPAIRED), shuffle.sample(found, len(found)), REPAIRED)
    assert first == second


@given(models(), st.data())
def test_missing_is_never_zero(serving, data):
    """Whatever one pod no longer says, nothing shrinks for it, and nothing becomes idle."""
    which = data.draw(st.integers(0, len(serving) - 1))
    what = data.draw(st.sampled_from([(None, 1.0), (0.5, None)]))
    holed = list(serving)
    holed[which] = replace(serving[which], load=[what, *serving[which].load[1:]])
    states = tokens(*holed, settings=EAGER)
    for s in holed:
        assert states[s.name].target >= len(s.load)
    assert all(p.model == MODEL for p in performance_of(make_fleet(*holed)))


class TestBacklog:
    """What waits in an engine is served there: new replicas only take their share of what is still to come."""

    def test_a_long_queue_at_one_replica_asks_for_no_more_than_a_full_one(self):
        few, many = (analysed(Serving(load=[(0.5, waiting), *[(0.1, 0)] * 7])) for waiting in (256, 9000))
        assert few.demand == many.demand == 0.5 * 16_000 + 2 * 12_800 + 7 * 1_600
        assert not many.scale_up
        assert many.waiting == 9000

    def test_where_every_replica_queues_growth_is_as_fast_as_ever(self):
        assert tokens(Serving(load=[(0.95, 9000)] * 4), settings=EAGER)["v1"].target == 8
