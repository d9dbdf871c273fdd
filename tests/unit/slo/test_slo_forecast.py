"""The forecast over one group: sizing, damping, request sizes, classes, and what saturation may add or forbid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MODEL, NOW, Serving, condition, hpa, one, records
from slo_builders import (
    H100,
    INSTANT,
    L40S,
    RATE_P,
    SLO,
    STILL,
    carry_on,
    one_slo,
    premium,
    run_slo,
    slo_fleet,
    targets,
)

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.memory.variants import SLOMemory, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import PodPerformance

LONG_AGO = VariantMemory(relax_since=NOW - 3600)
REMEMBERED = VariantMemory(slo=SLOMemory(prompt_tokens=512, output_tokens=256, tokens_at=NOW - 300))


class TestSizing:
    @pytest.mark.parametrize(
        ("per_minute", "replicas"), [(0.3, 1), (1125, 1), (1126, 2), (2400, 3), (4567.89, 5), (12_000, 11)]
    )
    def test_profile_p(self, per_minute, replicas):
        record = one_slo(SLO(), load=per_minute / 60)
        assert record.target.replicas == replicas
        assert record.why.prediction.load == pytest.approx(per_minute / 60)
        assert record.why.prediction.rate_per_replica == pytest.approx(RATE_P, rel=1e-5)

    @pytest.mark.parametrize(
        ("itl", "reason", "text"),
        [(7.5, "TargetBelowMinimumITL", "ITL target 7.5 ms; lowest possible on this profile 7.55 ms"), (10, "", "")],
    )
    @pytest.mark.parametrize("load", [40.0, 0.0])
    def test_infeasible_itl_is_told_busy_or_idle(self, itl, reason, text, load):
        record = one_slo(SLO(running=0.0 if not load else 1.0), load=load, classes={"premium.yaml": premium(itl=itl)})
        expected = ("False", reason) if reason else ("True", "TargetsReachable")
        assert condition(record, "SLOFeasible") == expected
        assert text in next(c.message for c in record.conditions if c.type == "SLOFeasible")
        assert record.target.decided

    def test_infeasible_ttft_is_sized_for_the_nearest_target(self):
        record = one_slo(SLO(), load=40.0, classes={"premium.yaml": premium(ttft=10, itl=0)})
        assert condition(record, "SLOFeasible") == ("False", "TargetBelowMinimumTTFT")
        message = next(c.message for c in record.conditions if c.type == "SLOFeasible")
        assert "TTFT target 10 ms; lowest possible on this profile 13.0" in message
        assert "slo-ttft" in message
        assert 3 <= record.target.replicas < 200

    def test_infeasible_is_told_before_any_request_was_seen(self):
        silent = {"completed": 0.0, "prompt": None, "output": None, "running": 0.0}
        record = one_slo(SLO(**silent), load=0.0, classes={"premium.yaml": premium(itl=7.5)})
        assert condition(record, "SLOFeasible") == ("False", "TargetBelowMinimumITL")
        record = one_slo(SLO(**silent), load=0.0)
        assert condition(record, "SLOFeasible") == ("Unknown", "RequestSizesUnknown")

    def test_a_target_that_only_an_idle_replica_meets_is_told(self):
        record = one_slo(SLO(), load=40.0, classes={"premium.yaml": premium(itl=7.6)})
        assert condition(record, "SLOFeasible") == ("False", "TargetBelowMinimumITL")
        message = next(c.message for c in record.conditions if c.type == "SLOFeasible")
        assert "ITL target 7.6 ms; lowest possible on this profile 7.55 ms" in message
        assert "sized for 7.928 ms" in message
        assert record.target.replicas == 11

    def test_a_single_output_token_has_a_prediction_without_itl(self):
        record = one_slo(SLO(output=1.0), load=40.0)
        assert record.why.prediction.itl is None
        assert record.why.prediction.ttft == pytest.approx(12.0, rel=0.5)
        assert 0 < record.why.prediction.utilisation < 1
        assert all(a.utilisation is not None for a in record.why.alternatives if a.replicas["v1"])
        assert "overloaded" not in " ".join(a.note for a in record.why.alternatives)

    def test_a_percentile_target_and_its_prediction_speak_of_the_same(self):
        near = INSTANT.model_copy(update={"ttft_percentile": 99.0})
        lone = {"classes": {"premium.yaml": premium(itl=0, ttft=500)}}
        rate = one_slo(SLO(), load=5.0, settings=near, **lone).why.prediction.rate_per_replica
        record = one_slo(SLO(), load=rate, settings=near, **lone)
        assert record.why.prediction.ttft == pytest.approx(500, rel=1e-3)
        mean = one_slo(SLO(), load=rate, **lone)
        assert mean.why.prediction.ttft < 250

    def test_without_targets_utilisation_is_capped(self):
        record = one_slo(SLO(), load=40.0, classes={"premium.yaml": premium(itl=0, ttft=0)})
        assert record.why.prediction.rate_per_replica == pytest.approx(0.9 * 29.53797, rel=1e-3)

    def test_two_variants_share_the_load_at_least_cost(self):
        both = (SLO("h", profile=H100), SLO("l", profile=L40S, accelerator="L40S", batch=48))
        found = run_slo(*both, load=31.0, classes={"premium.yaml": premium(itl=30)})
        assert targets(found) == {"h": 1, "l": 1}
        assert sum(record.why.prediction.load for record in found.values()) == pytest.approx(31.0)
        chosen = next(a for a in found["h"].why.alternatives if a.chosen)
        assert (dict(chosen.replicas), chosen.cost) == ({"h": 1, "l": 1}, 132.0)
        alone = {tuple(a.replicas.items()): a.cost for a in found["h"].why.alternatives if "alone" in a.note}
        assert alone == {(("h", 2), ("l", 0)): 200.0, (("h", 0), ("l", 6)): 192.0}

    def test_alternatives_say_what_one_fewer_would_break(self):
        record = one_slo(SLO(), load=40.0)
        fewer = next(a for a in record.why.alternatives if a.replicas["v1"] == 2)
        assert (fewer.cost, fewer.chosen) == (200.0, False)
        assert "ITL would be 10.23 ms, above 10 ms" in fewer.note
        assert fewer.itl == pytest.approx(10.2253, abs=1e-4)

    def test_the_message_says_why(self):
        message = one_slo(SLO(), load=40.0).why.message
        for part in ("40 requests/s of 512 + 256 tokens", "18.75/s", "ITL binds at 51% utilisation", "v1 1 → 3"):
            assert part in message


@pytest.mark.parametrize("settings", [STILL, FleetSettings(compatibility="published")])
def test_without_prometheus_no_more_than_the_maximum_is_published(settings):
    capped = {"annotations": {"modelyard.dev/max-replicas": "4"}}
    down = {"error": "connection refused"}
    slo = one_slo(SLO(replicas=6, variant=capped), load=None, signals=down, settings=settings)
    saturation = one(Serving(current=6, desired=6, variant=capped), signals=down, settings=settings)
    for record in (slo, saturation):
        assert (record.target.replicas, record.target.decided, record.writes.scale) == (4, False, None)
        assert "of 6 no more than 4 (annotation modelyard.dev/max-replicas)" in record.why.message


class TestDamping:
    def test_what_never_became_ready_goes_first(self):
        memory = VariantMemory(transition_since=NOW - 7200, relax_since=NOW - 7200)
        never = {"current": 6, "ready": 1, "desired": 6, "memory": memory}
        record = one_slo(SLO(serving=never), load=5.0, settings=STILL)
        assert (record.target.replicas, record.why.reason) == (1, "CapacitySpare")
        busy = one_slo(SLO(serving=never), load=40.0, settings=STILL)
        assert busy.target.replicas >= 6

    def follow(self, loads, settings, replicas=1, step=15.0):
        """Targets tick by tick, each applied at once; the pods of a new replica are as old as the others."""
        chosen, memory = [], VariantMemory()
        for i, load in enumerate(loads):
            now = NOW + i * step
            variant = SLO(replicas=replicas, serving={"memory": memory})
            fleet = slo_fleet(variant, load=load, now=now, history=((now - 300, load),))
            record = records(decide(fleet, settings))["v1"]
            replicas, memory = (
                record.target.replicas,
                record.memory.model_copy(update={"transition_since": None, "transition_target": None}),
            )
            chosen.append(replicas)
        return chosen

    def test_no_oscillation_at_a_rounding_edge(self):
        loads = [1125 / 60, 1126 / 60] * 20
        assert self.follow(loads, STILL) == [1] + [2] * 39

    def test_growth_is_immediate_and_as_large_as_the_demand(self):
        assert self.follow([1.0, 100.0], STILL) == [1, 6]

    def test_one_wild_measurement_does_not_order_hundreds(self):
        assert self.follow([5000.0], STILL) == [11]
        assert self.follow([50_000.0], STILL, replicas=30) == [60]

    def test_shrinking_waits_for_the_delay_and_goes_step_by_step(self):
        found = self.follow([5.0] * 14, STILL, replicas=4)
        assert found[:8] == [4] * 8
        assert found[8:12] == [3, 2, 1, 1]

    def test_a_break_starts_the_delay_anew(self):
        low, high = 1100 / 60 * 0.5, 1126 / 60
        loads = [low] * 6 + [high] + [low] * 8 + [low]
        assert self.follow(loads, STILL, replicas=2) == [2] * 15 + [1]

    def test_shrinking_needs_the_margin(self):
        assert self.follow([0.91 * RATE_P] * 20, STILL, replicas=2)[-1] == 2
        assert self.follow([0.89 * RATE_P] * 20, STILL, replicas=2)[-1] == 1

    def test_nothing_shrinks_before_a_whole_window_was_seen(self):
        young = one_slo(SLO(replicas=4), load=1.0, history=((NOW - 20, 1.0),))
        assert (young.target.replicas, young.why.reason) == (4, "WarmUpHold")
        assert one_slo(SLO(replicas=4), load=1.0, history=((NOW - 61, 1.0),)).target.replicas == 1
        new = SLO(replicas=4, serving={"created": NOW - 30})
        assert one_slo(new, load=1.0, history=()).why.reason == "WarmUpHold"

    def test_nothing_shrinks_while_something_is_under_way(self):
        starting = SLO(replicas=4, serving={"ready": 3, "desired": 4, "memory": LONG_AGO})
        record = one_slo(starting, load=1.0)
        assert record.target.replicas == 4

    def test_what_is_coming_counts(self):
        coming = SLO(replicas=1, serving={"desired": 3, "memory": VariantMemory(transition_target=3)})
        assert one_slo(coming, load=40.0).target.replicas == 3

    def test_a_cheaper_mix_is_added_before_the_old_one_goes(self):
        both = (
            SLO("h", replicas=2, profile=H100, serving={"memory": LONG_AGO}),
            SLO("l", replicas=1, profile=L40S, accelerator="L40S", batch=48, serving={"memory": LONG_AGO}),
        )
        prices = {"H100": "100", "L40S": "1"}
        found = run_slo(*both, load=30.0, costs=prices, classes={"premium.yaml": premium(itl=30)})
        assert found["h"].target.replicas == 2
        assert found["l"].target.replicas == 6
        assert found["l"].why.reason == "CheaperMix"

    def test_hpa_tolerance(self):
        big = SLO(replicas=20)
        record = one_slo(big, load=20.5 * RATE_P, consumers=[hpa(big.base, 1, 100)])
        assert record.target.replicas == 23
        record = one_slo(big, load=17.0 * RATE_P, consumers=[hpa(big.base, 1, 100)])
        assert (record.target.replicas, record.why.reason) == (20, "BelowHPATolerance")


class TestRequestSizes:
    def test_too_few_completions_use_what_is_remembered(self):
        few = SLO(completed=2, output=40_000.0, serving={"memory": REMEMBERED})
        record = one_slo(few, load=40.0)
        assert record.target.replicas == 3
        assert "remembered" in record.why.message

    @pytest.mark.parametrize("age", [601, None])
    def test_nothing_remembered_holds_still(self, age):
        known = VariantMemory(slo=SLOMemory(prompt_tokens=512, output_tokens=256, tokens_at=NOW - age)) if age else None
        few = SLO(replicas=2, completed=2, serving={"memory": known or VariantMemory()})
        record = one_slo(few, load=400.0)
        assert (record.target.replicas, record.why.reason) == (2, "RequestSizesUnknown")
        assert condition(record, "MetricsAvailable") == ("False", "MetricsMissing")

    @pytest.mark.parametrize("known", [{}, {"completed": 0.25}, {"memory": REMEMBERED}, {"old": True}])
    def test_a_model_with_next_to_no_traffic_is_not_kept_large_for_ever(self, known):
        old = VariantMemory(slo=SLOMemory(prompt_tokens=512, output_tokens=256, tokens_at=NOW - 86_400))
        memory = old if "old" in known else known.get("memory", VariantMemory())
        completed = known.get("completed", 0.0)
        sizes = {} if completed else {"prompt": None, "output": None}
        variant = SLO(replicas=8, completed=completed, serving={"memory": memory}, **sizes)
        record = one_slo(variant, load=0.02)
        assert record.target.replicas == (1 if known else 8)
        assert record.memory.slo is None or record.memory.slo.tokens_at != NOW

    def test_a_wrong_measurement_does_not_order_more_while_nothing_more_is_ready(self):
        coming = VariantMemory(transition_target=22, transition_since=NOW - 15)
        rising = SLO(replicas=11, serving={"ready": 1, "desired": 22, "memory": coming, "current": 11})
        assert one_slo(rising, load=50_000.0).target.replicas == 22
        ready = SLO(replicas=11, serving={"desired": 11})
        assert one_slo(ready, load=50_000.0).target.replicas == 22

    def test_saturation_still_grows_while_sizes_are_unknown(self):
        few = SLO(replicas=2, completed=2, load=(0.95, 9.0))
        assert one_slo(few, load=400.0).target.replicas > 2

    def test_output_below_one_token_is_not_believed(self):
        record = one_slo(SLO(completed=100, output=0.4, serving={"memory": REMEMBERED}), load=40.0)
        assert record.target.replicas == 3

    def test_sizes_are_weighted_by_completions(self):
        fleet = slo_fleet(SLO(replicas=2), load=10.0)
        mixed = (
            PodPerformance("chat", "v1-0", MODEL, 30.0, 100.0, 400.0),
            PodPerformance("chat", "v1-1", MODEL, 10.0, 500.0, 800.0),
            PodPerformance("chat", "v1-9", MODEL, 1000.0, 9.0, 9.0),
        )
        fleet = replace(fleet, signals=replace(fleet.signals, performance=mixed))
        record = records(decide(fleet, INSTANT))["v1"]
        assert "200 + 500 tokens" in record.why.message

    def test_memory_is_written_when_sizes_move_and_rarely_else(self):
        first = one_slo(SLO())
        assert first.memory.slo == SLOMemory(prompt_tokens=512, output_tokens=256, tokens_at=NOW)
        same = one_slo(SLO(prompt=520.0, serving={"memory": first.memory}), now=NOW)
        assert same.memory.slo == first.memory.slo
        moved = one_slo(SLO(prompt=700.0, serving={"memory": first.memory}))
        assert moved.memory.slo.prompt_tokens == 700
        old = VariantMemory(slo=first.memory.slo.model_copy(update={"tokens_at": NOW - 301}))
        assert one_slo(SLO(serving={"memory": old})).memory.slo.tokens_at == NOW


class TestMissingIsNotZero:
    def test_no_load_leaves_it_to_saturation(self):
        calm = one_slo(SLO(replicas=3), load=None, settings=STILL)
        assert (calm.target.replicas, calm.why.reason) == (3, "ScaleDownDelayed")
        assert condition(calm, "MetricsAvailable") == ("False", "MetricsMissing")
        busy = one_slo(SLO(replicas=3, load=(0.95, 9.0)), load=None, settings=STILL)
        assert busy.target.replicas > 3
        assert condition(busy, "OptimizationReady") == ("True", "SaturationOnlyMode")

    @pytest.mark.parametrize(("ago", "target", "reason"), [(130, 3, "ScaleDownDelayed"), (310, 2, "CapacitySpare")])
    def test_without_a_load_saturation_takes_replicas_only_after_a_longer_wait(self, ago, target, reason):
        calm = SLO(replicas=3, serving={"memory": VariantMemory(relax_since=NOW - ago)})
        record = one_slo(calm, load=None, settings=STILL)
        assert (record.target.replicas, record.why.reason) == (target, reason)
        assert record.memory.relax_since == (NOW - ago if target == 3 else None)

    def test_neither_keeps_everything(self):
        record = one_slo(SLO(replicas=3, load=None, completed=None), load=None)
        assert (record.target.replicas, record.target.decided) == (3, False)
        assert condition(record, "OptimizationReady") == ("False", "MetricsUnavailable")

    def test_load_alone_decides_without_saturation(self):
        record = one_slo(SLO(replicas=1, load=None), load=40.0)
        assert (record.target.replicas, record.target.decided) == (3, True)
        assert "without saturation" in record.why.message

    def test_prometheus_down(self):
        fleet = slo_fleet(SLO(replicas=3), load=40.0)
        fleet = replace(fleet, signals=replace(fleet.signals, error="timeout"))
        record = records(decide(fleet, INSTANT))["v1"]
        assert (record.target.replicas, record.target.decided) == (3, False)
        assert condition(record, "MetricsAvailable") == ("False", "PrometheusError")

    def test_stale_metrics(self):
        signals = {"last_seen": {("chat", MODEL): NOW - 900}}
        record = one_slo(SLO(replicas=3, load=None, completed=None), load=None, signals=signals)
        assert condition(record, "MetricsAvailable") == ("False", "MetricsStale")

    def test_no_arrivals_but_requests_in_flight_is_not_idle(self):
        record = one_slo(SLO(replicas=3, running=30.0, completed=0.0, serving={"memory": REMEMBERED}), load=0.0)
        assert (record.target.replicas, record.why.reason) == (3, "RequestsInFlight")
        idle = one_slo(SLO(replicas=3, running=0.0, completed=0.0, serving={"memory": REMEMBERED}), load=0.0)
        assert idle.target.replicas == 1

    def test_a_silent_ready_replica_is_not_idle(self):
        silent = SLO(replicas=3, running=0.0, completed=0.0, serving={"load": ((0.0, 0.0),) * 2, "ready": 3})
        assert one_slo(silent, load=0.0).target.replicas == 3


class TestSaturation:
    def test_the_larger_wins_upwards(self):
        record = one_slo(SLO(replicas=2, load=(0.95, 9.0)), load=5.0)
        assert record.target.replicas > 2
        assert record.why.reason.endswith("SpareLow")

    def test_both_up_takes_the_larger(self):
        assert one_slo(SLO(replicas=2, load=(0.95, 9.0)), load=100.0).target.replicas == 6

    def test_an_unsafe_scale_down_is_blocked_and_told(self):
        record = one_slo(SLO(replicas=3, load=(0.6, 0.0)), load=5.0)
        assert (record.target.replicas, record.why.reason) == (3, "ScaleDownBlocked")
        assert condition(record, "OptimizationReady") == ("True", "SaturationSafetyOverride")

    def test_saturation_down_alone_never_acts(self):
        relaxed = SLO(replicas=3, load=(0.01, 0.0), serving={"memory": LONG_AGO})
        assert one_slo(relaxed, load=2.9 * RATE_P).target.replicas == 3


TWO = {"gold": premium(itl=10, name="Gold"), "free": premium(itl=12, name="Free", priority=10)}


class TestClasses:
    def test_the_load_is_split_by_completions(self):
        gold = SLO("gold", class_key="gold", completed=300.0)
        free = SLO("free", class_key="free", completed=100.0)
        found = run_slo(gold, free, load=40.0, classes=TWO)
        assert found["gold"].why.prediction.load == pytest.approx(30.0)
        assert found["free"].why.prediction.load == pytest.approx(10.0)
        assert targets(found) == {"gold": 2, "free": 1}

    def test_nothing_finished_yet_splits_by_ready_replicas(self):
        memory = {"memory": REMEMBERED}
        gold = SLO("gold", class_key="gold", completed=0.0, serving=memory)
        free = SLO("free", class_key="free", replicas=3, completed=0.0, serving=memory)
        found = run_slo(gold, free, load=40.0, classes=TWO)
        assert found["gold"].why.prediction.load == pytest.approx(10.0)

    def test_a_class_that_finished_nothing_yet_does_not_blind_the_other(self):
        gold = SLO("gold", class_key="gold", completed=100.0)
        free = SLO("free", class_key="free", completed=None, prompt=None, output=None, serving={"rate": None})
        found = run_slo(gold, free, load=40.0, classes=TWO)
        assert targets(found) == {"gold": 3, "free": 1}

    def test_a_class_whose_pods_say_nothing_makes_the_split_unknown(self):
        gold = SLO("gold", class_key="gold", completed=None, load=None)
        free = SLO("free", class_key="free", completed=100.0)
        found = run_slo(gold, free, load=400.0, classes=TWO)
        assert targets(found) == {"gold": 1, "free": 1}
        assert "cannot be split" in found["free"].why.message

    def test_one_identity_twice_is_legal(self):
        a, b = SLO("a"), SLO("b")
        assert a.spec.variant_id == b.spec.variant_id
        found = run_slo(a, b, load=40.0)
        assert sum(record.target.replicas for record in found.values()) == 3


class TestBounds:
    @pytest.mark.parametrize(("low", "high", "load", "expected"), [("2", "9", 1.0, 2), ("1", "2", 400.0, 2)])
    def test_annotations(self, low, high, load, expected):
        bounds = {"modelyard.dev/min-replicas": low, "modelyard.dev/max-replicas": high}
        record = one_slo(SLO(variant={"annotations": bounds}), load=load)
        assert record.target.replicas == expected

    def test_a_variant_at_its_maximum_leaves_the_rest_to_the_other(self):
        capped = SLO("a", variant={"annotations": {"modelyard.dev/max-replicas": "1"}})
        assert targets(run_slo(capped, SLO("b"), load=40.0)) == {"a": 1, "b": 2}

    def test_a_variant_at_zero_is_woken_by_the_load(self):
        asleep = SLO("b", replicas=0, load=None, accelerator="A100")
        found = run_slo(SLO("a"), asleep, load=40.0)
        assert targets(found) == {"a": 1, "b": 3}
        assert found["b"].now.accelerator == "A100"

    def test_pods_that_cannot_be_placed_do_not_attract_more(self):
        stuck = SLO("a", replicas=2, serving={"ready": 1, "pod": {"unschedulable": "no GPU left"}, "desired": 2})
        found = run_slo(stuck, SLO("b", accelerator="A100", profile=P_SLOW), load=60.0)
        assert found["a"].target.replicas == 2
        assert found["b"].target.replicas > 1

    def test_replicas_that_never_became_ready_are_not_counted_on(self):
        since = VariantMemory(transition_since=NOW - 3600)
        broken = SLO("a", replicas=3, serving={"ready": 2, "desired": 3, "memory": since})
        record = one_slo(broken, load=3 * RATE_P * 0.99)
        assert record.target.replicas == 4
        found = run_slo(broken, SLO("b", accelerator="A100", profile=P_SLOW, completed=0.0), load=60.0)
        assert found["a"].target.replicas == 3
        assert found["b"].target.replicas == 5  # cheaper, so that it could take over altogether


P_SLOW = (8.0, 0.06, 14.0, 0.003)


class TestHeadroom:
    def history(self, now_rate):
        """Doubling over five minutes up to now."""
        return tuple((NOW - 300 + 15 * i, now_rate * (0.5 + 0.5 * i / 20)) for i in range(21))

    def test_a_rising_load_is_planned_ahead(self):
        settings = FleetSettings(scale_down_delay=0)
        rising = one_slo(SLO(), load=17.0, history=self.history(17.0), settings=settings)
        assert (rising.target.replicas, rising.why.reason) == (2, "LoadRising")
        assert "rising" in rising.why.message
        assert one_slo(SLO(), load=17.0, settings=settings).target.replicas == 1

    def test_not_when_switched_off(self):
        assert one_slo(SLO(), load=17.0, history=self.history(17.0), settings=STILL).target.replicas == 1


class TestIsolation:
    def test_one_group_that_fails_leaves_the_others(self, monkeypatch):
        import modelyard.autoscaling.variants.slo.sizing as sizing

        real = sizing.size

        def fragile(profiles, targets, **options):
            if (profiles.alpha == 666).any():
                raise FloatingPointError("boom")
            return real(profiles, targets, **options)

        monkeypatch.setattr(sizing, "size", fragile)
        classes = {"premium.yaml": premium(), "x": premium(model="x")}
        fleet = slo_fleet(SLO("a", model="x", profile=(666, 1, 1, 1)), SLO("b"), load=40.0, classes=classes)
        decision = decide(fleet, INSTANT)
        found = records(decision)
        assert (found["a"].target.replicas, found["a"].why.reason) == (1, "OptimizationFailed")
        assert found["b"].target.replicas == 3
        assert "boom" in decision.errors[0]

    def test_a_quiet_fleet_writes_no_memory(self):
        fleet = slo_fleet(SLO(replicas=2), load=30.0)
        first = records(decide(fleet, STILL))
        later = carry_on(fleet, first, 15.0)
        second = records(decide(later, STILL))
        assert second["v1"].memory == first["v1"].memory
        assert second["v1"].conditions == first["v1"].conditions
