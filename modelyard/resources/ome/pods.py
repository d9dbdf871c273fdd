"""Pods inside ``ome.io`` resources, and the components made of them: engine, decoder and router.

The fields of a pod are known by name; what is inside them is left to Kubernetes, which checks it when the pod is made.

Source: ome.io/v1beta1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from modelyard.resources.base import Part
from modelyard.resources.fields import Bool, Int32, Int64, IntOrString, RawObject, StringMap, optional

RawList = list[RawObject]


class Container(Part):
    """A container, as in a pod. Only what Modelyard reads is declared; every other container field may be given too."""

    model_config = ConfigDict(extra="allow")

    name: str | None = optional("Name of the container. Default: ome-container.")
    image: str | None = optional("Container image.")
    command: list[str] | None = optional("Program to run. Default: the image's.")
    args: list[str] | None = optional("Arguments of the program.")
    env: RawList | None = optional("Environment variables.")
    resources: RawObject | None = optional("Requests and limits.")


class SharedPodFields(Part):
    """The fields of a pod's spec that components and serving runtimes both have at their top level."""

    volumes: RawList | None = optional("Volumes that containers can mount.")
    node_selector: StringMap | None = optional("Labels a node must carry to run the pod.")
    image_pull_secrets: RawList | None = optional("Secrets with credentials of image registries.")
    affinity: RawObject | None = optional("Scheduling constraints.")
    scheduler_name: str | None = optional("Scheduler that places the pod. Default: the cluster's.")
    tolerations: RawList | None = optional("Node taints the pod tolerates.")
    host_ipc: Bool | None = optional("Use the node's interprocess communication. Default: false.", alias="hostIPC")
    dns_policy: str | None = optional("ClusterFirst, ClusterFirstWithHostNet, Default or None. Default: ClusterFirst.")
    host_network: Bool | None = optional("Use the node's network. Default: false.")


class PodFields(SharedPodFields):
    """All fields of a pod's spec, spread into a component."""

    init_containers: RawList | None = optional("Containers that run, one by one, before the others.")
    containers: RawList | None = optional("Containers next to the runner.")
    ephemeral_containers: RawList | None = optional("Containers for debugging, added to a running pod.")
    restart_policy: str | None = optional("When containers are restarted: Always, OnFailure or Never. Default: Always.")
    termination_grace_period_seconds: Int64 | None = optional(
        "Seconds between asking the pod to stop and stopping it. Default: 30."
    )
    active_deadline_seconds: Int64 | None = optional("Seconds the pod may run. Default: no limit.")
    service_account_name: str | None = optional("ServiceAccount the pod acts as.")
    service_account: str | None = optional("Deprecated name of serviceAccountName.")
    automount_service_account_token: Bool | None = optional("Whether the ServiceAccount's token is mounted.")
    node_name: str | None = optional("Node to run on without scheduling.")
    host_pid: Bool | None = optional("See the node's processes. Default: false.", alias="hostPID")
    share_process_namespace: Bool | None = optional(
        "Let containers of the pod see each other's processes. Default: false."
    )
    security_context: RawObject | None = optional("Security settings of the pod.")
    hostname: str | None = optional("Host name of the pod. Default: its name.")
    subdomain: str | None = optional("Subdomain of the pod. Default: none.")
    host_aliases: RawList | None = optional("Further lines of /etc/hosts.")
    priority_class_name: str | None = optional("PriorityClass of the pod.")
    priority: Int32 | None = optional("Priority of the pod; normally set from its PriorityClass.")
    dns_config: RawObject | None = optional("DNS settings in addition to dnsPolicy.")
    readiness_gates: RawList | None = optional("Further conditions the pod needs to count as ready.")
    runtime_class_name: str | None = optional("RuntimeClass that runs the pod.")
    enable_service_links: Bool | None = optional(
        "Put the Services of the namespace into the environment. Default: true."
    )
    preemption_policy: str | None = optional("PreemptLowerPriority or Never. Default: PreemptLowerPriority.")
    overhead: RawObject | None = optional("Resources the RuntimeClass needs in addition to the containers.")
    topology_spread_constraints: RawList | None = optional("How pods spread over zones and nodes.")
    set_hostname_as_fqdn: Bool | None = optional(
        "Make the pod's full name its host name. Default: false.", alias="setHostnameAsFQDN"
    )
    os: RawObject | None = optional("Operating system of the containers.")
    host_users: Bool | None = optional("Use the node's user namespace. Default: true.")
    scheduling_gates: RawList | None = optional("Reasons not to schedule the pod yet.")
    resource_claims: RawList | None = optional("ResourceClaims the pod needs before it starts.")


class RuntimePodFields(SharedPodFields):
    """The fewer pod fields that a serving runtime has at its top level."""

    containers: RawList | None = optional("Containers of the pod.")
    labels: StringMap | None = optional("Labels to put on the pod.")
    annotations: StringMap | None = optional("Annotations to put on the pod.")


class LeaderSpec(PodFields):
    """The pod that leads a group of pods."""

    runner: Container | None = optional("The container that runs the engine on the leader.")


class WorkerSpec(PodFields):
    """The pods that follow a leader."""

    size: Int32 | None = optional("Number of worker pods in each group.", ge=0)
    runner: Container | None = optional("The container that runs the engine on the workers.")


class ScalerAuthenticationRef(Part):
    """Where KEDA finds its credentials. Newer than the published reference."""

    name: str = Field(min_length=1, description="Name of the object with the credentials.")
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = Field(
        "TriggerAuthentication", description="Kind of that object. Default: TriggerAuthentication."
    )


class KedaConfig(Part):
    """Scaling by KEDA. What is absent comes from the next wider setting: service, then cluster."""

    enable_keda: Bool | None = optional("Whether KEDA scales. Default: false.")
    prom_server_address: str | None = optional("Base URL of the Prometheus that KEDA asks, with scheme and port.")
    custom_prom_query: str | None = optional("PromQL that gives one number.")
    scaling_threshold: str | None = optional("The number to compare the query's result with, as text.")
    scaling_operator: str | None = optional(
        "How to compare: GreaterThan, GreaterThanOrEqual, LessThan or LessThanOrEqual."
    )
    authentication_ref: ScalerAuthenticationRef | None = optional("Credentials for that Prometheus. Default: none.")
    auth_modes: str | None = optional(
        "Authentication to Prometheus: basic, tls, bearer or custom; separate several by commas."
    )


class ScalingFields(Part):
    """How a component is scaled and rolled out, spread into it."""

    min_replicas: Int32 | None = optional("Fewest replicas; 0 allows scale to zero. Default: 1.", ge=0)
    max_replicas: Int32 | None = optional(
        "Most replicas; 0 counts as absent, fewer than minReplicas as minReplicas. Default: 3, for a router 2; of what"
        " a VariantAutoscaling or a binding scales: no limit.",
        ge=0,
    )
    scale_target: Int32 | None = optional("The value of the scale metric to hold each replica at.")
    scale_metric: Literal["cpu", "memory", "concurrency", "rps", "tps"] | None = optional(
        "Metric to scale by. Default: cpu."
    )
    container_concurrency: Int64 | None = optional("Maximum concurrent requests of a container. Default: no limit.")
    timeout_seconds: Int64 | None = optional("Seconds a request may take.", alias="timeoutSeconds")
    canary_traffic_percent: Int64 | None = optional(
        "Percentage of the requests to send to the newest revision as a canary."
    )
    labels: StringMap | None = optional("Labels to put on the component's pods.")
    annotations: StringMap | None = optional("Annotations to put on the component's pods.")
    min_available: IntOrString | None = optional("Fewest pods that an eviction must leave, as number or percentage.")
    max_unavailable: IntOrString | None = optional(
        "Most pods that may be evicted at a time, as number or percentage. Default: 1, without minAvailable."
    )
    deployment_strategy: RawObject | None = optional("How a Deployment replaces its pods. Single-node components only.")
    keda_config: KedaConfig | None = optional("Scaling by KEDA. Default: the service's setting.")


class EngineSpec(PodFields, ScalingFields):
    """The component that runs the model: prefill and decode, or prefill alone beside a decoder."""

    runner: Container | None = optional("The container that runs the engine.")
    leader: LeaderSpec | None = optional("The leading pod of each group. Multi-node only.")
    worker: WorkerSpec | None = optional("The other pods of each group. Multi-node only.")
    accelerator_override: RawObject | None = optional(
        "Accelerators that this component runs on, in acceleratorClass. Default: those of the service."
    )


class DecoderSpec(EngineSpec):
    """The component that decodes when prefill and decode run apart."""

    runner: Container | None = optional("The container that runs the decoder.")


class RouterSpec(PodFields, ScalingFields):
    """The component that spreads requests over engines and decoders."""

    runner: Container | None = optional("The container that runs the router.")
    config: StringMap | None = optional("Settings, passed to the router as environment variables.")
