"""modelStatus in every phase of a roll-out, as a pipeline reads it that has changed a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from service_world import ENGINE, NOW, Fleet, serving

from modelyard.metrics.vocabulary.values import ServedRequests
from modelyard.objects import Key
from modelyard.reconcile.plans.plan import FAILED as FAILED_NOTE
from modelyard.workloads.roll_out.gates import GateReading
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.returning import USUAL

LATEST = "LatestDeploymentReady"
EXIT = {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-02-02T00:00:00Z"}}
READY = [{"type": "Ready", "status": "True"}]


def first() -> Fleet:
    """A service that was never ready."""
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    fleet.settle()
    fleet.up("chat-engine", ready=0)
    return fleet


def update(fleet: Fleet, image: str = "engine:2", **engine: Any) -> Fleet:
    """An update whose pod is made beside the one that serves."""
    fleet.service(engine={"runner": {"name": "ome-container", "image": image}, **engine})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    return fleet


def engine_pod(fleet: Fleet, name: str, state: dict[str, Any], component: str = "engine", **more: Any) -> Fleet:
    """A pod on a node whose main container is in this state."""
    spec = {"nodeName": "gpu-1", "containers": [ENGINE]}
    container = {"name": "ome-container", "state": state, **more}
    fleet.pod(name, component, spec=spec, phase="Running", containerStatuses=[container])
    return fleet


def pulling(fleet: Fleet) -> Fleet:
    return engine_pod(fleet, "new", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})


def exited(fleet: Fleet) -> Fleet:
    return engine_pod(fleet, "new", EXIT)


def loading(fleet: Fleet) -> Fleet:
    return engine_pod(fleet, "new", {"running": {"startedAt": "2026-02-02T00:00:00Z"}})


def settled(fleet: Fleet, after: float = 0) -> Fleet:
    fleet.settle(now=NOW + after)
    return fleet


def rolled_back(fleet: Fleet, after: float = USUAL) -> Fleet:
    """An update that was given up, and whose pods are gone."""
    settled(settled(fleet), after)
    assert fleet.condition(LATEST)[1] == "RolledBack"
    fleet.objects.pop(("Pod", "shop", "new"), None)
    fleet.up("chat-engine")
    return settled(fleet, after + 10)


def scaled_to_zero(fleet: Fleet) -> Fleet:
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = 0
    fleet.up("chat-engine", ready=0)
    return settled(fleet)


def canary(percent: int = 20) -> Fleet:
    fleet = serving()
    return update(fleet, canaryTrafficPercent=percent)


def compared(ttft: float | None = None) -> Fleet:
    """An update that is ready and compared with what served before, or found to have this time to first token."""
    fleet = serving()
    fleet.lifecycle.prometheus, fleet.lifecycle.readings = "http://prometheus:9090", {}
    update(fleet)
    fleet.up("chat-engine")
    settled(fleet)
    assert fleet.condition(LATEST)[1] == "Comparing"
    if ttft is not None:
        reading = GateReading(NOW + 120, ServedRequests(100, 0, ttft), ServedRequests(100, 0, 0.3))
        fleet.lifecycle.readings = {Key("shop", "chat"): reading}
        settled(fleet, 120)
        fleet.up("chat-engine")
        settled(fleet, 130)
    return fleet


def undelivered(state: str) -> Fleet:
    fleet = first()
    fleet.objects["ClusterBaseModel", "", "llama"]["status"] = {"state": state}
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    label = "models.ome.io/clusterbasemodel.llama"
    fleet.pod("new", conditions=[unscheduled], phase="Pending", spec={"nodeSelector": {label: "Ready"}})
    return settled(fleet)


def undelivered_weights() -> Fleet:
    """A service that waits for its fine-tuned weights, whose model is on the nodes."""
    fleet = undelivered("Ready")
    storage = {"storageUri": "hf://poets/lora"}
    spec = {"baseModelRef": {"name": "llama"}, "modelType": "LoRA", "hyperParameters": {}, "storage": storage}
    fleet.put("FineTunedWeight", "poet", spec=spec, status={"state": "In_Transit"})
    fleet.service(model={"name": "llama", "fineTunedWeights": ["poet"]})
    fleet.objects["Pod", "shop", "new"]["spec"]["nodeSelector"] = {"models.ome.io/finetunedweight.poet": "Ready"}
    return settled(fleet)


def without_runtime() -> Fleet:
    fleet = serving()
    del fleet.objects["ClusterServingRuntime", "", "small"]
    return settled(fleet)


def refused(**spec: Any) -> Fleet:
    fleet = serving()
    fleet.service(**spec)
    return settled(fleet)


def in_conflict() -> Fleet:
    """One whose Service is another service's."""
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    owner = {"kind": "InferenceService", "name": "other", "uid": "another", "controller": True}
    fleet.put(
        "Service",
        "chat-engine",
        "shop",
        apiVersion="v1",
        spec={},
        metadata={"ownerReferences": [owner], "labels": {"ome.io/inferenceservice": "other"}},
    )
    fleet.service()
    return settled(fleet)


def not_applied() -> Fleet:
    """One whose objects the server does not take."""
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service(annotations={FAILED_NOTE: "1 Deployment shop/chat-engine: exceeded quota"})
    plan = fleet.look()
    assert plan is not None
    fleet.carry(plan, most=2)  # annotations and status
    return fleet


def held() -> Fleet:
    """A runtime that was changed beneath a service that runs."""
    fleet = serving()
    fleet.runtime(engineConfig={"runner": {**ENGINE, "image": "engine:9"}})
    settled(fleet)
    assert fleet.condition(LATEST)[1] == "ChangesHeld"
    return fleet


def held_for_adoption() -> Fleet:
    """Pods that another controller has made otherwise."""
    fleet = serving()
    for key in [key for key in fleet.objects if key[0] == "ControllerRevision"]:
        del fleet.objects[key]
    fleet.objects["InferenceService", "shop", "chat"]["status"] = {}
    fleet.objects["Deployment", "shop", "chat-engine"]["metadata"]["annotations"] = {}
    fleet.runtime(engineConfig={"runner": {**ENGINE, "image": "engine:9"}})
    settled(fleet)
    assert fleet.condition(LATEST)[1] == "ChangesHeld"
    return fleet


def crashing_later() -> Fleet:
    """A revision that was good, and whose pods end later."""
    fleet = serving()
    fleet.up("chat-engine", ready=0)
    return settled(exited(fleet))


def loading_again() -> Fleet:
    """A revision that was good, whose pod comes again on another node."""
    fleet = serving()
    fleet.up("chat-engine", ready=0)
    return settled(loading(fleet), 9 * USUAL)


def recovered() -> Fleet:
    fleet = rolled_back(exited(update(serving())))
    update(fleet, "engine:3")
    fleet.up("chat-engine")
    return settled(fleet, USUAL + 100)


def tried_again() -> Fleet:
    return settled(update(rolled_back(exited(update(serving()))), "engine:3"))


def undone() -> Fleet:
    fleet = rolled_back(exited(update(serving())))
    fleet.service()
    return settled(fleet, USUAL + 100)


def router_fails() -> Fleet:
    fleet = Fleet()
    fleet.model()
    fleet.runtime(routerConfig={"runner": ENGINE})
    fleet.service(router={})
    fleet.settle()
    for name in ("chat-engine", "chat-router"):
        fleet.up(name)
    fleet.settle()
    fleet.service(router={"runner": {"name": "ome-container", "image": "router:2"}})
    fleet.settle()
    fleet.objects["Deployment", "shop", "chat-router"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    return settled(fleet)


Reading = tuple[str, str, str, str]
"""Transition, state of what serves and of what is asked for, and reason of the last failure."""
LOADED: Reading = ("UpToDate", "Loaded", "Loaded", "")


def in_progress(active: str, target: str, reason: str = "") -> Reading:
    return "InProgress", active, target, reason


def blocked(active: str, reason: str) -> Reading:
    return "BlockedByFailedLoad", active, "FailedToLoad", reason


def invalid(active: str, reason: str) -> Reading:
    return "InvalidSpec", active, "FailedToLoad", reason


PHASES: list[tuple[str, Callable[[], Fleet], Reading]] = [
    ("first roll-out", lambda: settled(first()), in_progress("Pending", "Pending")),
    ("first, loading", lambda: settled(loading(first())), in_progress("Pending", "Loading")),
    ("first, exits", lambda: settled(exited(first())), blocked("Pending", "ModelLoadFailed")),
    ("first, no image", lambda: settled(pulling(first())), blocked("Pending", "RuntimeUnhealthy")),
    ("first, late", lambda: settled(settled(loading(first())), USUAL), blocked("Pending", "ModelLoadFailed")),
    ("first, late, no pod", lambda: settled(settled(first()), USUAL), blocked("Pending", "RuntimeUnhealthy")),
    ("ready", serving, LOADED),
    ("update", lambda: settled(update(serving())), in_progress("Loaded", "Pending")),
    ("update, loading", lambda: settled(loading(update(serving()))), in_progress("Loaded", "Loading")),
    ("update, exits", lambda: settled(exited(update(serving()))), blocked("Loaded", "ModelLoadFailed")),
    ("update, no image", lambda: settled(pulling(update(serving()))), blocked("Loaded", "RuntimeUnhealthy")),
    ("rolled back: exits", lambda: rolled_back(exited(update(serving()))), blocked("Loaded", "ModelLoadFailed")),
    ("rolled back: no image", lambda: rolled_back(pulling(update(serving()))), blocked("Loaded", "RuntimeUnhealthy")),
    ("rolled back: too late", lambda: rolled_back(loading(update(serving()))), blocked("Loaded", "ModelLoadFailed")),
    ("rolled back: no pod", lambda: rolled_back(update(serving())), blocked("Loaded", "RuntimeUnhealthy")),
    ("compared", compared, in_progress("Loaded", "Loaded")),
    ("compared, as good", lambda: compared(0.3), LOADED),
    ("compared, worse", lambda: compared(0.9), blocked("Loaded", "RuntimeUnhealthy")),
    ("canary, starting", lambda: settled(canary()), in_progress("Loaded", "Pending")),
    ("canary of no pods", lambda: up_canary(canary(0), 0), in_progress("Loaded", "Standby")),
    ("canary, ready", lambda: up_canary(canary()), in_progress("Loaded", "Loaded")),
    ("canary, refused", lambda: rolled_back(exited(canary())), blocked("Loaded", "ModelLoadFailed")),
    ("at zero", lambda: scaled_to_zero(serving()), ("UpToDate", "Standby", "Standby", "")),
    ("held", held, LOADED),
    ("held for adoption", held_for_adoption, in_progress("Loaded", "Pending")),
    ("model on its way", lambda: undelivered("In_Transit"), in_progress("Pending", "Pending", "BaseModelNotReady")),
    ("model not delivered", lambda: undelivered("Failed"), blocked("Pending", "BaseModelNotReady")),
    ("model left its nodes", lambda: undelivered("Ready"), in_progress("Pending", "Pending", "BaseModelNotReady")),
    ("weights on their way", undelivered_weights, in_progress("Pending", "Pending", "FineTunedWeightsNotFound")),
    ("runtime gone", without_runtime, invalid("Loaded", "NoSupportingRuntime")),
    ("model missing", lambda: refused(model={"name": "none"}), invalid("Loaded", "BaseModelNotFound")),
    ("not permitted", lambda: refused(engine={"hostNetwork": True}), invalid("Loaded", "InvalidPredictorSpec")),
    ("router refused", lambda: refused(router={"hostNetwork": True}), invalid("Loaded", "InvalidRouterSpec")),
    ("name is taken", in_conflict, invalid("Pending", "InvalidPredictorSpec")),
    ("not applied", not_applied, blocked("Pending", "RuntimeUnhealthy")),
    ("crashing later", crashing_later, blocked("FailedToLoad", "RuntimeUnhealthy")),
    ("after a failure", tried_again, in_progress("Loaded", "Pending", "ModelLoadFailed")),
    ("loading again", loading_again, in_progress("Loading", "Loading")),
    ("recovered", recovered, LOADED),
    ("undone", undone, LOADED),
    ("router's update", router_fails, in_progress("Loaded", "Loaded")),
    ("router's update, late", lambda: settled(router_fails(), USUAL), blocked("Loaded", "RuntimeUnhealthy")),
]


def up_canary(fleet: Fleet, ready: int = 1) -> Fleet:
    fleet.up("chat-engine")
    fleet.up("chat-engine-canary", ready=ready)
    return settled(fleet)


def read(fleet: Fleet) -> Reading:
    status = fleet.status()["modelStatus"]
    states = status["modelRevisionStates"]
    reason = (status.get("lastFailureInfo") or {}).get("reason", "")
    return status["transitionStatus"], states["activeModelState"], states["targetModelState"], reason


@pytest.mark.parametrize(("phase", "reach", "expected"), PHASES, ids=[phase for phase, *_ in PHASES])
def test_model_status_is_true_in_every_phase(phase: str, reach: Callable[[], Fleet], expected: Reading) -> None:
    assert read(reach()) == expected, phase


def test_a_refused_update_is_told_with_pod_time_revision_and_copies_though_its_pods_are_gone() -> None:
    fleet = exited(update(serving()))
    settled(fleet)
    failed = fleet.status()["modelStatus"]["lastFailureInfo"]
    expected = {"location": "new", "exitCode": 3, "time": "2026-02-02T00:00:00Z", "reason": "ModelLoadFailed"}
    assert failed.items() >= expected.items()
    good = fleet.status()["annotations"]["modelyard.dev/good"]
    assert failed["modelRevisionName"].startswith("chat-")
    assert failed["modelRevisionName"] != good
    rolled_back(fleet)
    later = fleet.status()["modelStatus"]
    assert later["lastFailureInfo"].items() >= {**expected, "modelRevisionName": failed["modelRevisionName"]}.items()
    assert later["lastFailureInfo"]["message"] == fleet.condition(LATEST)[2]
    assert later["modelCopies"]["failedCopies"] == 1
    plan = fleet.look(now=NOW + 9 * USUAL)
    assert plan is not None
    assert plan.status is None, "what is told once is not written again"


def test_the_time_of_a_refusal_is_that_of_its_discovery() -> None:
    fleet = refused(model={"name": "none"})
    failure = fleet.status()["modelStatus"]["lastFailureInfo"]
    assert failure["time"] == "2027-01-15T08:00:00Z"
    assert failure["location"] == "spec.model.name"
    assert failure["modelRevisionName"] == "chat-generation-2"
    plan = fleet.look(now=NOW + 500)
    assert plan is not None
    assert plan.status is None
    fleet.service(model={"name": "another"})
    settled(fleet, 600)
    assert fleet.status()["modelStatus"]["lastFailureInfo"]["time"] == "2027-01-15T08:10:00Z"


def test_a_roll_back_that_an_older_version_told_of_is_told_in_full() -> None:
    fleet = rolled_back(exited(update(serving())))
    status = fleet.status()["modelStatus"]
    fleet.status()["modelStatus"] = {
        "transitionStatus": "UpToDate",
        "modelRevisionStates": {"activeModelState": "Loaded", "targetModelState": "Loaded"},
        "modelCopies": status["modelCopies"],
    }
    settled(fleet, USUAL + 100)
    assert read(fleet) == ("BlockedByFailedLoad", "Loaded", "FailedToLoad", "ModelLoadFailed")
    # A refusal that comes and goes meanwhile leaves the reason of the roll-back.
    runtime = fleet.objects.pop(("ClusterServingRuntime", "", "small"))
    settled(fleet, USUAL + 200)
    assert read(fleet)[::3] == ("InvalidSpec", "NoSupportingRuntime")
    fleet.objects["ClusterServingRuntime", "", "small"] = runtime
    settled(fleet, USUAL + 300)
    assert read(fleet)[::3] == ("BlockedByFailedLoad", "ModelLoadFailed")


@pytest.mark.parametrize(
    "written",
    ["x", [], {"lastFailureInfo": 3, "modelCopies": "all"}, {"lastFailureInfo": {"message": ["x"], "exitCode": "x"}}],
)
def test_a_status_in_a_form_that_nobody_has_written_is_replaced(written: Any) -> None:
    fleet = rolled_back(exited(update(serving())))
    fleet.status()["modelStatus"] = written
    plan = fleet.look(now=NOW + USUAL + 100)
    assert plan is not None
    assert plan.status is not None
    found = plan.status.fields["modelStatus"]
    assert (found["transitionStatus"], found["lastFailureInfo"]["reason"]) == ("BlockedByFailedLoad", "ModelLoadFailed")


def test_held_changes_that_are_allowed_are_an_update() -> None:
    fleet = held()
    fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {ACCEPT: "always"}
    settled(fleet)
    assert read(fleet) == ("InProgress", "Loaded", "Pending", "")


_IMAGES = ("engine:1", "engine:2", "engine:3")
_STEPS = st.one_of(
    st.tuples(st.just("image"), st.sampled_from(_IMAGES)),
    st.tuples(st.just("pods"), st.sampled_from(("up", "down", "exit", "pull", "load", "gone", "zero"))),
    st.tuples(st.just("wait"), st.sampled_from((1, 61, USUAL + 1))),
    st.tuples(st.just("canary"), st.sampled_from((0, 20, 100))),
    st.tuples(st.just("runtime"), st.booleans()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_STEPS, max_size=12))
def test_no_sequence_of_events_makes_model_status_lie(steps: list[tuple[str, Any]]) -> None:
    fleet, now, engine = serving(), 0.0, {"runner": {"name": "ome-container", "image": "engine:1"}}
    runtime = fleet.objects["ClusterServingRuntime", "", "small"]
    for kind, value in steps:
        if kind == "image":
            engine = {**engine, "runner": {"name": "ome-container", "image": value}}
            fleet.service(engine=engine)
        elif kind == "canary":
            engine = {**engine, "canaryTrafficPercent": value}
            fleet.service(engine=engine)
        elif kind == "runtime":
            fleet.objects.pop(("ClusterServingRuntime", "", "small"), None)
            if value:
                fleet.objects["ClusterServingRuntime", "", "small"] = runtime
        elif kind == "wait":
            now += value
        else:
            for name in [name for kind, _, name in fleet.objects if kind == "Deployment"]:
                spec = fleet.objects["Deployment", "shop", name]["spec"]
                spec["replicas"] = 0 if value == "zero" else max(1, spec.get("replicas", 1))
                fleet.up(name, ready=spec["replicas"] if value == "up" else 0)
            fleet.objects.pop(("Pod", "shop", "new"), None)
            if make := {"exit": exited, "pull": pulling, "load": loading}.get(value):
                make(fleet)
        settled(fleet, now)
        transition, active, target, reason = read(fleet)
        images = {
            obj["spec"]["template"]["spec"]["containers"][0]["image"]
            for (kind, _, _), obj in fleet.objects.items()
            if kind == "Deployment"
        }
        if transition == "UpToDate":
            assert images == {engine["runner"]["image"]}, "what was asked for is all that serves"
            assert fleet.condition(LATEST)[0] == "True"
            assert active == target
            assert not reason
        assert (target == "FailedToLoad") == (transition in ("BlockedByFailedLoad", "InvalidSpec"))
        assert reason or transition not in ("BlockedByFailedLoad", "InvalidSpec")
        if active in ("Loaded", "Standby"):
            assert fleet.condition("EngineReady")[0] == "True"
        if fleet.condition(LATEST)[1] == "RolledBack":
            assert transition == "BlockedByFailedLoad"
