"""The token analysis as documented: its worked examples, and the defects that the repaired one does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import PUBLISHED, Serving, make_fleet
from stages import TOKENS, make_demand, performance_of, results, with_args

from modelyard.autoscaling.decisions.strategy import TickContext
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.published.tokens import (
    PublishedTokens,
    VariantInput,
    analyse_tokens_published,
    optimize_published,
)
from modelyard.autoscaling.variants.saturation_config import Thresholds, TokenThresholds
from modelyard.autoscaling.variants.tokens.capacity import Replica, middle, output_bucket, remember, replica_capacity
from modelyard.autoscaling.variants.tokens.engine_arguments import EngineArguments

UP_DOWN = TokenThresholds()


def pods(count, in_use, waiting=0, prompt=0.0, output=0.0, total=16_000):
    return tuple(Replica(total, in_use, waiting, prompt, output) for _ in range(count))


def decided(*variants):
    model = analyse_tokens_published(variants, Thresholds(), UP_DOWN)
    return model, optimize_published(model)


@pytest.mark.parametrize(
    ("variant", "demand", "required", "spare", "change"),
    [
        (VariantInput("v", 10, 1, 0, pods(1, 11_000, 3, 100)), 11_300, 494.1, 0, 1),
        (VariantInput("v", 10, 1, 0, pods(1, 10_000)), 10_000, 0, 0, 0),
        (VariantInput("v", 10, 2, 0, pods(2, 1_000)), 2_000, 0, 22_742.9, -1),
        (VariantInput("v", 10, 2, 1, pods(1, 10_000)), 10_000, 0, 0, 0),
        (VariantInput("v", 10, 1, 0, pods(1, 8_000, 6, 100)), 8_600, 2_117.6, 0, 1),
        (VariantInput("v", 10, 3, 0, pods(3, 12_000, 12, 1_000)), 72_000, 48_705.9, 0, 5),
        (VariantInput("v", 10, 1, 0, pods(1, 100, 10, 1_000)), 10_100, 11_782.4, 0, 118),
    ],
    ids=["short", "steady", "spare", "pending", "observed", "five at once", "runaway"],
)
def test_worked_examples(variant, demand, required, spare, change):
    model, targets = decided(variant)
    assert model.demand == demand
    assert model.required == pytest.approx(required, abs=0.05)
    assert model.spare == pytest.approx(spare, abs=0.05)
    assert targets.replicas["v"] == variant.current + change


def test_supply_and_anticipated():
    model, _ = decided(VariantInput("v", 10, 2, 1, pods(1, 10_000)))
    assert (model.supply, model.anticipated) == (12_800, 25_600)


def test_utilisation_of_the_second_example():
    (analysed,) = decided(VariantInput("v", 10, 1, 0, pods(1, 10_000)))[0].variants
    assert analysed.replicas[0].demand / analysed.capacity == pytest.approx(0.781, abs=0.0005)


def test_a_zero_threshold_disables_its_side():
    short = [VariantInput("v", 10, 1, 0, pods(1, 12_000))]
    idle = [VariantInput("v", 10, 3, 0, pods(3, 10))]
    assert analyse_tokens_published(short, Thresholds(), TokenThresholds(0, 0.7)).required == 0
    assert analyse_tokens_published(idle, Thresholds(), TokenThresholds(0.85, 0)).spare == 0


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        # The cheapest for what it carries, not the cheapest.
        (
            [
                VariantInput("big", 20, 1, 0, pods(1, 33_000, total=40_000)),
                VariantInput("small", 15, 1, 0, pods(1, 8_000, total=10_000)),
            ],
            {"big": 2, "small": 1},
        ),
        # The most expensive goes first, then the next with what is left; the last replica stays with the cheapest.
        (
            [VariantInput("dear", 30, 2, 0, pods(2, 0)), VariantInput("cheap", 5, 2, 0, pods(2, 0))],
            {"dear": 0, "cheap": 1},
        ),
        ([VariantInput("v", 5, 1, 0, pods(1, 0))], {"v": 1}),
        # Silent variants cost nothing there, and are chosen.
        (
            [VariantInput("a", 5, 1, 0, pods(1, 12_000)), VariantInput("silent", 50, 0)],
            {"a": 1, "silent": 1},
        ),
    ],
    ids=["by cost of capacity", "expensive first", "last one", "silent is free"],
)
def test_optimizer(variants, expected):
    assert decided(*variants)[1].replicas == expected


@pytest.mark.parametrize(
    ("arguments", "others", "capacity"),
    [
        (EngineArguments(), pods(1, 0, 0, 500, 100), 12_800),
        (EngineArguments(block_size=32), (), 8_192),
        (EngineArguments(), pods(1, 0), 8_192),
        (EngineArguments(v1=False), pods(1, 0), 2_048),
        (EngineArguments(batched_tokens=2048), pods(1, 0, 0, 500, 100), 140_800),
        (EngineArguments(batched_tokens=2048, blocks=1_000), pods(1, 0, 0, 500, 100), 12_800),
    ],
    ids=[
        "as much as a compatible one",
        "stored",
        "nothing to derive it from",
        "of the older engine",
        "derived",
        "as much as its own cache may hold",
    ],
)
def test_capacity_of_a_variant_that_does_not_report(arguments, others, capacity):
    live = VariantInput("live", 5, 1, 0, others)
    model, _ = decided(live, VariantInput("silent", 5, 1, 1, (), arguments))
    assert model.variants[1].capacity == capacity


def test_what_was_learnt_of_a_variant_outlives_its_last_report():
    silent = VariantInput("silent", 5, 1, 1, (), EngineArguments(batched_tokens=2048, blocks=1_000), learnt=11_000)
    model, _ = decided(VariantInput("live", 5, 1, 0, pods(1, 0, 0, 500, 100)), silent)
    assert model.variants[1].capacity == 11_000


def test_the_order_of_pods_does_not_matter():
    """What one of them teaches in a tick counts from the next tick on, for all of them."""
    queues, calm, other = pods(1, 5_000, 9)[0], pods(1, 2_000)[0], pods(1, 7_000, 9)[0]
    orders = [(queues, calm, other), (calm, other, queues), (other, queues, calm)]
    models = [decided(VariantInput("v", 5, 3, 0, order))[0] for order in orders]
    assert {model.variants[0].capacity for model in models} == {7_000}
    assert {model.required for model in models} == {0.0}
    assert all(model.variants[0].history == {"short": [5_000, 7_000]} for model in models)


def test_replicas_without_a_known_cache_are_skipped():
    model, targets = decided(VariantInput("v", 5, 2, 0, pods(2, 0, 50, 1_000, total=0)))
    assert (model.demand, model.required) == (0, 0)
    assert targets.replicas == {"v": 2}


class TestHistory:
    def test_the_mean_applies_when_nothing_is_observed(self):
        history = {"short": [6_000, 8_000]}
        assert replica_capacity(Replica(16_000, 100, 0, 10, 50), Thresholds(), history, None).effective == 7_000

    def test_only_of_the_same_length_of_output(self):
        history = {"short": [6_000]}
        assert replica_capacity(Replica(16_000, 100, 0, 10, 500), Thresholds(), history, None).effective == 12_800

    def test_observed_beats_history(self):
        history = {"short": [6_000]}
        found = replica_capacity(Replica(16_000, 9_000, 5, 10, 50), Thresholds(), history, None)
        assert (found.effective, found.observed) == (9_000, 9_000)

    def test_it_grows_by_every_pod_and_forgets_after_ten(self):
        model, _ = decided(VariantInput("v", 5, 12, 0, pods(12, 5_000, 9), history={"short": [1.0]}))
        assert model.variants[0].history == {"short": [5_000] * 10}

    def test_remember_leaves_the_old_one_alone(self):
        old = {"long": [1.0]}
        assert remember(old, "long", 2.0) == {"long": [1.0, 2.0]}
        assert old == {"long": [1.0]}

    @pytest.mark.parametrize(
        ("output", "bucket"), [(0, "short"), (99.9, "short"), (100, "medium"), (499, "medium"), (500, "long")]
    )
    def test_buckets(self, output, bucket):
        assert output_bucket(output) == bucket


@pytest.mark.parametrize(("values", "expected"), [((), 0), ((3,), 3), ((1, 9, 2), 2), ((1, 4), 2), ((1, 2, 5, 9), 3)])
def test_median(values, expected):
    assert middle(values) == expected


class TestStrategy:
    def propose(self, *serving, **performance):
        fleet = make_fleet(*serving, config=TOKENS)
        signals = replace(fleet.signals, performance=performance_of(fleet, **performance))
        fleet = replace(fleet, signals=signals)
        demand = make_demand(fleet, PUBLISHED, published=True)
        proposal = PublishedTokens().propose(demand, TickContext(fleet, PUBLISHED))
        return results(demand, proposal.variants), proposal

    def test_runaway(self):
        states, verdict = self.propose(Serving(load=[(100 / 16_000, 10)]), prompt=1_000.0)
        assert states["v1"].target == 119
        assert states["v1"].reason == "TokenCapacityLow"
        assert states["v1"].learnt["compute_limits"] == {"medium": [100]}
        assert verdict.evidence.scale_up

    def test_the_silent_variant_is_chosen_and_dropped(self):
        silent = with_args(Serving("silent", current=1, ready=0, cost=99), "--block-size=8")
        states, _ = self.propose(Serving("a", [(0.9, 0)], cost=1), silent)
        assert [states[name].proposed.decided for name in ("a", "silent")] == [True, False]
        assert states["a"].target == 1
        assert states["silent"].reason == "MetricsUnavailable"
        assert "instead of" in states["silent"].message

    def test_a_variant_that_falls_silent_keeps_its_capacity(self):
        states, _ = self.propose(Serving("a", [(0.3, 0)]), Serving("b", [(0.3, 0)], accelerator="L40S"))
        assert states["b"].learnt["token_capacity"] == 12_800
        memory = VariantMemory(token_capacity=2_000)
        silent = Serving("b", current=1, ready=0, accelerator="L40S", memory=memory)
        states, _ = self.propose(Serving("a", [(0.9, 0)]), silent)
        assert "instead of 3" in states["b"].message, "2 141 tokens more than 12 800 and the 2 000 that are coming"

    def test_no_cache_size_no_decision(self):
        states, proposal = self.propose(Serving(load=[(0.9, 9)]), total=None)
        assert states == {}
        assert (proposal.problem.status, proposal.problem.reason) == ("False", "MetricsUnavailable")

    def test_history_comes_from_the_memory(self):
        memory = VariantMemory(compute_limits={"medium": [4_000.0]})
        states, _ = self.propose(Serving(load=[(0.3, 0)], memory=memory))
        assert states["v1"].target == 2
        assert "compute_limits" not in states["v1"].learnt
