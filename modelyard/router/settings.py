"""Settings of a router process: where it listens, and its limits, each with the answer beyond it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from modelyard.objects.cli_marker import Cli

_Port = Annotated[int, Field(ge=0, le=65535)]
_Limit = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(ge=0)]


class RouterSettings(BaseModel):
    """Sizes in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: _Port = Field(8080, description="port to listen on; 0: any free one")
    metrics_port: _Port = Field(
        9090,
        description="port of /metrics, /healthz and /readyz (the latter two are on the other port too); 0: any"
        " free one",
    )
    ext_proc_port: _Port | None = Field(
        None, description="port at which gateways may ask for a pod (gRPC, ext_proc); unset: none"
    )
    tls_cert: str = Field("", description="file of the port's certificate (chain), with the key; unset: plain HTTP")
    tls_key: str = Field("", description="file of the certificate's key")
    verify_pods: bool = Field(
        True, description="verify the certificates of pods of a ModelServer with workloadPort.protocol https"
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="processes behind the port; they share budgets and metrics, and each has a part of the limits and"
        " its own view of load and prefixes",
    )
    configuration: Annotated[str, Cli("--config")] = Field(
        "", description="configuration file, read again when it changes; unset: the defaults"
    )
    namespaces: tuple[str, ...] = Field((), description="only routes and servers of this namespace; unset: all")
    controller_namespace: str = Field(
        "workload-variant-autoscaler-system",
        description="namespace of the controller, where holders of model names are recorded",
    )
    max_body: _Limit = Field(32 * 2**20, description="limit of a request's body in bytes; beyond: 413")
    max_bodies: _Limit = Field(
        512 * 2**20,
        description="limit in bytes of the bodies of all requests in progress and of answers that are kept, three"
        " quarters of it for one namespace; beyond: 503",
    )
    max_requests: _Limit = Field(
        10_000, description="limit of requests in progress, three quarters of it for one namespace; beyond: 503"
    )
    client_share: Annotated[float, Field(ge=0.01, le=1)] = Field(
        0.5,
        description="share of both limits for requests of one address whose bodies are still arriving; beyond: 429;"
        " 1: no limit",
    )
    max_idle: Annotated[int, Field(ge=0)] = Field(
        2000,
        description="limit of connections of one address without a request; beyond, one is closed; 0: no limit",
    )
    body_seconds: _Seconds = Field(60, description="time limit in seconds for a request's body; beyond: 408")
    idle_seconds: _Seconds = Field(
        75,
        description="time limit in seconds for the head of a request, on a new connection or one kept alive; beyond:"
        " the connection is closed",
    )
    connect_seconds: _Seconds = Field(
        5, description="time limit in seconds for a pod to take a connection; beyond: the next pod"
    )
    head_seconds: _Seconds = Field(
        600,
        description="time limit in seconds for the head of an engine's answer, where the ModelServer has no"
        " trafficPolicy.timeout; beyond: 504",
    )
    stall_seconds: _Seconds = Field(
        300,
        description="seconds without a byte from the engine within an answer, or taken by the client, after which the"
        " stream is broken off",
    )
    wait_seconds: _Seconds = Field(
        120, description="seconds that a request waits for the first pod of a ModelServer at zero; beyond: 503"
    )
    max_waiting: Annotated[int, Field(ge=0)] = Field(
        1000,
        description="limit of requests that wait for a first pod, half of it for one namespace and a quarter for one"
        " ModelServer; beyond: 503",
    )
    poll_seconds: _Seconds = Field(1, description="seconds between two reads of the engines' metrics")
    leave_seconds: _Seconds = Field(
        5, description="seconds after SIGTERM in which new connections are still taken, until Services have noticed"
    )
    drain_seconds: _Seconds = Field(300, description="seconds after that until requests in progress are broken off")
    log: Annotated[Literal["text", "json", "none"], Cli("--access-log")] = Field(
        "text", description="access log on standard output: text, json or none"
    )
