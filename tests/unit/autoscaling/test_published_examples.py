"""The worked examples of the documented algorithm, in published mode and, where they coincide, repaired."""

from __future__ import annotations

import pytest
from builders import EAGER, NOW, PUBLISHED, REPAIRED, Serving, make_fleet, one, records, run

from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.published.percentages import (
    VariantNumbers,
    analyse_published,
    documented_targets,
    remaining_spare,
    variant_means,
)
from modelyard.autoscaling.variants.saturation_config import Thresholds

LIMITS = Thresholds()

# load, non-saturated, spare KV, spare queue, up?, (KV, queue) after removal or None, safe?
EXAMPLES = [
    ([(0.75, 2), (0.76, 2)], 2, 0.045, 3, True, (-0.71, 1), False),
    ([(0.50, 3), (0.50, 3)], 2, 0.30, 2, True, None, False),
    ([(0.50, 1), (0.50, 1)], 2, 0.30, 4, False, (-0.20, 3), False),
    ([(0.20, 1), (0.30, 1), (0.25, 1)], 3, 0.55, 4, False, (0.425, 3.5), True),
    ([(0.70, 2), (0.75, 2)], 2, 0.075, 3, True, None, False),
    ([(0.50, 2)], 1, 0.30, 3, False, None, False),
    ([(0.85, 2), (0.50, 6), (0.60, 2)], 1, 0.20, 3, False, None, False),
    ([(0.85, 2), (0.50, 6), (0.90, 7)], 0, 0, 0, True, None, False),
    ([(0.35, 1), (0.35, 1)], 2, 0.45, 4, False, (0.10, 3.0), True),
    ([(0.36, 1), (0.36, 1)], 2, 0.44, 4, False, (0.08, 3.0), False),
    ([(0.10, 2)] * 4, 4, 0.70, 3, False, (0.667, 2.333), False),
    ([(0.80, 0), (0.10, 0)], 1, 0.70, 5, False, None, False),
]
NO_SATURATED = [example for example in EXAMPLES if all(kv < 0.8 and q < 5 for kv, q in example[0])]


def units(load):
    fleet = make_fleet(Serving(load=load))
    return [(signal, pod) for signal, pod in zip(fleet.signals.pods, fleet.pods, strict=True)]


@pytest.mark.parametrize(("load", "counted", "kv", "queue", "up", "after", "safe"), EXAMPLES)
def test_analysis_rows(load, counted, kv, queue, up, after, safe):
    analysis = analyse_published([units(load)], LIMITS)
    assert analysis.counted == counted
    assert analysis.spare_kv == pytest.approx(kv, abs=1e-9)
    assert analysis.spare_queue == pytest.approx(queue, abs=1e-9)
    assert (analysis.scale_up, analysis.scale_down_safe) == (up, safe)
    if after is not None:
        assert remaining_spare(0.8, analysis.spare_kv, counted) == pytest.approx(after[0], abs=1e-3)
        assert remaining_spare(5, analysis.spare_queue, counted) == pytest.approx(after[1], abs=1e-2)


def test_two_variants_are_one_mean():
    analysis = analyse_published([units([(0.70, 2), (0.75, 3)]), units([(0.60, 1), (0.65, 2), (0.55, 1)])], LIMITS)
    assert analysis.counted == 5
    assert analysis.spare_kv == pytest.approx(0.15)
    assert analysis.spare_queue == pytest.approx(3.2)
    assert remaining_spare(0.8, analysis.spare_kv, 5) == pytest.approx(-0.0125)
    assert remaining_spare(5, analysis.spare_queue, 5) == pytest.approx(2.75)
    assert not analysis.scale_up
    assert not analysis.scale_down_safe


@pytest.mark.parametrize(("load", "counted", "kv", "queue", "up", "after", "safe"), EXAMPLES)
def test_published_target(load, counted, kv, queue, up, after, safe):
    record = one(Serving(load=load), settings=PUBLISHED)
    assert record.target.replicas == len(load) + (1 if up else -1 if safe else 0)
    assert record.why.message.startswith("saturation-only mode: ")


@pytest.mark.parametrize(("load", "counted", "kv", "queue", "up", "after", "safe"), NO_SATURATED)
def test_repaired_agrees_where_nothing_is_saturated(load, counted, kv, queue, up, after, safe):
    record = one(Serving(load=load), settings=EAGER)
    assert record.target.action is (Action.UP if up else Action.DOWN if safe else Action.NONE)


def test_variant_means_counts_saturated_apart_and_missing_as_zero():
    means = variant_means(units([(0.9, 1), (None, 2), (0.5, None)]), LIMITS)
    assert (means.reporting, means.counted) == (3, 2)
    assert means.saturated == ("v1-0",)
    assert means.spare_kv == pytest.approx((0.8 + 0.3) / 2)
    assert means.spare_queue == pytest.approx((3 + 5) / 2)
    assert means.max_kv == 0.9


@pytest.mark.parametrize(
    ("n", "kv", "waiting"),
    [
        (2, 0.35, 1.0),
        (3, 0.467, 1.33),
        (4, 0.525, 1.5),
        (5, 0.56, 1.6),
        (8, 0.6125, 1.75),
        (10, 0.63, 1.8),
        (20, 0.665, 1.9),
    ],
)
def test_scale_down_limits(n, kv, waiting):
    """The table of mean loads up to which one of N replicas may go; just above either limit it may not."""

    def spare_after(mean_kv, mean_waiting):
        return (
            round(remaining_spare(0.8, 0.8 - mean_kv, n), 9) >= 0.1,
            round(remaining_spare(5, 5 - mean_waiting, n), 9) >= 3,
        )

    exact_kv, exact_waiting = 0.7 * (n - 1) / n, 2 * (n - 1) / n
    assert exact_kv == pytest.approx(kv, abs=5e-4)
    assert exact_waiting == pytest.approx(waiting, abs=5e-3)
    assert spare_after(exact_kv, exact_waiting) == (True, True)
    assert spare_after(exact_kv + 1e-6, exact_waiting + 1e-6) == (False, False)
    below = one(Serving(load=[(exact_kv, 0)] * n), settings=PUBLISHED)
    above = one(Serving(load=[(exact_kv + 1e-6, 0)] * n), settings=PUBLISHED)
    assert (below.target.replicas, above.target.replicas) == (n - 1, n)


@pytest.mark.parametrize(("second", "up"), [(0.75, False), (0.76, True)])
def test_boundary_is_strict_whatever_floats_do(second, up):
    for settings in (PUBLISHED, REPAIRED):
        record = one(Serving(load=[(0.65, 0), (second, 0)]), settings=settings)
        assert (record.target.action is Action.UP) is up


V1 = VariantNumbers("v1", cost=20, current=2, desired=4, reporting=2)
V2 = VariantNumbers("v2", cost=5, current=2, desired=0, reporting=2)


def test_a_model_in_transition_waits():
    assert documented_targets([V1, V2], True, False).replicas == {"v1": 4, "v2": 2}
    assert "v1 desired 4 ≠ current 2" in str(documented_targets([V1, V2], True, False).why)


def test_a_model_in_transition_waits_through_decide():
    load = [(0.75, 2), (0.76, 2)]
    found = run(Serving("v1", load, cost=20, desired=4), Serving("v2", load, cost=5), settings=PUBLISHED)
    assert (found["v1"].target.replicas, found["v2"].target.replicas) == (4, 2)
    assert found["v2"].why.reason == "InTransition"


@pytest.mark.parametrize("rule", [documented_targets])
class TestOneStepRules:
    def variant(self, name, cost=10.0, current=2, **fields):
        return VariantNumbers(name, cost, current, fields.pop("desired", 0), fields.pop("reporting", current), **fields)

    def test_up_takes_the_cheapest_then_first_name(self, rule):
        variants = [self.variant("b", 5), self.variant("a", 5), self.variant("c", 9)]
        assert rule(variants, True, False).replicas == {"a": 3, "b": 2, "c": 2}

    def test_down_takes_the_most_expensive_then_last_name(self, rule):
        variants = [self.variant("b", 9), self.variant("a", 9), self.variant("c", 5)]
        assert rule(variants, False, True).replicas == {"a": 2, "b": 1, "c": 2}

    def test_down_never_below_one(self, rule):
        variants = [self.variant("a", 9, current=1), self.variant("b", 5, current=3)]
        assert rule(variants, False, True).replicas == {"a": 1, "b": 2}
        assert rule([self.variant("a", current=1)], False, True).replicas == {"a": 1}

    def test_up_has_priority(self, rule):
        assert rule([self.variant("a")], True, True).replicas == {"a": 3}

    def test_pending_variant_is_no_candidate(self, rule):
        variants = [self.variant("a", 1, pending=1), self.variant("b", 5)]
        assert rule(variants, True, False).replicas == {"a": 2, "b": 3}
        assert rule([self.variant("a", pending=1)], True, False).replicas == {"a": 2}

    def test_desired_zero_is_unset(self, rule):
        assert rule([self.variant("a", current=1, desired=0)], True, False).replicas == {"a": 2}


def test_a_variant_that_lags_blocks():
    lagging = VariantNumbers("a", 10, 3, 3, 2)
    assert documented_targets([lagging], True, False).replicas == {"a": 3}


def test_it_ignores_variants_without_reporting_pods():
    silent = VariantNumbers("a", 1, 1, 0, 0, pending=1)
    assert documented_targets([silent, V2], True, False).replicas == {"v2": 3}
    assert documented_targets([silent], True, False).replicas == {"a": 1}


# (current, ready, reporting load, desired in status) → published
STORY = [
    ("first trigger", 2, 2, [(0.755, 0)] * 2, 0, 3),
    ("waiting for the HPA", 2, 2, [(0.755, 0)] * 2, 3, 3),
    ("pod starting", 3, 2, [(0.755, 0)] * 2, 3, 3),
    ("settled", 3, 3, [(0.503, 0)] * 3, 3, 3),
    ("load fell", 3, 3, [(0.40, 1)] * 3, 3, 2),
    ("on its way down", 3, 3, [(0.40, 1)] * 3, 2, 2),
    ("arrived", 2, 2, [(0.60, 0)] * 2, 2, 2),
]


@pytest.mark.parametrize(("what", "current", "ready", "load", "desired", "target"), STORY, ids=[s[0] for s in STORY])
def test_multi_cycle_story_published(what, current, ready, load, desired, target):
    assert (
        one(Serving(load=load, current=current, ready=ready, desired=desired), settings=PUBLISHED).target.replicas
        == target
    )


def test_multi_cycle_story_repaired():
    """The same story by the repaired rules, without damping, with each record's memory carried on."""
    from builders import EAGER

    state = Serving()
    for what, current, ready, load, desired, target in STORY:
        now_state = Serving(load=load, current=current, ready=ready, desired=desired or None, memory=state.memory)
        record = one(now_state, settings=EAGER)
        assert record.target.replicas == target, what
        state = Serving(memory=record.memory)


def test_transition_decision_does_not_move_anybody():
    fleet = make_fleet(Serving(load=[(0.9, 9)] * 2, current=3, ready=2, desired=3))
    record = records(decide(fleet, PUBLISHED))["v1"]
    assert (record.target.replicas, record.target.action, record.why.reason) == (3, Action.NONE, "InTransition")
    assert "in transition: v1 reporting 2 ≠ current 3" in record.why.message
    assert fleet.now == NOW
