"""The life of a service, planned in memory: made once, ready when its pods are, mended, refused, taken away."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from service_world import ENGINE, FORMAT, NOW, SERVED, Fleet, serving

from modelyard.models.delivery.world import LIFECYCLE
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.dispatch import with_awaited_run
from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.roll_out.lifecycle import READY_WITHIN, ServiceRollOut
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.returning import DEADLINE, GRACE, UNOBSERVED, USUAL

LATEST = "LatestDeploymentReady"


def test_all_is_made_at_once_and_nothing_twice() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    plan = fleet.look()
    assert plan is not None
    *made, kept = [f"{one['kind']} {one['metadata']['name']}" for one in plan.apply]
    assert kept.startswith("ControllerRevision chat-")
    assert made == [
        "ConfigMap modelconfig-chat",
        "Deployment chat-engine",
        "Service chat-engine",
        "HorizontalPodAutoscaler chat-engine",
        "PodDisruptionBudget chat-engine",
        "Service chat",
    ]
    last = fleet.settle()
    assert last is not None
    assert not last.writes
    assert last.awaits == ("engine: 0 of 1 pods are ready",)
    assert fleet.condition("Ready")[:2] == ("False", "PodsNotReady")
    assert fleet.condition("EngineReady")[0] == "False"
    assert fleet.status()["observedGeneration"] == 1


def test_while_its_flow_run_is_queued_the_status_says_so() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    plan = fleet.look()
    assert plan is not None
    assert plan.acts
    waiting = with_awaited_run(plan, "waiting since then for flow run 'x' of roll-out/roll-out to start", NOW)
    assert waiting.status is not None
    messages = {one.type: one.message for one in waiting.status.conditions}
    assert messages["LatestDeploymentReady"].startswith("to be written: ConfigMap modelconfig-chat")
    for name in ("Ready", "LatestDeploymentReady", "EngineReady"):
        assert "; waiting since then for flow run 'x'" in messages[name]


def test_it_is_ready_when_its_pods_are() -> None:
    fleet = serving()
    for kind in ("EngineReady", "IngressReady", "RoutesReady", LATEST, "Ready"):
        assert fleet.condition(kind)[0] == "True", kind
    assert fleet.status()["url"] == "http://chat.shop.svc.cluster.local:8080"
    assert fleet.status()["modelStatus"]["transitionStatus"] == "UpToDate"
    plan = fleet.look()
    assert plan is not None
    assert not plan.writes
    assert not plan.awaits


def test_decoder_and_router_count_as_much_as_the_engine() -> None:
    fleet = Fleet()
    fleet.model()
    part = {"runner": ENGINE}
    fleet.runtime(decoderConfig=part, routerConfig=part)
    fleet.service(decoder={}, router={})
    fleet.settle()
    for name in ("chat-engine", "chat-decoder"):
        fleet.up(name)
        fleet.settle()
        assert fleet.condition("Ready")[0] == "False"
    assert fleet.condition("RouterReady")[0] == "False"
    assert fleet.status()["modelStatus"]["transitionStatus"] == "UpToDate", "the router holds no model"
    fleet.up("chat-router")
    fleet.settle()
    assert fleet.condition("Ready")[0] == "True"


def test_what_answers_stays_ready_while_a_new_revision_comes() -> None:
    fleet = serving()
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:2"}})
    fleet.settle()
    assert fleet.condition("Ready")[0] == "True"
    assert fleet.condition(LATEST)[0] == "False"
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Loaded"
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")


def test_more_replicas_that_are_starting_take_nothing_away() -> None:
    fleet = serving()
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = 4  # by its autoscaler
    fleet.up("chat-engine", ready=1)
    plan = fleet.settle()
    assert plan is not None
    assert not plan.apply, "its replicas are the autoscaler's"
    assert fleet.condition("Ready")[0] == "True"
    assert fleet.condition(LATEST)[0] == "True"
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = 0
    fleet.up("chat-engine", ready=0)
    fleet.settle()
    assert fleet.condition("EngineReady")[:2] == ("True", "ScaledToZero")
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Standby"


def test_a_pod_that_was_evicted_is_told_until_another_has_taken_its_place() -> None:
    fleet = serving()
    fleet.up("chat-engine", ready=0)
    fleet.pod("first", phase="Failed", reason="Evicted", message="low on memory")
    fleet.settle()
    assert fleet.condition("EngineReady")[1] == "Evicted"
    fleet.pod("second", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition("EngineReady")[0] == "True"
    assert fleet.status()["modelStatus"]["modelCopies"] == {"totalCopies": 1, "failedCopies": 0}


def test_what_an_autoscaler_tells_is_no_reason_to_look_again() -> None:
    wants = {want.kind.kind: want for want in Fleet().lifecycle.wants if want.use == "services"}
    for kind, moves in (("HorizontalPodAutoscaler", False), ("Deployment", True)):
        store = Store(wants[kind])
        obj = {"metadata": {"name": "a", "namespace": "shop", "resourceVersion": "1"}, "status": {"replicas": 1}}
        store.put(obj)
        before = store.version
        store.put({"metadata": {**obj["metadata"], "resourceVersion": "2"}, "status": {"replicas": 2}})
        assert (store.version != before) is moves, kind


def test_what_somebody_changed_is_written_again_and_what_is_theirs_stays() -> None:
    fleet = serving()
    service = fleet.objects["Service", "shop", "chat-engine"]
    service["spec"]["selector"] |= {"app": "other", "more": "than that"}
    service["metadata"]["labels"]["theirs"] = "kept"
    del fleet.objects["ConfigMap", "shop", "modelconfig-chat"]
    plan = fleet.look()
    assert plan is not None
    assert [one["kind"] for one in plan.apply] == ["ConfigMap", "Service"]
    lines = fleet.standing().differences(plan)
    assert lines == [
        "ConfigMap modelconfig-chat: new",
        "Service chat-engine: spec.selector.app: 'other' → 'chat-engine'",
    ]


def test_a_component_that_is_not_asked_for_goes_and_nobody_elses_does() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime(decoderConfig={"runner": ENGINE}, routerConfig={"runner": ENGINE})
    fleet.service(router={})
    fleet.settle()
    labels = {"ome.io/inferenceservice": "chat", "component": "router"}
    fleet.put("ConfigMap", "theirs", "shop", metadata={"labels": labels})
    fleet.service()
    fleet.settle()
    assert not [one for one in fleet.names() if "router" in one]
    assert ("ConfigMap", "shop", "theirs") in fleet.objects
    assert "router" not in fleet.status().get("components", {})
    assert fleet.condition("RouterReady") == ("", "", "")


def test_what_serves_goes_when_what_takes_its_place_is_ready() -> None:
    fleet = serving()
    fleet.service(engine={"leader": {"runner": ENGINE}, "worker": {"size": 1, "runner": ENGINE}})
    fleet.settle()
    assert ("Deployment", "shop", "chat-engine") in fleet.objects
    for name in [name for kind, _, name in fleet.objects if kind == "StatefulSet"]:
        fleet.up(name, kind="StatefulSet")
    fleet.settle()
    assert ("Deployment", "shop", "chat-engine") not in fleet.objects
    assert fleet.condition("Ready")[0] == "True"


@pytest.mark.parametrize(
    ("spec", "reason", "published"),
    [
        ({"model": {"name": "none"}}, "BaseModelNotFound", "BaseModelNotFound"),
        ({"runtime": {"name": "none"}}, "RuntimeNotFound", "RuntimeNotRecognized"),
        ({"runtime": {"name": "off"}}, "RuntimeDisabled", "RuntimeDisabled"),
        ({"model": {"name": "odd"}}, "NoSupportingRuntime", "NoSupportingRuntime"),
        ({"model": {"name": "disabled"}}, "ModelDisabled", "BaseModelDisabled"),
        ({"engine": {"hostNetwork": True}}, "NotPermitted", "InvalidPredictorSpec"),
        ({"engine": {"minReplicas": 0}}, "ScaleToZeroNotServed", "InvalidPredictorSpec"),
    ],
)
def test_a_refusal_is_told_and_leaves_what_runs(spec: dict[str, Any], reason: str, published: str) -> None:
    fleet = serving()
    fleet.model("odd", modelArchitecture="OddForCausalLM")
    fleet.model("disabled", disabled=True)
    fleet.runtime("off", disabled=True)
    before = fleet.names()
    fleet.service(**spec)
    plan = fleet.settle()
    assert plan is not None
    assert not plan.awaits
    assert fleet.names() == before
    assert fleet.condition("Ready")[0] == "True", "what runs goes on answering"
    assert fleet.condition(LATEST)[:2] == ("False", reason)
    failed = fleet.status()["modelStatus"]
    assert (failed["transitionStatus"], failed["lastFailureInfo"]["reason"]) == ("InvalidSpec", published)
    fleet.service()
    fleet.settle()
    assert fleet.condition(LATEST)[0] == "True"
    assert "lastFailureInfo" not in fleet.status()["modelStatus"]


def test_one_that_never_ran_has_the_reason_in_ready() -> None:
    fleet = Fleet()
    fleet.service()
    fleet.settle()
    assert fleet.condition("Ready")[:2] == ("False", "BaseModelNotFound")
    assert fleet.status()["observedGeneration"] == 1
    assert not fleet.names()


def test_a_model_whose_files_are_not_read_yet_is_waited_for() -> None:
    fleet = Fleet()
    fleet.runtime()
    fleet.put("ClusterBaseModel", "llama", spec={"storage": {"storageUri": "hf://meta/llama"}})
    fleet.service()
    fleet.settle()
    assert fleet.condition("Ready")[1] == "MetadataPending"
    assert fleet.status()["modelStatus"]["transitionStatus"] == "InProgress"
    assert not fleet.standing().stuck
    fleet.model()
    fleet.settle()
    assert "Deployment chat-engine" in fleet.names()


def test_a_live_service_stays_on_its_runtime() -> None:
    fleet = serving()
    fleet.runtime("a-better-one", supportedModelFormats=[{**FORMAT, "autoSelect": True, "priority": 9}])
    plan = fleet.settle()
    assert plan is not None
    assert not plan.apply
    assert fleet.condition(LATEST)[2].endswith("; a new service would have runtime a-better-one")
    assert fleet.status()["annotations"]["modelyard.dev/runtime"] == "ClusterServingRuntime/small@1"


def newer(fleet: Fleet, image: str = "engine:2") -> None:
    fleet.runtime(engineConfig={"runner": {**ENGINE, "image": image, "ports": [{"containerPort": 9000}]}})


def image_of(fleet: Fleet) -> str:
    body = fleet.objects["Deployment", "shop", "chat-engine"]
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.mark.parametrize("allowed", ["always", "ClusterServingRuntime/small@2"])
def test_a_changed_runtime_restarts_nothing_until_it_is_allowed(allowed: str) -> None:
    fleet = serving()
    newer(fleet)
    plan = fleet.settle()
    assert plan is not None
    assert image_of(fleet) == "engine:1"
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("True", "ChangesHeld")
    assert message.startswith("ClusterServingRuntime/small@1 was rolled out, and now it would be")
    assert fleet.status()["url"].endswith(":8080"), "where it answers now"
    assert fleet.condition("Ready")[0] == "True"
    fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {ACCEPT: allowed}
    fleet.settle()
    assert image_of(fleet) == "engine:2"
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "RolledOut"
    assert fleet.status()["annotations"]["modelyard.dev/runtime"] == "ClusterServingRuntime/small@2"
    assert fleet.status()["url"].endswith(":9000")
    newer(fleet, "engine:3")
    fleet.settle()
    assert image_of(fleet) == ("engine:3" if allowed == "always" else "engine:2")


def test_a_deprecated_model_serves_on_and_its_services_say_so() -> None:
    fleet = serving()
    fleet.objects["ClusterBaseModel", "", "llama"]["metadata"]["annotations"] = {LIFECYCLE: "Deprecated"}
    plan = fleet.look()
    assert plan is not None
    text = "model llama: deprecated; move to another one"
    assert [(notice.reason, notice.message) for notice in plan.notices] == [("BaseModelDeprecated", text)]
    fleet.settle()
    assert fleet.condition(LATEST) == ("True", "RolledOut", f"what was asked for is what runs; {text}")
    plan = fleet.look()
    assert plan is not None
    assert plan.status is None
    assert plan.notices == ()


def test_whoever_changes_the_service_gets_the_runtime_as_it_is() -> None:
    fleet = serving()
    newer(fleet)
    fleet.settle()
    fleet.service(engine={"minReplicas": 2})
    fleet.settle()
    assert image_of(fleet) == "engine:2"


def test_a_runtime_that_goes_takes_nothing_with_it_and_no_other_takes_over() -> None:
    fleet = serving()
    entry = {**FORMAT, "autoSelect": True, "priority": 1}
    fleet.runtime("other", supportedModelFormats=[entry], engineConfig={"runner": {**ENGINE, "image": "other:1"}})
    del fleet.objects["ClusterServingRuntime", "", "small"]
    fleet.settle()
    assert image_of(fleet) == "engine:1"
    assert fleet.condition(LATEST)[1] == "ChangesHeld"
    del fleet.objects["ClusterServingRuntime", "", "other"]
    fleet.settle()
    assert fleet.condition(LATEST)[:2] == ("False", "NoSupportingRuntime")
    assert fleet.condition("Ready")[0] == "True"


def test_changes_that_reach_no_pod_are_taken_as_they_are() -> None:
    fleet = serving()
    fleet.model(maxTokens=4096)
    fleet.runtime(protocolVersions=["openAI"])
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "RolledOut"
    assert fleet.status()["annotations"]["modelyard.dev/model"] == "ClusterBaseModel/llama@2"


def test_a_name_that_is_taken_is_a_conflict_of_the_later_one() -> None:
    fleet = serving()
    fleet.service("chat-engine")
    fleet.settle("chat-engine")
    reason, message = fleet.condition("Ready", "chat-engine")[1:]
    assert reason == "ChildConflict"
    assert message == "Service chat-engine belongs to InferenceService chat - rename one of the two"
    assert not [one for one in fleet.names() if "chat-engine-engine" in one]
    fleet.settle()
    assert fleet.condition("Ready")[0] == "True"


def test_what_a_run_could_not_do_is_told_until_it_can() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service(annotations={"modelyard.dev/failed": "1 Deployment shop/chat-engine: exceeded quota"})
    plan = fleet.look()
    assert plan is not None
    assert plan.status is not None
    said = {one.type: one for one in plan.status.conditions}[LATEST]
    assert (said.reason, said.message) == ("ApplyFailed", "Deployment shop/chat-engine: exceeded quota")
    fleet.settle()
    assert fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] == {}


def test_that_no_node_has_the_model_is_told_with_why() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    fleet.settle()
    fleet.objects["ClusterBaseModel", "", "llama"]["status"] = {
        "state": "In_Transit",
        "conditions": [{"type": "Ready", "status": "False", "message": "2 nodes fetch it"}],
    }
    label = "models.ome.io/clusterbasemodel.llama"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    fleet.pod("p", conditions=[unscheduled], phase="Pending", spec={"nodeSelector": {label: "Ready"}})
    fleet.settle()
    message = fleet.condition("EngineReady")[2]
    assert fleet.condition("EngineReady")[1] == "NoNodeHasModel"
    assert message.endswith("no node has the model yet; llama: 2 nodes fetch it")
    fleet.put("Node", "gpu-1", status={}, metadata={"labels": {label: "Ready"}})
    fleet.settle()
    assert fleet.condition("EngineReady")[1] == "Unschedulable"


def test_a_run_does_not_stay_for_ever() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    fleet.settle()
    assert fleet.look(now=NOW + READY_WITHIN - 1).awaits  # type: ignore[union-attr]
    assert not fleet.look(now=NOW + READY_WITHIN + 1).awaits  # type: ignore[union-attr]
    waiting = {
        "name": "ome-container",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }
    fleet.pod("p", phase="Pending", containerStatuses=[waiting])
    plan = fleet.settle()
    assert plan is not None
    assert not plan.awaits, "waiting mends no image"
    assert fleet.condition(LATEST)[1] == "ImagePullFailed"
    assert fleet.standing().stuck


@pytest.mark.parametrize(
    ("name", "spec"),
    [("v", {"scaleTargetRef": {"kind": "Deployment", "name": "chat-engine"}}), ("chat-engine", {"variantProfile": {}})],
)
def test_what_others_scale_has_no_autoscaler(name: str, spec: dict[str, Any]) -> None:
    fleet = Fleet(served=SERVED | {ServedKind("llmd.ai/v1alpha1", "VariantAutoscaling")})
    fleet.model()
    fleet.runtime()
    fleet.service(engine={"minReplicas": 2})
    fleet.put("VariantAutoscaling", name, "shop", spec=spec)
    fleet.settle()
    assert "HorizontalPodAutoscaler chat-engine" not in fleet.names()
    deployment = fleet.objects["Deployment", "shop", "chat-engine"]
    assert deployment["spec"]["replicas"] == 2, "as many as it asks for, until somebody scales it"
    deployment["spec"]["replicas"] = 5
    assert not fleet.settle().deeds
    fleet.service(engine={"minReplicas": 2, "runner": {"name": "ome-container", "image": "engine:2"}})
    (changed,) = (one for one in fleet.look().apply if one["kind"] == "Deployment")
    assert "replicas" not in changed["spec"]


def test_one_that_cannot_be_read_says_so_and_a_deleted_one_is_left_alone() -> None:
    fleet = Fleet()
    fleet.put("InferenceService", "chat", "shop", spec={"engine": "text"}, status={})
    fleet.settle()
    assert fleet.condition("Ready")[1] == "InvalidSpec"
    fleet.put(
        "InferenceService",
        "gone",
        "shop",
        spec={"engine": {}},
        status={},
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"},
    )
    assert fleet.look("gone") is None


def test_a_virtual_deployment_is_told_and_nothing_made() -> None:
    fleet = serving()
    fleet.service(annotations={"ome.io/deploymentMode": "VirtualDeployment"})
    fleet.settle()
    assert fleet.condition("Ready")[:2] == ("True", "VirtualDeployment")
    assert list(fleet.status()["components"]) == ["predictor"]
    assert not fleet.names()


def _content(fleet: Fleet) -> dict[Any, Any]:
    """All there is, but for what differs from run to run."""
    found = copy.deepcopy(fleet.objects)
    for obj in found.values():
        for name in ("uid", "generation", "ownerReferences"):
            obj["metadata"].pop(name, None)
    return found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"router": {}, "engine": {"minReplicas": 2}},
        {"decoder": {}},
        {"model": {"name": "none"}},
        {"engine": {"leader": {"runner": ENGINE}, "worker": {"size": 1, "runner": ENGINE}}},
    ],
)
def test_whoever_is_killed_after_any_write_is_carried_on_to_the_same_end(change: dict[str, Any]) -> None:
    def begun() -> Fleet:
        fleet = Fleet()
        fleet.model()
        fleet.runtime(decoderConfig={"runner": ENGINE}, routerConfig={"runner": ENGINE})
        if change:
            fleet.service(router={})
            fleet.settle()
        fleet.service(**change)
        return fleet

    whole = begun()
    count = whole.carry(whole.look())
    whole.settle()
    assert count > 0
    for most in range(count):
        killed = begun()
        killed.carry(killed.look(), most=most)
        killed.lifecycle = ServiceRollOut("home", SERVED)
        killed.settle()
        assert _content(killed) == _content(whole), f"killed after {most} of {count} writes"


def revisions(fleet: Fleet) -> list[str]:
    """What is kept of what served."""
    return [name for kind, _, name in fleet.objects if kind == "ControllerRevision"]


def updated(fleet: Fleet, *, deadline: str = "60") -> None:
    """A new image, whose pod does not come up."""
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:2"}}, annotations={DEADLINE: deadline})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}


def test_what_somebody_elsewhere_says_of_a_service_is_not_its_own() -> None:
    """Uids are no secret: who writes them down in another namespace gives a service no pods and nothing to delete."""
    fleet = serving()
    updated(fleet)
    for (kind, namespace, name), obj in list(fleet.objects.items()):
        if kind in ("Deployment", "ReplicaSet") and namespace == "shop":
            forged = copy.deepcopy(obj)
            forged["metadata"] |= {"namespace": "zoo", "uid": f"forged-{name}"}
            forged["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
            fleet.objects[kind, "zoo", name] = forged
            again = copy.deepcopy(forged)  # of the true Deployment, and of the forged one
            again["metadata"] |= {"name": f"{name}-again", "uid": f"again-{name}"}
            if kind == "ReplicaSet":
                again["metadata"]["ownerReferences"][0]["uid"] = "forged-chat-engine"
            fleet.objects[kind, "zoo", f"{name}-again"] = again
    fleet.settle(now=NOW + 60)
    assert image_of(fleet) == "engine:1"
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:3"}}, router={})
    fleet.settle()
    plan = fleet.look()
    assert plan is not None
    assert not [one for one in plan.delete if one.key.namespace != "shop"]


def test_an_update_that_does_not_become_ready_goes_back_by_itself() -> None:
    fleet = serving()
    assert revisions(fleet) == [fleet.status()["annotations"]["modelyard.dev/good"]]
    updated(fleet)
    plan = fleet.settle(now=NOW + 59)
    assert plan is not None
    assert plan.due == NOW + 60
    assert image_of(fleet) == "engine:2"
    fleet.settle(now=NOW + 60)
    assert image_of(fleet) == "engine:1"
    fleet.up("chat-engine")
    last = fleet.settle(now=NOW + 100)
    assert last is not None
    assert not last.awaits
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "RolledBack")
    assert "generation 2 did not become ready (engine: 0 of 1 pods are ready" in message
    assert fleet.condition("Ready")[0] == "True"
    assert fleet.standing().stuck
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"]["spec"]["containers"][0]["image"] = "by-hand"
    fleet.settle(now=NOW + 200)
    assert image_of(fleet) == "engine:1", "what was given up does not come back, nor does anything else"
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:3"}})
    fleet.settle(now=NOW + 300)
    assert image_of(fleet) == "engine:3"
    assert fleet.condition(LATEST)[1] != "RolledBack"


def test_pods_that_do_not_mend_themselves_end_it_sooner() -> None:
    fleet = serving()
    updated(fleet, deadline="1000")
    waiting = {"name": "ome-container", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "none such"}}}
    fleet.pod("p", phase="Pending", containerStatuses=[waiting])
    fleet.settle(now=NOW + 59)
    assert image_of(fleet) == "engine:2"
    fleet.settle(now=NOW + 61)
    assert image_of(fleet) == "engine:1"
    assert "ImagePullBackOff" in fleet.condition(LATEST)[2]


def test_what_is_asked_for_no_more_is_rolled_out_as_well() -> None:
    fleet = serving()
    before = copy.deepcopy(fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"])
    hook = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    fleet.service(engine={"runner": {"name": "ome-container", "args": ["--fast"], "lifecycle": hook}})
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    fleet.service(engine={})
    plan = fleet.look()
    assert plan is not None
    assert [one["kind"] for one in plan.apply if one["kind"] != "ControllerRevision"] == ["Deployment"]
    assert fleet.standing().differences(plan) == ["Deployment chat-engine: what is not asked for any more goes"]
    assert fleet.condition(LATEST)[1] == "RolledOut"
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "RollingOut"
    fleet.up("chat-engine")
    last = fleet.settle()
    assert last is not None
    assert fleet.condition(LATEST)[1] == "RolledOut"
    assert fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"] == before
    # Neither an autoscaler's replicas nor a child that was made without the annotation is a change.
    deployment = fleet.objects["Deployment", "shop", "chat-engine"]
    deployment["spec"]["replicas"] = 5
    del deployment["metadata"]["annotations"]["modelyard.dev/applied"]
    fleet.up("chat-engine", ready=5)
    plan = fleet.settle()
    assert plan is not None
    assert not plan.apply


def test_what_is_told_of_a_bad_pod_beside_those_that_serve_says_whose_it_is() -> None:
    fleet = serving()
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:2"}})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    fleet.pod("old", conditions=[{"type": "Ready", "status": "True"}], phase="Running")
    ended = {"name": "ome-container", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
    fleet.pod("new", phase="Running", containerStatuses=[ended])
    fleet.settle()
    said = "container ome-container exited with code 2"
    assert fleet.condition(LATEST)[1:] == ("ContainerExited", f"engine: 1 of 1 pods are ready; of the update: {said}")
    fleet.settle(now=NOW + GRACE)
    assert f"generation 2 did not become ready (engine: {said})" in fleet.condition(LATEST)[2]


@pytest.mark.parametrize("lost", [True, False])
def test_without_the_very_revision_that_served_there_is_nothing_to_go_back_to(lost: bool) -> None:
    fleet = serving()
    updated(fleet)
    name = fleet.status()["annotations"]["modelyard.dev/good"]
    if lost:
        del fleet.objects["ControllerRevision", "shop", name]
    else:
        kept = fleet.objects["ControllerRevision", "shop", name]["data"]
        kept["inputs"] = kept["inputs"].replace("engine:1", "evil:1")
    fleet.settle(now=NOW + 100)
    assert image_of(fleet) == "engine:2"
    assert fleet.condition(LATEST)[1] == "RollingOut"


def test_ports_and_scalers_go_back_with_the_pods_they_belong_to() -> None:
    fleet = serving()
    port = {"containerPort": 9000}
    fleet.service(engine={"minReplicas": 2, "runner": {"name": "ome-container", "image": "engine:2", "ports": [port]}})
    fleet.settle()
    assert fleet.status()["url"].endswith(":9000")
    fleet.settle(now=NOW + USUAL)
    assert image_of(fleet) == "engine:1"
    assert fleet.objects["Service", "shop", "chat"]["spec"]["ports"][0]["port"] == 8080
    assert fleet.objects["HorizontalPodAutoscaler", "shop", "chat-engine"]["spec"]["minReplicas"] == 1
    assert fleet.status()["url"].endswith(":8080")


def test_only_what_served_last_is_kept() -> None:
    fleet = serving()
    (first,) = revisions(fleet)
    for image in ("engine:2", "engine:3"):
        fleet.service(engine={"runner": {"name": "ome-container", "image": image}})
        fleet.settle()
        assert len(revisions(fleet)) == 2, "what served, and what is to"
    fleet.up("chat-engine")
    fleet.settle()
    (second,) = revisions(fleet)
    assert second != first
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:4"}})
    fleet.settle()
    fleet.settle(now=NOW + USUAL)
    assert fleet.condition(LATEST)[1] == "RolledBack"
    fleet.settle(now=NOW + USUAL)
    assert revisions(fleet) == [second]


def test_what_served_and_fails_later_is_not_given_up() -> None:
    fleet = serving()
    fleet.up("chat-engine", ready=0)
    fleet.settle(now=NOW + 10 * USUAL)
    assert fleet.condition(LATEST)[1] == "RollingOut"
    fleet.put("VariantAutoscaling", "v", "shop", spec={"scaleTargetRef": {"kind": "Deployment", "name": "chat-engine"}})
    fleet.lifecycle.served |= {ServedKind("llmd.ai/v1alpha1", "VariantAutoscaling")}
    fleet.settle(now=NOW + 11 * USUAL)
    assert fleet.condition(LATEST)[1] == "RollingOut", "another scaler makes no other pods"


SETS = frozenset((*SERVED, ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")))


def grouped(fleet: Fleet, image: str, *, groups: int = 2) -> None:
    part = {"runner": {**ENGINE, "image": image}}
    fleet.service(engine={"minReplicas": groups, "leader": part, "worker": {"size": 1, **part}})
    fleet.settle()


def all_up(fleet: Fleet) -> None:
    for kind, _, name in list(fleet.objects):
        if kind in ("StatefulSet", "LeaderWorkerSet"):
            fleet.up(name, kind=kind, ready=fleet.objects[kind, "shop", name]["spec"]["replicas"])
    fleet.settle()


def images(fleet: Fleet) -> dict[str, str]:
    """The image of each workload, by name."""
    found = {}
    for (kind, _, name), obj in fleet.objects.items():
        if kind in ("StatefulSet", "LeaderWorkerSet"):
            spec = obj["spec"].get("leaderWorkerTemplate") or obj["spec"]
            pods = spec.get("leaderTemplate") or spec["template"]
            found[name] = pods["spec"]["containers"][0]["image"]
    return found


@pytest.mark.parametrize("served", [SERVED, SETS])
def test_groups_go_back_as_well(served: frozenset[ServedKind]) -> None:
    fleet = Fleet(served=served)
    fleet.model()
    fleet.runtime()
    grouped(fleet, "engine:1")
    all_up(fleet)
    assert fleet.condition(LATEST)[0] == "True"
    fleet.settle(now=NOW + UNOBSERVED)
    grouped(fleet, "engine:2")
    assert "engine:2" in images(fleet).values()
    for kind, _, name in list(fleet.objects):
        if kind in ("StatefulSet", "LeaderWorkerSet") and images(fleet)[name] == "engine:2":
            fleet.up(name, kind=kind, ready=0)
    fleet.settle(now=NOW + USUAL)
    assert set(images(fleet).values()) == {"engine:1"}
    assert fleet.condition(LATEST)[1] == "RolledBack"


def test_groups_without_a_controller_are_rolled_out_one_after_another() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    grouped(fleet, "engine:1", groups=3)
    all_up(fleet)
    grouped(fleet, "engine:2", groups=3)
    for number in range(3):
        changed = {name for name, image in images(fleet).items() if image == "engine:2"}
        assert changed == {f"chat-engine-{one}-{pod}" for one in range(number + 1) for pod in range(2)}
        fleet.settle()
        all_up(fleet)
    assert fleet.condition(LATEST)[1] == "RolledOut"
    grouped(fleet, "engine:3", groups=3)
    fleet.up("chat-engine-0-0", kind="StatefulSet", ready=0)
    fleet.up("chat-engine-2-1", kind="StatefulSet", ready=0)
    fleet.settle()
    changed = {name for name, image in images(fleet).items() if image == "engine:3"}
    assert changed == {f"chat-engine-{one}-{pod}" for one in (0, 2) for pod in range(2)}, "what does not serve at once"


def test_what_is_accepted_late_has_its_whole_time() -> None:
    fleet = serving()
    newer(fleet)
    later = NOW + 100_000
    fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {ACCEPT: "always"}
    fleet.settle(now=later)
    fleet.settle(now=later + 59)
    assert image_of(fleet) == "engine:2"


def test_an_update_that_nobody_has_begun_is_not_given_up() -> None:
    fleet = serving()
    fleet.service(engine={"runner": {"name": "ome-container", "image": "engine:2"}})
    for after in (0, 10 * USUAL):  # no run is started
        plan = fleet.look(now=NOW + after)
        assert plan is not None
        fleet.carry(replace(plan, apply=(), delete=()), now=NOW + after)
    assert fleet.condition(LATEST)[1] == "Applying"
    fleet.settle(now=NOW + 11 * USUAL)
    assert image_of(fleet) == "engine:2"
    fleet.settle(now=NOW + 12 * USUAL - 1)
    assert image_of(fleet) == "engine:2"


def adopted(fleet: Fleet, **runner: Any) -> None:
    """Workloads that another controller has made of the service, and their pods serve."""
    whole = copy.deepcopy(fleet.objects)
    fleet.service(engine={"runner": {**ENGINE, **runner}} if runner else {})
    fleet.settle()
    for key in [key for key in whole if key[0] == "InferenceService"]:
        fleet.objects[key] = whole[key]
    for key in [key for key in fleet.objects if key[0] == "ControllerRevision"]:
        del fleet.objects[key]
    fleet.objects["Deployment", "shop", "chat-engine"]["metadata"].pop("annotations")
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["revisionHistoryLimit"] = 10
    fleet.up("chat-engine")


def made_elsewhere(**runner: Any) -> Fleet:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    adopted(fleet, **runner)
    return fleet


def test_what_another_controller_made_is_taken_over_as_it_is() -> None:
    fleet = made_elsewhere()
    before = copy.deepcopy(fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"])
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["template"] == before
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
    assert revisions(fleet)


def test_what_another_controller_made_otherwise_is_reported_and_left_until_that_is_allowed() -> None:
    fleet = made_elsewhere(image="their-engine:7")
    fleet.settle()
    assert image_of(fleet) == "their-engine:7"
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("True", "ChangesHeld")
    assert "Deployment chat-engine, which another controller made, would be: spec.template" in message
    assert "'their-engine:7' → 'engine:1'" in message
    assert fleet.condition("Ready")[0] == "True"
    plan = fleet.look(now=NOW + 100 * USUAL)
    assert plan is not None
    assert not plan.acts
    fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {ACCEPT: "adoption"}
    fleet.settle()
    assert image_of(fleet) == "engine:1"
    fleet.up("chat-engine")
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "RolledOut"


PREDICTOR = {"ome.io/inferenceservice": "chat", "component": "predictor"}
INGRESS = {"disableIngressCreation": False, "ingressDomain": "example.com", "ingressClassName": "nginx"}


def of_a_predictor(*, ingress: bool) -> Fleet:
    """A service in the older form, whose pods serve behind its name, as OME's controller has made them."""
    fleet = Fleet(served=SERVED | {ServedKind("networking.k8s.io/v1", "Ingress")})
    fleet.model()
    fleet.runtime()
    if ingress:
        fleet.put("ConfigMap", "inferenceservice-config", "home", data={"ingress": json.dumps(INGRESS)})
    predictor = {"minReplicas": 1, "model": {"baseModel": "llama"}}
    service = fleet.put("InferenceService", "chat", "shop", spec={"predictor": predictor}, status={})
    owner = {"kind": "InferenceService", "name": "chat", "uid": service["metadata"]["uid"], "controller": True}
    pods = {"metadata": {"labels": PREDICTOR}, "spec": {"containers": [ENGINE]}}
    backend = {"service": {"name": "chat", "port": {"number": 8080}}}
    specs: dict[tuple[str, str], dict[str, Any]] = {
        ("apps/v1", "Deployment"): {"replicas": 1, "selector": {"matchLabels": PREDICTOR}, "template": pods},
        ("v1", "Service"): {"selector": PREDICTOR, "ports": [{"name": "http", "port": 8080, "targetPort": 8080}]},
        ("autoscaling/v2", "HorizontalPodAutoscaler"): {"minReplicas": 1, "maxReplicas": 1},
    }
    if ingress:
        specs["networking.k8s.io/v1", "Ingress"] = {"rules": [{"http": {"paths": [{"path": "/", "backend": backend}]}}]}
    for (version, kind), spec in specs.items():
        metadata = {"labels": PREDICTOR, "ownerReferences": [owner]}
        fleet.put(kind, "chat", "shop", apiVersion=version, spec=spec, metadata=metadata)
    fleet.up("chat")
    return fleet


def leads_to(fleet: Fleet) -> str:
    """The component that requests to the Service of the service's name come to, and of the Ingress, if there is one."""
    service = fleet.objects.get(("Service", "shop", "chat"))
    found = [service["spec"]["selector"]["component"]] if service is not None else []
    if ("Ingress", "shop", "chat") in fleet.objects:
        paths = fleet.objects["Ingress", "shop", "chat"]["spec"]["rules"][0]["http"]["paths"]
        found.append(paths[0]["backend"]["service"]["name"])
    return " ".join(found)


@pytest.mark.parametrize(
    ("ingress", "before", "after"), [(False, "predictor", "engine"), (True, "predictor chat", "chat-engine")]
)
def test_a_predictor_serves_until_its_engine_does(ingress: bool, before: str, after: str) -> None:
    fleet = of_a_predictor(ingress=ingress)
    old = copy.deepcopy({key: one["spec"] for key, one in fleet.objects.items() if key[2] == "chat"})
    fleet.settle()
    assert ("Deployment", "shop", "chat-engine") in fleet.objects
    fleet.up("chat-engine", ready=0)
    plan = fleet.settle()
    assert plan is not None
    assert {key: one["spec"] for key, one in fleet.objects.items() if key[2] == "chat"} == old
    assert leads_to(fleet) == before
    assert fleet.condition("EngineReady")[0] == "False"
    assert fleet.condition("PredictorReady")[:2] == ("True", "PodsReady"), "by its old pods"
    assert fleet.status()["modelStatus"]["transitionStatus"] == "InProgress"
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Loaded"
    fleet.up("chat", ready=0)
    fleet.settle()
    assert fleet.condition("PredictorReady")[0] == "False"
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Pending"
    fleet.up("chat")
    fleet.up("chat-engine")
    plan = fleet.look()
    assert plan is not None
    turned = {one["kind"] for one in plan.apply if one["metadata"]["name"] == "chat"}
    assert turned == {"Ingress" if ingress else "Service"}, "in the plan in which the others go, which come after"
    fleet.settle()
    assert leads_to(fleet) == after
    kinds = {kind for kind, _, name in fleet.objects if name == "chat"}
    assert kinds == {"InferenceService", "Ingress" if ingress else "Service"}
    assert fleet.condition("Ready")[0] == "True"
    assert fleet.condition("PredictorReady")[0] == "True", "by its engine"
