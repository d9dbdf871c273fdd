"""Several router processes behind one port: the kernel deals out the connections, this starts and ends the processes.

One that dies is replaced; what it was answering is lost with it, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from prometheus_client import multiprocess

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.ports import describe_listen_error
from modelyard.router.process.limits import SharedLimits
from modelyard.router.process.service import PORTS, RouterError, RouterProcess, serve
from modelyard.router.settings import RouterSettings

log = logging.getLogger(__name__)

AGAIN = 1.0
"""Seconds after which a process that died is replaced."""
SHARED = "MODELYARD_ROUTER_SHARED"
METRICS = "PROMETHEUS_MULTIPROC_DIR"


def share(settings: RouterSettings) -> RouterSettings:
    """The settings of one worker: its part of what is bounded for all."""
    workers = settings.workers
    return settings.model_copy(
        update={
            "max_bodies": max(2 * settings.max_body, settings.max_bodies // workers),
            "max_requests": max(1, settings.max_requests // workers),
            "max_waiting": settings.max_waiting // workers,
            "max_idle": -(-settings.max_idle // workers),
        }
    )


async def supervise(settings: RouterSettings) -> None:
    """Run the workers until SIGTERM or an interrupt, and until the last has ended. Raises ``RouterError``."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    with tempfile.TemporaryDirectory(prefix="modelyard-router-") as folder, contextlib.ExitStack() as held:
        port, metrics = (
            held.enter_context(_reserved(settings.host, one)) for one in (settings.port, settings.metrics_port)
        )
        part = share(settings).model_copy(update={"port": port, "metrics_port": metrics})
        told = part.model_dump_json()
        environment = {**os.environ, SHARED: folder, METRICS: folder}
        log.info("%d workers on http://%s:%d, metrics on port %d", settings.workers, settings.host, port, metrics)
        async with asyncio.TaskGroup() as group:
            for number in range(settings.workers):
                group.create_task(_keep(number, told, environment, stop))


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind((host, port))
        except (OSError, OverflowError) as error:
            raise RouterError(describe_listen_error(host, port, error, PORTS)) from None
        yield held.getsockname()[1]


async def _keep(number: int, told: str, environment: dict[str, str], stop: asyncio.Event) -> None:
    while not stop.is_set():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "modelyard.router.process.workers", told, env=environment, stdin=subprocess.PIPE
        )
        ended, leave = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait({ended, leave}, return_when=asyncio.FIRST_COMPLETED)
        leave.cancel()
        if not ended.done():
            process.send_signal(signal.SIGTERM)
        status = await ended
        multiprocess.mark_process_dead(process.pid, environment[METRICS])  # type: ignore[no-untyped-call]
        if not stop.is_set():
            log.error("worker %d (process %d) ended with status %d", number, process.pid, status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):
                    await stop.wait()


async def _work(settings: RouterSettings) -> None:
    router = RouterProcess(settings, limits=SharedLimits(Path(os.environ[SHARED])))
    stop = partial(asyncio.get_running_loop().call_soon_threadsafe, router.stop)
    # The pipe ends with the parent, however that ends.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), stop()), daemon=True).start()
    async with Cluster.connect(ClusterSettings()) as cluster:
        await serve(router, cluster)


def main() -> None:
    """One worker; its settings are the argument."""
    import uvloop

    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s [{os.getpid()}] %(message)s")
    settings = RouterSettings.model_validate_json(sys.argv[1])
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(settings))


if __name__ == "__main__":
    main()
