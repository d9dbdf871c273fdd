"""Fragments of pods inside ``ome.io`` resources.

Their fields are known by name; what is inside them is left to Kubernetes, which checks it when the pod is made.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from modelyard.resources.base import Part
from modelyard.resources.fields import Bool, Int32, Int64, RawObject, StringMap

RawList = list[RawObject]


class Container(Part):
    """A container, as in a pod. Only what Modelyard reads is declared; every other container field may be given too."""

    model_config = ConfigDict(extra="allow")

    name: str | None = Field(None, description="Name of the container. Default: ome-container.")
    image: str | None = Field(None, description="Container image.")
    command: list[str] | None = Field(None, description="Program to run. Default: the image's.")
    args: list[str] | None = Field(None, description="Arguments of the program.")
    env: RawList | None = Field(None, description="Environment variables.")
    resources: RawObject | None = Field(None, description="Requests and limits.")


class PodFields(Part):
    """The fields of a pod's spec, spread into a component."""

    volumes: RawList | None = Field(None, description="Volumes that containers can mount.")
    init_containers: RawList | None = Field(None, description="Containers that run, one by one, before the others.")
    containers: RawList | None = Field(None, description="Containers beside the runner.")
    ephemeral_containers: RawList | None = Field(None, description="Containers for debugging, added to a running pod.")
    restart_policy: str | None = Field(
        None, description="When containers are restarted: Always, OnFailure or Never. Default: Always."
    )
    termination_grace_period_seconds: Int64 | None = Field(
        None, description="Seconds between asking the pod to stop and stopping it. Default: 30."
    )
    active_deadline_seconds: Int64 | None = Field(None, description="Seconds the pod may run. Default: no limit.")
    dns_policy: str | None = Field(
        None, description="ClusterFirst, ClusterFirstWithHostNet, Default or None. Default: ClusterFirst."
    )
    node_selector: StringMap | None = Field(None, description="Labels a node must carry to run the pod.")
    service_account_name: str | None = Field(None, description="ServiceAccount the pod acts as.")
    service_account: str | None = Field(None, description="Deprecated name of serviceAccountName.")
    automount_service_account_token: Bool | None = Field(
        None, description="Whether the ServiceAccount's token is mounted."
    )
    node_name: str | None = Field(None, description="Node to run on without scheduling.")
    host_network: Bool | None = Field(None, description="Use the node's network. Default: false.")
    host_pid: Bool | None = Field(None, alias="hostPID", description="See the node's processes. Default: false.")
    host_ipc: Bool | None = Field(
        None, alias="hostIPC", description="Use the node's interprocess communication. Default: false."
    )
    share_process_namespace: Bool | None = Field(
        None, description="Let containers of the pod see each other's processes. Default: false."
    )
    security_context: RawObject | None = Field(None, description="Security settings of the pod.")
    image_pull_secrets: RawList | None = Field(None, description="Secrets with credentials of image registries.")
    hostname: str | None = Field(None, description="Host name of the pod. Default: its name.")
    subdomain: str | None = Field(None, description="Subdomain of the pod. Default: none.")
    affinity: RawObject | None = Field(None, description="Scheduling constraints.")
    scheduler_name: str | None = Field(None, description="Scheduler that places the pod. Default: the cluster's.")
    tolerations: RawList | None = Field(None, description="Node taints the pod tolerates.")
    host_aliases: RawList | None = Field(None, description="Further lines of /etc/hosts.")
    priority_class_name: str | None = Field(None, description="PriorityClass of the pod.")
    priority: Int32 | None = Field(None, description="Priority of the pod; normally set from its PriorityClass.")
    dns_config: RawObject | None = Field(None, description="DNS settings beside dnsPolicy.")
    readiness_gates: RawList | None = Field(None, description="Further conditions the pod needs to count as ready.")
    runtime_class_name: str | None = Field(None, description="RuntimeClass that runs the pod.")
    enable_service_links: Bool | None = Field(
        None, description="Put the Services of the namespace into the environment. Default: true."
    )
    preemption_policy: str | None = Field(
        None, description="PreemptLowerPriority or Never. Default: PreemptLowerPriority."
    )
    overhead: RawObject | None = Field(None, description="Resources the RuntimeClass needs beside the containers.")
    topology_spread_constraints: RawList | None = Field(None, description="How pods spread over zones and nodes.")
    set_hostname_as_fqdn: Bool | None = Field(
        None, alias="setHostnameAsFQDN", description="Make the pod's full name its host name. Default: false."
    )
    os: RawObject | None = Field(None, description="Operating system of the containers.")
    host_users: Bool | None = Field(None, description="Use the node's user namespace. Default: true.")
    scheduling_gates: RawList | None = Field(None, description="Reasons not to schedule the pod yet.")
    resource_claims: RawList | None = Field(None, description="ResourceClaims the pod needs before it starts.")


class RuntimePodFields(Part):
    """The fewer pod fields that a serving runtime has at its top level."""

    containers: RawList | None = Field(None, description="Containers of the pod.")
    volumes: RawList | None = Field(None, description="Volumes that containers can mount.")
    node_selector: StringMap | None = Field(None, description="Labels a node must carry to run the pod.")
    affinity: RawObject | None = Field(None, description="Scheduling constraints.")
    tolerations: RawList | None = Field(None, description="Node taints the pod tolerates.")
    labels: StringMap | None = Field(None, description="Labels to put on the pod.")
    annotations: StringMap | None = Field(None, description="Annotations to put on the pod.")
    image_pull_secrets: RawList | None = Field(None, description="Secrets with credentials of image registries.")
    scheduler_name: str | None = Field(None, description="Scheduler that places the pod. Default: the cluster's.")
    host_ipc: Bool | None = Field(
        None, alias="hostIPC", description="Use the node's interprocess communication. Default: false."
    )
    dns_policy: str | None = Field(
        None, description="ClusterFirst, ClusterFirstWithHostNet, Default or None. Default: ClusterFirst."
    )
    host_network: Bool | None = Field(None, description="Use the node's network. Default: false.")


class LeaderSpec(PodFields):
    """The pod that leads a group of pods."""

    runner: Container | None = Field(None, description="The container that runs the engine on the leader.")


class WorkerSpec(PodFields):
    """The pods that follow a leader."""

    size: Int32 | None = Field(None, ge=0, description="Number of worker pods in each group.")
    runner: Container | None = Field(None, description="The container that runs the engine on the workers.")
