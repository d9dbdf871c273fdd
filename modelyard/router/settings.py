"""How a router is run: its limits, each with what is done where it is reached."""

from __future__ import annotations

from dataclasses import dataclass

from modelyard.objects.limits import CONTROLLER_NAMESPACE


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8080
    metrics_port: int = 9090
    """Of /metrics, /healthz and /readyz; the latter two are on ``port`` too. 0: any free one."""
    tls_cert: str = ""
    """File of the certificate (chain) of ``port``, and ``tls_key`` of its key; empty: plain HTTP."""
    tls_key: str = ""
    verify_pods: bool = True
    """Whether certificates of pods with ``workloadPort.protocol: https`` must be good for their addresses."""
    workers: int = 1
    """Processes behind the port. They share the budgets and show their metrics together; each has its own view of load
    and of prefixes, and a part of the bounds below."""
    configuration: str = ""
    """Path of the configuration file; empty: the defaults."""
    namespaces: tuple[str, ...] = ()
    """Where its ModelRoutes and ModelServers are; none: everywhere."""
    controller_namespace: str = CONTROLLER_NAMESPACE
    """Place of the records of which namespace holds which model name; empty: none."""
    max_body: int = 32 * 2**20
    """Of a request; beyond: 413."""
    max_bodies: int = 512 * 2**20
    """Of all requests in progress together, and of answers that are kept; beyond: 503."""
    max_requests: int = 10_000
    """In progress at once; beyond: 503."""
    client_share: float = 0.5
    """Of ``max_bodies`` and ``max_requests``, what requests of one address may take until their bodies are there;
    beyond: 429. 1: all of it."""
    max_idle: int = 2000
    """Connections of one address without (the head of) a request; beyond, one is closed. 0: any number."""
    body_seconds: float = 60.0
    """Until a request's body is there; beyond: 408."""
    idle_seconds: float = 75.0
    """Until the head of a request is there, on a new connection or one kept alive; beyond: it is closed."""
    connect_seconds: float = 5.0
    """Until a pod takes a connection; beyond: the next pod."""
    head_seconds: float = 600.0
    """Until the head of an answer is there, where the ModelServer has no ``trafficPolicy.timeout``; beyond: 504."""
    stall_seconds: float = 300.0
    """Without a byte from the engine within an answer, or taken by the client; beyond: it is broken off."""
    wait_seconds: float = 120.0
    """That a request waits for the first pod of a ModelServer that has none; beyond: 503. 0: it does not wait."""
    max_waiting: int = 1000
    """Requests that wait so, of all ModelServers; a quarter of it for each, half for a namespace. Beyond: 503."""
    poll_seconds: float = 1.0
    """Between two looks at the metrics of the engines."""
    leave_seconds: float = 5.0
    """After SIGTERM, until no new connections are taken: Services learn in this time that it is not ready."""
    drain_seconds: float = 300.0
    """After that, until requests in progress are broken off."""
    ext_proc_port: int | None = None
    """Where gateways may ask for a pod (gRPC, ext_proc); ``None``: they may not."""
    log: str = "text"
    """Access log on standard output: ``text``, ``json`` or ``none``."""
