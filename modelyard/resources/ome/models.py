"""Models of ``ome.io`` (BaseModel, ClusterBaseModel, FineTunedWeight) and where files are. Source: ome.io/v1beta1."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelyard.resources.base import AGE, Column, Part, Resource, StatusPart
from modelyard.resources.fields import Bool, Int32, Int64, RawObject, StringMap, optional
from modelyard.resources.ome.group import OME
from modelyard.resources.references import ConditionedStatus

StorageUri = Annotated[str, Field(pattern=r"^(oci|hf|pvc|vendor|local|s3|obs|az|gs|github)://.+")]
"""The ten kinds of storage; the grammar of each is checked where it is read."""


class StorageSpec(Part):
    """A place for files, and how to reach it."""

    path: str | None = optional(
        "Absolute directory on the node that the files go to. Default: made from the storage URI."
    )
    schema_path: str | None = optional("Kept for compatibility; without effect.")
    parameters: StringMap | None = optional(
        "Settings of the storage: region and auth (oci), token and secretKey (hf), and others."
    )
    key: str | None = optional("Name of the Secret with the credentials.")
    storage_uri: StorageUri = Field(
        description="Where the files are: oci://n/NAMESPACE/b/BUCKET/o/PATH, hf://MODEL[@REVISION],"
        " pvc://[NAMESPACE:]CLAIM/PATH, s3://BUCKET[@REGION][/PREFIX], obs://BUCKET@REGION[/PREFIX], gs://BUCKET[/PATH],"
        " az://ACCOUNT/CONTAINER[/PATH], github://OWNER/REPO[@TAG], local:///PATH or vendor://VENDOR/TYPE/PATH."
    )
    node_selector: StringMap | None = optional("Labels a node must carry to receive the files.")
    node_affinity: RawObject | None = optional("Which nodes receive the files; only the required part counts.")
    download_policy: Literal["AlwaysDownload", "ReuseIfExists"] | None = optional(
        "ReuseIfExists: take files that another model of the same content has on the node. Default: AlwaysDownload."
    )


class VersionMatch(Part):
    """How the versions of a model and a runtime are compared. Newer than the published reference."""

    operator: Literal["Equal", "GreaterThan", "GreaterThanOrEqual"] | None = optional(
        "In a runtime: how its version must compare to the model's. Default: Equal."
    )
    weight: Int64 | None = optional("In a runtime: how much this counts where several runtimes fit. Default: 1.")


class ModelFormat(VersionMatch):
    """The file format of a model."""

    name: str = Field(min_length=1, description="Name of the format, such as safetensors or ONNX.")
    version: str | None = optional("Version of the format: major, major.minor or major.minor.patch.")


class ModelFrameworkSpec(VersionMatch):
    """The library a model was written for."""

    name: str = Field(min_length=1, description="Name of the library, such as transformers or TensorRTLLM.")
    version: str | None = optional("Version of the library: major, major.minor or major.minor.patch.")


class ModelExtension(Part):
    """What describes a model to people."""

    display_name: str | None = optional("Name for people.")
    version: str | None = optional("Version of the model.")
    disabled: Bool | None = optional("True keeps services from using it. Default: false.")
    vendor: str | None = optional("Who made it, such as Meta.")
    compartment_id: str | None = optional("Compartment it belongs to.", alias="compartmentID")


class BaseModelSpec(ModelExtension):
    """What a model is and where its files are. Modelyard fills in what it finds in the files."""

    model_format: ModelFormat | None = optional("File format. Default: found in the files.")
    model_type: str | None = optional(
        "The model_type of the model's config.json, such as llama. Selects runtimes if modelArchitecture is"
        " unknown, and among runtimes that fit equally. Default: found in the files."
    )
    model_framework: ModelFrameworkSpec | None = optional(
        "Library the weights were written for. Default: found in the files."
    )
    model_architecture: str | None = optional(
        "First of the architectures in config.json, such as LlamaForCausalLM. Default: found in the files."
    )
    quantization: str | None = optional(
        "How the weights are quantized, such as fp8, fbgemm_fp8 or int4. Default: found in the files."
    )
    model_parameter_size: str | None = optional(
        "Number of parameters, such as 500M, 7B or 1.1T. Default: counted in the files."
    )
    model_capabilities: list[str] | None = optional(
        "What the model can do, such as TEXT_GENERATION or TEXT_EMBEDDINGS."
    )
    api_capabilities: list[str] | None = optional("The APIs the model can serve, such as OPENAI_V1_CHAT_COMPLETIONS.")
    model_configuration: RawObject | None = optional("Facts about the model, as free JSON.")
    storage: StorageSpec = Field(description="Where the files come from and go to.")
    serving_mode: list[str] | None = optional("On-demand, Dedicated or both; for people.")
    max_tokens: Int32 | None = optional("Context length in tokens. Default: found in the files.", ge=0)
    diffusion_pipeline: RawObject | None = optional("The parts of a diffusion pipeline. Default: found in the files.")
    additional_metadata: StringMap | None = optional("Further facts, as text.")


class NodeDelivery(StatusPart):
    """How far the files are on one node."""

    node: str | None = optional("Name of the node.")
    state: str | None = optional("Active, Waiting, Failed or Removing.")
    reason: str | None = optional("Why, as one word.")
    message: str | None = optional("Why, for people.")
    percent: Int32 | None = optional("How much of a transfer under way is done.")


class DeliveryStatus(StatusPart):
    """How the delivery of the files stands. Not in the published reference."""

    path: str | None = optional("Where the files are on a node, or in the claim.")
    revision: str | None = optional("The immutable revision of the source that was delivered last.")
    bytes: Int64 | None = optional("Size of the files.")
    weights: str | None = optional(
        "Weights that were chosen, and the copies that were left out. Absent where the source has one set."
    )
    selected: Int32 | None = optional("Nodes that are to have the files.")
    ready: Int32 | None = optional("Nodes that have them.")
    failed: Int32 | None = optional("Nodes on which the transfer failed.")
    active: Int32 | None = optional("Nodes that are being brought the files.")
    waiting: Int32 | None = optional("Nodes that wait for their turn at the source.")
    nodes: list[NodeDelivery] | None = optional("The first twenty nodes that are not ready, what has failed first.")


class ModelStatusSpec(ConditionedStatus):
    """How far a model's files are."""

    lifecycle: str | None = optional("Deprecated, Experiment, Public or Internal.")
    state: Literal["Creating", "Importing", "In_Transit", "In_Training", "Ready", "Failed"] = Field(
        description="How far the files are."
    )
    nodes_ready: list[str] | None = optional("Nodes that hold the whole model.")
    nodes_failed: list[str] | None = optional("Nodes on which the transfer failed.")
    delivery: DeliveryStatus | None = optional("How the delivery stands. Written by Modelyard.")
    detected: RawObject | None = optional("What was found in the files. Written by Modelyard.")


class BaseModel(Resource):
    """A model for one namespace. Source: ome.io/v1beta1."""

    api_version: ClassVar = OME
    plural: ClassVar = "basemodels"
    columns: ClassVar = (
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("Version", ".spec.version"),
        Column("Vendor", ".spec.vendor"),
        Column("Framework", ".spec.modelFramework.name"),
        Column("FrameworkVersion", ".spec.modelFramework.version"),
        Column("ModelFormat", ".spec.modelFormat.name"),
        Column("Architecture", ".spec.modelArchitecture"),
        Column("Capabilities", ".spec.modelCapabilities"),
        Column("Size", ".spec.modelParameterSize"),
        Column("CompartmentID", ".spec.compartmentID"),
        Column("Ready", ".status.state"),
        AGE,
    )

    spec: BaseModelSpec = Field(description="What the model is.")
    status: ModelStatusSpec | None = optional("How far its files are. Written by Modelyard.")


class ClusterBaseModel(BaseModel):
    """A model for all namespaces. Source: ome.io/v1beta1."""

    plural: ClassVar = "clusterbasemodels"
    namespaced: ClassVar = False


class ObjectReference(Part):
    """An object by name."""

    name: str = Field(min_length=1, description="Name of the object.")
    namespace: str | None = optional("Namespace of the object; absent for cluster-scoped ones.")


class FineTunedWeightSpec(ModelExtension):
    """Weights made from a base model."""

    base_model_ref: ObjectReference = Field(description="The model the weights were made from.")
    model_type: str = Field(min_length=1, description="Kind of weights, such as LoRA, Adapter, Distillation or Tfew.")
    hyper_parameters: RawObject = Field(description="The settings of the training, as free JSON.")
    configuration: RawObject | None = optional("Facts about the weights, as free JSON.")
    storage: StorageSpec = Field(description="Where the files come from and go to.")
    training_job_ref: ObjectReference | None = optional("The job that made the weights.")


class FineTunedWeight(Resource):
    """Weights made from a base model, to be served with it. Source: ome.io/v1beta1."""

    api_version: ClassVar = OME
    plural: ClassVar = "finetunedweights"
    namespaced: ClassVar = False
    columns: ClassVar = (
        Column("BaseModel", ".spec.baseModelRef.name"),
        Column("Type", ".spec.modelType"),
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("Version", ".spec.version"),
        Column("Vendor", ".spec.vendor", priority=1),
        Column("CompartmentID", ".spec.compartmentID", priority=1),
        Column("Ready", ".status.state"),
        AGE,
    )

    spec: FineTunedWeightSpec = Field(description="What the weights are.")
    status: ModelStatusSpec | None = optional("How far the files are. Written by Modelyard.")
