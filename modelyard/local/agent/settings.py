"""What the node agent is told."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from modelyard.local.settings import NodeGroup


class AgentSettings(BaseModel):
    """One agent process."""

    model_config = ConfigDict(extra="forbid")

    kubeconfig: Path
    nodes: list[NodeGroup]
    address_prefix: str = Field(description="first two octets of Node and pod addresses, e.g. 127.20")
    records: Path = Field(description="folder of one file per pod the agent runs")
    logs: Path = Field(description="folder of the containers' output")
    health_port: int = Field(description="port on 127.0.0.1 of /healthz and /readyz")
    backoff_scale: float = Field(1.0, gt=0, le=1, description="scales the restart back-off of 10 s to 300 s")
    heartbeat: float = Field(10.0, gt=0, description="seconds between renewals of the Nodes' leases")
