"""What an administrator says about serving: the ConfigMap ``inferenceservice-config``, a JSON document per key. Pure.

It is read in the controller's namespace, where tenants do not write. What is missing or cannot be used has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from modelyard.models.storage import DeliverySettings
from modelyard.objects import DocumentError, first_fault, parse_document

CONFIG_MAP = "inferenceservice-config"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class IngressSettings(_Document):
    """Key ``ingress``: how services are reached from outside."""

    ingress_gateway: str = ""
    local_gateway: str = ""
    local_gateway_service: str = ""
    knative_local_gateway_service: str = ""
    ome_ingress_gateway: str = Field("", description="NAMESPACE/NAME of the Gateway of HTTPRoutes")
    ingress_domain: str = "example.com"
    ingress_class_name: str = ""
    additional_ingress_domains: tuple[str, ...] = ()
    domain_template: str = "{{ .Name }}.{{ .Namespace }}.{{ .IngressDomain }}"
    path_template: str = ""
    url_scheme: str = "http"
    disable_istio_virtual_host: bool = False
    disable_ingress_creation: bool = True
    enable_gateway_api: bool = Field(False, alias="enableGatewayAPI")
    routed: bool = Field(False, description="whether services are behind the router that do not say it themselves")
    router_url: str = Field("", pattern=r"^(https?://[^\s/]+)?$", description="of the router, for their clients")


class KedaSettings(_Document):
    """Key ``kedaConfig``: what KEDA gets where no service says otherwise."""

    prom_server_address: str = "http://prometheus-operated.monitoring.svc.cluster.local:9090"
    custom_prom_query: str = ""
    scaling_threshold: str = ""
    authentication_ref: dict[str, str] = Field(default_factory=dict)
    auth_modes: str = ""


class ProberSettings(_Document):
    """Key ``multinodeProber``: what watches over the engine of a Ray cluster."""

    image: str = ""
    cpu_request: str = "100m"
    memory_request: str = "100Mi"
    cpu_limit: str = "100m"
    memory_limit: str = "100Mi"
    startup_failure_threshold: int = 150
    startup_period_seconds: int = 30
    startup_timeout_seconds: int = 60
    startup_initial_delay_seconds: int = 200


class RdmaProfile(_Document):
    """One entry of the key ``rdmaProfiles``: what fast networking between nodes needs in a container."""

    env: dict[str, str] = Field(default_factory=dict)
    host_path: str = "/dev/infiniband"
    capabilities: tuple[str, ...] = ("IPC_LOCK", "SYS_ADMIN")
    privileged: bool = True


class GateSettings(_Document):
    """Key ``gate``: how an update is compared with what served before it, where there is a Prometheus."""

    enabled: bool = True
    window_seconds: float = Field(120, ge=10, le=3600, description="for so long, from when it is ready")
    requests: float = Field(50, ge=1, description="that each side must have served; fewer are not compared")
    error_rate: float = Field(
        0.05, ge=0, le=1, description="a greater part of them failing than before is worse by that"
    )
    ttft_ratio: float = Field(1.5, ge=1, description="times the mean time to first token of before is too much")
    prom_server_address: str = Field("", description="of Prometheus; without it PROMETHEUS_BASE_URL of the worker")


_HCAS = (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17)
OCI_ROCE = RdmaProfile(
    env={
        "GLOO_SOCKET_IFNAME": "eth0",
        "HCOLL_ENABLE_MCAST_ALL": "0",
        "IB_RX_QUEUE_LEN": "8192",
        "NCCL_CROSS_NIC": "2",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{number}" for number in _HCAS),
        "NCCL_IB_QPS_PER_CONNECTION": "16",
        "NCCL_IB_SL": "0",
        "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
        "NCCL_IB_TC": "41",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_NTHREADS": "16",
        "RX_QUEUE_LEN": "8192",
        "UCX_NET_DEVICES": "eth0",
        "UCX_TLS": "tcp",
        "coll_hcoll_enable": "0",
    }
)


class ServingSettings(_Document):
    """All of it; ``models`` is what holds for the delivery of models, whose folders pods may mount."""

    ingress: IngressSettings = Field(default_factory=IngressSettings)
    keda_config: KedaSettings = Field(default_factory=KedaSettings)
    multinode_prober: ProberSettings = Field(default_factory=ProberSettings)
    rdma_profiles: dict[str, RdmaProfile] = Field(default_factory=lambda: {"oci-roce": OCI_ROCE})
    gate: GateSettings = Field(default_factory=GateSettings)
    models: DeliverySettings = Field(default_factory=DeliverySettings)

    @classmethod
    def read(cls, data: Mapping[str, str] | None) -> tuple[ServingSettings, list[str]]:
        """The settings in the ConfigMap's data, and what is wrong with it: a key of no use counts as absent."""
        found, problems = dict[str, Any](), []
        for name in ("ingress", "kedaConfig", "multinodeProber", "rdmaProfiles", "gate"):
            try:
                document = parse_document((data or {}).get(name, ""))
                if document is not None:
                    cls.model_validate({name: document})
                    found[name] = document
            except (DocumentError, ValidationError) as error:
                fault = first_fault(error) if isinstance(error, ValidationError) else error
                problems.append(f"ConfigMap {CONFIG_MAP}, key {name}: {fault}")
        settings = cls.model_validate(found)
        profiles = {"oci-roce": OCI_ROCE, **settings.rdma_profiles}
        return settings.model_copy(update={"rdma_profiles": profiles}), problems
