"""`modelyard router`: the data plane of ModelRoutes and ModelServers, as one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from modelyard.cli.options import Context
from modelyard.router.settings import RouterSettings

app = typer.Typer(add_completion=False)
_D = RouterSettings()


@app.command()
def router(
    typed: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _D.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = _D.port,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics, /healthz and /readyz; 0: any free one.")
    ] = _D.metrics_port,
    ext_proc_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Also pick pods for gateways on this port (gRPC, ext_proc)."),
    ] = _D.ext_proc_port,
    tls_cert: Annotated[str, typer.Option(help="File of the certificate; with --tls-key the port speaks TLS.")] = "",
    tls_key: Annotated[str, typer.Option(help="File of its key.")] = "",
    verify_pods: Annotated[
        bool, typer.Option(help="Whether certificates of pods that are served by https must be good.")
    ] = True,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes behind the port.")] = _D.workers,
    config: Annotated[str, typer.Option(help="Configuration file; read again when it changes.")] = _D.configuration,
    namespace: Annotated[
        list[str] | None,
        typer.Option("-n", "--namespace", help="Only routes and servers of this namespace; repeat. Unset: all."),
    ] = None,
    controller_namespace: Annotated[
        str, typer.Option(help="Namespace of the controller, where holders of model names are recorded.")
    ] = _D.controller_namespace,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request's body; beyond: 413.")] = _D.max_body,
    max_bodies: Annotated[
        int,
        typer.Option(min=1, help="Bytes of all bodies in progress, of one namespace three quarters; beyond: 503."),
    ] = _D.max_bodies,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests in progress, of one namespace three quarters; beyond: 503.")
    ] = _D.max_requests,
    client_share: Annotated[
        float,
        typer.Option(
            min=0.01, max=1, help="Of both, for what is on its way here from one address; beyond: 429. 1: all of it."
        ),
    ] = _D.client_share,
    max_idle: Annotated[
        int,
        typer.Option(min=0, help="Connections of one address without a request; beyond, one is closed. 0: any number."),
    ] = _D.max_idle,
    body_seconds: Annotated[float, typer.Option(help="Until a body is there; beyond: 408.")] = _D.body_seconds,
    idle_seconds: Annotated[
        float, typer.Option(help="Until the head of a request is there; beyond, the connection is closed.")
    ] = _D.idle_seconds,
    head_seconds: Annotated[
        float,
        typer.Option(help="Until an engine begins its answer, where its server sets no time-out; beyond: 504."),
    ] = _D.head_seconds,
    stall_seconds: Annotated[
        float, typer.Option(help="Without a byte from or to either end of a stream; beyond, it is broken off.")
    ] = _D.stall_seconds,
    wait_seconds: Annotated[
        float, typer.Option(help="That a request waits for the first pod of a server at zero; beyond: 503.")
    ] = _D.wait_seconds,
    max_waiting: Annotated[
        int,
        typer.Option(min=0, help="Requests that wait so, of one namespace half, of one server a quarter; beyond: 503."),
    ] = _D.max_waiting,
    poll_seconds: Annotated[float, typer.Option(help="Between two looks at engines' metrics.")] = _D.poll_seconds,
    leave_seconds: Annotated[
        float, typer.Option(help="After SIGTERM, until no new connections are taken.")
    ] = _D.leave_seconds,
    drain_seconds: Annotated[
        float, typer.Option(help="After that, until requests in progress are broken off.")
    ] = _D.drain_seconds,
    access_log: Annotated[str, typer.Option(help="Access log on standard output: text, json or none.")] = _D.log,
    context: Context = None,
) -> None:
    """Send requests for a model name to the best pod, as ModelRoutes and ModelServers say, until stopped."""
    import uvloop

    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.router.configured import ConfigurationFile
    from modelyard.router.service import RouterProcess, serve
    from modelyard.router.workers import supervise

    if access_log not in ("text", "json", "none"):
        raise typer.BadParameter("text, json or none", param_hint="--access-log")
    if config:
        try:
            ConfigurationFile(Path(config))
        except (OSError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--config") from None
    renamed = {"configuration": config, "namespaces": tuple(namespace or ()), "log": access_log}
    same = {field.name: typed.params[field.name] for field in fields(_D) if field.name in typed.params}
    settings = RouterSettings(**{**same, **renamed})

    async def run() -> None:
        if settings.workers > 1:
            await supervise(settings)
        else:
            async with Cluster.connect(ClusterSettings()) as cluster:
                await serve(RouterProcess(settings), cluster)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
