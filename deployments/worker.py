"""A process worker with the profile ``config/prefect/worker.env``: it starts the flow runs and looks after them.

``modelyard worker`` runs one in this terminal; ``PrefectWorker`` is for the demo and the tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from deployments.child import Child, Service
from deployments.profile import POOL, ROOT, WORKER_PROFILE, environment, free_port
from modelyard.objects.urls import describe_url_problem


class NoServer(RuntimeError):
    """The environment names no Prefect server that could be used; the message says what to do."""


class PrefectWorker(Service):
    """One process worker. Use as a context manager, sync or async. Stopped, its runs give up their lease on the way."""

    start_timeout = 180.0
    """It polls within some seconds, and on a busy machine within some tens of them. One that ended is told at once."""
    stop_grace = 20.0
    stop_group = True

    def __init__(self, api_url: str, home: Path, *, pool: str = POOL, extra: Mapping[str, str] | None = None) -> None:
        port = free_port()
        settings = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": api_url,
            "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
            "PREFECT_WORKER_WEBSERVER_PORT": str(port),
            **(extra or {}),
        }
        env = environment(WORKER_PROFILE, settings)
        child = Child(
            "the Prefect worker",
            ["-m", "deployments.command", "worker", "--pool", pool],
            env=env,
            log=home / "worker.log",
            cwd=ROOT,  # where the paths in prefect.yaml begin
        )
        super().__init__(child, f"http://127.0.0.1:{port}/health", "is not polling")


def become(pool: str, limit: int) -> None:
    """Be a worker with the profile, in this process. Raises ``NoServer``."""
    os.environ.update(environment(WORKER_PROFILE))
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        raise NoServer("PREFECT_API_URL is not set; `modelyard server` prints it")
    if problem := describe_url_problem(url):
        raise NoServer(f"PREFECT_API_URL {problem}")
    # Prefect hands a SIGTERM on as a SIGINT; a script's background jobs are started deaf to that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Not before: Prefect reads its settings when it is imported.
    from deployments.pool import serve

    serve(pool, limit)
