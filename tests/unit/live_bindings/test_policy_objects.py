"""Policies and bindings as stored, turned into plain values: defaults, aliases, annotations, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from kthena_models import rendered_named

from modelyard.autoscaling.reading.bindings.objects import (
    ROLE,
    SOURCES,
    BindingSpec,
    backends_of,
    binding,
    policy,
    within_reach,
    workload_of,
)
from modelyard.objects import Namespace, WorkloadId, parse
from modelyard.resources.annotations import SCALE_TO_ZERO_GRACE, WAKE_QUERY

LWS = "leaderworkerset.x-k8s.io"


def part(
    name: str = "web", least: int = 1, most: int = 5, reference: dict[str, Any] | None = None, **target: Any
) -> Any:
    return {
        "target": {"targetRef": {"name": name, **(reference or {"kind": "Deployment"})}, **target},
        "minReplicas": least,
        "maxReplicas": most,
    }


def stored(spec: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicyBinding",
        "metadata": {
            "name": "b",
            "namespace": "n",
            "uid": "u",
            "generation": 3,
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "annotations": annotations or {},
        },
        "spec": {"policyRef": {"name": "p"}, **spec},
    }


def scaling(annotations: dict[str, str] | None = None, **more: Any) -> BindingSpec:
    return binding(stored({"scalingConfiguration": part(**more)}, annotations))


def test_an_absent_endpoint_is_like_an_empty_one() -> None:
    for endpoint in ({}, {"metricEndpoint": {}}):
        (target,) = scaling(**endpoint).targets
        assert (target.uri, target.port) == ("/metrics", 8100)
    (target,) = scaling(metricEndpoint={"uri": "stats", "port": 9000}).targets
    assert (target.uri, target.port) == ("/stats", 9000)


@pytest.mark.parametrize(
    ("reference", "candidates"),
    [
        ({"kind": "Deployment"}, [("n", "apps", "Deployment")]),
        ({"kind": "Deployment", "apiVersion": "apps/v1", "namespace": "m"}, [("m", "apps", "Deployment")]),
        ({"kind": "LeaderWorkerSet"}, [("n", LWS, "LeaderWorkerSet")]),
        ({"kind": "Thing", "apiVersion": "example.com/v1"}, [("n", "example.com", "Thing")]),
        (
            {"kind": "ModelInfer"},
            [("n", LWS, "LeaderWorkerSet"), ("n", "apps", "Deployment"), ("n", "apps", "StatefulSet")],
        ),
        (
            {"kind": "ModelServing", "apiVersion": "workload.serving.volcano.sh/v1alpha1"},
            [
                ("n", "workload.serving.volcano.sh", "ModelServing"),
                ("n", LWS, "LeaderWorkerSet"),
                ("n", "apps", "Deployment"),
                ("n", "apps", "StatefulSet"),
            ],
        ),
        ({"uid": "x"}, [("n", LWS, "LeaderWorkerSet"), ("n", "apps", "Deployment"), ("n", "apps", "StatefulSet")]),
    ],
)
def test_what_a_target_may_be(reference: dict[str, Any], candidates: list[tuple[str, str, str]]) -> None:
    spec = scaling(reference=reference)
    assert spec.view.problem is None
    assert [tuple(id_)[:3] for id_ in spec.targets[0].candidates] == candidates


def of_backend(name: str, reference: str, role: str = "", **more: Any) -> tuple[Any, str]:
    """What a target of kind ModelInfer is, among the workloads that are made for a Model of the files."""
    found = []
    for child in rendered_named(name).children:
        if child.kind in ("Deployment", "StatefulSet", "LeaderWorkerSet"):
            group = LWS if child.kind == "LeaderWorkerSet" else "apps"
            found.append(parse.workload(child.body, group, child.kind))
    labels = {"additionalMatchLabels": {ROLE: role}} if role else {}
    place = {"kind": "ModelInfer", "name": reference, "namespace": "shop"}
    target = {"target": {"targetRef": place, **labels}, "minReplicas": 1, "maxReplicas": 4}
    spec = binding(stored({"scalingConfiguration": target})).targets[0]
    workload, why = workload_of(spec, {one.id: one for one in found}, backends_of(found))
    return workload and (workload.id.kind, workload.id.name), why


def test_a_model_infer_is_what_was_made_for_the_backend() -> None:
    assert of_backend("vllm", "chat-h100") == (("Deployment", "chat-h100"), "")
    assert of_backend("vllm-several-pods-lws", "large-main") == (("LeaderWorkerSet", "large-main"), "")
    assert of_backend("vllm-disaggregated-scaled", "chat-pd", "decode") == (("Deployment", "chat-pd-0-decode"), "")
    found, why = of_backend("vllm-disaggregated-scaled", "chat-pd")
    assert found is None
    assert "has several roles (decode, prefill), each a workload of its own; choose one by additional" in why
    assert f"{ROLE}: prefill" in why
    assert of_backend("vllm-disaggregated-scaled", "chat-pd", "router") == (
        None,
        "ModelInfer shop/chat-pd has no role router; it has decode, prefill",
    )
    found, why = of_backend("vllm-several-pods", "large-main")
    assert found is None
    assert "workloads, which nothing scales together; give the backend an autoscalingPolicy, or install" in why
    assert of_backend("vllm", "chat-other") == (None, ""), "there is just none of that name"


def test_both_and_neither_configuration_are_kept_with_what_is_wrong() -> None:
    neither = binding(stored({}))
    assert neither.targets == ()
    assert "exactly one of optimizerConfiguration and scalingConfiguration" in str(neither.view.problem)
    both = binding(stored({"scalingConfiguration": part(), "optimizerConfiguration": {"params": [part()]}}))
    assert "exactly one of optimizerConfiguration and scalingConfiguration" in str(both.view.problem)


def test_an_optimizer() -> None:
    params = [{**part("a"), "cost": 30}, {**part("b"), "cost": 100}]
    spec = binding(stored({"optimizerConfiguration": {"params": params, "costExpansionRatePercent": 150}}))
    assert spec.view.optimizer
    assert spec.view.expansion_percent == 150
    assert [(one.name, one.cost) for one in spec.targets] == [("a", 30.0), ("b", 100.0)]


def test_targets_of_one_name_are_told_apart() -> None:
    params = [part("a"), part("a", reference={"kind": "Deployment", "namespace": "m"})]
    spec = binding(stored({"optimizerConfiguration": {"params": params}}))
    assert [one.name for one in spec.targets] == ["n/Deployment/a", "m/Deployment/a"]
    assert spec.targets[1].workload == WorkloadId("m", "apps", "Deployment", "a")


def test_annotations() -> None:
    spec = scaling({SOURCES: "waiting: sum(queue)\n", WAKE_QUERY: "sum(held)", SCALE_TO_ZERO_GRACE: "2m"})
    assert spec.sources == {"": {"waiting": "sum(queue)"}}
    assert (spec.wake_query, spec.view.grace) == ("sum(held)", 120.0)
    plain = scaling()
    assert (plain.sources, plain.wake_query, plain.view.grace) == ({}, None, 30.0)


@pytest.mark.parametrize(
    ("annotation", "text", "why"),
    [
        (SOURCES, "[1]", "must be a map"),
        (SOURCES, "{", "is not valid YAML"),
        (SOURCES, "a: [", "is not valid YAML"),
        (SOURCES, '{"a": 5}', "5 is not a PromQL expression"),
        (SOURCES, '{"a": {"b": "c"}}', "is not a PromQL expression"),
        (SOURCES, "a: ''", "is not a PromQL expression"),
        (SCALE_TO_ZERO_GRACE, "soon", "not a Go duration"),
    ],
)
def test_annotations_that_make_no_sense_are_named(annotation: str, text: str, why: str) -> None:
    problem = str(scaling({annotation: text}).view.problem)
    assert annotation in problem
    assert why in problem


def test_a_damaged_memory_starts_afresh_and_says_so() -> None:
    spec = scaling({"modelyard.dev/policy-state": "{"})
    assert "policy-state" in str(spec.view.memory_problem)
    assert spec.view.problem is None


def manifest(**spec: Any) -> dict[str, Any]:
    body = stored({})
    body["kind"] = "AutoscalingPolicy"
    body["spec"] = {"metrics": [{"metricName": "waiting", "targetValue": "500m"}], **spec}
    return body


def test_a_policy() -> None:
    found = policy(manifest())
    assert found.view is not None
    assert found.view.targets == {"waiting": 0.5}
    assert (found.view.tolerance_percent, found.view.generation) == (10, 3)


def test_a_policy_that_cannot_be_followed_says_why() -> None:
    found = policy(manifest(metrics=[]))
    assert found.view is None
    assert "spec.metrics" in str(found.problem)


ABROAD = {"kind": "Deployment", "namespace": "m"}


def test_a_foreign_target_is_no_target_until_its_namespace_lets_the_binding_in() -> None:
    spec = scaling(reference=ABROAD)
    refused = within_reach(spec, {"m": Namespace("m")})
    assert (refused.targets, refused.view.problem_reason) == ((), "RefNotPermitted")
    assert "modelyard.dev/allow-from: n on Namespace m" in str(refused.view.problem)
    assert within_reach(spec, {}).targets == ()
    assert within_reach(spec, {"m": Namespace("m", annotations={"modelyard.dev/allow-from": "n"})}) == spec
    at_home = scaling(reference={"kind": "Deployment", "namespace": "n"})
    assert within_reach(at_home, {}) == at_home
    assert (spec.crosses_namespaces, at_home.crosses_namespaces) == (True, False)


def test_of_several_targets_the_foreign_one_is_left_out_and_the_binding_not_decided() -> None:
    parts = [part("web"), part("grab", reference=ABROAD)]
    spec = binding(stored({"optimizerConfiguration": {"params": parts}}, {SCALE_TO_ZERO_GRACE: "soon"}))
    refused = within_reach(spec, {})
    assert [target.name for target in refused.targets] == ["web"]
    problem = str(refused.view.problem)
    assert problem.startswith("targetRef.namespace: ")
    assert SCALE_TO_ZERO_GRACE in problem, "what else is wrong with it is still told"


def test_fields_that_a_newer_peer_stored_are_ignored_and_in_a_file_wrong() -> None:
    body = stored({"scalingConfiguration": part(subTargets={"kind": "Role", "name": "decode"})})
    path = "spec.scalingConfiguration.target.subTargets"
    assert (binding(body).view.problem, binding(body).view.ignored) == (None, f"without effect: {path}: unknown field")
    assert f"{path}: unknown field" in (binding(body, strict=True).view.problem or "")
    metadata = {"name": "p", "namespace": "n"}
    newer = {"metadata": metadata, "spec": {"metrics": [{"metricName": "m", "targetValue": 1, "weight": 2}]}}
    ignored = "without effect: spec.metrics[0].weight: unknown field"
    assert (policy(newer).problem, policy(newer).ignored) == (None, ignored)
    assert "spec.metrics[0].weight: unknown field" in (policy(newer, strict=True).problem or "")
