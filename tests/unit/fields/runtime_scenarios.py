"""Rich serving runtimes: services on them, and the models that they are chosen for."""

from __future__ import annotations

import json
from typing import Any

from base_model_scenarios import DIFFUSION, KNOWN, verdicts
from field_mutations import InvalidObject, Scenario
from pod_parts import POD, SHARED, by_keda, container, group, single
from service_scenarios import ENTRY, GATEWAY, LIMITED, MODEL, PARTS, PLAIN_RUNTIME, SERVERLESS, looking, world
from service_world import FORMAT

from modelyard.resources import ClusterServingRuntime, Resource, ResourceInvalid, ServingRuntime
from modelyard.runtimes import Wishes, parse_model, parse_runtime, select
from modelyard.workloads.rendering.settings import CONFIG_MAP

Object = dict[str, Any]
MODELS: Object = {
    "plain": FORMAT,
    "small": {**FORMAT, "modelParameterSize": "1B"},
    "large": {**FORMAT, "modelParameterSize": "400B"},
    "newer": {**FORMAT, "modelFormat": {"name": "safetensors", "version": "2.0.0"}},
    "new library": {**FORMAT, "modelFramework": {"name": "transformers", "version": "5.0.0"}},
    "older": {name: FORMAT[name] for name in ("modelFormat", "modelFramework")},
    "fp8": KNOWN,
    "mixtral": {**FORMAT, "modelArchitecture": "MixtralForCausalLM", "modelType": "mixtral"},
    "flux": {**FORMAT, "diffusionPipeline": DIFFUSION},
}
BY_NAME = {kind.kind: kind for kind in (ServingRuntime, ClusterServingRuntime)}
WISHES = (Wishes(), Wishes(classes=("h200",)), Wishes(protocol="cohere"))
ALTERNATIVES = {
    "modelFormat.name": "onnx",
    "modelFramework.name": "jax",
    "authenticationRef.name": "another",
}


def chosen(obj: Object) -> Any:
    """Return what a runtime is worth for each model and wish, next to another runtime."""
    rival = {"supportedModelFormats": [{**FORMAT, "autoSelect": True, "priority": 3}]}
    runtimes = [
        parse_runtime(obj),
        parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": "rival"}, "spec": rival}),
    ]
    results = []
    try:
        BY_NAME[obj["kind"]].parse(obj)
    except ResourceInvalid:
        raise InvalidObject from None
    for spec in MODELS.values():
        storage = {"storage": {"storageUri": "hf://meta/any"}}
        model = parse_model({"kind": "ClusterBaseModel", "metadata": {"name": "m"}, "spec": {**spec, **storage}})
        for wishes in WISHES:
            results.append(verdicts(select(model, runtimes, namespace="shop", wishes=wishes)))
        results.append(verdicts(select(model, runtimes, namespace="shop", named="tested")))
    return results


def runtime(
    kind: type[Resource], spec: Object, service: Object, annotations: Object | None = None, before: Object | None = None
) -> Scenario:
    """A scenario of one runtime and a service on it, which had another runtime ``before``."""
    metadata = {"name": "tested", "uid": "uid-tested", "generation": 1}
    metadata |= {"namespace": "shop"} if kind.namespaced else {}
    spec = {"supportedModelFormats": [ENTRY], **spec}
    obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    fleet = world()
    fleet.put("ConfigMap", CONFIG_MAP, "home", data={"ingress": json.dumps(GATEWAY)})
    if before is not None:
        fleet.put(kind.kind, "first", metadata.get("namespace", ""), spec={**before, "supportedModelFormats": [ENTRY]})
        fleet.service(**service, runtime={"name": "first"}, annotations=annotations)
        fleet.settle()
        for name in [name for child, _, name in fleet.objects if child == "Deployment"]:
            fleet.up(name, 2)
        fleet.settle()
    fleet.service(**service, runtime={"name": "tested"}, annotations=annotations)
    return Scenario(obj, looking(fleet, kind), ALTERNATIVES)


def choice(kind: type[Resource], spec: Object) -> Scenario:
    """A scenario of the choice between runtimes."""
    metadata = {"name": "tested", **({"namespace": "shop"} if kind.namespaced else {})}
    return Scenario({"kind": kind.kind, "metadata": metadata, "spec": spec}, chosen, ALTERNATIVES)


def configured(part: Object) -> Object:
    """A runtime with this in every component."""
    return {f"{name}Config": part for name in PARTS}


SPLIT: Object = {**MODEL, "engine": {}, "decoder": {}, "router": {}}
SINGLE: Object = {**MODEL, "engine": {}}
CANARY: Object = {"runner": container("engine", "new:2"), "minReplicas": 2, "canaryTrafficPercent": 50}
CHOICE: Object = {
    **PLAIN_RUNTIME,
    "supportedModelFormats": [
        {
            "name": "safetensors",
            "version": "1.0.0",
            "modelFormat": {**FORMAT["modelFormat"], "operator": "GreaterThanOrEqual", "weight": 5},
            "modelFramework": {**FORMAT["modelFramework"], "operator": "GreaterThanOrEqual", "weight": 7},
            "modelArchitecture": "LlamaForCausalLM",
            "modelType": "llama",
            "quantization": "fp8",
            "autoSelect": True,
            "priority": 5,
            "acceleratorConfig": {"h100": {"minReplicas": 1}},
        },
        {**FORMAT, "diffusionPipeline": DIFFUSION},
        {**FORMAT, "modelArchitecture": "MixtralForCausalLM", "modelType": "mixtral"},
    ],
    "modelSizeRange": {"min": "5B", "max": "100B"},
    "protocolVersions": ["openAI"],
    "acceleratorRequirements": {"acceleratorClasses": ["h100"]},
}
OVERRIDE: Object = {"acceleratorOverride": {"acceleratorClass": "h100"}}
OLDER: Object = {
    **SHARED,
    "containers": [container("ome-container"), container("sidecar")],
    "labels": {"team": "search"},
    "annotations": {"example.com/owner": "search"},
}


WORKERS: Object = {"size": 2, "labels": {"role": "worker"}, "annotations": {"example.com/role": "worker"}}


def scenarios(kind: type[Resource]) -> list[Scenario]:
    """Return the scenarios of one of the two kinds."""
    return [
        runtime(kind, {**configured(single()), "routerConfig": single(config={"LOG": "debug"})}, SPLIT),
        runtime(
            kind, {"engineConfig": group(**OVERRIDE), "decoderConfig": group(**OVERRIDE)}, {**SINGLE, "decoder": {}}
        ),
        runtime(kind, configured(by_keda()), SPLIT),
        runtime(kind, configured(by_keda(scaleMetric="cpu")), SPLIT),
        runtime(kind, configured(LIMITED), SPLIT),
        runtime(kind, configured(LIMITED), {**SINGLE, "router": {}}, SERVERLESS),
        runtime(
            kind,
            configured(CANARY),
            {**MODEL, **{name: {"minReplicas": 2} for name in PARTS}},
            before=configured({"runner": container("engine"), "minReplicas": 2}),
        ),
        runtime(kind, OLDER, SINGLE),
        runtime(kind, {**OLDER, "workers": {**OLDER, **WORKERS}}, SINGLE),
        choice(kind, CHOICE),
        choice(kind, {**CHOICE, "disabled": True}),
        runtime(kind, {"engineConfig": {"worker": {**POD, "runner": container("worker"), "size": 2}}}, SINGLE),
    ]


SCENARIOS = {kind.kind: scenarios(kind) for kind in (ServingRuntime, ClusterServingRuntime)}
