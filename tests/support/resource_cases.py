"""Bad manifests of our kinds, made from the samples by one change each. Both the models and the API server refuse them.

Used by ``tests/unit/resources`` and ``tests/integration/crds``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

SAMPLES = Path(__file__).resolve().parents[2] / "config" / "samples"
DELETE = object()


def sample(name: str) -> dict[str, Any]:
    """The manifest ``config/samples/<name>.yaml``."""
    manifest: dict[str, Any] = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return manifest


def patched(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A sample with some fields set (``a.b[0].c`` to a value) or, with ``DELETE``, removed."""
    manifest = sample(name)
    for path, value in changes.items():
        keys = [int(k) if k.isdigit() else k for k in re.findall(r"[^.\[\]]+", path)]
        node: Any = manifest
        for key in keys[:-1]:
            node = node[key] if isinstance(key, int) or key in node else node.setdefault(key, {})
        if value is DELETE:
            del node[keys[-1]]
        else:
            node[keys[-1]] = value
    return manifest


@dataclass(frozen=True)
class Case:
    """``field`` is the path the model's error names. ``server`` says what makes an API server refuse it: the schema
    itself (every version) or a CEL rule (Kubernetes 1.25 and later).
    """

    kind: str
    source: str
    changes: dict[str, Any]
    field: str
    server: Literal["schema", "cel", "none"] = "schema"

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.source}:{','.join(self.changes)}"

    def manifest(self) -> dict[str, Any]:
        """The bad manifest."""
        return patched(self.source, self.changes)


_MODEL = "spec.backends[0]"
_BEHAVIOR = f"{_MODEL}.autoscalingPolicy.behavior"
_SHARED = {"metrics": [{"metricName": "m", "targetValue": 1}]}

_DIRECT = {"url": "http://x", "apiFormat": "openai", "modelName": "m"}


def _benchmark(
    field: str, *values: Any, at: str = "", server: Literal["schema", "cel"] = "schema", **more: Any
) -> Iterator[Case]:
    """BenchmarkJobs with each of these values in a field of their spec; ``at`` is the field that is at fault."""
    for one in values:
        yield Case("BenchmarkJob", "benchmarkjob", {f"spec.{field}": one, **more}, f"spec.{at or field}", server)


_BENCHMARKS: list[Case] = [
    *_benchmark("endpoint", DELETE, {}),
    *_benchmark("endpoint.endpoint", _DIRECT, at="endpoint"),
    *_benchmark(
        "endpoint",
        *({"endpoint": {**_DIRECT, "url": url}} for url in ("ftp://x", "x", "HTTP://x", " http://x", "")),
        at="endpoint.endpoint.url",
    ),
    *_benchmark("endpoint", {"endpoint": {**_DIRECT, "apiFormat": "vllm"}}, at="endpoint.endpoint.apiFormat"),
    *(
        one
        for field in _DIRECT
        for one in _benchmark(
            "endpoint",
            {"endpoint": {name: value for name, value in _DIRECT.items() if name != field}},
            at=f"endpoint.endpoint.{field}",
        )
    ),
    *(one for name in ("name", "namespace") for one in _benchmark(f"endpoint.inferenceService.{name}", DELETE, "")),
    *(
        one
        for name in ("engine", "version", "gpuType", "gpuCount")
        for one in _benchmark(f"serviceMetadata.{name}", DELETE)
    ),
    *_benchmark("serviceMetadata.engine", "vllm", "TensorRT", ""),
    *_benchmark("serviceMetadata.gpuType", "h100", "A100-80G", ""),
    *_benchmark("serviceMetadata.gpuCount", "1"),
    *_benchmark("task", "text-to-image", DELETE),
    *_benchmark(
        "trafficScenarios",
        *([one] for one in ("N(1,2)/(3,4)junk", "junkU(1,2)junk", "junkD(1,2)", "N(1,2)", "U(1)", "D(1)", "D(1, 2)")),
        *(["D(-1,2)"], ["D(1.5,2)"], [f"D(1,{'1' * 60})"]),
        at="trafficScenarios[0]",
    ),
    *_benchmark("trafficScenarios", ["E(10,20)"], at="trafficScenarios[0]", **{"spec.task": "text-to-embeddings"}),
    *_benchmark("trafficScenarios", ["I(1)"], ["I(1,2,)"], at="trafficScenarios[0]", **{"spec.task": "image-to-text"}),
    *_benchmark("trafficScenarios", ["D(1,2)", "U(1,2)", "D(1,2)"], at="trafficScenarios[2]"),
    *_benchmark("trafficScenarios", [f"D({n},1)" for n in range(65)]),
    *_benchmark("trafficScenarios", ["E(64)"], ["I(1,2)"], server="cel"),
    *_benchmark("trafficScenarios", ["D(1,2)"], ["I(1,2)"], server="cel", **{"spec.task": "text-to-embeddings"}),
    *(
        one
        for task in ("image-to-text", "image-to-embeddings")
        for one in _benchmark("trafficScenarios", ["D(1,2)"], ["E(64)"], server="cel", **{"spec.task": task})
    ),
    *_benchmark("numConcurrency", [1, 2, 1], at="numConcurrency[2]"),
    *_benchmark("numConcurrency", [0], ["1"], at="numConcurrency[0]"),
    *(one for limit in ("Time", "Requests") for one in _benchmark(f"max{limit}PerIteration", DELETE, 0, -1, "1", 1.5)),
    *_benchmark("additionalRequestParams.temperature", "hot", "", "1,5", "NaN", "0.7 ", server="cel"),
    *_benchmark("additionalRequestParams.temperature", 0.7),
    *_benchmark("additionalRequestParams.ignore_eos", "maybe", "True", "", server="cel"),
    *_benchmark("additionalRequestParams.ignore_eos", True),
    *_benchmark("additionalRequestParams.top_p", "x" * 1025),
    *_benchmark("outputLocation", DELETE),
    *_benchmark("outputLocation.storageUri", DELETE, "", "ftp://x", "s3://", "results", "S3://x"),
]
"""Each breaks one rule of the published checks of a BenchmarkJob, or one of its bounds."""

BAD = [
    # VariantAutoscaling
    Case("VariantAutoscaling", "variantautoscaling-saturation", {"spec.modelID": ""}, "spec.modelID"),
    Case("VariantAutoscaling", "variantautoscaling-saturation", {"spec.modelID": DELETE}, "spec.modelID"),
    Case("VariantAutoscaling", "variantautoscaling-saturation", {"spec.scaleTargetRef": DELETE}, "spec"),
    Case(
        "VariantAutoscaling",
        "variantautoscaling-saturation",
        {"spec.scaleTargetRef.name": DELETE},
        "spec.scaleTargetRef.name",
    ),
    *(
        Case("VariantAutoscaling", "variantautoscaling-saturation", {"spec.variantCost": cost}, "spec.variantCost")
        for cost in ("-1", "1e3", ".5", "5.", "", "١")
    ),
    *(
        Case("VariantAutoscaling", "variantautoscaling-slo", {f"spec.{name}": DELETE}, "spec")
        for name in ("variantID", "accelerator", "acceleratorCount", "sloClassRef", "variantProfile")
    ),
    Case(
        "VariantAutoscaling",
        "variantautoscaling-slo",
        {"spec.accelerator": DELETE, "spec.scaleTargetRef": {"kind": "Deployment", "name": "d"}},
        "spec",
    ),
    *(
        Case("VariantAutoscaling", "variantautoscaling-slo", {"spec.variantID": name}, "spec.variantID")
        for name in ("llama-A100-0", "llama-A100", "A100-1", "llama-A100_80-1")
    ),
    Case("VariantAutoscaling", "variantautoscaling-slo", {"spec.acceleratorCount": 0}, "spec.acceleratorCount"),
    Case("VariantAutoscaling", "variantautoscaling-slo", {"spec.acceleratorCount": "1"}, "spec.acceleratorCount"),
    Case(
        "VariantAutoscaling",
        "variantautoscaling-slo",
        {"spec.variantProfile.perfParms.decodeParms": {}},
        "spec.variantProfile.perfParms.decodeParms",
    ),
    Case(
        "VariantAutoscaling",
        "variantautoscaling-slo",
        {"spec.variantProfile.maxBatchSize": 0},
        "spec.variantProfile.maxBatchSize",
    ),
    # Model
    Case("Model", "model", {"spec.name": "Upper"}, "spec.name"),
    Case("Model", "model", {"spec.backends": []}, "spec.backends"),
    Case("Model", "model", {f"{_MODEL}.type": "TGI"}, f"{_MODEL}.type"),
    Case("Model", "model", {f"{_MODEL}.modelURI": "gs://bucket/model"}, f"{_MODEL}.modelURI"),
    Case("Model", "model", {f"{_MODEL}.maxReplicas": 1_000_001}, f"{_MODEL}.maxReplicas"),
    Case("Model", "model", {f"{_MODEL}.routeWeight": 101}, f"{_MODEL}.routeWeight"),
    Case("Model", "model", {f"{_MODEL}.workers": []}, f"{_MODEL}.workers"),
    Case("Model", "model", {f"{_MODEL}.workers[0].image": "two words"}, f"{_MODEL}.workers[0].image"),
    Case(
        "Model",
        "model",
        {f"{_MODEL}.loraAdapters": [{"name": "a", "artifactURL": "hf://a"}, {"name": "a", "artifactURL": "hf://b"}]},
        f"{_MODEL}.loraAdapters[1]",
    ),
    Case("Model", "model", {f"{_MODEL}.loraAdapters[0].name": "llama-8b"}, "spec.backends", "cel"),
    Case("Model", "model", {f"{_MODEL}.minReplicas": 5}, f"{_MODEL}.minReplicas", "cel"),
    Case("Model", "model", {f"{_MODEL}.minReplicas": 0}, f"{_MODEL}.minReplicas", "cel"),
    Case("Model", "model", {f"{_MODEL}.workers[0].type": "prefill"}, f"{_MODEL}.workers", "cel"),
    Case("Model", "model", {f"{_MODEL}.type": "vLLMDisaggregated"}, f"{_MODEL}.workers", "cel"),
    Case(
        "Model",
        "model",
        {f"{_MODEL}.minReplicas": 0, f"{_MODEL}.scaleToZeroGracePeriod": "31m"},
        f"{_MODEL}.scaleToZeroGracePeriod",
        "cel",
    ),
    Case("Model", "model", {f"{_MODEL}.scaleToZeroGracePeriod": "30s"}, "spec.backends", "cel"),
    Case("Model", "model", {f"{_MODEL}.autoscalingPolicy": DELETE}, "spec.backends", "cel"),
    Case("Model", "model", {f"{_MODEL}.scalingCost": 1}, "spec", "cel"),
    Case("Model", "model", {"spec.costExpansionRatePercent": 200}, "spec", "cel"),
    Case("Model", "model", {"spec.autoscalingPolicy": _SHARED}, "spec.autoscalingPolicy", "cel"),
    Case(
        "Model",
        "model",
        {"spec.autoscalingPolicy": _SHARED, f"{_MODEL}.autoscalingPolicy": DELETE},
        "spec.backends",
        "cel",
    ),
    Case(
        "Model",
        "model",
        {"spec.autoscalingPolicy": _SHARED, f"{_MODEL}.autoscalingPolicy": DELETE, f"{_MODEL}.minReplicas": 0},
        "spec.backends",
        "cel",
    ),
    *(
        Case("Model", "model", {f"{_BEHAVIOR}.{path}": time}, f"{_BEHAVIOR}.{path}", "cel")
        for path, time in (
            ("scaleUp.panicPolicy.panicModeHold", "31m"),
            ("scaleUp.stablePolicy.stabilizationWindow", "31m"),
            ("scaleDown.period", "31m"),
        )
    ),
    # AutoscalingPolicy
    Case("AutoscalingPolicy", "autoscalingpolicy", {"spec.metrics": []}, "spec.metrics"),
    Case("AutoscalingPolicy", "autoscalingpolicy", {"spec.tolerancePercent": 101}, "spec.tolerancePercent"),
    *(
        Case(
            "AutoscalingPolicy", "autoscalingpolicy", {"spec.metrics[0].targetValue": v}, "spec.metrics[0].targetValue"
        )
        for v in ("0", "-1", "0.0Ki", "much", "", 0, -3)
    ),
    Case(
        "AutoscalingPolicy",
        "autoscalingpolicy",
        {"spec.metrics[1].metricName": "vllm:kv_cache_usage_perc"},
        "spec.metrics[1]",
    ),
    Case(
        "AutoscalingPolicy",
        "autoscalingpolicy",
        {"spec.behavior.scaleDown.period": "1 minute"},
        "spec.behavior.scaleDown.period",
    ),
    *(
        Case("AutoscalingPolicy", "autoscalingpolicy", {f"spec.behavior.{path}": time}, f"spec.behavior.{path}", "cel")
        for path, time in (
            ("scaleDown.period", "31m"),
            ("scaleDown.period", "-1s"),
            ("scaleDown.stabilizationWindow", "31m"),
            ("scaleUp.panicPolicy.panicModeHold", "31m"),
        )
    ),
    Case(
        "AutoscalingPolicy",
        "autoscalingpolicy",
        {"spec.behavior.scaleDown.selectPolicy": "Xor"},
        "spec.behavior.scaleDown.selectPolicy",
    ),
    Case(
        "AutoscalingPolicy",
        "autoscalingpolicy",
        {"spec.behavior.scaleUp.panicPolicy": {}},
        "spec.behavior.scaleUp.panicPolicy.period",
    ),
    Case(
        "AutoscalingPolicy",
        "autoscalingpolicy",
        {"spec.behavior.scaleUp.panicPolicy.panicThresholdPercent": 109},
        "spec.behavior.scaleUp.panicPolicy.panicThresholdPercent",
    ),
    # AutoscalingPolicyBinding
    Case("AutoscalingPolicyBinding", "autoscalingpolicybinding", {"spec.policyRef": DELETE}, "spec.policyRef"),
    Case("AutoscalingPolicyBinding", "autoscalingpolicybinding", {"spec.optimizerConfiguration": DELETE}, "spec"),
    Case(
        "AutoscalingPolicyBinding",
        "autoscalingpolicybinding",
        {"spec.optimizerConfiguration.params[0].target.additionalMatchLabels": {"not a key": "x"}},
        "spec.optimizerConfiguration.params[0].target.additionalMatchLabels",
        "none",
    ),
    Case(
        "AutoscalingPolicyBinding",
        "autoscalingpolicybinding",
        {
            "spec.scalingConfiguration": {
                "target": {"targetRef": {"name": "d"}},
                "minReplicas": 1,
                "maxReplicas": 2,
            }
        },
        "spec",
    ),
    Case(
        "AutoscalingPolicyBinding",
        "autoscalingpolicybinding",
        {"spec.optimizerConfiguration.params[0].maxReplicas": 0},
        "spec.optimizerConfiguration.params[0].maxReplicas",
    ),
    Case(
        "AutoscalingPolicyBinding",
        "autoscalingpolicybinding",
        {"spec.optimizerConfiguration.params[0].minReplicas": 7},
        "spec.optimizerConfiguration.params[0].minReplicas",
        "cel",
    ),
    Case(
        "AutoscalingPolicyBinding",
        "autoscalingpolicybinding",
        {"spec.optimizerConfiguration.params[0].target.targetRef.name": "llama-8b-mixed-h100"},
        "spec.optimizerConfiguration.params",
        "cel",
    ),
    # ModelRoute
    Case("ModelRoute", "modelroute", {"spec.modelName": DELETE, "spec.loraAdapters": DELETE}, "spec"),
    Case("ModelRoute", "modelroute", {"spec.modelName": "", "spec.loraAdapters": []}, "spec"),
    Case("ModelRoute", "modelroute", {"spec.loraAdapters": ["a", "a"]}, "spec.loraAdapters[1]"),
    Case("ModelRoute", "modelroute", {"spec.loraAdapters": [str(i) for i in range(11)]}, "spec.loraAdapters"),
    Case("ModelRoute", "modelroute", {"spec.loraAdapters": [""]}, "spec.loraAdapters[0]"),
    Case("ModelRoute", "modelroute", {"spec.loraAdapters": ["chat"]}, "spec.loraAdapters", "cel"),
    Case("ModelRoute", "modelroute", {"spec.rules": DELETE}, "spec.rules"),
    Case("ModelRoute", "modelroute", {"spec.rules[1].targetModels": []}, "spec.rules[1].targetModels"),
    Case(
        "ModelRoute",
        "modelroute",
        {"spec.rules[0].targetModels[0].weight": 101},
        "spec.rules[0].targetModels[0].weight",
    ),
    Case("ModelRoute", "modelroute", {"spec.rules[0].targetModels[0].weight": 0}, "spec.rules[0].targetModels", "cel"),
    Case(
        "ModelRoute",
        "modelroute",
        {"spec.rules[0].modelMatch.headers.x-channel.prefix": "b"},
        "spec.rules[0].modelMatch.headers.x-channel",
    ),
    Case(
        "ModelRoute",
        "modelroute",
        {"spec.rules[0].modelMatch.uri": {"regex": "("}},
        "spec.rules[0].modelMatch.uri.regex",
        "none",
    ),
    *(
        Case("ModelRoute", "modelroute", {"spec.rules[0].targetModels[0]": wrong}, "spec.rules[0].targetModels[0]")
        for wrong in ({}, {"modelServerName": "a", "externalModelProviderName": "b"})
    ),
    Case("ModelRoute", "modelroute", {"spec.rateLimit.unit": "week"}, "spec.rateLimit.unit"),
    Case("ModelRoute", "modelroute", {"spec.rateLimit.inputTokensPerUnit": 0}, "spec.rateLimit.inputTokensPerUnit"),
    Case("ModelRoute", "modelroute", {"spec.rateLimit.global": {}}, "spec.rateLimit.global.redis"),
    Case(
        "ModelRoute",
        "modelroute",
        {"spec.rateLimit.global": {"redis": {"address": "redis"}}},
        "spec.rateLimit.global.redis.address",
    ),
    # ModelServer
    Case("ModelServer", "modelserver", {"spec.inferenceEngine": "TGI"}, "spec.inferenceEngine"),
    Case("ModelServer", "modelserver", {"spec.workloadSelector": DELETE}, "spec.workloadSelector"),
    Case("ModelServer", "modelserver", {"spec.workloadSelector.matchLabels": {}}, "spec.workloadSelector.matchLabels"),
    Case(
        "ModelServer",
        "modelserver",
        {"spec.workloadSelector.matchLabels": {"app": "not a label"}},
        "spec.workloadSelector.matchLabels.app",
    ),
    Case(
        "ModelServer",
        "modelserver",
        {"spec.workloadSelector.matchLabels": {"not a key": "x"}},
        "spec.workloadSelector.matchLabels",
        "none",
    ),
    Case("ModelServer", "modelserver", {"spec.workloadPort.port": 0}, "spec.workloadPort.port"),
    Case("ModelServer", "modelserver", {"spec.trafficPolicy.timeout": "-2m"}, "spec.trafficPolicy.timeout"),
    Case("ModelServer", "modelserver", {"spec.trafficPolicy.retry.attempts": -1}, "spec.trafficPolicy.retry.attempts"),
    Case("ModelServer", "modelserver", {"spec.kvConnector.type": "carrier-pigeon"}, "spec.kvConnector.type"),
    # ome.io
    Case("BaseModel", "basemodel", {"spec.storage": DELETE}, "spec.storage"),
    Case("BaseModel", "basemodel", {"spec.storage.storageUri": "ftp://x"}, "spec.storage.storageUri"),
    Case("ClusterBaseModel", "clusterbasemodel", {"spec.modelFormat.name": DELETE}, "spec.modelFormat.name"),
    Case("ClusterBaseModel", "clusterbasemodel", {"spec.disabled": "false"}, "spec.disabled"),
    Case("FineTunedWeight", "finetunedweight", {"spec.hyperParameters": DELETE}, "spec.hyperParameters"),
    Case("FineTunedWeight", "finetunedweight", {"spec.baseModelRef.name": ""}, "spec.baseModelRef.name"),
    Case(
        "ServingRuntime",
        "servingruntime",
        {"spec.supportedModelFormats[0].priority": 0},
        "spec.supportedModelFormats[0].priority",
    ),
    Case(
        "ServingRuntime",
        "servingruntime",
        {"spec.supportedModelFormats[0].modelFramework": DELETE},
        "spec.supportedModelFormats[0].modelFramework",
    ),
    Case("ClusterServingRuntime", "clusterservingruntime", {"spec.workers": {"size": 0}}, "spec.workers.size"),
    Case("InferenceService", "inferenceservice", {"metadata.name": "1st"}, "metadata.name"),
    Case("InferenceService", "inferenceservice", {"spec.engine": DELETE, "spec.decoder": {}}, "spec.decoder"),
    Case("InferenceService", "inferenceservice", {"spec.engine.scaleMetric": "luck"}, "spec.engine.scaleMetric"),
    Case("InferenceService", "inferenceservice", {"spec.engine.hostNetwork": "yes"}, "spec.engine.hostNetwork"),
    *_BENCHMARKS,
]
"""Each breaks one rule of its kind."""

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("benchmarkjob", {f"spec.{field}": value, **more})
    for field, more, values in (
        ("endpoint", {}, [{"endpoint": {**_DIRECT, "url": url}} for url in ("http://x", "https://x/v1")]),
        ("endpoint", {}, [{"endpoint": {**_DIRECT, "apiFormat": one}} for one in ("openai", "oci-cohere", "cohere")]),
        ("serviceMetadata.engine", {}, ["vLLM", "SGLang", "TGI"]),
        ("serviceMetadata.gpuType", {}, ["H100", "A100", "MI300", "A10"]),
        ("serviceMetadata", {}, [DELETE]),
        ("trafficScenarios", {}, [["N(1,2)/(3,4)"], ["U(1,2)"], ["U(1,2)/(3,4)"], ["D(1,2)"], [], DELETE]),
        ("trafficScenarios", {}, [[f"D({n},1)" for n in range(64)], [f"D(1,{'1' * 59})"]]),
        ("trafficScenarios", {"spec.task": "text-to-embeddings"}, [["E(128)"], DELETE]),
        ("trafficScenarios", {"spec.task": "image-to-text"}, [["I(1,2)"], ["I(1,2,3)"], DELETE]),
        ("trafficScenarios", {"spec.task": "image-to-embeddings"}, [["I(1,2)"], ["I(1,2,3)"], DELETE]),
        ("numConcurrency", {}, [[1], [], DELETE]),
        ("maxTimePerIteration", {}, [1]),
        ("maxRequestsPerIteration", {}, [1]),
        ("additionalRequestParams", {}, [{"temperature": one} for one in ("0", "1.5", "2.0", "-1e-3")]),
        (
            "additionalRequestParams",
            {},
            [{"ignore_eos": "true"}, {"ignore_eos": "false"}, {"top_p": "any"}, {}, DELETE],
        ),
        ("additionalRequestParams", {}, [{"top_p": "x" * 1024}]),
        *(("outputLocation.storageUri", {}, [f"{kind}://x"]) for kind in ("oci", "pvc", "s3", "az", "gs", "github")),
    )
    for value in values
]
"""Samples with a change after which they are as good as before: the other sides of rules and bounds."""
