"""``registry.volcano.sh/v1alpha1``: Model, AutoscalingPolicy and AutoscalingPolicyBinding.

A Model says what to serve with which engines; a policy says how to scale; a binding puts a policy on workloads.

Source: the published registry.volcano.sh/v1alpha1 reference, with the admission rules of the system it describes. The
statuses of policy and binding, empty there, carry conditions here.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelyard.resources.base import AGE, Column, Part, Resource, StatusPart
from modelyard.resources.duration import Duration
from modelyard.resources.fields import Int32, Int64, RawObject, StringMap, Time, optional, unique
from modelyard.resources.networking import MatchLabels, ModelMatch
from modelyard.resources.policies import AutoscalingPolicyBehavior, AutoscalingPolicySpec, at_most_30m
from modelyard.resources.references import (
    CONDITIONS,
    Condition,
    ConditionedStatus,
    LocalObjectReference,
    ObjectReference,
)
from modelyard.resources.rules import Rule, one_of, unless

REGISTRY = "registry.volcano.sh/v1alpha1"
MILLION = 1_000_000
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Replicas = Annotated[Int32, Field(ge=0, le=MILLION)]
MaxReplicas = Annotated[Int32, Field(ge=1, le=MILLION)]

RUNTIME_PORT, RUNTIME_URL, RUNTIME_METRICS_PATH = "RUNTIME_PORT", "RUNTIME_URL", "RUNTIME_METRICS_PATH"
"""Variables of a backend that say where its metrics are shown, and where the engine has them."""
LIVE_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Variable of a backend that lets its engine take adapters while it runs."""
LITERAL_VARIABLES = (RUNTIME_PORT, RUNTIME_URL, RUNTIME_METRICS_PATH, LIVE_ADAPTERS)
"""Variables of a backend that take effect only with a value that is written out."""
ENDPOINT_VARIABLES = {"hf": ("HF_ENDPOINT",), **dict.fromkeys(("s3", "obs"), ("AWS_ENDPOINT_URL", "ENDPOINT"))}
"""Variables of a backend with the address of its source, by scheme of ``modelURI``."""
DISAGGREGATED = frozenset(("vLLMDisaggregated", "MindIEDisaggregated"))
"""Types of backends whose roles run apart."""

MIN_WITHIN_MAX = Rule(
    "minReplicas is above maxReplicas",
    "lower minReplicas or raise maxReplicas",
    lambda bounds: bounds.min_replicas <= bounds.max_replicas,
    "self.minReplicas <= self.maxReplicas",
    "minReplicas",
)


class LoraAdapter(Part):
    """A LoRA adapter that the engine loads beside the base model."""

    name: str = Field(max_length=253, pattern=DNS_NAME, description="Name by which clients ask for the adapter.")
    artifact_url: str = Field(
        alias="artifactURL", pattern=r"^(hf://|s3://|pvc://).+", description="Where the adapter's files are."
    )


class ModelWorker(Part):
    """One role of a backend."""

    type: Literal["server", "prefill", "decode", "controller", "coordinator"] = Field(
        "server", description="Role of the worker. Default: server."
    )
    image: str | None = optional(
        "Container image of the engine. Default: chosen by the backend's type.", pattern=r"^\S*$"
    )
    replicas: Replicas | None = optional("Instances of this role in each replica. Default: 1.")
    pods: Replicas | None = optional("Pods of one instance, for engines over several nodes. Default: 1.")
    resources: RawObject | None = optional("Requests and limits of the engine's container.")
    affinity: RawObject | None = optional("Scheduling constraints of the pods.")
    config: RawObject | None = optional(
        "Arguments of the engine: option names without leading dashes, and their values."
    )


_SINGLE = ("vLLM", "SGLang", "MindIE")
_WORKER_TYPES = {
    "vLLMDisaggregated": {"prefill", "decode"},
    "MindIEDisaggregated": {"prefill", "decode", "controller", "coordinator"},
}


def _workers_fit(backend: ModelBackend) -> bool:
    types = [worker.type for worker in backend.workers]
    if backend.type in _SINGLE:
        return types == ["server"]
    return types.count("prefill") == types.count("decode") == 1 and set(types) <= _WORKER_TYPES[backend.type]


class ModelBackend(Part):
    """One engine set-up for the model: the unit that is scaled."""

    invariants: ClassVar = (
        MIN_WITHIN_MAX,
        Rule(
            "the workers do not fit the backend's type",
            "vLLM, SGLang, MindIE take one worker of type server; vLLMDisaggregated takes one prefill and one decode;"
            " MindIEDisaggregated takes one prefill and one decode, and may have controller and coordinator",
            _workers_fit,
            "self.type in ['vLLM', 'SGLang', 'MindIE']"
            " ? size(self.workers) == 1 && self.workers.all(w, !has(w.type) || w.type == 'server')"
            " : self.workers.exists_one(w, has(w.type) && w.type == 'prefill')"
            " && self.workers.exists_one(w, has(w.type) && w.type == 'decode')"
            " && self.workers.all(w, has(w.type) && w.type != 'server'"
            " && (self.type == 'MindIEDisaggregated' || w.type in ['prefill', 'decode']))",
            "workers",
        ),
        at_most_30m("scale_to_zero_grace_period", "scaleToZeroGracePeriod"),
        Rule(
            "minReplicas is 0 under a backend policy without scaleToZeroGracePeriod",
            "set minReplicas to 1 or more, or give scaleToZeroGracePeriod to allow zero",
            lambda b: b.autoscaling_policy is None or b.min_replicas >= 1 or b.scale_to_zero_grace_period is not None,
            "!has(self.autoscalingPolicy) || self.minReplicas >= 1 || has(self.scaleToZeroGracePeriod)",
            "minReplicas",
        ),
    )

    name: str = Field(
        pattern=DNS_NAME,
        description="Name of the backend, part of the names of everything made for it. Renaming replaces the workload.",
    )
    type: Literal["vLLM", "vLLMDisaggregated", "SGLang", "MindIE", "MindIEDisaggregated"] = Field(
        description="The engine, and whether prefill and decode run apart."
    )
    model_uri: str = Field(
        alias="modelURI", pattern=r"^(hf://|s3://|pvc://).+", description="Where the model's files come from."
    )
    cache_uri: str | None = optional(
        "Where downloaded files are kept. Default: on the pod's own disk, at /models.",
        alias="cacheURI",
        pattern=r"^(hostpath://|pvc://).+",
    )
    env_from: list[RawObject] | None = optional(
        "ConfigMaps and Secrets of this namespace whose entries are environment variables of the containers. Variables"
        " of env take precedence, and so do those that Modelyard sets itself."
    )
    env: list[RawObject] | None = optional(
        "Environment variables of the containers. ENDPOINT (of S3) and HF_ENDPOINT also steer the download."
        " RUNTIME_METRICS_PATH is the path of the engine's metrics (default: /metrics). With RUNTIME_PORT or"
        " RUNTIME_URL a container next to the engine shows the metrics that it reads at RUNTIME_URL (default: the"
        " engine) at RUNTIME_PORT (default: 8100)."
    )
    min_replicas: Replicas = Field(description="Fewest replicas.")
    max_replicas: MaxReplicas = Field(description="Most replicas.")
    scaling_cost: Int32 | None = optional(
        "Cost of one replica in any unit; needed when one policy scales all backends.", ge=0
    )
    route_weight: Int32 = Field(
        100, ge=0, le=100, description="Share of the requests relative to the other backends. Default: 100."
    )
    scale_to_zero_grace_period: Duration | None = optional(
        "Time without a request after which the last replica is removed, 0s to 30m."
        " Default: 30s under a policy of the model, otherwise never."
    )
    workers: list[ModelWorker] = Field(min_length=1, max_length=1000, description="The roles of the backend.")
    lora_adapters: list[LoraAdapter] | None = optional(
        "LoRA adapters to load, at most 1000.", max_length=1000, json_schema_extra=unique("map", "name")
    )
    autoscaling_policy: AutoscalingPolicySpec | None = optional(
        "How to scale this backend alone. Not together with a policy of the model."
    )


def _fixed_or_scaled(spec: ModelSpec) -> bool:
    if spec.autoscaling_policy is not None:
        return True
    return all(b.autoscaling_policy is not None or b.min_replicas == b.max_replicas for b in spec.backends)


class ModelSpec(Part):
    """What to serve, with which engines, scaled how."""

    newer: ClassVar = {"backend": "backends"}
    invariants: ClassVar = (
        Rule(
            "both the model and a backend have an autoscaling policy",
            "keep the one of the model (all backends scale together) or those of the backends (each scales alone)",
            lambda s: s.autoscaling_policy is None or all(b.autoscaling_policy is None for b in s.backends),
            "!has(self.autoscalingPolicy) || self.backends.all(b, !has(b.autoscalingPolicy))",
            "autoscalingPolicy",
        ),
        Rule(
            "a backend without a policy has different minReplicas and maxReplicas",
            "make them equal, or give it an autoscalingPolicy",
            _fixed_or_scaled,
            "has(self.autoscalingPolicy)"
            " || self.backends.all(b, has(b.autoscalingPolicy) || b.minReplicas == b.maxReplicas)",
            "backends",
        ),
        Rule(
            "costs are given, but nothing is shared out between backends",
            "remove scalingCost and costExpansionRatePercent, or give the model an autoscalingPolicy",
            lambda s: (
                s.autoscaling_policy is not None
                or (s.cost_expansion_rate_percent is None and all(not b.scaling_cost for b in s.backends))
            ),
            "has(self.autoscalingPolicy) || (!has(self.costExpansionRatePercent)"
            " && self.backends.all(b, !has(b.scalingCost) || b.scalingCost == 0))",
        ),
        Rule(
            "scaleToZeroGracePeriod is given for a backend that cannot go to zero",
            "remove it, or give the backend a policy and minReplicas 0",
            lambda s: (
                s.autoscaling_policy is not None
                or all(
                    b.scale_to_zero_grace_period is None or (b.autoscaling_policy is not None and b.min_replicas == 0)
                    for b in s.backends
                )
            ),
            "has(self.autoscalingPolicy) || self.backends.all(b, !has(b.scaleToZeroGracePeriod)"
            " || (has(b.autoscalingPolicy) && b.minReplicas == 0))",
            "backends",
        ),
        Rule(
            "a policy for all backends needs the cost of each",
            "set scalingCost above 0 on every backend",
            lambda s: s.autoscaling_policy is None or all(b.scaling_cost for b in s.backends),
            "!has(self.autoscalingPolicy) || self.backends.all(b, has(b.scalingCost) && b.scalingCost > 0)",
            "backends",
        ),
        Rule(
            "a policy for all backends needs at least one replica altogether",
            "set minReplicas to 1 or more on one backend",
            lambda s: s.autoscaling_policy is None or any(b.min_replicas >= 1 for b in s.backends),
            "!has(self.autoscalingPolicy) || self.backends.exists(b, b.minReplicas >= 1)",
            "backends",
        ),
        Rule(
            f"the backends' maxReplicas add up to more than {MILLION}",
            "lower them",
            lambda s: sum(b.max_replicas for b in s.backends) <= MILLION,
            f"self.backends.map(b, b.maxReplicas).sum() <= {MILLION}",
            "backends",
        ),
    )

    name: str | None = optional(
        "The name clients ask for. Default: the name of the object.", max_length=64, pattern=DNS_NAME
    )
    owner: str | None = optional("Owner of the model; free text, for people.")
    backends: list[ModelBackend] = Field(
        min_length=1,
        max_length=32,
        json_schema_extra=unique("map", "name"),
        description="The engine set-ups that serve the model. The order breaks ties when they are scaled together.",
    )
    autoscaling_policy: AutoscalingPolicySpec | None = optional(
        "How to scale all backends together, by cost. Not together with policies of backends."
    )
    cost_expansion_rate_percent: Int32 | None = optional(
        "Growth of each backend's batches of replicas, in percent. Default: 200 under a policy.", ge=0, le=1000
    )
    model_match: ModelMatch | None = optional("Which requests it takes. Default: all that name it.")


class ModelBackendStatus(StatusPart):
    """How one backend is doing."""

    name: str = Field(description="Name of the backend.")
    replicas: Int32 | None = optional("Replicas that are ready.")
    total_replicas: Int32 | None = optional("Existing replicas, ready or not.")


class ModelStatus(StatusPart):
    """What was found."""

    conditions: list[Condition] | None = optional(
        "Initialized, Active and Failed: how far the model is, and why.", json_schema_extra=CONDITIONS
    )
    backend_statuses: list[ModelBackendStatus] | None = optional("How each backend is doing.")
    annotations: StringMap | None = optional(
        "The generation that was rolled out, its start time, and the last one that served."
    )
    observed_generation: Int64 | None = optional("The metadata.generation this status was computed from.")


def _adapters_named_apart(model: Model) -> bool:
    names = {adapter.name for backend in model.spec.backends for adapter in backend.lora_adapters or ()}
    return model.name not in names


class Model(Resource):
    """A model to serve. Source: registry.volcano.sh/v1alpha1."""

    api_version: ClassVar = REGISTRY
    plural: ClassVar = "models"
    columns: ClassVar = (
        Column("Active", '.status.conditions[?(@.type=="Active")].status'),
        Column("Failed", '.status.conditions[?(@.type=="Failed")].reason', priority=1),
        AGE,
    )
    invariants: ClassVar = (
        Rule(
            "a LoRA adapter has the same name as the model",
            "rename the adapter",
            _adapters_named_apart,
            "self.spec.backends.all(b, !has(b.loraAdapters) || b.loraAdapters.all(a, a.name != self.metadata.name))",
            "spec.backends",
        ),
    )

    spec: ModelSpec = Field(description="What to serve.")
    status: ModelStatus | None = optional("What was found. Written by Modelyard.")


class AutoscalingPolicyStatus(ConditionedStatus):
    """Whether the policy can be followed, and what it means with every default filled in."""

    metrics: str | None = optional("Names and target values of the metrics, for people. Written by Modelyard.")
    effective_behavior: AutoscalingPolicyBehavior | None = optional(
        "spec.behavior as it is followed, nothing left out. Written by Modelyard."
    )


class AutoscalingPolicy(Resource):
    """How to scale, to be put on workloads by bindings. Source: registry.volcano.sh/v1alpha1."""

    api_version: ClassVar = REGISTRY
    plural: ClassVar = "autoscalingpolicies"
    columns: ClassVar = (
        Column("Metrics", ".status.metrics"),
        Column("Tolerance", ".spec.tolerancePercent", "integer"),
        Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Behavior", '.status.conditions[?(@.type=="Ready")].message', priority=1),
        AGE,
    )

    spec: AutoscalingPolicySpec = Field(description="How to scale.")
    status: AutoscalingPolicyStatus | None = optional("What was found. Written by Modelyard.")


class MetricEndpoint(Part):
    """Where pods show their metrics."""

    newer: ClassVar = {"labelSelector": "additionalMatchLabels next to metricEndpoint"}

    uri: str = Field("/metrics", description="Path. Default: /metrics.")
    port: Int32 = Field(8100, ge=1, le=65535, description="Port, 1 to 65535. Default: 8100.")


class TargetReference(ObjectReference):
    """A reference to a workload; its parts are bounded so that the API server can compare all of them."""

    kind: str | None = optional("Kind of the workload.", max_length=63)
    namespace: str | None = optional("Namespace of the workload. Default: the namespace of the binding.", max_length=63)
    name: str = Field(min_length=1, max_length=253, description="Name of the workload.")


class Target(Part):
    """A workload to measure and scale."""

    newer: ClassVar = {"metricSources": "metricEndpoint, or PromQL in the annotation modelyard.dev/metric-sources"}

    target_ref: TargetReference = Field(
        description="The workload: anything with a scale subresource, in the namespace of the binding by default."
    )
    additional_match_labels: MatchLabels | None = optional(
        "Labels a pod of the workload must carry to be measured. Default: every pod counts."
    )
    metric_endpoint: MetricEndpoint | None = optional(
        "Where the pods show their metrics. Default: /metrics on port 8100."
    )


class ScalingConfiguration(Part):
    """Scale one workload between bounds."""

    invariants: ClassVar = (MIN_WITHIN_MAX,)

    target: Target = Field(description="What to measure and scale.")
    min_replicas: Replicas = Field(description="Fewest replicas.")
    max_replicas: MaxReplicas = Field(description="Most replicas.")


class OptimizerParam(ScalingConfiguration):
    """One of the workloads that share the load."""

    cost: Int32 | None = optional("Cost of one replica in any unit. Default: 0.", ge=0)


def _targets_distinct(configuration: OptimizerConfiguration) -> bool:
    refs = [param.target.target_ref for param in configuration.params]
    return len({(ref.namespace, ref.kind, ref.name) for ref in refs}) == len(refs)


class OptimizerConfiguration(Part):
    """Scale several workloads together, the cheapest first."""

    invariants: ClassVar = (
        Rule(
            "the same workload is given twice",
            "keep it once in params",
            _targets_distinct,
            "self.params.all(p, self.params.exists_one(q, "
            + " && ".join(
                f"(has(p.target.targetRef.{name}) ? p.target.targetRef.{name} : '')"
                f" == (has(q.target.targetRef.{name}) ? q.target.targetRef.{name} : '')"
                for name in ("name", "kind", "__namespace__")  # "namespace" is a word of CEL
            )
            + "))",
            "params",
        ),
    )

    params: list[OptimizerParam] = Field(
        min_length=1, max_length=32, description="The workloads that share the load, at most 32."
    )
    cost_expansion_rate_percent: Int32 = Field(
        200,
        ge=0,
        description="Size of a workload's next batch of replicas relative to the last one, in percent; the batches of"
        " all workloads are taken in order of cost. Default: 200.",
    )


class AutoscalingPolicyBindingSpec(Part):
    """Which policy holds for which workloads."""

    newer: ClassVar = {"homogeneousTarget": "scalingConfiguration", "heterogeneousTarget": "optimizerConfiguration"}
    schema_extras: ClassVar = unless(
        {"oneOf": [{"required": ["optimizerConfiguration"]}, {"required": ["scalingConfiguration"]}]}
    )
    invariants: ClassVar = (
        one_of(
            "optimizerConfiguration",
            "scalingConfiguration",
            "give scalingConfiguration for one workload or optimizerConfiguration for several",
        ),
    )

    policy_ref: LocalObjectReference = Field(description="The AutoscalingPolicy, in the namespace of the binding.")
    optimizer_configuration: OptimizerConfiguration | None = optional(
        "Several workloads on different accelerators, scaled together by cost."
    )
    scaling_configuration: ScalingConfiguration | None = optional("One workload, scaled alone.")


class ScalingUnit(StatusPart):
    """What was decided for one workload."""

    name: str = Field(description="Name of the workload.")
    current_replicas: Int32 | None = optional("Replicas before the decision.", ge=0)
    desired_replicas: Int32 | None = optional("Decided replicas.", ge=0)
    mode: Literal["Stable", "Panic"] | None = optional(
        "Panic in panic mode, which scales up faster and never down; else Stable."
    )
    last_scale_time: Time | None = optional("Decision time of the last change that was applied.")


class AutoscalingPolicyBindingStatus(ConditionedStatus):
    """Whether the binding works, and what was decided last."""

    targets: str | None = optional("Names of the workloads, for people.")
    min_replicas: Int32 | None = optional("Fewest replicas of all workloads together.", ge=0)
    max_replicas: Int32 | None = optional("Most replicas of all workloads together.", ge=0)
    current_replicas: Int32 | None = optional("Replicas of all workloads before the decision.", ge=0)
    desired_replicas: Int32 | None = optional("Decided replicas of all workloads.", ge=0)
    mode: Literal["Stable", "Panic"] | None = optional("Panic or Stable, as for each workload.")
    units: list[ScalingUnit] | None = optional("The decision for each workload.")


class AutoscalingPolicyBinding(Resource):
    """Puts an AutoscalingPolicy on workloads. Source: registry.volcano.sh/v1alpha1."""

    api_version: ClassVar = REGISTRY
    plural: ClassVar = "autoscalingpolicybindings"
    columns: ClassVar = (
        Column("Policy", ".spec.policyRef.name"),
        Column("Targets", ".status.targets"),
        Column("Min", ".status.minReplicas", "integer"),
        Column("Max", ".status.maxReplicas", "integer"),
        Column("Current", ".status.currentReplicas", "integer"),
        Column("Desired", ".status.desiredReplicas", "integer"),
        Column("Mode", ".status.mode"),
        Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Metrics", '.status.conditions[?(@.type=="MetricsAvailable")].status', priority=1),
        Column("Why", '.status.conditions[?(@.type=="Ready")].message', priority=1),
        AGE,
    )

    spec: AutoscalingPolicyBindingSpec = Field(description="Which policy holds for which workloads.")
    status: AutoscalingPolicyBindingStatus | None = optional("What was found. Written by Modelyard.")
