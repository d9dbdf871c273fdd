"""How components stand by what their workloads and pods report: Ray clusters, models being loaded, routes."""

from __future__ import annotations

import json
from typing import Any

from service_world import ENGINE, SERVED, Fleet, serving

from modelyard.reconcile.plans.plan import ServedKind

RAY = frozenset((*SERVED, ServedKind("ray.io/v1", "RayCluster")))


def on_ray(prober: str = "") -> Fleet:
    """A service on two Ray clusters of a head and two workers each."""
    fleet = Fleet(served=RAY)
    fleet.model()
    fleet.runtime(engineConfig={"leader": {"runner": ENGINE}, "worker": {"size": 2, "runner": ENGINE}})
    if prober:
        data = {"multinodeProber": json.dumps({"image": prober})}
        fleet.put("ConfigMap", "inferenceservice-config", "home", data=data)
    fleet.service(engine={"minReplicas": 2}, annotations={"ome.io/deploymentMode": "MultiNodeRayVLLM"})
    fleet.settle()
    return fleet


def ray_status(fleet: Fleet, number: int, **status: Any) -> None:
    body = fleet.objects["RayCluster", "shop", f"chat-engine-{number}"]
    body["status"] = {"observedGeneration": body["metadata"]["generation"], **status}


HEAD_READY = {"conditions": [{"type": "HeadPodReady", "status": "True"}], "readyWorkerReplicas": 2}


def test_ray_clusters_without_a_prober_are_not_scaled_to_zero() -> None:
    fleet = on_ray()
    assert fleet.condition("EngineReady")[:2] == ("False", "PodsNotReady")
    assert fleet.condition("EngineReady")[2] == "engine: 0 of 6 pods are ready"
    states = fleet.status()["modelStatus"]["modelRevisionStates"]
    assert states == {"activeModelState": "Pending", "targetModelState": "Pending"}
    ray_status(fleet, 0, **HEAD_READY)
    ray_status(fleet, 1, **HEAD_READY | {"readyWorkerReplicas": 1})
    fleet.settle()
    assert fleet.condition("EngineReady")[0] == "False", "a worker of the second is missing"
    ray_status(fleet, 1, state="ready", availableWorkerReplicas=2)  # as KubeRay before 1.2 reports
    fleet.settle()
    assert fleet.condition("EngineReady")[0] == fleet.condition("Ready")[0] == "True"
    assert fleet.status()["modelStatus"]["transitionStatus"] == "UpToDate"


def test_the_prober_decides_for_its_ray_cluster() -> None:
    fleet = on_ray("prober:1")
    for number in range(2):
        ray_status(fleet, number, **HEAD_READY)
    fleet.settle()
    assert fleet.condition("EngineReady")[::2] == ("False", "engine: 0 of 6 pods are ready")
    for number in range(2):
        fleet.up(f"chat-engine-{number}-mnp")
    fleet.settle()
    assert fleet.condition("EngineReady")[0] == "True"


def test_a_ray_cluster_that_cannot_make_pods_says_why() -> None:
    fleet = on_ray()
    failed = {"type": "RayClusterReplicaFailure", "status": "True", "reason": "FailedCreatePod", "message": "no quota"}
    ray_status(fleet, 0, conditions=[failed])
    fleet.settle()
    assert fleet.condition("EngineReady")[1:] == ("FailedCreatePod", "engine: 0 of 6 pods are ready; no quota")


def test_a_ray_cluster_that_is_suspended_is_scaled_to_zero() -> None:
    fleet = on_ray()
    for number in range(2):
        fleet.objects["RayCluster", "shop", f"chat-engine-{number}"]["spec"]["suspend"] = True
        ray_status(fleet, number, state="suspended")
    fleet.settle()
    assert fleet.condition("EngineReady")[1] == "ScaledToZero"


def test_a_route_whose_component_is_not_ready_has_the_published_reason() -> None:
    fleet = Fleet(served=frozenset((*SERVED, ServedKind("networking.k8s.io/v1", "Ingress"))))
    fleet.model()
    fleet.runtime()
    ingress = {"disableIngressCreation": False}
    fleet.put("ConfigMap", "inferenceservice-config", "home", data={"ingress": json.dumps(ingress)})
    fleet.service()
    fleet.settle()
    for kind in ("IngressReady", "RoutesReady"):
        assert fleet.condition(kind)[:2] == ("False", "ComponentNotReady")


def test_a_model_that_an_init_container_still_loads_is_loading() -> None:
    fleet = serving()
    fleet.up("chat-engine", ready=0)
    running = {"name": "model-init", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    waiting = {"name": "ome-container", "state": {"waiting": {"reason": "PodInitializing"}}}
    spec = {"nodeName": "gpu-1", "initContainers": [{"name": "model-init"}], "containers": [ENGINE]}
    fleet.pod("first", spec=spec, phase="Pending", initContainerStatuses=[running], containerStatuses=[waiting])
    fleet.settle()
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["targetModelState"] == "Loading"
    assert fleet.condition("EngineReady")[2].endswith("init container model-init runs since 2026-01-01T00:00:00Z")
