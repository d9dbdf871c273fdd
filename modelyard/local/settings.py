"""What a local cluster consists of."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from modelyard.objects import Cli


class Component(StrEnum):
    """The processes of a local cluster, in starting order."""

    ETCD = "etcd"
    APISERVER = "apiserver"
    CONTROLLER_MANAGER = "controller-manager"
    SCHEDULER = "scheduler"
    AGENT = "agent"
    PROMETHEUS = "prometheus"


CONTROL_PLANE = (Component.ETCD, Component.APISERVER, Component.CONTROLLER_MANAGER, Component.SCHEDULER)
EVERYTHING = tuple(Component)

_NEEDS = {
    Component.APISERVER: {Component.ETCD},
    Component.CONTROLLER_MANAGER: {Component.APISERVER},
    Component.SCHEDULER: {Component.APISERVER},
    Component.AGENT: {Component.APISERVER},
    Component.PROMETHEUS: {Component.APISERVER},
}


class NodeGroup(BaseModel):
    """Some equal Nodes with GPUs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$", description="Nodes are called NAME-0, NAME-1, ..."
    )
    count: int = Field(1, ge=0, le=50, description="number of Nodes")
    product: str = Field("", description="label nvidia.com/gpu.product, as NVIDIA's GPU feature discovery writes it")
    gpus: int = Field(8, ge=0, description="GPUs of each Node (extended resource nvidia.com/gpu)")
    gpu_memory_mib: int = Field(0, ge=0, description="memory of one GPU in MiB (label nvidia.com/gpu.memory)")
    cpu: str = Field("192", description="CPU of each Node, a Kubernetes quantity")
    memory: str = Field("2Ti", description="memory of each Node, a Kubernetes quantity")
    pods: int = Field(110, ge=1, description="pods each Node takes")
    labels: dict[str, str] = Field(default_factory=dict, description="further labels")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        return dict(parse_node_group(given)) if isinstance(given, str) else given


def default_nodes() -> list[NodeGroup]:
    """Five Nodes of three accelerator types: 16 H100, 16 L40S and 8 A100."""
    return [
        NodeGroup(name="h100", count=2, product="NVIDIA-H100-SXM5-80GB", gpus=8, gpu_memory_mib=81559),
        NodeGroup(name="l40s", count=2, product="NVIDIA-L40S-48GB", gpus=8, gpu_memory_mib=46068),
        NodeGroup(name="a100", count=1, product="NVIDIA-A100-SXM4-80GB", gpus=8, gpu_memory_mib=81920),
    ]


def parse_node_group(text: str) -> NodeGroup:
    """Read `NAME=COUNTxGPUS[xPRODUCT[xMEMORY_MIB]]`, the form of `--node`. Raises `ValueError`."""
    found = re.fullmatch(
        r"(?P<name>[^=]+)=(?P<count>\d+)x(?P<gpus>\d+)(?:x(?P<product>[^x]+?)(?:x(?P<memory>\d+))?)?", text
    )
    if found is None:
        raise ValueError(
            f"{text!r} is not NAME=COUNTxGPUS[xPRODUCT[xMEMORY_MIB]], e.g. h100=2x8xNVIDIA-H100-SXM5-80GBx81559"
        )
    return NodeGroup(
        name=found["name"],
        count=int(found["count"]),
        gpus=int(found["gpus"]),
        product=found["product"] or "",
        gpu_memory_mib=int(found["memory"] or 0),
    )


class StackSettings(BaseModel):
    """One local cluster."""

    model_config = ConfigDict(extra="forbid")

    components: Annotated[list[Component], Cli("--component")] = Field(
        default_factory=lambda: list(EVERYTHING), description="processes to run"
    )
    nodes: Annotated[
        list[NodeGroup],
        Cli(
            "--node",
            metavar="NAME=COUNTxGPUS[xPRODUCT[xMEMORY_MIB]]",
            help="group of nodes, e.g. h100=2x8xNVIDIA-H100-SXM5-80GBx81559; unset: 2 with 8 H100, 2 with 8 L40S,"
            " 1 with 8 A100",
        ),
    ] = Field(default_factory=default_nodes, description="Nodes the agent registers")
    base_port: int | None = Field(
        None, ge=1024, le=65000, description="first of eight consecutive ports; unset: a free range is found and kept"
    )
    scrape_interval: str = Field("15s", pattern=r"^[0-9]+(ms|s|m)$", description="how often Prometheus scrapes")
    scrape_targets: Annotated[list[str], Cli("--scrape-target")] = Field(
        default_factory=list, description="further host:port targets Prometheus scrapes"
    )
    retention: str = Field("2d", description="how long Prometheus keeps samples")
    backoff_scale: float = Field(
        1.0, gt=0, le=1, description="scales the container restart back-off of 10 s to 300 s (for short demonstrations)"
    )
    extra_args: dict[Component, list[str]] = Field(
        default_factory=dict, description="further command-line flags of a component"
    )
    binaries: dict[str, str] = Field(default_factory=dict, description="path of each program, found before the start")

    @field_validator("scrape_targets")
    @classmethod
    def _targets(cls, value: list[str]) -> list[str]:
        for target in value:
            if not re.fullmatch(r"[^/\s]+:\d+", target):
                raise ValueError(f"scrape target {target!r} is not host:port")
        return value

    @model_validator(mode="after")
    def _complete(self) -> StackSettings:
        self.components = [component for component in Component if component in self.components]
        for component in self.components:
            missing = _NEEDS.get(component, set()) - set(self.components)
            if missing:
                raise ValueError(f"component {component} needs {', '.join(sorted(missing))} as well")
        names = [group.name for group in self.nodes]
        if len(set(names)) != len(names):
            raise ValueError(f"nodes: two groups have one name in {names}")
        return self

    def programs(self) -> list[str]:
        names = {
            Component.ETCD: "etcd",
            Component.APISERVER: "kube-apiserver",
            Component.CONTROLLER_MANAGER: "kube-controller-manager",
            Component.SCHEDULER: "kube-scheduler",
            Component.PROMETHEUS: "prometheus",
        }
        return [names[component] for component in self.components if component in names]


class AgentSettings(BaseModel):
    """What one process of the node agent is told."""

    model_config = ConfigDict(extra="forbid")

    kubeconfig: Path
    nodes: list[NodeGroup]
    address_prefix: str = Field(description="first two octets of Node and pod addresses, e.g. 127.20")
    records: Path = Field(description="folder of one file per pod the agent runs")
    logs: Path = Field(description="folder of the containers' output")
    files: Path = Field(description="folder of the Nodes' disks, the pods' volumes and the claims")
    pki: Path = Field(description="folder of the cluster's certificates")
    names: Path = Field(description="folder of the files that say where Services' names lead")
    service_network: str = Field(description="addresses of Services, e.g. 127.20.128.0/17")
    health_port: int = Field(description="port on 127.0.0.1 of /healthz and /readyz")
    kubelet_port: int = Field(description="port on the Nodes' addresses at which the API server asks for logs")
    backoff_scale: float = Field(1.0, gt=0, le=1, description="scales the restart back-off of 10 s to 300 s")
    heartbeat: float = Field(10.0, gt=0, description="seconds between renewals of the Nodes' leases")
