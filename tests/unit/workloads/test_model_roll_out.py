"""The life of a Model, planned in memory: made once, active when its backends are, mended, refused, taken away."""

from __future__ import annotations

from typing import Any

import pytest
from kthena_models import a_backend, a_model, a_worker, model_named, names
from service_world import NOW, Fleet

from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.returning import USUAL
from modelyard.workloads.roll_out.world import WORKLOADS

LWS = frozenset((ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),))


class ModelFleet(Fleet):
    """With one Model, ``chat`` in namespace ``shop``."""

    def __init__(self, model: dict[str, Any] | None = None, *, served: frozenset[ServedKind] = frozenset()) -> None:
        super().__init__(served=served, lifecycle=ModelRollOut)
        self.change(model or a_model())

    def change(self, model: dict[str, Any]) -> None:
        """What somebody applies."""
        status = self.objects.get(("Model", "shop", "chat"), {}).get("status", {})
        self.put("Model", "chat", "shop", spec=model["spec"], status=status)

    def run(self, ready: int | None = None) -> None:
        """The controllers of all workloads have followed; ``ready`` pods of each are ready (``None``: all)."""
        for (kind, _, name), obj in list(self.objects.items()):
            if kind in WORKLOADS:
                self.up(name, obj["spec"].get("replicas", 1) if ready is None else ready, kind=kind)

    def conditions(self) -> dict[str, str]:
        return {kind: " ".join(self.condition(kind)[:2]) for kind in ("Initialized", "Active", "Failed")}


WELL = {
    "Initialized": "True ModelCreating",
    "Active": "True ModelAvailable",
    "Failed": "False Reconciled",
}


@pytest.mark.parametrize("name", names())
def test_a_model_is_active_when_all_of_it_is_ready(name: str) -> None:
    model = model_named(name)
    fleet = ModelFleet(model, served=LWS if name.endswith("-lws") else frozenset())
    plan = fleet.settle()
    assert plan is not None
    made = {kind for kind, _, _ in fleet.objects}
    assert {"ModelServer", "ModelRoute"} <= made
    least = [backend["minReplicas"] for backend in model["spec"]["backends"]]
    if any(least):
        assert fleet.conditions()["Active"] == "False ModelProcessing"
        assert plan.awaits
    fleet.run()
    last = fleet.settle()
    assert last is not None
    assert fleet.conditions() == WELL
    assert not last.awaits
    fleet.run(ready=0)
    fleet.settle()
    assert fleet.conditions()["Active"] == ("False ModelProcessing" if any(least) else "True ModelAvailable")
    assert all(one["name"] for one in fleet.status()["backendStatuses"])


def test_what_is_missing_is_told_with_why() -> None:
    fleet = ModelFleet(a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(replicas=2)])))
    fleet.settle()
    fleet.run(ready=3)
    fleet.settle()
    assert fleet.condition("Active") == ("False", "ModelProcessing", "backend main: 0 of 4 pods are ready")
    assert fleet.condition("Failed")[:2] == ("False", "Reconciling")
    assert fleet.status()["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 2}]
    uid = fleet.objects["Model", "shop", "chat"]["metadata"]["uid"]
    labels = {"registry.volcano.sh/model-uid": uid, "registry.volcano.sh/backend-name": "main"}
    waits = {"name": "engine", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    fleet.put("Pod", "p", "shop", spec={}, status={"containerStatuses": [waits]}, metadata={"labels": labels})
    fleet.settle()
    said = "ImagePullFailed: main: 0 of 4 pods are ready; container engine: ErrImagePull: no such image"
    assert fleet.condition("Failed") == ("True", "ModelAbnormal", said)


def test_replicas_are_groups_that_are_whole() -> None:
    fleet = ModelFleet(a_model(a_backend("vLLMDisaggregated", minReplicas=2, maxReplicas=2)))
    fleet.settle()
    fleet.run()
    fleet.up("chat-main-0-prefill", 0)
    fleet.settle()
    assert fleet.status()["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 2}]
    assert fleet.condition("Active")[0] == "False"


def _scaled_roles(prefill: int, decode: int, /, **ready: int) -> list[dict[str, Any]]:
    """The status of a backend that a policy scales, a replica of which takes one prefill and two decode pods."""
    workers = [a_worker("prefill"), a_worker("decode", replicas=2)]
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    backend = a_backend("vLLMDisaggregated", workers=workers, maxReplicas=8, autoscalingPolicy=policy)
    fleet = ModelFleet(a_model(backend))
    fleet.settle()
    for role, pods in (("prefill", prefill), ("decode", decode)):
        fleet.objects["Deployment", "shop", f"chat-main-0-{role}"]["spec"]["replicas"] = pods
        fleet.up(f"chat-main-0-{role}", ready.get(role, pods))
    fleet.settle()
    statuses: list[dict[str, Any]] = fleet.status()["backendStatuses"]
    return statuses


@pytest.mark.parametrize(
    ("pods", "ready", "replicas", "total"),
    [
        ((4, 8), {}, 4, 4),
        ((1, 2), {}, 1, 1),
        ((4, 8), {"decode": 7}, 3, 4),
        ((4, 8), {"prefill": 2}, 2, 4),
        ((3, 8), {}, 3, 3),
        ((4, 5), {}, 2, 2),
        ((0, 0), {}, 0, 0),
        ((4, 8), {"decode": 0}, 0, 4),
    ],
)
def test_replicas_of_a_disaggregated_backend_are_as_many_as_its_ready_pods_make_up(
    pods: tuple[int, int], ready: dict[str, int], replicas: int, total: int
) -> None:
    assert _scaled_roles(*pods, **ready) == [{"name": "main", "replicas": replicas, "totalReplicas": total}]


def test_pods_of_different_groups_make_no_replica_together() -> None:
    fleet = ModelFleet(a_model(a_backend("vLLMDisaggregated", minReplicas=2, maxReplicas=2)))
    fleet.settle()
    fleet.run()
    fleet.up("chat-main-0-prefill", 0)
    fleet.up("chat-main-1-decode", 0)
    fleet.settle()
    assert fleet.status()["backendStatuses"] == [{"name": "main", "replicas": 0, "totalReplicas": 2}]


def test_a_coordinator_that_is_not_ready_leaves_no_replica() -> None:
    fleet = ModelFleet(model_named("mindie-disaggregated"))
    fleet.settle()
    fleet.run()
    fleet.settle()
    (status,) = fleet.status()["backendStatuses"]
    assert status["replicas"] == status["totalReplicas"] > 0
    (name,) = [name for _, _, name in fleet.objects if name.endswith("-0-coordinator")]
    fleet.up(name, 0)
    fleet.settle()
    assert fleet.status()["backendStatuses"] == [{**status, "replicas": status["replicas"] - 1}]


def test_a_replica_of_two_instances_of_several_pods_counts_once() -> None:
    fleet = ModelFleet(a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(pods=2, replicas=2)])))
    fleet.settle()
    fleet.run()
    fleet.settle()
    assert fleet.status()["backendStatuses"] == [{"name": "main", "replicas": 2, "totalReplicas": 2}]


def test_growing_does_not_make_a_model_inactive_and_its_scaler_keeps_the_replicas() -> None:
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    fleet = ModelFleet(a_model(a_backend(minReplicas=1, maxReplicas=3, autoscalingPolicy=policy)))
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-main"]["spec"]["replicas"] = 3
    fleet.up("chat-main", 1)
    plan = fleet.settle()
    assert plan is not None
    assert not plan.apply
    assert fleet.conditions()["Active"] == "True ModelAvailable"
    fleet.up("chat-main", 0)
    fleet.settle()
    assert fleet.conditions()["Active"] == "False ModelProcessing"


def test_a_refusal_is_told_and_taken_back_and_what_runs_still_counts() -> None:
    broken = a_model(a_backend(cacheURI="hostpath:///etc"))
    fleet = ModelFleet(broken)
    fleet.settle()
    assert fleet.conditions() == {**WELL, "Active": "False ModelProcessing", "Failed": "True ModelAbnormal"}
    assert "PathNotAllowed: spec.backends[0].cacheURI" in fleet.condition("Failed")[2]
    fleet.change(a_model())
    fleet.settle()
    fleet.run()
    fleet.settle()
    assert fleet.conditions() == WELL
    there = fleet.names()
    fleet.change(broken)
    fleet.settle()
    assert fleet.conditions() == {**WELL, "Failed": "True ModelAbnormal"}
    assert fleet.names() == there
    assert fleet.status()["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 1}]


def test_one_that_cannot_be_read_says_so() -> None:
    fleet = ModelFleet({"spec": {"backends": 7}})
    fleet.settle()
    assert fleet.conditions()["Failed"] == "True ModelAbnormal"
    assert "spec.backends" in fleet.condition("Failed")[2]


def test_what_is_not_asked_for_any_more_goes_and_nobody_elses_does() -> None:
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    two = (a_backend(autoscalingPolicy=policy), a_backend(name="second"))
    fleet = ModelFleet(a_model(*two))
    fleet.settle()
    fleet.run()
    fleet.settle()
    assert {"Deployment chat-second", "AutoscalingPolicyBinding chat-main"} <= fleet.names()
    uid = fleet.objects["Model", "shop", "chat"]["metadata"]["uid"]
    fleet.put("ConfigMap", "mine", "shop", metadata={"labels": {"registry.volcano.sh/model-uid": uid}})
    fleet.change(a_model(a_backend()))
    fleet.settle()
    assert fleet.names() == {"Deployment chat-main", "ModelServer chat-main", "ModelRoute chat"}
    assert ("ConfigMap", "shop", "mine") in fleet.objects


def test_another_name_for_clients_is_a_new_route_before_the_old_one_goes() -> None:
    fleet = ModelFleet()
    fleet.settle()
    fleet.change(a_model(client_name="large"))
    plan = fleet.look()
    assert plan is not None
    made = [f"{one['kind']} {one['metadata']['name']}" for one in plan.apply if one["kind"] != "ControllerRevision"]
    assert made[-1] == "ModelRoute chat-large"
    gone = [(one.kind.kind, one.key.name) for one in plan.delete if one.kind.kind != "ControllerRevision"]
    assert gone == [("ModelRoute", "chat")]
    fleet.settle()
    assert ("ModelRoute", "shop", "chat") not in fleet.objects


def test_a_model_without_pods_is_active() -> None:
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    fleet = ModelFleet(
        a_model(a_backend(minReplicas=0, maxReplicas=2, scaleToZeroGracePeriod="1m", autoscalingPolicy=policy))
    )
    fleet.settle()
    fleet.run()
    fleet.settle()
    assert fleet.conditions() == WELL


def test_two_that_want_one_name_do_not_fight() -> None:
    fleet = ModelFleet(a_model(a_backend(name="a-b")))
    fleet.settle()
    fleet.put("Model", "chat-a", "shop", spec=a_model(a_backend(name="b"))["spec"], status={})
    fleet.settle("chat-a")
    said = fleet.condition("Failed", "chat-a")[2]
    assert said.startswith("ChildConflict: Deployment chat-a-b belongs to Model chat")
    assert ("ModelRoute", "shop", "chat-a") not in fleet.objects


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    ("version", "kind"),
    [("workload.volcano.sh/v1alpha1", "ModelInfer"), ("workload.serving.volcano.sh/v1alpha1", "ModelServing")],
)
def test_what_kthena_made_of_a_model_gets_no_pods_beside_it_until_that_is_allowed(
    version: str, kind: str, allowed: bool
) -> None:
    fleet = ModelFleet(a_model(), served=frozenset((ServedKind(version, kind),)))
    model = fleet.objects["Model", "shop", "chat"]
    uid = model["metadata"]["uid"]
    owner = {"apiVersion": "registry.volcano.sh/v1alpha1", "kind": "Model", "name": "chat", "uid": uid}
    fleet.put(kind, "chat-main", "shop", apiVersion=version, metadata={"ownerReferences": [owner]})
    fleet.put(kind, "forged", "zoo", apiVersion=version, metadata={"ownerReferences": [owner]})
    plan = fleet.settle()
    assert plan is not None
    assert not plan.awaits
    assert ("Deployment", "shop", "chat-main") not in fleet.objects
    said = (
        f"pods would be made beside those of {kind} chat-main, which another controller made and which should go first"
    )
    assert fleet.condition("Failed")[2].startswith(f"{said}: allow it by the annotation {ACCEPT}")
    assert fleet.standing().held
    assert fleet.conditions()["Active"] == "False ModelProcessing"
    labels = {"registry.volcano.sh/model-uid": uid, "registry.volcano.sh/backend-name": "main"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    fleet.put("Pod", "theirs", "shop", spec={}, status=status, metadata={"labels": labels})
    fleet.settle()
    assert fleet.conditions()["Active"] == "True ModelAvailable", "by the pods there are"
    if allowed:
        model["metadata"]["annotations"] = {ACCEPT: "adoption"}
    else:
        del fleet.objects[kind, "shop", "chat-main"]
    fleet.settle()
    assert ("Deployment", "shop", "chat-main") in fleet.objects


def test_an_update_that_does_not_become_ready_goes_back_by_itself() -> None:
    def image() -> str:
        body = fleet.objects["Deployment", "shop", "chat-main"]
        return str(body["spec"]["template"]["spec"]["containers"][0]["image"])

    fleet = ModelFleet(a_model(a_backend(workers=[a_worker(image="engine:1")])))
    fleet.settle()
    fleet.run()
    fleet.settle()
    fleet.change(a_model(a_backend(workers=[a_worker(image="engine:2")])))
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-main"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    fleet.settle(now=NOW + USUAL - 1)
    assert image() == "engine:2"
    fleet.settle(now=NOW + USUAL)
    assert image() == "engine:1"
    fleet.run()
    fleet.settle(now=NOW + USUAL + 60)
    said = fleet.condition("Failed")
    assert said[:2] == ("True", "ModelAbnormal")
    assert said[2].startswith("RolledBack: generation 2 did not become ready (main: ")
    assert fleet.conditions()["Active"] == "True ModelAvailable"
    assert fleet.standing().stuck
    fleet.change(a_model(a_backend(workers=[a_worker(image="engine:3")])))
    fleet.settle(now=NOW + USUAL + 90)
    fleet.run()
    fleet.settle(now=NOW + USUAL + 100)
    assert image() == "engine:3"
    assert fleet.conditions() == WELL
