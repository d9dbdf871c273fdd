"""Serving runtimes of ``ome.io``: how models of certain kinds are served. Source: ome.io/v1beta1."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from modelyard.resources.base import AGE, Column, Part, Resource
from modelyard.resources.fields import Bool, Int32, RawObject, optional
from modelyard.resources.ome.group import OME
from modelyard.resources.ome.models import ModelFormat, ModelFrameworkSpec
from modelyard.resources.ome.pods import DecoderSpec, EngineSpec, RouterSpec, RuntimePodFields
from modelyard.resources.references import ConditionedStatus


class ModelSizeRangeSpec(Part):
    """Model sizes a runtime is made for, in parameters; both ends included."""

    min: str | None = optional("Fewest parameters, such as 7B. Default: no lower limit.")
    max: str | None = optional("Most parameters, such as 70B. Default: no upper limit.")


class SupportedModelFormat(Part):
    """One kind of model a runtime can serve. What is absent must be absent from the model too."""

    name: str | None = optional("Kept for compatibility; the format's name is modelFormat.name.")
    model_format: ModelFormat = Field(description="File format.")
    model_type: str | None = optional(
        "Deprecated. Of runtimes that fit equally, one that names the model's type is chosen. Default: any type."
    )
    version: str | None = optional("Kept for compatibility; the version is modelFormat.version.")
    model_framework: ModelFrameworkSpec = Field(description="Library the weights were written for.")
    model_architecture: str | None = optional("Architecture, such as LlamaForCausalLM.")
    quantization: str | None = optional("Quantization, such as fp8.")
    auto_select: Bool | None = optional(
        "Whether the runtime may be chosen for such a model without being named. Default: false."
    )
    priority: Int32 | None = optional(
        "Which runtime is chosen when several fit: the higher one. Counts with autoSelect only.", ge=1
    )
    accelerator_config: RawObject | None = optional(
        "Arguments and resources by accelerator class. Kept, without effect."
    )
    diffusion_pipeline: RawObject | None = optional("The diffusion pipeline it can serve. Default: any.")


class WorkerPodSpec(RuntimePodFields):
    """The pods that follow a leader, in the older form. One of its containers, ome-container, runs the engine."""

    size: Int32 | None = optional("Number of worker pods in each group.", ge=1)


class ServingRuntimeSpec(RuntimePodFields):
    """The models that can be served, and the containers that serve them.

    The pod fields at the top level are the older form of engineConfig, which replaces them where it describes pods.
    """

    supported_model_formats: list[SupportedModelFormat] | None = optional(
        "The kinds of models that can be served. Default: none without being named."
    )
    model_size_range: ModelSizeRangeSpec | None = optional(
        "The model sizes that can be served, in parameters. Default: any."
    )
    disabled: Bool | None = optional("True keeps it from being used, even by name. Default: false.")
    router_config: RouterSpec | None = optional("The router of services of this runtime.")
    engine_config: EngineSpec | None = optional("The engine of services of this runtime.")
    decoder_config: DecoderSpec | None = optional("The decoder of services of this runtime.")
    protocol_versions: list[str] | None = optional(
        "The protocols its endpoints speak: openAI, cohere, openInference-v1 or openInference-v2."
        " A service that asks for another one does not get the runtime. Default: any."
    )
    workers: WorkerPodSpec | None = optional("The worker pods of each group, in the older form.")
    accelerator_requirements: RawObject | None = optional(
        "The accelerator classes it can use, in acceleratorClasses. Default: any."
    )


class ServingRuntimeStatus(ConditionedStatus):
    """Whether the runtime can be used."""


class ServingRuntime(Resource):
    """A way to serve models, for one namespace. Source: ome.io/v1beta1."""

    api_version: ClassVar = OME
    plural: ClassVar = "servingruntimes"
    columns: ClassVar = (
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("ModelFormat", ".spec.supportedModelFormats[*].modelFormat.name"),
        Column("ModelFramework", ".spec.supportedModelFormats[*].modelFramework.name", priority=1),
        Column("ModelFrameworkVersion", ".spec.supportedModelFormats[*].modelFramework.version", priority=1),
        Column("Architecture", ".spec.supportedModelFormats[*].modelArchitecture"),
        Column("MinSize", ".spec.modelSizeRange.min"),
        Column("MaxSize", ".spec.modelSizeRange.max"),
        Column("Images", ".spec.engineConfig.runner.image", priority=1),
        AGE,
    )

    spec: ServingRuntimeSpec = Field(description="Which models can be served, and how.")
    status: ServingRuntimeStatus | None = optional("What was found. Written by Modelyard.")


class ClusterServingRuntime(ServingRuntime):
    """A way to serve models, for all namespaces. Source: ome.io/v1beta1."""

    plural: ClassVar = "clusterservingruntimes"
    namespaced: ClassVar = False
