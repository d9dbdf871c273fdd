"""The reference's checklist of edge cases, row by row, as they have to be; other rows are in the files beside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MODEL, SATURATION, condition, records
from slo_builders import INSTANT, RATE_P, SLO, one_slo, premium, run_slo, slo_fleet, targets

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad
from modelyard.objects import Condition, TargetRef


def test_no_metrics_at_all():
    record = one_slo(SLO(replicas=2, load=None, completed=None), load=None)
    assert (record.target.replicas, record.writes.scale) == (2, None)
    assert condition(record, "MetricsAvailable") == ("False", "MetricsMissing")
    assert condition(record, "ProfileValid")[0] == "True"


def test_workload_absent():
    fleet = replace(slo_fleet(SLO()), workloads={})
    record = records(decide(fleet, INSTANT))["v1"]
    assert condition(record, "TargetResolved") == ("False", "TargetNotFound")
    assert not record.writes.publish


def test_workload_with_replicas_unset():
    record = one_slo(SLO(serving={"workload": {"spec_replicas": None}}), load=40.0)
    assert (record.now.current, record.target.replicas) == (1, 3)


def test_a_flat_response_is_sized_like_any_other():
    flat = SLO(profile=(20, 0, 12, 0.002))
    good = one_slo(flat, classes={"a": premium(itl=24)})
    assert condition(good, "SLOFeasible")[0] == "True"
    assert good.target.replicas == 1
    bad = one_slo(flat, classes={"a": premium(itl=15)})
    assert condition(bad, "SLOFeasible") == ("False", "TargetBelowMinimumITL")


def test_two_variants_of_one_model_and_accelerator_keep_their_own_profile_and_count():
    a, b = SLO("a", count=1), SLO("b", count=4, profile=(4.0, 0.02, 6.0, 0.001), replicas=1)
    found = run_slo(a, b, load=5.0)
    assert (found["a"].now.cost, found["b"].now.cost) == (100, 400)
    alone = next(o for o in found["a"].why.alternatives if o.replicas == {"a": 1, "b": 0})
    assert alone.cost == 100


def test_the_same_name_in_two_namespaces():
    one, two = SLO("v1"), SLO("v1", serving={"namespace": "other"})
    loads = {("chat", MODEL): ModelLoad(1.0), ("other", MODEL): ModelLoad(40.0)}
    decision = decide(slo_fleet(one, two, loads=loads), INSTANT)
    assert {str(r.identity.key): r.target.replicas for r in decision.records} == {"chat/v1": 1, "other/v1": 3}


def test_a_resource_being_deleted_is_excluded():
    assert run_slo(SLO("a", variant={"deleting": True}), SLO("b")).keys() == {"b"}


def test_a_negative_load_is_none():
    record = one_slo(SLO(replicas=2), load=-5.0)
    assert record.target.replicas == 2
    assert record.why.reason == "RequestsInFlight"


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_load_of_exactly_n_times_the_rate_needs_n(n):
    rate = one_slo(SLO()).why.prediction.rate_per_replica
    assert rate == pytest.approx(RATE_P, rel=1e-5)
    assert one_slo(SLO(), load=n * rate).target.replicas == n


def test_two_variants_on_one_workload_are_one_too_many():
    twin = SLO("b", variant={"target": TargetRef("apps/v1", "Deployment", "a")})
    found = run_slo(SLO("a"), twin)
    assert condition(found["b"], "OptimizationReady") == ("False", "InvalidConfiguration")


def test_an_unparsable_variant_does_not_hurt_its_siblings():
    found = run_slo(SLO("a", variant={"problem": "spec.acceleratorCount: must be at least 1"}), SLO("b"), load=40.0)
    assert (found["a"].target.decided, found["a"].writes.scale) == (False, None)
    assert found["b"].target.replicas >= 2


def test_beside_a_variant_in_saturation_form_each_gets_its_part():
    other = replace(SLO("s").base, variant={})
    fleet = slo_fleet(SLO("a", completed=300.0), load=40.0, others=(replace(other, rate=5.0),))
    found = records(decide(fleet, INSTANT))
    assert found["s"].identity.form == "saturation"
    assert found["a"].why.prediction.load == pytest.approx(20.0)
    assert targets(found)["a"] == 2


def test_invalid_thresholds_leave_the_forecast_alone_in_charge():
    maps = {SATURATION: {"default": "kvCacheThreshold: 7"}}
    record = one_slo(SLO(), load=40.0, config_maps=maps)
    assert (record.target.replicas, record.target.decided) == (3, True)
    assert "without saturation" in record.why.message


def test_idle_goes_to_zero_only_by_the_retention_rule():
    idle = SLO(replicas=2, running=0.0, completed=0.0)
    assert one_slo(idle, load=0.0).target.replicas == 1
    to_zero = INSTANT.model_copy(update={"scale_to_zero": True})
    still_counted = one_slo(idle, load=0.0, settings=to_zero, counts={("chat", MODEL, 600): 3.0})
    assert still_counted.target.replicas == 1
    gone = one_slo(idle, load=0.0, settings=to_zero, counts={("chat", MODEL, 600): 0.0})
    assert (gone.target.replicas, gone.why.reason, gone.now.accelerator) == (0, "ScaledToZero", "H100")
    asleep = one_slo(SLO(replicas=0, load=None), load=0.0, settings=to_zero)
    assert (asleep.target.replicas, asleep.why.reason, asleep.now.accelerator) == (0, "AtZero", "H100")
    assert asleep.now.allocation.replicas == 0


def test_a_limiter_that_was_switched_off_is_no_longer_told():
    before = Condition("CapacityLimited", "True", "AcceleratorsExhausted", "", 3, 1.0)
    record = one_slo(SLO(variant={"conditions": (before,)}))
    assert condition(record, "CapacityLimited") == ("False", "LimiterDisabled")


def test_the_record_carries_the_form():
    record = one_slo(SLO(replicas=2, batch=64, accelerator="A100", count=2))
    assert (record.identity.form, record.identity.variant_id) == ("slo", f"{MODEL}-A100-2")
    now = record.now.allocation
    assert (now.replicas, now.max_batch, now.cost, now.accelerator) == (2, 64, 160.0, "A100")


def test_a_fleet_of_one_model_in_signal_mode_publishes_and_writes_nothing():
    record = one_slo(SLO(), load=40.0, settings=FleetSettings(actuation="signal"))
    assert (record.target.replicas, record.writes.scale) == (3, None)


@pytest.mark.parametrize("starting", [False, True])
def test_waiting_requests_wake_the_cheapest_variant(starting):
    asleep = (SLO("a", 0, load=None), SLO("b", 0, load=None, accelerator="A100"))
    other = (SLO("c", 1, load=None, completed=None, serving={"ready": 0, "pod": {"unschedulable": "no GPU"}}),)
    found = run_slo(*asleep, *(other if starting else ()), load=0.0, signals={"gateway_queue": {("chat", MODEL): 3.0}})
    assert (found["b"].target.replicas, found["b"].why.reason) == (1, "WokenByDemand")
    assert found["a"].target.replicas == 0
