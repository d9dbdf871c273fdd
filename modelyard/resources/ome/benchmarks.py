"""BenchmarkJob of ``ome.io``: a load test of an endpoint. Source: ome.io/v1beta1."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelyard.resources.base import AGE, Column, Part, Resource
from modelyard.resources.fields import Int32, RawObject, StringMap, Time, optional, unique
from modelyard.resources.ome.group import OME
from modelyard.resources.ome.models import StorageSpec
from modelyard.resources.ome.pods import RawList
from modelyard.resources.references import ConditionedStatus
from modelyard.resources.rules import Rule, one_of, unless

SCENARIO_PATTERN = (
    r"^(N\([0-9]+,[0-9]+\)/\([0-9]+,[0-9]+\)|U\([0-9]+,[0-9]+\)(/\([0-9]+,[0-9]+\))?|D\([0-9]+,[0-9]+\)"
    r"|E\([0-9]+\)|I\([0-9]+,[0-9]+(,[0-9]+)?\))$"
)
Scenario = Annotated[str, Field(max_length=64, pattern=SCENARIO_PATTERN)]
SCENARIOS_OF_TASK = {
    "text-to-text": ("N", "U", "D"),
    "text-to-embeddings": ("E",),
    "image-to-text": ("I",),
    "image-to-embeddings": ("I",),
}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


class HuggingFaceSecretReference(Part):
    """A Secret with a Hugging Face token."""

    name: str = Field(min_length=1, description="Name of the Secret, in the namespace of the job.")


class InferenceServiceReference(Part):
    """A service in the cluster."""

    name: str = Field(min_length=1, description="Name of the InferenceService.")
    namespace: str = Field(min_length=1, description="Namespace of the InferenceService.")


class Endpoint(Part):
    """Any endpoint, by URL."""

    url: str = Field(pattern=r"^(http|https)://", description="Base URL of the endpoint.")
    api_format: Literal["openai", "oci-cohere", "cohere"] = Field(description="API the endpoint speaks.")
    model_name: str = Field(description="The model name to send in requests.")


class EndpointSpec(Part):
    """What to test: a service in the cluster or any URL."""

    schema_extras: ClassVar = unless({"oneOf": [{"required": ["inferenceService"]}, {"required": ["endpoint"]}]})
    invariants: ClassVar = (one_of("inferenceService", "endpoint", "name a service of the cluster, or give a URL"),)

    inference_service: InferenceServiceReference | None = optional("A service in the cluster.")
    endpoint: Endpoint | None = optional("Any endpoint, by URL.")


class ServiceMetadata(Part):
    """What the tested service runs on, to be recorded with the results."""

    engine: Literal["vLLM", "SGLang", "TGI"] = Field(description="The engine.")
    version: str = Field(description="Version of the engine, such as 0.5.3.")
    gpu_type: Literal["H100", "A100", "MI300", "A10"] = Field(description="The GPU.")
    gpu_count: Int32 = Field(description="Number of GPUs.")


class PodOverride(Part):
    """Changes to the pod that runs the test."""

    image: str | None = optional("Container image. Default: the cluster's setting.")
    env: RawList | None = optional("Environment variables.")
    env_from: RawList | None = optional("Sources of environment variables.")
    volume_mounts: RawList | None = optional("Where volumes are mounted.")
    resources: RawObject | None = optional("Requests and limits.")
    tolerations: RawList | None = optional("Node taints the pod tolerates.")
    node_selector: StringMap | None = optional("Labels a node must carry to run the pod.")
    affinity: RawObject | None = optional("Scheduling constraints.")
    volumes: RawList | None = optional("Volumes that the container can mount.")


class BenchmarkJobSpec(Part):
    """What to test, with which load, and where the results go."""

    invariants: ClassVar = (
        Rule(
            "a traffic scenario does not fit the task",
            "text-to-text takes N, U and D; text-to-embeddings takes E; image-to-text and image-to-embeddings take I",
            lambda s: all(text.startswith(SCENARIOS_OF_TASK[s.task]) for text in s.traffic_scenarios or ()),
            "!has(self.trafficScenarios) || self.trafficScenarios.all(s,"
            " self.task == 'text-to-text' ? !(s.startsWith('E') || s.startsWith('I'))"
            " : self.task == 'text-to-embeddings' ? s.startsWith('E') : s.startsWith('I'))",
            "trafficScenarios",
        ),
        Rule(
            "temperature is not a number",
            'write it as text, such as "0.7"',
            lambda s: bool(_NUMBER.fullmatch((s.additional_request_params or {}).get("temperature", "0"))),
            "!has(self.additionalRequestParams) || !('temperature' in self.additionalRequestParams)"
            " || self.additionalRequestParams['temperature'].matches('^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$')",
            "additionalRequestParams.temperature",
        ),
        Rule(
            "ignore_eos is neither true nor false",
            'write "true" or "false"',
            lambda s: (s.additional_request_params or {}).get("ignore_eos", "true") in ("true", "false"),
            "!has(self.additionalRequestParams) || !('ignore_eos' in self.additionalRequestParams)"
            " || self.additionalRequestParams['ignore_eos'] in ['true', 'false']",
            "additionalRequestParams.ignore_eos",
        ),
    )

    hugging_face_secret_reference: HuggingFaceSecretReference | None = optional(
        "Secret with the Hugging Face token for the tokenizer. Default: none."
    )
    endpoint: EndpointSpec = Field(description="What to test.")
    service_metadata: ServiceMetadata | None = optional(
        "What the service runs on, to be recorded with the results. Default: not recorded."
    )
    task: Literal["text-to-text", "image-to-text", "text-to-embeddings", "image-to-embeddings"] = Field(
        description="Kind of requests, as input-to-output."
    )
    traffic_scenarios: list[Scenario] | None = optional(
        "Request sizes in tokens: N(mean,deviation)/(mean,deviation), U(min,max)/(min,max), D(in,out),"
        " E(in), or in pixels I(width,height). Default: chosen by the task.",
        max_length=64,
        json_schema_extra=unique(),
    )
    num_concurrency: list[Annotated[Int32, Field(ge=1)]] | None = optional(
        "Numbers of concurrent requests, one run for each. Default: 1, 2, 4 to 256.", json_schema_extra=unique()
    )
    max_time_per_iteration: Int32 = Field(ge=1, description="Maximum duration of one run in minutes.")
    max_requests_per_iteration: Int32 = Field(ge=1, description="Maximum number of requests of one run.")
    additional_request_params: dict[str, Annotated[str, Field(max_length=1024)]] | None = optional(
        "Further fields of each request, such as temperature and ignore_eos; values as text."
    )
    dataset: StorageSpec | None = optional("Prompts or images to send. Default: made up.")
    output_location: StorageSpec = Field(description="Where the results go.")
    result_folder_name: str | None = optional("Folder of the results. Default: made from name and time.")
    pod_override: PodOverride | None = optional("Changes to the pod that runs the test.")


class BenchmarkJobStatus(ConditionedStatus):
    """How far the test is."""

    state: str = Field(description="Pending, Running, Completed or Failed.")
    start_time: Time | None = optional("When the test began.")
    completion_time: Time | None = optional("When the test ended, successfully or not.")
    last_reconcile_time: Time | None = optional("When the controller last updated this status.")
    failure_message: str | None = optional("Why the test failed.")
    details: str | None = optional("Where the results are, and a summary.")


class BenchmarkJob(Resource):
    """A load test of an endpoint. Source: ome.io/v1beta1."""

    api_version: ClassVar = OME
    plural: ClassVar = "benchmarkjobs"
    columns: ClassVar = (
        Column("Service", ".spec.endpoint.inferenceService.name"),
        Column("Task", ".spec.task"),
        Column("State", ".status.state"),
        Column("Started", ".status.startTime", "date"),
        Column("Completed", ".status.completionTime", "date"),
        AGE,
    )

    spec: BenchmarkJobSpec = Field(description="What to test.")
    status: BenchmarkJobStatus | None = optional("How far it is. Written by Modelyard.")
