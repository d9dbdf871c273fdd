"""No run is started for an object that is refused or waits for a person: a table over the lifecycles.

That of ModelRoutes is in ``unit/routing/test_refused_roll_outs.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmark_world import OUTPUT, Benchmarks
from kthena_models import a_backend, a_model
from model_world import NOW, Cluster, model
from service_world import ENGINE, Fleet

from modelyard.reconcile.kernel.reconciler import shares
from modelyard.reconcile.plans.dispatch import is_due
from modelyard.reconcile.plans.plan import Plan
from modelyard.workloads.kthena.lifecycle import ModelRollOut

Refusal = Callable[[], tuple[Plan | None, str]]


def starts_nothing(plan: Plan | None) -> None:
    """No run is created for the plan, none stays for it, and the reconcile shift writes all of it."""
    assert plan is not None
    assert not plan.needs_run
    assert not plan.awaits
    assert not is_due(plan, {}, NOW)
    assert shares([plan], {}, NOW) == [plan]


def of_model(settings: str = "", **storage: Any) -> Plan | None:
    """The first plan of a tenant's model on one node."""
    cluster = Cluster("a", settings=settings)
    obj = cluster.put("BaseModel", model("m", "shop", **storage))
    return cluster.plan(obj)


MODELS: dict[str, dict[str, Any]] = {
    "InvalidURI": {"uri": "ftp://somewhere/x"},
    "UnsupportedURI": {"uri": "hf://"},
    "EndpointNotAllowed": {"parameters": {"endpoint": "http://169.254.169.254/latest"}},
    "PathNotAllowed": {"path": "/etc"},
    "RefNotPermitted": {"uri": "pvc://bank:weights/llama"},
    "ClaimNotFound": {"uri": "pvc://weights/llama"},
    "SecretNotFound": {"key": "token"},
    "NoMatchingNodes": {"nodeSelector": {"disk": "none"}},
    "InvalidSpec": {"parameters": {"secretKey": "../token"}},
    "PrincipalNotRead": {"uri": "oci://n/ns@eu-frankfurt-1/b/bkt/o/x", "parameters": {"auth": "InstancePrincipal"}},
    "NoSecretName": {"key": "../configmaps/x"},
    "LocalRoot": {"uri": "local:///etc"},
    "TooManyModels": {"settings": "{modelsPerNamespace: 0}"},
    "SettingsInvalid": {"settings": "{modelsPerNamespace: many}"},
    "CABundleNotFound": {"settings": "{caBundle: none}"},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_refused_model_starts_no_run(name: str) -> None:
    plan = of_model(**MODELS[name])
    starts_nothing(plan)
    assert plan is not None
    assert plan.status is not None
    assert plan.status.conditions[0].status == "False" or plan.reason == name, plan.reason
    assert plan.finalizer is None, "nothing is there that would have to be cleared"


def test_weights_without_their_base_model_start_no_run() -> None:
    cluster = Cluster("a")
    obj = model("w", uri="hf://meta/lora")
    obj["kind"] = "FineTunedWeight"
    obj["spec"] |= {"baseModelRef": {"name": "none"}, "modelType": "LoRA", "hyperParameters": {}}
    plan = cluster.plan(cluster.put("FineTunedWeight", obj))
    starts_nothing(plan)
    assert plan is not None
    assert plan.reason == "BaseModelNotFound", plan.message


@pytest.mark.parametrize("goes", ["secret", "uri", "path"])
def test_a_model_that_is_refused_later_is_marked_by_the_shift(goes: str) -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("BaseModel", model("m", "shop"))
    cluster.settle(obj)
    for job in list(cluster.jobs("fetch").values()):
        cluster.end(job, revision="abc", bytes=1, files=1, facts={})
    cluster.settle(obj)
    change = {"secret": {"key": "none"}, "uri": {"storageUri": "ftp://x"}, "path": {"path": "/etc"}}[goes]
    obj["spec"]["storage"] |= change
    obj["metadata"]["generation"] += 1
    plan = cluster.plan(obj)
    starts_nothing(plan)
    assert plan is not None
    assert plan.marks, "no node says any more that it is ready"


SERVICES: dict[str, dict[str, Any]] = {
    "BaseModelNotFound": {"model": {"name": "none"}},
    "RuntimeNotFound": {"runtime": {"name": "none"}},
    "NoSupportingRuntime": {"model": {"name": "odd"}},
    "ModelDisabled": {"model": {"name": "disabled"}},
    "NotPermitted": {"engine": {"hostNetwork": True}},
    "ScaleToZeroNotServed": {"engine": {"minReplicas": 0}},
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_refused_service_starts_no_run(name: str) -> None:
    fleet = Fleet()
    fleet.model()
    fleet.model("odd", modelArchitecture="OddForCausalLM")
    fleet.model("disabled", disabled=True)
    fleet.runtime()
    fleet.service(**SERVICES[name])
    plan = fleet.look()
    starts_nothing(plan)
    assert plan is not None
    assert plan.reason == name, plan.message


@pytest.mark.parametrize(
    "broken",
    [{"spec": {"backends": 7}}, a_model(a_backend(cacheURI="hostpath:///etc")), a_model(a_backend(modelURI="ftp://x"))],
)
def test_a_refused_kthena_model_starts_no_run(broken: dict[str, Any]) -> None:
    fleet = Fleet(served=frozenset(), lifecycle=ModelRollOut)
    fleet.put("Model", "chat", "shop", spec=broken["spec"], status={})
    starts_nothing(fleet.look())


def other_service(fleet: Benchmarks) -> None:
    fleet.put("Namespace", "bank")
    fleet.served(namespace="bank")


def no_claim(fleet: Benchmarks) -> None:
    del fleet.objects["PersistentVolumeClaim", "shop", "results"]


BENCHMARKS: dict[str, tuple[Callable[[Benchmarks], None] | None, dict[str, Any]]] = {
    "no such service": (None, {"endpoint": {"inferenceService": {"name": "none", "namespace": "shop"}}}),
    "a service that is not ready": (lambda fleet: fleet.served(ready="False"), {}),
    "a service of another namespace": (
        other_service,
        {"endpoint": {"inferenceService": {"name": "chat", "namespace": "bank"}}},
    ),
    "no claim for the results": (no_claim, {}),
    "a claim of another namespace": (None, {"outputLocation": {"storageUri": "pvc://bank:results/x"}}),
    "an unknown task": (None, {"task": "text-to-dance"}),
    "an unknown store": (None, {"outputLocation": {**OUTPUT, "storageUri": "ftp://x"}}),
    "no scenario that can be read": (None, {"trafficScenarios": ["Z(1)"]}),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_that_is_refused_or_waits_starts_no_run(name: str) -> None:
    prepare, spec = BENCHMARKS[name]
    fleet = Benchmarks()
    if prepare is not None:
        prepare(fleet)
    fleet.benchmark(**spec)
    starts_nothing(fleet.look("bench", "shop"))


@pytest.mark.parametrize("pod", ["unschedulable", "without an image"])
def test_a_service_that_waits_for_nodes_or_an_image_keeps_no_run(pod: str) -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime(decoderConfig={"runner": ENGINE})
    fleet.service(decoder={})
    plan = fleet.settle()
    assert plan is not None
    assert plan.awaits, "its pods may be about to start"
    if pod == "unschedulable":
        conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: insufficient nvidia.com/gpu"}]
        fleet.pod("p", phase="Pending", conditions=conditions)
        fleet.pod("d", "decoder", phase="Pending", conditions=conditions)
    else:
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        waiting = [{"name": "ome-container", "state": state}]
        fleet.pod("p", phase="Pending", containerStatuses=waiting)
        fleet.pod("d", "decoder", phase="Pending", containerStatuses=waiting)
    plan = fleet.settle()
    assert plan is not None
    assert not plan.awaits
    assert not plan.writes
