"""Status fields of Models, routes, servers, policies, bindings and variants: each is written with a true value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import autoscaling_scenarios as autoscaling
import pytest
import routing_scenarios as routing
from field_mutations import Scenario, mutants
from kthena_models import a_backend, a_model, a_worker
from service_world import Fleet

from modelyard.autoscaling.memory.bindings import POLICY_STATE
from modelyard.autoscaling.plans.binding_plans import policy_plan
from modelyard.autoscaling.reading.bindings import objects
from modelyard.objects import Key, ResourceType
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Plan
from modelyard.reconcile.plans.status import patch
from modelyard.resources import KINDS
from modelyard.resources.field_effects import field_tree
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.workloads.kthena.lifecycle import ModelRollOut

STABLE = {"instances": 3, "percent": 80, "period": "45s", "selectPolicy": "And", "stabilizationWindow": "30s"}

PARAMETERS = {
    "decodeParms": {"alpha": "7.5", "beta": "0.05", "epsilon": "1"},
    "prefillParms": {"gamma": "12", "delta": "0.002"},
}


def _written(plan: Plan | None) -> dict[str, Any]:
    """The status that a plan writes."""
    assert plan is not None
    assert plan.status is not None
    status: dict[str, Any] = _without_nulls(patch(plan.status, {}, autoscaling.NOW))
    return status


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition, which are taken out."""
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status.pop("conditions")}


def _of_policy() -> dict[str, Any]:
    return _written(policy_plan(objects.policy(autoscaling.POLICY), autoscaling.NOW))


def _of_binding() -> dict[str, Any]:
    """The status one tick after a change that the workload has made meanwhile."""
    obj = copy.deepcopy(autoscaling.SCALING)
    asked = autoscaling.decide_on_binding(obj, 3, 14)
    assert [scale.replicas for scale in asked.scales] == [5]
    obj["metadata"]["annotations"] = {POLICY_STATE: asked.annotations[POLICY_STATE]}
    return _written(autoscaling.decide_on_binding(obj, 5, 1, autoscaling.NOW + 15))


HOME = "home"


def _stores(server: dict[str, Any] = routing.SERVER) -> dict[ResourceType | str, Any]:
    stores: dict[ResourceType | str, Any] = {
        want.called or want.kind: Store(want) for want in (*RouteStatus(HOME).wants, *ServerStatus.wants)
    }
    by_kind = {store.kind.kind: store for store in stores.values()}
    for obj in (routing.ROUTE, server, *routing.POD_OBJECTS):
        by_kind[obj["kind"]].put(obj)
    return stores


def _of_route() -> dict[str, Any]:
    return _written(RouteStatus(HOME).plan(Key("shop", "route"), _stores(), autoscaling.NOW))


def _of_server(server: dict[str, Any] = routing.SERVER) -> dict[str, Any]:
    return _written(ServerStatus().plan(Key("shop", "pairs"), _stores(server), autoscaling.NOW))


def _of_model(**spec: Any) -> dict[str, Any]:
    """The status of a Model of two replicas of two pods each, of which three are ready."""
    fleet = Fleet(served=frozenset(), lifecycle=ModelRollOut)
    backend = a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(replicas=2)])
    fleet.put("Model", "chat", "shop", spec={**a_model(backend)["spec"], **spec}, status={})
    fleet.settle()
    fleet.up("chat-main", 3)
    fleet.settle()
    status: dict[str, Any] = fleet.status()
    assert status["observedGeneration"] == fleet.objects["Model", "shop", "chat"]["metadata"]["generation"]
    return status


def _of_slo(**profile: Any) -> dict[str, Any]:
    """The status of a variant in SLO form, with other parts of its profile."""
    obj = copy.deepcopy(autoscaling.SLO)
    obj["spec"]["variantProfile"] |= profile
    plans = {plan.subject.key.name: plan for plan in autoscaling.slo_plans(obj)}
    return _written(plans["chat-h100"])


def test_an_autoscaling_policy_shows_what_it_means() -> None:
    status = _of_policy()
    assert _conditions(status) == {"Ready": ("True", "Accepted")}
    assert status == {
        "observedGeneration": 2,
        "metrics": "vllm:num_requests_waiting=10, vllm:num_requests_running=0.5",
        "effectiveBehavior": {
            "scaleUp": {
                "stablePolicy": STABLE,
                "panicPolicy": {"percent": 60, "period": "30s", "panicThresholdPercent": 450, "panicModeHold": "2m0s"},
            },
            "scaleDown": {**STABLE, "instances": 9, "percent": 30, "stabilizationWindow": "1m0s"},
        },
    }


def test_a_binding_shows_the_decision_and_when_a_change_was_asked_for() -> None:
    status = _of_binding()
    assert _conditions(status) == {
        "Ready": ("True", "Reconciled"),
        "TargetFound": ("True", "TargetFound"),
        "MetricsAvailable": ("True", "MetricsPartial"),
        "SpecWarning": ("True", "FieldsIgnored"),
    }
    replicas = {"currentReplicas": 5, "desiredReplicas": 5, "mode": "Stable"}
    assert status == {
        "observedGeneration": 2,
        "targets": "fast",
        "minReplicas": 2,
        "maxReplicas": 5,
        **replicas,
        "units": [{"name": "fast", **replicas, "lastScaleTime": "2027-01-15T08:00:00Z"}],
    }


def test_a_route_shows_whether_it_can_be_followed() -> None:
    status = _of_route()
    conditions = _conditions(status)
    assert status == {"observedGeneration": 1}
    assert conditions["Accepted"] == ("True", "Accepted")
    assert conditions["ResolvedRefs"] == ("False", "ModelServerNotFound")
    assert conditions["Conflicted"] == ("False", "NoConflicts")
    assert conditions["SpecWarning"] == ("True", "FieldsIgnored")


def test_a_server_counts_its_pods() -> None:
    status = _of_server()
    assert _conditions(status) == {"Ready": ("True", "EndpointsReady")}
    counts = {"readyPods": 4, "prefillPods": 2, "decodePods": 2, "completeGroups": 2}
    assert status == {"observedGeneration": 1, **counts}


def test_a_model_counts_the_replicas_of_its_backends() -> None:
    status = _of_model()
    conditions = _conditions(status)
    assert conditions["Initialized"] == ("True", "ModelCreating")
    assert conditions["Active"] == ("False", "ModelProcessing")
    assert status["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 2}]


def test_a_variant_in_slo_form_shows_what_it_has_and_should_have() -> None:
    status = _of_slo()
    assert _conditions(status)["OptimizationReady"] == ("True", "OptimizationSucceeded")
    shared = {"variantID": "meta-llama/Llama-3.1-8B-Instruct-H100-2", "accelerator": "H100", "numReplicas": 1}
    assert status == {
        "currentAlloc": {**shared, "maxBatch": 96, "variantCost": "200.00"},
        "desiredOptimizedAlloc": {**shared, "lastRunTime": "2026-06-01T12:00:00Z"},
        "actuation": {"applied": True},
    }


def test_a_variant_in_saturation_form_shows_its_replicas() -> None:
    plans = {plan.subject.key.name: plan for plan in autoscaling.saturation_plans(autoscaling.SATURATION)}
    status = _written(plans["llama-8b-l40s"])
    assert _conditions(status)["OptimizationReady"] == ("True", "SaturationOnlyMode")
    assert status["currentAlloc"] == {"numReplicas": 2}
    assert (status["desiredOptimizedAlloc"]["numReplicas"], status["actuation"]) == (4, {"applied": False})


STATUSES = {
    "AutoscalingPolicy": _of_policy,
    "AutoscalingPolicyBinding": _of_binding,
    "Model": _of_model,
    "ModelRoute": _of_route,
    "ModelServer": _of_server,
    "VariantAutoscaling": _of_slo,
}


@pytest.mark.parametrize("kind", STATUSES)
def test_no_status_field_is_left_out(kind: str) -> None:
    (resource,) = (resource for resource in KINDS.values() if resource.kind == kind)
    leaves = [node.path for node in field_tree(resource).walk() if node.fields is None]
    status = Scenario({"status": STATUSES[kind]()}, lambda _: ())
    absent = [path for path in leaves if path.startswith("status.") and not any(mutants(status, path))]
    assert absent == []


def _of_policy_with(**spec: Any) -> dict[str, Any]:
    obj = {**autoscaling.POLICY, "spec": {**autoscaling.POLICY["spec"], **spec}}
    return _written(policy_plan(objects.policy(obj), autoscaling.NOW))


@pytest.mark.parametrize(
    ("build", "warning"),
    [
        (lambda: _of_policy_with(cooldown="5m"), "spec.cooldown: unknown field"),
        (_of_binding, "spec.scalingConfiguration.target.targetRef.fieldPath: The scale subresource"),
        (lambda: _of_model(modelMatch={"uri": {"suffix": "x"}}), "spec.modelMatch.uri.suffix: unknown field"),
        (_of_route, "spec.parentRefs: The router serves every route itself"),
        (
            lambda: _of_server({**routing.PLAIN_SERVER, "spec": {**routing.PLAIN_SERVER["spec"], "kvConnector": {}}}),
            "spec.kvC",
        ),
        (
            lambda: _of_slo(perfParms=PARAMETERS),
            "spec.variantProfile.perfParms.decodeParms.epsilon: no parameter of the line",
        ),
    ],
)
def test_an_object_says_which_of_its_fields_have_no_effect(build: Callable[[], dict[str, Any]], warning: str) -> None:
    (condition,) = (entry for entry in build()["conditions"] if entry["type"] == "SpecWarning")
    assert condition["reason"] == "FieldsIgnored"
    assert warning in condition["message"]
