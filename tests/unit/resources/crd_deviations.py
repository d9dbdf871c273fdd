"""Where the CRDs differ from the published references on purpose, and why. Used by ``test_crd_api_fields``."""

from __future__ import annotations

from typing import Any

_UNION = "one CRD serves both forms: what one of them requires is required by the union rule of the spec"
_MARKED = "the reference marks every field that has no 'optional' comment as required; the system does not need it"
_STATUS = "a manifest has no status; the status subresource fills it in"
_KEDA = "what is absent comes from the next wider setting (component, service, cluster)"
_KIND = "a default would be written into every service, and could not be told from a kind that its author has chosen"
_PROSE = "the reference states this default in its prose only"

DEVIATIONS: dict[tuple[str, str], tuple[Any, str]] = {
    ("OptimizedAlloc.numReplicas", "Minimum"): (
        0,
        "the references say 1 and 0; a variant can be scaled to zero",
    ),
    **{
        (f"VariantAutoscalingSpec.{name}", "required"): (False, _UNION)
        for name in (
            "scaleTargetRef",
            "variantID",
            "accelerator",
            "acceleratorCount",
            "sloClassRef",
            "variantProfile",
        )
    },
    **{
        (f"{kind}.status", "required"): (False, _STATUS)
        for kind in (
            "BaseModel",
            "BenchmarkJob",
            "ClusterBaseModel",
            "ClusterServingRuntime",
            "FineTunedWeight",
            "InferenceService",
            "ServingRuntime",
        )
    },
    **{
        (f"KedaConfig.{name}", "required"): (False, _KEDA)
        for name in ("enableKeda", "promServerAddress", "customPromQuery", "scalingThreshold", "scalingOperator")
    },
    ("ComponentExtensionSpec.kedaConfig", "required"): (False, _KEDA),
    ("InferenceServiceSpec.kedaConfig", "required"): (False, _KEDA),
    ("BaseModelSpec.servingMode", "required"): (False, _MARKED),
    ("InferenceServiceStatus.components", "required"): (False, _MARKED),
    ("InferenceServiceStatus.modelStatus", "required"): (False, _MARKED),
    ("ModelStatusSpec.lifecycle", "required"): (False, _MARKED),
    ("ModelStatusSpec.nodesReady", "required"): (False, _MARKED),
    ("ModelStatusSpec.nodesFailed", "required"): (False, _MARKED),
    ("ModelSpec.baseModel", "required"): (False, _MARKED),
    ("ModelSpec.fineTunedWeights", "required"): (False, _MARKED),
    ("PredictorSpec.model", "required"): (False, _MARKED),
    ("ServingRuntimeSpec.supportedModelFormats", "required"): (False, "a runtime can be used by name alone"),
    ("PodSpec.containers", "required"): (False, "the containers come from the runner or the runtime"),
    ("PodSpec.initContainers", "required"): (False, "most pods have no init container"),
    ("ObjectReference.namespace", "required"): (False, "a base model may be cluster-scoped and then has no namespace"),
    ("ModelRef.kind", "required"): (False, _KIND),
    ("ModelRef.apiGroup", "default"): ("ome.io", _PROSE),
    ("ServingRuntimeRef.kind", "required"): (False, _KIND),
    ("ServingRuntimeRef.apiGroup", "default"): ("ome.io", _PROSE),
}
"""(type.field, what) to (what the CRD says instead, why)."""

_EXPLAINS = "the reference leaves this status empty; conditions explain what became of the object"
_DECIDED = "the reference leaves this status empty; it tells what is in effect and what was decided"
_CONTAINER = "one of the fields of the embedded container, spelt out because Modelyard reads it"
_NEWER = "a newer CRD of the described system has it, and stores it in every object or in some"

ADDED_FIELDS: dict[str, str] = {
    "ModelStatusSpec.detected": "what was read from the model's files, apart from what its author says in the spec",
    "ModelStatusSpec.delivery": "how far each node is, in bounded size, and how often it was tried",
    **{
        f"{status}.{name}": _EXPLAINS
        for status in (
            "AutoscalingPolicyStatus",
            "AutoscalingPolicyBindingStatus",
            "ModelRouteStatus",
            "ModelServerStatus",
            "BenchmarkJobStatus",
            "ModelStatusSpec",
            "ServingRuntimeStatus",
        )
        for name in ("conditions", "observedGeneration")
    },
    "AutoscalingPolicyStatus.effectiveBehavior": _DECIDED,
    "AutoscalingPolicyStatus.metrics": "a printer column shows the first item of a list only; this one names them all",
    **{
        f"AutoscalingPolicyBindingStatus.{name}": _DECIDED
        for name in ("targets", "minReplicas", "maxReplicas", "currentReplicas", "desiredReplicas", "mode", "units")
    },
    **{
        f"ModelServerStatus.{name}": "the reference leaves this status empty; it counts the pods that can serve"
        for name in ("readyPods", "prefillPods", "decodePods", "completeGroups")
    },
    "ModelStatus.annotations": "which generation was rolled out, since when, and what served last: a bad one goes back",
    "ModelBackendStatus.totalReplicas": "replicas are those that are ready, as the reference says; this one has all",
    **{
        f"{owner}.{name}": _CONTAINER
        for owner in ("ModelSpec", "RunnerSpec")
        for name in ("name", "image", "command", "args", "env", "resources")
    },
    **{f"{owner}.{name}": _NEWER for owner in ("ModelFormat", "ModelFrameworkSpec") for name in ("operator", "weight")},
    **{
        f"{owner}.{name}": _NEWER
        for owner in ("DecoderSpec", "EngineSpec", "PredictorSpec", "RouterSpec")
        for name in ("minAvailable", "maxUnavailable")
    },
    **dict.fromkeys(
        (
            "BaseModelSpec.apiCapabilities",
            "BaseModelSpec.diffusionPipeline",
            "DecoderSpec.acceleratorOverride",
            "EngineSpec.acceleratorOverride",
            "InferenceServiceSpec.acceleratorSelector",
            "KedaConfig.authModes",
            "KedaConfig.authenticationRef",
            "ModelRouteSpec.parentRefs",
            "ServingRuntimeSpec.acceleratorRequirements",
            "StorageSpec.downloadPolicy",
            "SupportedModelFormat.acceleratorConfig",
            "SupportedModelFormat.diffusionPipeline",
            "TargetModel.externalModelProviderName",
        ),
        _NEWER,
    ),
}
"""type.field to the reason for a field that no reference has."""

_GO = "required by the described system's own CRD; the tables of the reference do not show it"
_NAME = "an empty name refers to nothing"
_LABELS = "labels that Kubernetes would refuse, or that select every pod"
_LIST = "the items are distinct by their key, as the described system demands or its admission checks"
_PROSE_VALUES = "the reference lists the values in its prose, the described system's CRD enforces them"
_COUNT = "a count or a size below this makes no sense"
_COST = "a bound that keeps the cost of a CEL rule within the API server's budget"

_STRICTER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        _GO,
        "required",
        (
            "ActuationStatus.applied",
            "Allocation.numReplicas",
            "AutoscalingPolicyBindingSpec.policyRef",
            "AutoscalingPolicyMetric.metricName",
            "AutoscalingPolicyMetric.targetValue",
            "AutoscalingPolicyPanicPolicy.period",
            "AutoscalingPolicySpec.metrics",
            "ConfigMapKeyRef.key",
            "ConfigMapKeyRef.name",
            "LoraAdapter.artifactURL",
            "LoraAdapter.name",
            "ModelBackend.maxReplicas",
            "ModelBackend.minReplicas",
            "ModelBackend.modelURI",
            "ModelBackend.name",
            "ModelBackend.type",
            "ModelBackend.workers",
            "ModelBackendStatus.name",
            "ModelRouteSpec.rules",
            "ModelSpec.backends",
            "OptimizedAlloc.accelerator",
            "OptimizedAlloc.numReplicas",
            "OptimizerConfiguration.params",
            "OptimizerParam.maxReplicas",
            "OptimizerParam.minReplicas",
            "OptimizerParam.target",
            "PDGroup.decodeLabels",
            "PDGroup.groupKey",
            "PDGroup.prefillLabels",
            "PerfParms.decodeParms",
            "PerfParms.prefillParms",
            "Rule.targetModels",
            "ScalingConfiguration.maxReplicas",
            "ScalingConfiguration.minReplicas",
            "ScalingConfiguration.target",
            "Target.targetRef",
            "WorkloadSelector.matchLabels",
        ),
    ),
    (
        "an object without a spec says nothing",
        "required",
        (
            "AutoscalingPolicy.spec",
            "AutoscalingPolicyBinding.spec",
            "Model.spec",
            "ModelRoute.spec",
            "ModelServer.spec",
            "VariantAutoscaling.spec",
        ),
    ),
    ("other numbers are no ports", "minimum", ("MetricEndpoint.port",)),
    ("other numbers are no ports", "maximum", ("MetricEndpoint.port",)),
    ("a shared limit needs the server that counts it", "required", ("GlobalRateLimit.redis",)),
    (
        _NAME,
        "minLength",
        (
            "AutoscalingPolicyMetric.metricName",
            "FineTunedWeightSpec.modelType",
            "HuggingFaceSecretReference.name",
            "InferenceServiceReference.name",
            "InferenceServiceReference.namespace",
            "ModelFormat.name",
            "ModelFrameworkSpec.name",
            "ModelRef.name",
            "ModelRouteSpec.loraAdapters",
            "ObjectReference.name",
            "PDGroup.groupKey",
            "ServingRuntimeRef.name",
            "TargetModel.modelServerName",
        ),
    ),
    *(
        (_LABELS, keyword, ("PDGroup.decodeLabels", "PDGroup.prefillLabels", "WorkloadSelector.matchLabels"))
        for keyword in ("maxLength", "pattern", "minProperties")
    ),
    (
        _LIST,
        "x-kubernetes-list-type",
        (
            "AutoscalingPolicySpec.metrics",
            "BenchmarkJobSpec.numConcurrency",
            "BenchmarkJobSpec.trafficScenarios",
            "ModelBackend.loraAdapters",
            "ModelRouteSpec.loraAdapters",
            "ModelSpec.backends",
            "ModelStatus.conditions",
            "VariantAutoscalingStatus.conditions",
        ),
    ),
    (
        "no other kind or group is looked up, so that any other value would name nothing",
        "enum",
        ("ModelRef.apiGroup", "ModelRef.kind", "ServingRuntimeRef.apiGroup", "ServingRuntimeRef.kind"),
    ),
    (
        _PROSE_VALUES,
        "enum",
        (
            "BenchmarkJobSpec.task",
            "ComponentExtensionSpec.scaleMetric",
            "Endpoint.apiFormat",
            "FailureInfo.reason",
            "ModelRevisionStates.activeModelState",
            "ModelRevisionStates.targetModelState",
            "ModelStatus.transitionStatus",
            "ModelStatusSpec.state",
            "ServiceMetadata.engine",
            "ServiceMetadata.gpuType",
        ),
    ),
    (
        _COUNT,
        "minimum",
        (
            "AutoscalingPolicyMetric.targetValue",
            "BaseModelSpec.maxTokens",
            "BenchmarkJobSpec.maxRequestsPerIteration",
            "BenchmarkJobSpec.maxTimePerIteration",
            "BenchmarkJobSpec.numConcurrency",
            "ComponentExtensionSpec.maxReplicas",
            "ComponentExtensionSpec.minReplicas",
            "Retry.attempts",
            "SupportedModelFormat.priority",
            "WorkerPodSpec.size",
            "WorkerSpec.size",
        ),
    ),
    (
        _COST,
        "maxLength",
        ("BenchmarkJobSpec.trafficScenarios", "ModelRouteSpec.loraAdapters", "ModelRouteSpec.modelName"),
    ),
    (_COST, "maxLength", ("BenchmarkJobSpec.additionalRequestParams", "LoraAdapter.name")),
    (
        _COST,
        "maxItems",
        (
            "BenchmarkJobSpec.trafficScenarios",
            "ModelBackend.loraAdapters",
            "ModelSpec.backends",
            "OptimizerConfiguration.params",
        ),
    ),
    ("only one of the three ways to match may be set, says the reference", "maxProperties", ("ModelMatch.uri",)),
    ("only one of the three ways to match may be set, says the reference", "maxProperties", ("ModelMatch.headers",)),
    ("a rule without a target sends its requests nowhere", "minItems", ("Rule.targetModels",)),
    ("an image name has no blanks", "pattern", ("ModelWorker.image",)),
    ("the reference says host:port in its prose", "pattern", ("RedisConfig.address",)),
    ("the notations of the benchmark program", "pattern", ("BenchmarkJobSpec.trafficScenarios",)),
    ("a URL of another scheme cannot be tested", "pattern", ("Endpoint.url",)),
    ("another scheme cannot be fetched by anything", "pattern", ("StorageSpec.storageUri",)),
)

STRICTER: dict[tuple[str, str], str] = {
    (name, keyword): reason for reason, keyword, names in _STRICTER for name in names
}
"""(type.field, keyword) to the reason for a restriction that the reference does not show."""
