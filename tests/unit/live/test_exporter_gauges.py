"""The exposition: which values and labels a variant has, from real Variant objects."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from decisions import make_record
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from modelyard.autoscaling.decisions.decision import Prediction, Record
from modelyard.autoscaling.fleet.fleet import Variant
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.exporter import GaugeCollector
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.prediction import ANNOTATION as PREDICTION, prediction_text, read_prediction
from modelyard.objects import Key
from modelyard.reconcile.plans.memory import parse_memory, render_memory
from modelyard.reconcile.plans.plan import Subject


@dataclass
class Fleet:
    """Variants with their current replicas, as ``Fleetwatch`` gives them."""

    shown: list[tuple[Variant, int | None]] = field(default_factory=list)
    instance: str | None = None

    def published(self) -> Iterable[tuple[Variant, int | None]]:
        return self.shown


def decided(desired: int, accelerator: str = "H100", name: str = "llama", **scalings: int) -> Variant:
    memory = VariantMemory(scalings={what.replace("_", "/", 1): times for what, times in scalings.items()})
    return observe.variant(
        {
            "apiVersion": "llmd.ai/v1alpha1",
            "kind": "VariantAutoscaling",
            "metadata": {"name": name, "namespace": "chat", "annotations": {AUTOSCALING_STATE: render_memory(memory)}},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": name}, "modelID": "llama"},
            "status": {
                "desiredOptimizedAlloc": {
                    "lastRunTime": "2026-01-01T00:00:00Z",
                    "accelerator": accelerator,
                    "numReplicas": desired,
                }
            },
        }
    )


def exposed(fleet: Fleet) -> dict[str, list[tuple[dict[str, str], float]]]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GaugeCollector(fleet))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


@pytest.mark.parametrize(
    ("current", "desired", "ratio"), [(2, 5, 2.5), (0, 3, 3.0), (4, 4, 1.0), (6, 2, 1 / 3), (0, 0, 0.0), (3, 0, 0.0)]
)
def test_the_ratio_is_desired_over_current_and_desired_at_zero(current: int, desired: int, ratio: float) -> None:
    found = exposed(Fleet([(decided(desired), current)]))
    labels = {"variant_name": "llama", "namespace": "chat", "accelerator_type": "H100"}
    assert found["wva_desired_replicas"] == [(labels, desired)]
    assert found["wva_current_replicas"] == [(labels, current)]
    assert found["wva_desired_ratio"] == [(labels, pytest.approx(ratio))]


def test_an_unknown_current_leaves_the_desired_count() -> None:
    found = exposed(Fleet([(decided(3), None)]))
    assert [value for _, value in found["wva_desired_replicas"]] == [3]
    assert "wva_current_replicas" not in found
    assert "wva_desired_ratio" not in found


def test_the_counter_is_what_the_resource_remembers() -> None:
    found = exposed(Fleet([(decided(3, up_KvCacheSpareLow=4, down_CapacitySpare=1), 3)]))
    counted = {(labels["direction"], labels["reason"]): value for labels, value in found["wva_replica_scaling_total"]}
    assert counted == {("up", "KvCacheSpareLow"): 4, ("down", "CapacitySpare"): 1}
    assert found["wva_replica_scaling_total"][0][0].keys() == {"variant_name", "namespace", "direction", "reason"}


def test_every_series_carries_the_instance_when_there_is_one() -> None:
    found = exposed(Fleet([(decided(3, up_KvCacheSpareLow=1), 2)], instance="blue"))
    assert set(found) == {
        "wva_desired_replicas",
        "wva_current_replicas",
        "wva_desired_ratio",
        "wva_replica_scaling_total",
    }
    for series in found.values():
        assert [labels["controller_instance"] for labels, _ in series] == ["blue"]


def test_label_values_are_escaped() -> None:
    strange: Any = 'A"100\\x'
    found = exposed(Fleet([(decided(1, accelerator=strange), 1)]))
    assert found["wva_desired_replicas"][0][0]["accelerator_type"] == strange


IDENTITY = {"variant_name": "llama", "namespace": "chat", "accelerator_type": "H100", "variant_id": "org/llama-H100-2"}


def sized(desired: int, current: int | None = None, **annotations: str) -> Variant:
    """A variant in SLO form."""
    status: dict[str, Any] = {
        "desiredOptimizedAlloc": {
            "lastRunTime": "2026-01-01T00:00:00Z",
            "variantID": "org/llama-H100-2",
            "accelerator": "H100",
            "numReplicas": desired,
        }
    }
    if current is not None:
        status["currentAlloc"] = {
            "variantID": "org/llama-H100-2",
            "accelerator": "H100",
            "numReplicas": current,
            "maxBatch": 64,
            "variantCost": "1.00",
        }
    memory = VariantMemory(scalings={"up/SLODemand": 2})
    return observe.variant(
        {
            "metadata": {
                "name": "llama",
                "namespace": "chat",
                "annotations": {AUTOSCALING_STATE: render_memory(memory), **annotations},
            },
            "spec": {
                "modelID": "org/llama",
                "variantID": "org/llama-H100-2",
                "accelerator": "H100",
                "acceleratorCount": 2,
                "sloClassRef": {"name": "c", "key": "k"},
                "variantProfile": {
                    "maxBatchSize": 64,
                    "perfParms": {"decodeParms": {"alpha": "1"}, "prefillParms": {"gamma": "1"}},
                },
            },
            "status": status,
        }
    )


def test_the_slo_form_is_exposed_under_both_published_names() -> None:
    found = exposed(Fleet([(sized(5), 2), (decided(3, name="other"), 3)]))
    assert found["inferno_desired_replicas"] == [(IDENTITY, 5)]
    assert found["inferno_current_replicas"] == [(IDENTITY, 2)]
    assert found["inferno_desired_ratio"] == [(IDENTITY, 2.5)]
    counted = {"variant_name": "llama", "namespace": "chat", "direction": "up", "reason": "SLODemand"}
    assert found["inferno_replica_scaling_total"] == [(counted, 2)]
    assert sorted((labels["variant_name"], value) for labels, value in found["wva_desired_replicas"]) == [
        ("llama", 5),
        ("other", 3),
    ]
    assert "inferno_predicted_ttft_seconds" not in found


def test_a_workload_that_cannot_be_read_shows_what_the_status_says() -> None:
    found = exposed(Fleet([(sized(4, current=2), None)]))
    assert [value for _, value in found["inferno_current_replicas"]] == [2]
    assert [value for _, value in found["inferno_desired_ratio"]] == [2]


def test_one_series_per_variant_whatever_the_status_said_before() -> None:
    found = exposed(Fleet([(sized(0, current=3), 0)], instance="blue"))
    assert [(labels["accelerator_type"], value) for labels, value in found["inferno_desired_replicas"]] == [("H100", 0)]
    assert found["inferno_desired_replicas"][0][0]["controller_instance"] == "blue"


def test_predictions_are_in_seconds_and_named_by_the_model() -> None:
    found = exposed(Fleet([(sized(5, **{PREDICTION: '{"ttft": 250.5, "itl": 8}'}), 2)]))
    labels = {**IDENTITY, "model_name": "org/llama"}
    assert found["inferno_predicted_ttft_seconds"] == [(labels, pytest.approx(0.2505))]
    assert found["inferno_predicted_itl_seconds"] == [(labels, pytest.approx(0.008))]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("{", {}),
        ("[1]", {}),
        ('{"ttft": "8", "itl": 2}', {"itl": 2.0}),
        ('{"ttft": NaN, "itl": -1}', {}),
        ('{"ttft": true}', {}),
        ('{"ttft": 8, "more": 1}', {"ttft": 8.0}),
        pytest.param("[" * 100_000, {}, id="nested without end"),
        pytest.param('{"ttft": 1' + 400 * "0" + ', "itl": 8}', {}, id="a number beyond all"),
    ],
)
def test_a_damaged_prediction_says_nothing(text: str, read: dict[str, float]) -> None:
    assert read_prediction({PREDICTION: text}) == read


def prediction(ttft: float | None, itl: float | None, form: str = "slo") -> Record:
    subject = Subject(VARIANTS, Key("chat", "llama"), "u", 1)
    expected = Prediction(load=1, rate_per_replica=2, ttft=ttft, itl=itl)
    return make_record(subject, form=form, prediction=expected)


def test_a_prediction_is_rewritten_only_when_it_moved_noticeably() -> None:
    first = prediction_text(prediction(100.0, 10.0), {})
    assert first is not None
    kept = {PREDICTION: first}
    assert prediction_text(prediction(109.0, 9.5), kept) == first
    moved = prediction_text(prediction(111.0, 9.5), kept)
    assert moved is not None
    assert read_prediction({PREDICTION: moved}) == {"ttft": 111.0, "itl": 9.5}
    assert prediction_text(prediction(100.0, None), kept) != first


def test_what_is_not_predicted_any_more_goes() -> None:
    kept = {PREDICTION: '{"ttft": 100, "itl": 10}'}
    assert prediction_text(prediction(None, float("nan")), kept) is None
    assert prediction_text(prediction(100, 10, form="saturation"), kept) is None


@pytest.mark.parametrize(
    "scalings",
    [
        {f"up/{'a' * (n // 20 + 1)}{chr(97 + n % 20)}": 1 for n in range(900)},
        {f"aaaa{n}": 1 for n in range(8_000)},
        {"sideways/LoadAboveCapacity": 1},
        {'up/x{y="1"}': 1},
    ],
)
def test_series_that_a_tenant_made_up_are_not_shown(scalings: dict[str, int]) -> None:
    hostile = decided(1, name="hostile")
    text = json.dumps({"scalings": scalings})
    memory, damage = parse_memory(VariantMemory, AUTOSCALING_STATE, text)
    found = exposed(Fleet([(dataclasses.replace(hostile, memory=memory), 1), (decided(3, up_KvCacheSpareLow=4), 1)]))
    assert "unreadable" in str(damage)
    assert [labels["variant_name"] for labels, _ in found["wva_replica_scaling_total"]] == ["llama"]


def test_numbers_that_nobody_can_reckon_with_cost_no_other_its_gauges() -> None:
    def of(text: str) -> Variant:
        return observe.variant(
            {
                "apiVersion": "llmd.ai/v1alpha1",
                "kind": "VariantAutoscaling",
                "metadata": {"name": "hostile", "namespace": "chat", "annotations": {AUTOSCALING_STATE: text}},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "hostile"}, "modelID": "llama"},
                "status": {"desiredOptimizedAlloc": {"lastRunTime": "2026-01-01T00:00:00Z", "numReplicas": 1}},
            }
        )

    hostile = of('{"scalings":{"up/load":' + "9" * 4000 + "}}")
    assert "unreadable at scalings.up/load" in str(hostile.memory_problem)
    assert len(exposed(Fleet([(hostile, 1), (decided(3), 1)]))["wva_desired_replicas"]) == 2
