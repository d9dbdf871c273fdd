"""``modelyard exporter``: serve the desired-replica gauges for HPA, KEDA and dashboards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Annotated

import typer


def exporter(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8443,
    instance: Annotated[
        str | None,
        typer.Option(
            envvar="CONTROLLER_INSTANCE",
            help="Only resources labelled wva.llmd.ai/controller-instance with this value; unset: unlabelled ones.",
        ),
    ] = None,
    watch_namespace: Annotated[
        str | None, typer.Option(envvar="WATCH_NAMESPACE", help="Only this namespace; unset: all.")
    ] = None,
) -> None:
    """Serve wva_desired_replicas and its companions from the status of the resources, until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(host, port, instance, watch_namespace))


async def _serve(host: str, port: int, instance: str | None, watch_namespace: str | None) -> None:
    from modelyard.autoscaling.live.exporter import serve
    from modelyard.cluster import Cluster, ClusterSettings

    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    async with Cluster.connect(ClusterSettings()) as cluster:
        await serve(cluster, host, port, instance=instance, watch_namespace=watch_namespace)
