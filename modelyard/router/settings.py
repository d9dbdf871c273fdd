"""Settings of a router process: where it listens, and its limits, each with the answer beyond it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from modelyard.objects import CONTROLLER_NAMESPACE, Cli

_Port = Annotated[int, Field(ge=0, le=65535)]
_Limit = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(ge=0)]


class RouterSettings(BaseModel):
    """Sizes in bytes, times in seconds. A number after "beyond" is the status of the answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: _Port = Field(8080, description="port to listen on; 0: any free one")
    metrics_port: _Port = Field(9090, description="port of /metrics, /healthz and /readyz; 0: any free one")
    ext_proc_port: _Port | None = Field(
        None, description="port at which gateways may ask for a pod (gRPC, ext_proc); unset: none"
    )
    tls_cert: str = Field("", description="file of the port's certificate (chain); unset: plain HTTP")
    tls_key: str = Field("", description="file of the certificate's key")
    verify_pods: bool = Field(True, description="verify certificates of pods with workloadPort.protocol https")
    # Processes share the budgets and show their metrics together; load and prefixes each sees for itself.
    workers: int = Field(1, ge=1, le=64, description="processes behind the port, each with a part of the limits")
    configuration: Annotated[str, Cli("--config")] = Field(
        "", description="configuration file, read again when it changes; unset: the defaults"
    )
    namespaces: tuple[str, ...] = Field((), description="only routes and servers of this namespace; unset: all")
    controller_namespace: str = Field(
        CONTROLLER_NAMESPACE,
        description="namespace of the controller, where holders of model names are recorded",
    )
    max_body: _Limit = Field(32 * 2**20, description="bytes of a request's body; beyond: 413")
    max_bodies: _Limit = Field(
        512 * 2**20,
        description="bytes of all bodies and kept answers in progress, of one namespace three quarters; beyond: 503",
    )
    max_requests: _Limit = Field(
        10_000, description="requests in progress, of one namespace three quarters; beyond: 503"
    )
    client_share: float = Field(
        0.5,
        ge=0.01,
        le=1,
        description="share of both for requests of one address that are still arriving; beyond: 429; 1: all",
    )
    max_idle: int = Field(
        2000, ge=0, description="connections of one address without a request; beyond, one is closed; 0: no limit"
    )
    body_seconds: _Seconds = Field(60, description="time limit in seconds for a request's body; beyond: 408")
    idle_seconds: _Seconds = Field(
        75, description="time limit in seconds for the head of a request; beyond, the connection is closed"
    )
    connect_seconds: _Seconds = Field(5, description="time limit in seconds for a pod to connect; beyond: the next pod")
    head_seconds: _Seconds = Field(
        600,
        description="time limit in seconds for an engine's answer to begin, where its server sets none; beyond: 504",
    )
    stall_seconds: _Seconds = Field(
        300, description="seconds without a byte from the engine or to the client; beyond, the stream is broken off"
    )
    wait_seconds: _Seconds = Field(
        120, description="seconds that a request waits for the first pod of a server at zero; beyond: 503"
    )
    max_waiting: int = Field(
        1000, ge=0, description="requests that wait so, of one namespace half, of one server a quarter; beyond: 503"
    )
    poll_seconds: _Seconds = Field(1, description="seconds between two reads of the engines' metrics")
    # In this time Services learn that the process is not ready.
    leave_seconds: _Seconds = Field(5, description="seconds after SIGTERM in which new connections are still taken")
    drain_seconds: _Seconds = Field(300, description="seconds after that until requests in progress are broken off")
    log: Annotated[Literal["text", "json", "none"], Cli("--access-log")] = Field(
        "text", description="access log on standard output: text, json or none"
    )
