"""Status fields of Models, routes, servers, policies, bindings and variants: each is written with a true value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import autoscaling_scenarios as autoscaling
import routing_scenarios as routing
from kthena_models import a_backend, a_model, a_worker
from service_world import Fleet

from modelyard.autoscaling.live.binding_plans import policy_plan
from modelyard.autoscaling.live.bindings import objects
from modelyard.autoscaling.memory.bindings import ANNOTATION
from modelyard.objects import Key, ResourceType
from modelyard.reconcile.mirror import Store
from modelyard.reconcile.plan import Plan
from modelyard.reconcile.status import patch
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.workloads.kthena.lifecycle import ModelRollOut

STABLE = {"instances": 3, "percent": 80, "period": "45s", "selectPolicy": "And", "stabilizationWindow": "30s"}


def _written(plan: Plan | None) -> dict[str, Any]:
    """The status that a plan writes, conditions by type."""
    assert plan is not None
    assert plan.status is not None
    found = patch(plan.status, {}, autoscaling.NOW)
    conditions = {one["type"]: (one["status"], one["reason"]) for one in found.pop("conditions")}
    return {**_without_nulls(found), "conditions": conditions}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def test_an_autoscaling_policy_shows_what_it_means() -> None:
    assert _written(policy_plan(objects.policy(autoscaling.POLICY), autoscaling.NOW)) == {
        "observedGeneration": 2,
        "conditions": {"Ready": ("True", "Accepted")},
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
    obj = copy.deepcopy(autoscaling.SCALING)
    asked = autoscaling.decide_on_binding(obj, 3, 14)
    assert [scale.replicas for scale in asked.scales] == [5]
    obj["metadata"]["annotations"] = {ANNOTATION: asked.annotations[ANNOTATION]}
    assert _written(autoscaling.decide_on_binding(obj, 5, 1, autoscaling.NOW + 15)) == {
        "observedGeneration": 2,
        "conditions": {
            "Ready": ("True", "Reconciled"),
            "TargetFound": ("True", "TargetFound"),
            "MetricsAvailable": ("True", "MetricsPartial"),
        },
        "targets": "fast",
        "minReplicas": 2,
        "maxReplicas": 5,
        "currentReplicas": 5,
        "desiredReplicas": 5,
        "mode": "Stable",
        "units": [
            {
                "name": "fast",
                "currentReplicas": 5,
                "desiredReplicas": 5,
                "mode": "Stable",
                "lastScaleTime": "2027-01-15T08:00:00Z",
            }
        ],
    }


def test_a_route_and_a_server_show_what_there_is() -> None:
    route, server = routing.ROUTE, routing.SERVER
    stores: dict[ResourceType | str, Store[Any]] = {
        want.kind: Store(want) for want in (*RouteStatus.wants, *ServerStatus.wants)
    }
    by_kind = {store.kind.kind: store for store in stores.values()}
    by_kind["ModelRoute"].put(route)
    by_kind["ModelServer"].put(server)
    for obj in routing.POD_OBJECTS:
        by_kind["Pod"].put(obj)
    now = autoscaling.NOW
    found = _written(RouteStatus().plan(Key("shop", "route"), stores, now))
    assert found["observedGeneration"] == 1
    assert found["conditions"]["ResolvedRefs"] == ("False", "ModelServerNotFound")
    found = _written(ServerStatus().plan(Key("shop", "pairs"), stores, now))
    assert {name: found[name] for name in found if name != "conditions"} == {
        "observedGeneration": 1,
        "readyPods": 4,
        "prefillPods": 2,
        "decodePods": 2,
        "completeGroups": 2,
    }
    assert found["conditions"]["Ready"] == ("True", "EndpointsReady")


def test_a_model_counts_the_replicas_of_its_backends() -> None:
    fleet = Fleet(served=frozenset(), lifecycle=ModelRollOut)
    backend = a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(replicas=2)])
    fleet.put("Model", "chat", "shop", spec=a_model(backend)["spec"], status={})
    fleet.settle()
    fleet.up("chat-main", 3)
    fleet.settle()
    status = fleet.status()
    generation = fleet.objects["Model", "shop", "chat"]["metadata"]["generation"]
    assert status["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 2}]
    assert status["observedGeneration"] == generation
    assert status["annotations"]


def test_a_variant_shows_what_it_has_and_what_it_should_have() -> None:
    plans = {plan.subject.key.name: plan for plan in autoscaling.slo_plans(autoscaling.SLO)}
    found = _written(plans["chat-h100"])
    name = "meta-llama/Llama-3.1-8B-Instruct-H100-2"
    assert found.pop("conditions")["OptimizationReady"] == ("True", "OptimizationSucceeded")
    assert found == {
        "currentAlloc": {
            "variantID": name,
            "accelerator": "H100",
            "numReplicas": 1,
            "maxBatch": 96,
            "variantCost": "200.00",
        },
        "desiredOptimizedAlloc": {
            "lastRunTime": "2026-06-01T12:00:00Z",
            "variantID": name,
            "accelerator": "H100",
            "numReplicas": 1,
        },
        "actuation": {"applied": True},
    }
    plans = {plan.subject.key.name: plan for plan in autoscaling.saturation_plans(autoscaling.SATURATION)}
    grown = _written(plans["llama-8b-l40s"])
    assert grown["currentAlloc"] == {"numReplicas": 2}
    assert (grown["desiredOptimizedAlloc"]["numReplicas"], grown["actuation"]) == (4, {"applied": False})
