"""InferenceService of ``ome.io``: a model served with a runtime. Source: ome.io/v1beta1."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from modelyard.resources.base import AGE, Column, Part, Resource, StatusPart
from modelyard.resources.fields import Int32, Int64, RawObject, StringMap, Time, optional, unique
from modelyard.resources.ome.group import OME
from modelyard.resources.ome.pods import (
    Container,
    DecoderSpec,
    EngineSpec,
    KedaConfig,
    PodFields,
    RouterSpec,
    ScalingFields,
    WorkerSpec,
)
from modelyard.resources.rules import Rule, unless


class ModelRef(Part):
    """The model to serve."""

    name: str = Field(min_length=1, description="Name of the model.")
    kind: Literal["BaseModel", "ClusterBaseModel"] | None = optional(
        "BaseModel: the one of the namespace. ClusterBaseModel: that of the cluster before that of the namespace."
        " Default: that of the namespace before that of the cluster."
    )
    api_group: Literal["ome.io"] = Field("ome.io", description="API group of the model. Default: ome.io.")
    fine_tuned_weights: list[str] | None = optional("Names of FineTunedWeights to serve with it.")


class ServingRuntimeRef(Part):
    """The runtime to serve with."""

    name: str = Field(min_length=1, description="Name of the runtime.")
    kind: Literal["ServingRuntime", "ClusterServingRuntime"] | None = optional(
        "ServingRuntime: the one of the namespace. ClusterServingRuntime: that of the cluster before that of the"
        " namespace. Default: that of the namespace before that of the cluster."
    )
    api_group: Literal["ome.io"] = Field("ome.io", description="API group of the runtime. Default: ome.io.")


class ModelSpec(Container):
    """The model of a predictor, together with the fields of its container."""

    runtime: str | None = optional("Name of the runtime. Default: chosen by the model.")
    storage_uri: str | None = optional(
        "Location of the model's files: pvc://CLAIM/PATH is mounted, any other must be the storageUri of a model."
        " Used without baseModel only; always in the variable STORAGE_URI."
    )
    runtime_version: str | None = optional("Tag that replaces the tag of the engine's image.")
    protocol_version: str | None = optional(
        "Protocol of the endpoint. The runtime must list it or list none. Passed as the variable PROTOCOL_VERSION."
    )
    base_model: str | None = optional("Name of the base model.")
    fine_tuned_weights: list[str] | None = optional("Names of FineTunedWeights to serve with it.")


class PredictorSpec(PodFields, ScalingFields):
    """The older form of model, runtime and engine in one. Deprecated."""

    model: ModelSpec | None = optional("The model to serve.")
    worker_spec: WorkerSpec | None = optional("The other pods of each group. Multi-node only.")


class InferenceServiceSpec(Part):
    """What to serve, and with what."""

    invariants: ClassVar = (
        Rule(
            "decoder is given without engine",
            "add an engine, which does the prefill, or remove the decoder",
            lambda s: s.decoder is None or s.engine is not None,
            "!has(self.decoder) || has(self.engine)",
            "decoder",
        ),
    )
    schema_extras: ClassVar = unless({"anyOf": [{"required": ["engine"]}, {"not": {"required": ["decoder"]}}]})

    predictor: PredictorSpec | None = optional(
        "Deprecated; use engine, model and runtime. Without effect where engine is given."
    )
    engine: EngineSpec | None = optional("The engine. What is absent comes from the runtime.")
    decoder: DecoderSpec | None = optional(
        "The decoder, when prefill and decode run apart. What is absent comes from the runtime."
    )
    model: ModelRef | None = optional("The model to serve.")
    runtime: ServingRuntimeRef | None = optional(
        "The runtime to serve with. Default: the best one that fits the model."
    )
    router: RouterSpec | None = optional("The router. Default: none, or the runtime's.")
    keda_config: KedaConfig | None = optional("Scaling by KEDA, for all components. Default: none.")
    accelerator_selector: RawObject | None = optional(
        "Accelerators to run on: acceleratorClass, or constraints and a policy. Default: any."
    )


class KnativeCondition(StatusPart):
    """One aspect of the state of a service."""

    type: str = Field(description="Which aspect, in CamelCase.")
    status: str = Field(description="True, False or Unknown.")
    severity: str | None = optional("How much False matters. Empty: an error.")
    last_transition_time: Time | None = optional("When the status last changed.")
    reason: str | None = optional("Why, as one CamelCase word for programs.")
    message: str | None = optional("Why, as a sentence for people.")


class Addressable(StatusPart):
    """An address to send requests to."""

    name: str | None = optional("Name of the address.")
    url: str | None = optional("URL of the address.")


class ComponentStatusSpec(StatusPart):
    """How one component is doing."""

    latest_ready_revision: str | None = optional("Newest revision that is ready.")
    latest_created_revision: str | None = optional("Newest revision.")
    previous_rolledout_revision: str | None = optional("Revision that had all requests before.")
    latest_rolledout_revision: str | None = optional("Revision that has all requests.")
    traffic: list[RawObject] | None = optional("Share of the requests of each revision.")
    url: str | None = optional("URL of the component.")
    rest_url: str | None = optional("URL of the component's REST endpoint.", alias="restURL")
    address: Addressable | None = optional("Address of the component inside the cluster.")


ModelState = Literal["", "Pending", "Standby", "Loading", "Loaded", "FailedToLoad"]
FailureReason = Literal[
    "BaseModelDeprecated",
    "BaseModelDisabled",
    "BaseModelNotFound",
    "BaseModelNotReady",
    "FineTuneWeightLoadFailed",
    "FineTunedWeightsDeprecated",
    "FineTunedWeightsDisabled",
    "FineTunedWeightsNotFound",
    "InvalidPredictorSpec",
    "InvalidRouterSpec",
    "ModelLoadFailed",
    "NoSupportingRuntime",
    "RuntimeDisabled",
    "RuntimeNotRecognized",
    "RuntimeUnhealthy",
]


class ModelRevisionStates(StatusPart):
    """How far the model of the running and of the coming revision is."""

    active_model_state: ModelState = Field(description="State of the model that serves now.")
    target_model_state: ModelState = Field(description="State of the model that the spec asks for.")


class FailureInfo(StatusPart):
    """The last failure to load the model."""

    location: str | None = optional("Object or field that failed, usually a pod.")
    reason: FailureReason | None = optional("Kind of failure.")
    message: str | None = optional("What happened, for people.")
    model_revision_name: str | None = optional("The revision that failed.")
    time: Time | None = optional("When it failed, or when that was found.")
    exit_code: Int32 | None = optional("Exit status of the container.")


class ModelCopies(StatusPart):
    """Copies of the model that are loaded."""

    failed_copies: Int32 = Field(description="Copies that failed to load recently.")
    total_copies: Int32 | None = optional("Copies that are loaded.")


class ModelStatus(StatusPart):
    """How far the service's model is."""

    transition_status: Literal["", "UpToDate", "InProgress", "BlockedByFailedLoad", "InvalidSpec"] = Field(
        description="Progress of the update to the model that the spec asks for."
    )
    model_revision_states: ModelRevisionStates | None = optional("How far the model is.")
    last_failure_info: FailureInfo | None = optional("The last failure to load the model.")
    model_copies: ModelCopies | None = optional("Copies of the model.")


class InferenceServiceStatus(StatusPart):
    """How a service is doing."""

    observed_generation: Int64 | None = optional("The metadata.generation this status was computed from.")
    conditions: list[KnativeCondition] | None = optional(
        "Ready, EngineReady, DecoderReady, RouterReady, IngressReady and others.",
        json_schema_extra=unique("map", "type"),
    )
    annotations: StringMap | None = optional("Further facts about the service, as text.")
    address: Addressable | None = optional("Address of the service inside the cluster.")
    url: str | None = optional("URL of the service.")
    components: dict[str, ComponentStatusSpec] | None = optional(
        "How each component is doing, by its name (engine, decoder, router, predictor)."
    )
    model_status: ModelStatus | None = optional("How far the model is.")


class InferenceService(Resource):
    """A model served with a runtime. Source: ome.io/v1beta1."""

    api_version: ClassVar = OME
    plural: ClassVar = "inferenceservices"
    short_names: ClassVar = ("isvc",)
    name_pattern: ClassVar = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
    columns: ClassVar = (
        Column("Model", ".spec.model.name"),
        # The one that is named, else the one that was chosen: the first of the matches is shown.
        Column("Runtime", r"..['spec','status']['runtime','annotations']['name','modelyard\.dev/runtime']"),
        Column("URL", ".status.url"),
        Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Prev", '.status.components.engine.traffic[?(@.tag=="prev")].percent', "integer", priority=1),
        Column("Latest", ".status.components.engine.traffic[?(@.latestRevision==true)].percent", "integer", priority=1),
        Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', priority=1),
        AGE,
    )

    spec: InferenceServiceSpec = Field(description="What to serve.")
    status: InferenceServiceStatus | None = optional("How it is doing. Written by Modelyard.")
