"""Rich models and fine-tuned weights: their delivery to nodes, the choice of a runtime, and services with them."""

from __future__ import annotations

from typing import Any

from field_mutations import InvalidObject, Scenario, copied
from model_world import HOME, NOW, Cluster
from plan_outcomes import planned
from service_scenarios import ENTRY, PLAIN_RUNTIME, looking, world
from service_world import FORMAT

from modelyard.models.delivery import names
from modelyard.models.delivery.lifecycle import ModelDelivery
from modelyard.objects import Key
from modelyard.resources import BaseModel, ClusterBaseModel, FineTunedWeight, Resource, ResourceInvalid
from modelyard.runtimes import Ranking, parse_model, parse_runtime, select

Object = dict[str, Any]
DIFFUSION = {"className": "FluxPipeline", "transformer": {"library": "diffusers", "type": "FluxTransformer2DModel"}}
NODES_WITH_GPU = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    }
}
STORAGE: Object = {
    "storageUri": "hf://meta/llama",
    "path": "/mnt/models/llama",
    "schemaPath": "schema.json",
    "parameters": {"include": "*.safetensors"},
    "key": "hub",
    "nodeSelector": {"pool": "gpu"},
    "nodeAffinity": NODES_WITH_GPU,
    "downloadPolicy": "ReuseIfExists",
}
ANYWHERE: Object = {name: value for name, value in STORAGE.items() if name != "path"}
FOR_PEOPLE: Object = {
    "displayName": "Llama 3.1 8B",
    "version": "1.0.0",
    "compartmentID": "research",
    "modelCapabilities": ["TEXT_GENERATION"],
    "apiCapabilities": ["OPENAI_V1_CHAT_COMPLETIONS"],
    "modelConfiguration": {"hidden_size": 4096},
    "servingMode": ["On-demand"],
    "maxTokens": 8192,
}
KNOWN: Object = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0", "operator": "Equal", "weight": 1},
    "modelFramework": {"name": "transformers", "version": "4.43.0", "operator": "Equal", "weight": 1},
    "modelArchitecture": "LlamaForCausalLM",
    "modelType": "llama",
    "quantization": "fp8",
    "modelParameterSize": "8B",
}
ENGINES: Object = {
    "plain": {"supportedModelFormats": [ENTRY]},
    "fp8": {"supportedModelFormats": [{**ENTRY, "quantization": "fp8"}]},
    "large": {"supportedModelFormats": [ENTRY], "modelSizeRange": {"min": "50B"}},
    "diffusion": {"supportedModelFormats": [{**ENTRY, "diffusionPipeline": DIFFUSION}]},
}
ALTERNATIVES = {
    "storage.storageUri": "hf://meta/other",
    "modelFormat.name": "onnx",
    "modelFramework.name": "jax",
    "baseModelRef.name": "other",
    "spec.modelType": "Tfew",
    "spec.hyperParameters": {"strategy": "tfew"},
}


def verdicts(ranking: Ranking) -> Any:
    """Return what a ranking says of each runtime."""
    chosen = ranking.chosen.runtime.name if ranking.chosen is not None else ""
    each = [
        (verdict.runtime.name, verdict.why, verdict.notes, verdict.priority, verdict.weight, verdict.type_match)
        for verdict in ranking.verdicts
    ]
    return chosen, ranking.problem, each


def delivered(obj: Object) -> Any:
    """Return the plan that brings a model to the nodes."""
    cluster = Cluster("node-1", "node-2", "node-3", pool="gpu", zone="a", **{"nvidia.com/gpu.product": "NVIDIA-H100"})
    cluster.get("Node", "node-2")["metadata"]["labels"]["zone"] = "b"
    cluster.get("Node", "node-3")["metadata"]["labels"]["pool"] = "cpu"
    for namespace in (HOME, "shop"):
        cluster.secret("hub", namespace)
    for name, namespace in (("llama", ""), ("other", ""), ("llama", "shop")):
        kind = "BaseModel" if namespace else "ClusterBaseModel"
        metadata = {"name": name, "uid": f"uid-{namespace}-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        metadata |= {"namespace": namespace} if namespace else {}
        cluster.put(kind, {"kind": kind, "metadata": metadata, "spec": {"storage": {"storageUri": "hf://meta/llama"}}})
    cluster.put(obj["kind"], obj)
    kind = next(kind for kind in names.KINDS if kind.kind == obj["kind"])
    lifecycle = ModelDelivery(kind, HOME)
    key = Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    return planned(lifecycle.plan(key, cluster.world(lifecycle), NOW))


def chosen(obj: Object) -> Any:
    """Return what the runtimes of a cluster are worth for a model."""
    runtimes = [
        parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": name}, "spec": {**PLAIN_RUNTIME, **spec}})
        for name, spec in ENGINES.items()
    ]
    return verdicts(select(parse_model(obj), runtimes, namespace="shop"))


def model(kind: type[Resource], spec: Object) -> Scenario:
    """A scenario of one model."""
    namespace = {"namespace": "shop"} if kind.namespaced else {}
    metadata = {"name": "tested", "uid": "uid-tested", "generation": 1, "creationTimestamp": "2026-02-01T00:00:00Z"}
    obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**metadata, **namespace}, "spec": spec}
    fleet = world()
    fleet.service(model={"name": "tested"})
    served = looking(fleet, kind)

    def outcome(changed: Object) -> Any:
        try:
            kind.parse(changed, unknown="accept")
        except ResourceInvalid:
            raise InvalidObject from None
        return delivered(copied(changed)), chosen(changed), served(changed)

    return Scenario(obj, outcome, ALTERNATIVES)


def weights(spec: Object) -> Scenario:
    """A scenario of fine-tuned weights."""
    metadata = {"name": "tested", "uid": "uid-tested", "generation": 1, "creationTimestamp": "2026-02-01T00:00:00Z"}
    obj = {"apiVersion": "ome.io/v1beta1", "kind": "FineTunedWeight", "metadata": metadata, "spec": spec}
    fleet = world()
    fleet.service(model={"name": "llama", "kind": "ClusterBaseModel", "fineTunedWeights": ["tested"]})
    served = looking(fleet, FineTunedWeight)
    return Scenario(obj, lambda changed: (served(copied(changed)), delivered(changed)), ALTERNATIVES)


MODELS = [
    {**KNOWN, **FOR_PEOPLE, "vendor": "meta", "storage": STORAGE},
    {**FORMAT, "disabled": True, "storage": {"storageUri": "hf://meta/llama"}},
    {**FORMAT, "diffusionPipeline": DIFFUSION, "storage": {"storageUri": "hf://black-forest/flux"}},
    {
        **{name: KNOWN[name] for name in ("modelFormat", "modelFramework", "modelType")},
        "vendor": "meta",
        "storage": ANYWHERE,
    },
    {
        "modelFormat": {"name": "TensorRTLLM", "version": "1.0.0"},
        "additionalMetadata": {"type": "Dedicated"},
        "storage": {"storageUri": "hf://meta/llama"},
    },
]
LORA: Object = {
    "baseModelRef": {"name": "llama"},
    "modelType": "LoRA",
    "hyperParameters": {"strategy": "lora", "rank": 16},
    "storage": STORAGE,
}
WEIGHTS = [
    {
        **{name: FOR_PEOPLE[name] for name in ("displayName", "version", "compartmentID")},
        **LORA,
        "vendor": "meta",
        "trainingJobRef": {"name": "training", "namespace": "shop"},
    },
    {**LORA, "configuration": {"merged_weights": True}},
    {**LORA, "disabled": True},
    {**LORA, "hyperParameters": {}},
    {**LORA, "baseModelRef": {"name": "other", "namespace": "shop"}},
]
SCENARIOS = {
    "BaseModel": [model(BaseModel, spec) for spec in MODELS],
    "ClusterBaseModel": [model(ClusterBaseModel, spec) for spec in MODELS],
    "FineTunedWeight": [weights(spec) for spec in WEIGHTS],
}
