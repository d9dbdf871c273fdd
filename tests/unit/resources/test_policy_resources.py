"""Admission and status of AutoscalingPolicy and AutoscalingPolicyBinding."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.resources import ResourceInvalid
from modelyard.resources.crd import crd
from modelyard.resources.registry import AutoscalingPolicy, AutoscalingPolicyBinding, Model


def param(name: str, low: int = 1, high: int = 4, **reference: Any) -> dict[str, Any]:
    return {"target": {"targetRef": {"name": name, **reference}}, "minReplicas": low, "maxReplicas": high}


def binding(spec: dict[str, Any]) -> AutoscalingPolicyBinding:
    return AutoscalingPolicyBinding.parse({"metadata": {"name": "b", "namespace": "ns"}, "spec": spec})


def problems(spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ResourceInvalid) as error:
        binding(spec)
    return dict(error.value.problems)


def test_every_error_is_told_at_once() -> None:
    found = problems(
        {
            "policyRef": {"name": ""},
            "optimizerConfiguration": {
                "params": [param("", 5, 4), {**param("b"), "cost": -1}],
                "costExpansionRatePercent": -1,
            },
        }
    )
    assert set(found) == {
        "spec.policyRef.name",
        "spec.optimizerConfiguration.params[0].target.targetRef.name",
        "spec.optimizerConfiguration.params[1].cost",
        "spec.optimizerConfiguration.costExpansionRatePercent",
    }


def test_what_occurs_twice_is_told_beside_errors_of_every_other_kind() -> None:
    metrics = [
        {"metricName": "a", "targetValue": "-1"},
        {"metricName": "b", "targetValue": 1},
        {"metricName": "a", "targetValue": 2},
        {"metricName": ["b"], "targetValue": 2},
    ]
    with pytest.raises(ResourceInvalid) as error:
        AutoscalingPolicy.parse({"spec": {"metrics": metrics, "tolerancePercent": "ten"}})
    assert dict(error.value.problems).keys() == {
        "spec.tolerancePercent",
        "spec.metrics[0].targetValue",
        "spec.metrics[2]",
        "spec.metrics[3].metricName",
    }
    assert len(error.value.problems) == 4
    backends = [{"name": "x", "type": 3}, {"name": "x"}]
    with pytest.raises(ResourceInvalid) as error:
        Model.parse({"spec": {"backends": backends, "autoscalingPolicy": {"metrics": metrics}}})
    found = dict(error.value.problems)
    assert "'x' occurs twice" in found["spec.backends[1]"]
    assert "'a' occurs twice" in found["spec.autoscalingPolicy.metrics[2]"]


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({}, "spec", "exactly one of"),
        (
            {"scalingConfiguration": param("a"), "optimizerConfiguration": {"params": [param("a")]}},
            "spec",
            "exactly one",
        ),
        ({"scalingConfiguration": param("a", 5, 4)}, "spec.scalingConfiguration.minReplicas", "above maxReplicas"),
        (
            {"optimizerConfiguration": {"params": [param("a"), param("b"), param("a")]}},
            "spec.optimizerConfiguration.params",
            "the same workload is given twice",
        ),
        (
            {
                "scalingConfiguration": {
                    **param("a"),
                    "target": {"targetRef": {"name": "a"}, "metricEndpoint": {"port": 0}},
                }
            },
            "spec.scalingConfiguration.target.metricEndpoint.port",
            "greater than or equal to 1",
        ),
    ],
)
def test_bindings_that_cannot_work(spec: dict[str, Any], field: str, text: str) -> None:
    assert text in problems({"policyRef": {"name": "p"}, **spec})[field]


def test_one_name_in_two_namespaces_or_kinds_is_two_workloads() -> None:
    params = [param("a"), param("a", namespace="other"), param("a", kind="StatefulSet")]
    spec = {"policyRef": {"name": "p"}, "optimizerConfiguration": {"params": params}}
    assert len(binding(spec).to_manifest()["spec"]["optimizerConfiguration"]["params"]) == 3


def test_status_of_a_binding_comes_back() -> None:
    status = {
        "observedGeneration": 2,
        "targets": "a",
        "minReplicas": 1,
        "maxReplicas": 4,
        "currentReplicas": 1,
        "desiredReplicas": 3,
        "mode": "Panic",
        "units": [
            {
                "name": "a",
                "currentReplicas": 1,
                "desiredReplicas": 3,
                "mode": "Panic",
                "lastScaleTime": "2026-01-02T03:04:05Z",
            }
        ],
    }
    spec = {"policyRef": {"name": "p"}, "scalingConfiguration": param("a")}
    obj = {"metadata": {"name": "b"}, "spec": spec, "status": {**status, "fromALaterVersion": 1}}
    assert AutoscalingPolicyBinding.parse(obj).to_manifest()["status"] == status


def test_a_policy_shows_the_behaviour_in_effect() -> None:
    shown = {"scaleDown": {"instances": 0, "percent": 100, "period": "1m0s", "selectPolicy": "Or"}}
    spec = {"metrics": [{"metricName": "m", "targetValue": 1}]}
    policy = AutoscalingPolicy.parse({"spec": spec, "status": {"effectiveBehavior": shown}})
    assert policy.to_manifest()["status"]["effectiveBehavior"] == shown


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (AutoscalingPolicyBinding, ["Policy", "Targets", "Min", "Max", "Current", "Desired", "Mode", "Ready", "Age"]),
        (AutoscalingPolicy, ["Metrics", "Tolerance", "Ready", "Age"]),
    ],
)
def test_columns_tell_the_story(kind: Any, columns: list[str]) -> None:
    shown = crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in shown if not column.get("priority")] == columns


def test_words_of_cel_are_escaped() -> None:
    """A field called like a word of CEL must be written with underscores, or the API server refuses the CRD."""
    text = str(crd(AutoscalingPolicyBinding))
    assert "targetRef.__namespace__" in text
    assert "targetRef.namespace" not in text
