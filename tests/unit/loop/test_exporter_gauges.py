"""The exposition: which values and labels a variant has, from real Variant objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from modelyard.autoscaling.fleet import Variant
from modelyard.autoscaling.memory import ANNOTATION, VariantMemory, render_memory
from modelyard.loop import observe
from modelyard.loop.exporter import GaugeCollector


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
            "metadata": {"name": name, "namespace": "chat", "annotations": {ANNOTATION: render_memory(memory)}},
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
