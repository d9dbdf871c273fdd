"""Scenarios of InferenceServices and of the runtimes that they use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from field_mutations import InvalidObject, Scenario
from plan_outcomes import plain, planned
from pod_parts import KEDA, POD, SCALING, by_keda, container, group, single
from service_world import FORMAT, NOW, SERVED, Fleet

from modelyard.objects import Key, ResourceType
from modelyard.reconcile.plans.plan import ServedKind
from modelyard.resources import InferenceService, Resource, ResourceInvalid
from modelyard.workloads.rendering.settings import CONFIG_MAP
from modelyard.workloads.rendering.values import Rendered

EVERYTHING = SERVED | {
    ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ServedKind("keda.sh/v1alpha1", "ScaledObject"),
    ServedKind("networking.volcano.sh/v1alpha1", "ModelServer"),
    ServedKind("networking.volcano.sh/v1alpha1", "ModelRoute"),
    ServedKind("networking.k8s.io/v1", "Ingress"),
    ServedKind("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ServedKind("serving.knative.dev/v1", "Service"),
}
ALLOWED = "host-paths,host-namespaces,privileged,service-accounts,hosts,cluster-credentials"
Object = dict[str, Any]
SERVICE: Object = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "shop", "uid": "uid-chat", "generation": 1, "annotations": {}},
}
ENTRY: Object = {**FORMAT, "autoSelect": True, "priority": 1}
PLAIN_RUNTIME: Object = {"supportedModelFormats": [ENTRY], "engineConfig": {"runner": container("engine", "small:1")}}


def world() -> Fleet:
    """A model, adapters and two runtimes."""
    fleet = Fleet(served=EVERYTHING)
    fleet.put("Namespace", "shop", metadata={"annotations": {"modelyard.dev/allow-in-pods": ALLOWED}})
    fleet.model()
    fleet.put("BaseModel", "llama", "shop", spec={**FORMAT, "storage": {"storageUri": "pvc://files/llama"}})
    fleet.put("BaseModel", "own", "shop", spec={**FORMAT, "storage": {"storageUri": "pvc://files/own"}})
    fleet.put("ClusterBaseModel", "wide", spec={**FORMAT, "storage": {"storageUri": "hf://meta/wide"}})
    fleet.put("ClusterBaseModel", "other", spec={**FORMAT, "storage": {"storageUri": "hf://meta/other"}})
    for name, origin in (("adapter", "llama"), ("wide-adapter", "wide")):
        weights = {"baseModelRef": {"name": origin}, "modelType": "LoRA", "hyperParameters": {"strategy": "lora"}}
        fleet.put("FineTunedWeight", name, spec={**weights, "storage": {"storageUri": f"hf://meta/{name}"}})
    fleet.put("ClusterServingRuntime", "small", spec=PLAIN_RUNTIME)
    fleet.put(
        "ServingRuntime",
        "small",
        "shop",
        spec={**PLAIN_RUNTIME, "engineConfig": {"runner": container("engine", "own:1")}},
    )
    fleet.put("ClusterServingRuntime", "large", spec={**PLAIN_RUNTIME, "supportedModelFormats": [FORMAT]})
    for name in ("h100", "h200", "b200"):
        accelerators = {
            "acceleratorRequirements": {"acceleratorClasses": [name]},
            "supportedModelFormats": [{**ENTRY, "priority": 2}],
        }
        fleet.put("ClusterServingRuntime", f"for-{name}", spec={**PLAIN_RUNTIME, **accelerators})
    return fleet


def looking(fleet: Fleet, kind: type[Resource]) -> Callable[[Object], Any]:
    """Return a function from an object of this kind to the plan for the service ``chat``; all else stays parsed."""
    stores: dict[Any, Any] = {}

    def outcome(obj: Object) -> Any:
        try:
            kind.parse(obj, unknown="accept")
        except ResourceInvalid:
            raise InvalidObject from None
        if not stores:
            fleet.objects[kind.kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]] = obj
            stores.update(fleet.stores())
        stores[ResourceType.of_resource(kind)].put(obj)
        plan = planned(fleet.lifecycle.plan(Key("shop", "chat"), stores, NOW))
        result = fleet.standing().result
        return plan, plain([child.body for child in result.children]) if isinstance(result, Rendered) else str(result)

    return outcome


def service(spec: Object, *, annotations: Object | None = None, ingress: Object | None = None) -> Scenario:
    """A scenario of one InferenceService; ``ingress`` is what administrators have set for all."""
    fleet = world()
    fleet.put("ConfigMap", CONFIG_MAP, "home", data={"ingress": json.dumps(ingress or {})})
    metadata = {**SERVICE["metadata"], "annotations": annotations or {}}
    return Scenario({**SERVICE, "metadata": metadata, "spec": spec}, looking(fleet, InferenceService), OTHERS)


def update(before: Object, after: Object) -> Scenario:
    """A scenario of a service that serves, and is changed."""
    fleet = world()
    fleet.service(**before)
    fleet.settle()
    for name in [name for kind, _, name in fleet.objects if kind == "Deployment"]:
        fleet.up(name, 2)
    fleet.settle()
    obj = fleet.objects["InferenceService", "shop", "chat"]
    obj = {**SERVICE, "metadata": {**obj["metadata"], "generation": 2}, "spec": after, "status": obj["status"]}
    return Scenario(obj, looking(fleet, InferenceService), OTHERS)


OTHERS = {"model.name": "other", "authenticationRef.name": "another", "runtime.name": "large"}
OLDER = {"storageUri": "hf://x/y", "protocolVersion": "openAI", "runtimeVersion": "2.0"}
PARTS = ("engine", "decoder", "router")
LIMITS = {"timeoutSeconds": 77, "containerConcurrency": 9}
LIMITED = {"runner": container("engine", "vllm/vllm-openai:v0.11.0", args=["--model=/m"]), **LIMITS}
GATEWAY = {"disableIngressCreation": False, "enableGatewayAPI": True, "omeIngressGateway": "gateways/public"}
MODEL: Object = {"model": {"name": "llama"}}
PREDICTED = {"minReplicas": 1, "containers": [container("ome-container")], "model": {"baseModel": "llama"}}
SERVERLESS = {"ome.io/deploymentMode": "Serverless"}
SERVICES = [
    service({**MODEL, "engine": single(), "decoder": single(), "router": single(config={"LOG": "debug"})}),
    service({**MODEL, "engine": group(), "decoder": group()}),
    service({**MODEL, "engine": by_keda(), "decoder": by_keda(), "router": by_keda()}),
    service({**MODEL, **dict.fromkeys(("engine", "decoder", "router"), by_keda(scaleMetric="cpu"))}),
    service({**MODEL, "engine": {"runner": container("engine")}, "kedaConfig": KEDA}),
    service({"model": {"name": "wide", "kind": "BaseModel"}, "engine": {}}),
    service({"model": {"name": "llama", "fineTunedWeights": ["adapter"]}, "engine": {}}),
    service({**MODEL, "runtime": {"name": "small", "kind": "ClusterServingRuntime"}, "engine": {}}),
    service({**MODEL, "runtime": {"name": "small", "apiGroup": "ome.io"}, "engine": {}}),
    service({"model": {"name": "llama", "apiGroup": "ome.io"}, "engine": {}}),
    service({**MODEL, "acceleratorSelector": {"acceleratorClass": "b200"}, "engine": {}}),
    service({**MODEL, "engine": {"acceleratorOverride": {"acceleratorClass": "h100"}}}),
    service(
        {**MODEL, "engine": {}, "decoder": {**single(), "acceleratorOverride": {"acceleratorClass": "h200"}}},
    ),
    service({"predictor": {**POD, **SCALING, "model": {"baseModel": "llama", "runtime": "large", **OLDER}}}),
    service(
        {
            "predictor": {
                **{name: value for name, value in by_keda(scaleMetric="cpu").items() if name != "runner"},
                "minReplicas": 1,
                "model": {
                    **container("predictor"),
                    "baseModel": "wide",
                    "fineTunedWeights": ["wide-adapter"],
                    "command": ["serve"],
                    "args": ["--tp=1"],
                    "env": [{"name": "LOG", "value": "debug"}],
                    "resources": {"limits": {"cpu": "1"}},
                },
            }
        },
    ),
    service({**MODEL, **dict.fromkeys(PARTS, LIMITED)}, ingress=GATEWAY),
    service({"predictor": {**PREDICTED, **LIMITS}}, ingress=GATEWAY),
    service({**MODEL, "engine": LIMITED, "router": LIMITED}, annotations=SERVERLESS),
    service({"predictor": {**PREDICTED, **LIMITS}}, annotations=SERVERLESS),
    update(
        {part: {"minReplicas": 2, "runner": container("engine")} for part in PARTS},
        {
            **MODEL,
            **{
                part: {"runner": container("engine", "new:2"), "minReplicas": 2, "canaryTrafficPercent": 50}
                for part in PARTS
            },
        },
    ),
    update(
        {"engine": {"runner": container("engine")}},
        {"predictor": {**PREDICTED, "containers": [container("ome-container", "new:2")], "canaryTrafficPercent": 50}},
    ),
    service(
        {
            "predictor": {
                "containers": [container("ome-container")],
                "workerSpec": {**POD, "size": 2, "runner": container("worker")},
                "model": {"baseModel": "llama"},
            }
        },
    ),
]
