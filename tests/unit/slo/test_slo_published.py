"""The documented optimizer, with its rounding and its defects: the reference's worked examples."""

from __future__ import annotations

import pytest
from builders import NOW, Serving, condition
from decisions import Told
from slo_builders import PUBLISHED, SLO, one_slo, premium, run_slo, targets

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.published.slo import candidate

IDLE_TO_ZERO = FleetSettings(compatibility="published", scale_to_zero=True)


def published(per_minute: float, settings: FleetSettings = PUBLISHED, **fields) -> Told:
    return one_slo(SLO(completed=per_minute, **fields), settings=settings)


@pytest.mark.parametrize(
    ("per_minute", "replicas", "per_replica", "itl", "ttft", "utilisation"),
    [
        (0.3, 1, 0.005, 7.550, 13.034, 0.000),
        (1125, 1, 18.750, 10.000, 63.197, 0.510),
        (1126, 2, 9.383, 8.594, 34.412, 0.218),
        (2400, 3, 13.333, 9.133, 45.441, 0.330),
        (4567.89, 5, 15.226, 9.417, 51.265, 0.389),
    ],
)
def test_loads_of_profile_p(per_minute, replicas, per_replica, itl, ttft, utilisation):
    record = published(per_minute)
    assert (record.target.replicas, record.why.reason) == (replicas, "Optimized")
    expected = record.why.prediction
    assert expected.load / replicas == pytest.approx(per_replica, abs=6e-4)
    assert (expected.itl, expected.ttft) == pytest.approx((itl, ttft), abs=6e-4)
    assert expected.utilisation == pytest.approx(utilisation, abs=6e-4)
    assert expected.rate_per_replica * 60 == pytest.approx(1125.060, abs=2e-3)
    assert f"cost {100 * replicas}" in record.message


def test_candidates_price_the_accelerator_count_and_keep_the_minimum():
    assert candidate(40.0, 18.751, 2 * 40.0, 1)[:2] == (3, 240.0)
    assert candidate(1.0, 18.751, 100.0, 2)[:2] == (2, 200.0)


def test_values_go_through_two_decimals_and_tokens_are_cut_off():
    record = published(40.00044, output=256.83, prompt=511.99)
    assert "40.00 requests/min" in record.message
    assert record.why.prediction.ttft == pytest.approx(
        published(40, output=256, prompt=511).why.prediction.ttft, rel=1e-12
    )


@pytest.mark.parametrize(("per_minute", "output"), [(0.004, 256.0), (0.0, 256.0), (600.0, 0.7), (600.0, 0.0)])
def test_what_rounds_to_nothing_is_no_load(per_minute, output):
    record = published(per_minute, output=output)
    assert record.target.replicas == 1
    expected = record.why.prediction
    assert (expected.itl, expected.ttft, expected.utilisation) == pytest.approx((7.55, 12.002, 0.0))
    assert expected.rate_per_replica * 60 == pytest.approx(237_018, abs=1)


def test_zero_replicas_when_the_fleet_allows_it():
    record = published(0.0, IDLE_TO_ZERO)
    assert (record.target.replicas, record.now.accelerator) == (0, "H100")


def test_every_variant_is_sized_for_the_whole_load():
    found = run_slo(SLO("a", completed=1200), SLO("b", completed=1200), settings=PUBLISHED)
    assert targets(found) == {"a": 3, "b": 3}


def test_an_infeasible_target_is_no_candidate_and_replicas_are_kept():
    record = one_slo(SLO(completed=2400), settings=PUBLISHED, classes={"premium.yaml": premium(itl=7.5)})
    assert (record.target.replicas, record.target.decided, record.why.reason) == (1, False, "OptimizationFailed")
    assert condition(record, "OptimizationReady") == ("False", "OptimizationFailed")


def test_an_infeasible_target_looks_fine_while_idle():
    record = one_slo(SLO(completed=0.0), settings=PUBLISHED, classes={"premium.yaml": premium(itl=7.5)})
    assert (record.target.replicas, record.target.decided) == (1, True)


@pytest.mark.parametrize(("target", "replicas"), [(24, None), (15, 1)])
def test_a_flat_response_is_taken_the_wrong_way_round(target, replicas):
    flat = SLO(profile=(20, 0, 12, 0.002), completed=60)
    record = one_slo(flat, settings=PUBLISHED, classes={"premium.yaml": premium(itl=target, ttft=0)})
    assert (record.target.replicas if record.target.decided else None) == replicas


def test_the_current_allocation_has_no_count_and_a_made_up_batch():
    record = published(40, accelerator="A100", count=4)
    assert (record.now.allocation.cost, record.now.allocation.max_batch) == (40.0, 256)
    assert "cost 160" in record.message


def test_there_is_no_damping_and_no_veto():
    crowded = SLO(replicas=4, completed=1.0, load=(0.95, 9.0))
    assert one_slo(crowded, settings=PUBLISHED).target.replicas == 1


def test_a_model_without_any_metrics_keeps_what_it_has():
    silent = SLO(load=None, completed=None, serving={"desired": 3, "current": 3})
    record = one_slo(silent, load=None, settings=PUBLISHED)
    assert (record.target.replicas, record.target.decided) == (3, False)
    assert condition(record, "MetricsAvailable") == ("False", "MetricsMissing")


def test_a_variant_without_a_class_is_skipped():
    record = one_slo(SLO(completed=2400), settings=PUBLISHED, classes={"a": premium(model="other")})
    assert (record.target.replicas, record.target.decided, record.why.reason) == (1, False, "OptimizationFailed")


def test_published_by_annotation_leaves_the_rest_repaired():
    as_published = SLO(
        "a", model="x", completed=0.0, variant={"annotations": {"modelyard.dev/compatibility": "published"}}
    )
    found = run_slo(
        as_published,
        SLO("b", completed=100),
        classes={"premium.yaml": premium(), "x": premium(model="x")},
        others=(Serving("c", ((0.2, 0.0),), model="y"),),
    )
    assert found["a"].now.allocation.max_batch == 256
    assert found["b"].now.allocation.max_batch == 96
    assert found["c"].identity.form == "saturation"


def test_only_what_was_completed_in_the_window_counts():
    piling_up = SLO(completed=60, serving={"rate": 50.0}, running=90.0)
    record = one_slo(piling_up, load=500.0, settings=PUBLISHED, history=((NOW - 240, 1.0), (NOW, 500.0)))
    assert record.why.prediction.load == pytest.approx(1.0)
    assert record.target.replicas == 1


def test_a_model_that_completed_nothing_ever_is_not_taken_for_loaded():
    record = one_slo(SLO(completed=None, serving={"rate": 50.0}), load=500.0, settings=PUBLISHED)
    assert (record.target.replicas, record.target.decided) == (1, False)
    assert condition(record, "MetricsAvailable") == ("False", "MetricsMissing")
