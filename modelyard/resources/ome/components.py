"""The components of an inference service: engine, decoder and router.

Source: ome.io/v1beta1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from modelyard.resources.base import Part
from modelyard.resources.fields import Bool, Int32, Int64, RawObject, StringMap
from modelyard.resources.ome.pods import Container, LeaderSpec, PodFields, WorkerSpec
from modelyard.resources.rules import Rule


class KedaConfig(Part):
    """Scaling by KEDA. What is absent comes from the next wider setting: service, then cluster."""

    enable_keda: Bool | None = Field(None, description="Whether KEDA scales. Default: false.")
    prom_server_address: str | None = Field(
        None, description="Base URL of the Prometheus that KEDA asks, with scheme and port."
    )
    custom_prom_query: str | None = Field(None, description="PromQL that gives one number.")
    scaling_threshold: str | None = Field(None, description="The number to compare the query's result with, as text.")
    scaling_operator: str | None = Field(
        None, description="How to compare: GreaterThan, GreaterThanOrEqual, LessThan or LessThanOrEqual."
    )


class ScalingFields(Part):
    """How a component is scaled and rolled out, spread into it."""

    invariants: ClassVar = (
        Rule(
            "minReplicas is above maxReplicas",
            "lower minReplicas or raise maxReplicas",
            lambda c: not c.max_replicas or c.min_replicas is None or c.min_replicas <= c.max_replicas,
            "!has(self.maxReplicas) || self.maxReplicas == 0 || !has(self.minReplicas)"
            " || self.minReplicas <= self.maxReplicas",
            "minReplicas",
        ),
    )

    min_replicas: Int32 | None = Field(None, ge=0, description="Fewest replicas; 0 allows scale to zero. Default: 1.")
    max_replicas: Int32 | None = Field(
        None, ge=0, description="Most replicas; 0 counts as absent. Default: 3, for a router 2."
    )
    scale_target: Int32 | None = Field(None, description="The value of the scale metric to hold each replica at.")
    scale_metric: Literal["cpu", "memory", "concurrency", "rps", "tps"] | None = Field(
        None, description="What to scale by. Default: cpu."
    )
    container_concurrency: Int64 | None = Field(
        None, description="Most requests at a time in a container. Default: no limit."
    )
    timeout_seconds: Int64 | None = Field(None, alias="timeoutSeconds", description="Seconds a request may take.")
    canary_traffic_percent: Int64 | None = Field(
        None, description="Percent of the requests that go to the newest revision while it is tried out."
    )
    labels: StringMap | None = Field(None, description="Labels to put on the component's pods.")
    annotations: StringMap | None = Field(None, description="Annotations to put on the component's pods.")
    deployment_strategy: RawObject | None = Field(
        None, description="How a Deployment replaces its pods. Single-node components only."
    )
    keda_config: KedaConfig | None = Field(None, description="Scaling by KEDA. Default: the service's setting.")


class EngineSpec(PodFields, ScalingFields):
    """The component that runs the model: prefill and decode, or prefill alone beside a decoder."""

    runner: Container | None = Field(None, description="The container that runs the engine.")
    leader: LeaderSpec | None = Field(None, description="The leading pod of each group. Multi-node only.")
    worker: WorkerSpec | None = Field(None, description="The other pods of each group. Multi-node only.")


class DecoderSpec(PodFields, ScalingFields):
    """The component that decodes when prefill and decode run apart."""

    runner: Container | None = Field(None, description="The container that runs the decoder.")
    leader: LeaderSpec | None = Field(None, description="The leading pod of each group. Multi-node only.")
    worker: WorkerSpec | None = Field(None, description="The other pods of each group. Multi-node only.")


class RouterSpec(PodFields, ScalingFields):
    """The component that spreads requests over engines and decoders."""

    runner: Container | None = Field(None, description="The container that runs the router.")
    config: StringMap | None = Field(None, description="Settings, passed to the router as environment variables.")
