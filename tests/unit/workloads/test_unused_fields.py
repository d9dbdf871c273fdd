"""Fields of a component that have no effect in its mode, or next to what scales it, are named in a note."""

from __future__ import annotations

from typing import Any

import pytest
from service_world import ENGINE, SERVED, Fleet

from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.rendering.unused_fields import WITHOUT_EFFECT
from modelyard.workloads.rendering.values import Rendered

ALL = SERVED | {
    ServedKind("keda.sh/v1alpha1", "ScaledObject"),
    ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ServedKind("ray.io/v1", "RayCluster"),
    ServedKind("serving.knative.dev/v1", "Service"),
}
PART = {"runner": ENGINE}
GROUP: dict[str, Any] = {"leader": PART, "worker": {**PART, "size": 1}}
KEDA = {"promServerAddress": "http://prometheus:9090"}
GROUPED = "its pods are described by leader; write them there"
UNSCALED = "no HorizontalPodAutoscaler and no ScaledObject of the service scales it"


def notes(annotations: Any = None, runtime: Any = None, **spec: Any) -> list[str]:
    fleet = Fleet(served=ALL)
    fleet.model()
    fleet.runtime(**(runtime or {}))
    fleet.service(annotations=annotations or {}, **spec)
    fleet.look()
    result = fleet.standing().result
    assert isinstance(result, Rendered), result
    return [note.message for note in result.notes if note.reason == WITHOUT_EFFECT]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"engine": {"nodeSelector": {"a": "b"}, "minAvailable": 1, "deploymentStrategy": {"type": "Recreate"}}}, []),
        ({"engine": {"scaleMetric": "memory", "scaleTarget": 50, "kedaConfig": {"enableKeda": False}}}, []),
        ({"engine": {"scaleMetric": "rps", "kedaConfig": KEDA}, "kedaConfig": KEDA}, []),
        ({"engine": GROUP}, []),
        (
            {"engine": {**GROUP, "tolerations": [{"key": "gpu"}], "nodeSelector": {"a": "b"}, "labels": {"a": "b"}}},
            [f"spec.engine.nodeSelector, spec.engine.tolerations: {GROUPED}"],
        ),
        ({"engine": {**GROUP, **PART}}, [f"spec.engine.runner: {GROUPED}"]),
        (
            {"engine": {**GROUP, "deploymentStrategy": {"type": "Recreate"}}},
            ["spec.engine.deploymentStrategy: only a Deployment has one"],
        ),
        ({"engine": {**GROUP, "scaleMetric": "cpu"}}, [f"spec.engine.scaleMetric: {UNSCALED}"]),
        (
            {"engine": {"kedaConfig": KEDA}},
            ["spec.engine.kedaConfig: no ScaledObject of KEDA scales it; set enableKeda, or remove it"],
        ),
        (
            {"kedaConfig": KEDA},
            ["spec.kedaConfig: no ScaledObject of KEDA scales a component; set enableKeda, or remove it"],
        ),
    ],
)
def test_fields_without_effect_are_named(spec: dict[str, Any], expected: list[str]) -> None:
    assert notes(**spec) == [f"without effect: {text}" for text in expected]


@pytest.mark.parametrize(
    ("annotations", "engine", "expected"),
    [
        ({"ome.io/deploymentMode": "Serverless"}, {"maxUnavailable": 1}, "spec.engine.maxUnavailable"),
        ({"ome.io/deploymentMode": "MultiNodeRayVLLM"}, {**GROUP, "minAvailable": 1}, "spec.engine.minAvailable"),
        ({"ome.io/autoscalerClass": "external"}, {"scaleTarget": 7}, "spec.engine.scaleTarget"),
    ],
)
def test_modes_and_scalers_decide(annotations: dict[str, str], engine: dict[str, Any], expected: str) -> None:
    (note,) = notes(annotations, engine=engine)
    assert note.startswith(f"without effect: {expected}: ")


def test_what_a_runtime_gives_is_not_the_services_to_remove() -> None:
    runtime = {"engineConfig": {**GROUP, "nodeSelector": {"a": "b"}, "kedaConfig": KEDA}}
    assert notes(runtime=runtime, engine={}) == []
    assert notes(runtime=runtime, engine={"hostUsers": False}) == [f"without effect: spec.engine.hostUsers: {GROUPED}"]
