"""The components of an inference service: engine, decoder and router.

Source: ome.io/v1beta1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from modelyard.resources.base import Part
from modelyard.resources.fields import Bool, Int32, Int64, RawObject, StringMap, optional
from modelyard.resources.ome.pods import Container, LeaderSpec, PodFields, WorkerSpec
from modelyard.resources.rules import Rule


class KedaConfig(Part):
    """Scaling by KEDA. What is absent comes from the next wider setting: service, then cluster."""

    enable_keda: Bool | None = optional("Whether KEDA scales. Default: false.")
    prom_server_address: str | None = optional("Base URL of the Prometheus that KEDA asks, with scheme and port.")
    custom_prom_query: str | None = optional("PromQL that gives one number.")
    scaling_threshold: str | None = optional("The number to compare the query's result with, as text.")
    scaling_operator: str | None = optional(
        "How to compare: GreaterThan, GreaterThanOrEqual, LessThan or LessThanOrEqual."
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

    min_replicas: Int32 | None = optional("Fewest replicas; 0 allows scale to zero. Default: 1.", ge=0)
    max_replicas: Int32 | None = optional("Most replicas; 0 counts as absent. Default: 3, for a router 2.", ge=0)
    scale_target: Int32 | None = optional("The value of the scale metric to hold each replica at.")
    scale_metric: Literal["cpu", "memory", "concurrency", "rps", "tps"] | None = optional(
        "What to scale by. Default: cpu."
    )
    container_concurrency: Int64 | None = optional("Most requests at a time in a container. Default: no limit.")
    timeout_seconds: Int64 | None = optional("Seconds a request may take.", alias="timeoutSeconds")
    canary_traffic_percent: Int64 | None = optional(
        "Percent of the requests that go to the newest revision while it is tried out."
    )
    labels: StringMap | None = optional("Labels to put on the component's pods.")
    annotations: StringMap | None = optional("Annotations to put on the component's pods.")
    deployment_strategy: RawObject | None = optional("How a Deployment replaces its pods. Single-node components only.")
    keda_config: KedaConfig | None = optional("Scaling by KEDA. Default: the service's setting.")


class EngineSpec(PodFields, ScalingFields):
    """The component that runs the model: prefill and decode, or prefill alone beside a decoder."""

    runner: Container | None = optional("The container that runs the engine.")
    leader: LeaderSpec | None = optional("The leading pod of each group. Multi-node only.")
    worker: WorkerSpec | None = optional("The other pods of each group. Multi-node only.")


class DecoderSpec(PodFields, ScalingFields):
    """The component that decodes when prefill and decode run apart."""

    runner: Container | None = optional("The container that runs the decoder.")
    leader: LeaderSpec | None = optional("The leading pod of each group. Multi-node only.")
    worker: WorkerSpec | None = optional("The other pods of each group. Multi-node only.")


class RouterSpec(PodFields, ScalingFields):
    """The component that spreads requests over engines and decoders."""

    runner: Container | None = optional("The container that runs the router.")
    config: StringMap | None = optional("Settings, passed to the router as environment variables.")
