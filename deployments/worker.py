"""Prefect's own worker with the profile ``config/prefect/worker.env``, and supervision next to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import httpx

from deployments.child import ChildProcess
from deployments.profile import POOL, ROOT, WORKER_PROFILE, describe_server_problem, environment, free_port
from modelyard.cluster import Holder
from modelyard.ports import check_listenable, describe_listen_error

MAX_CLOCK_SKEW = 10.0
"""Seconds by which this machine's clock may differ from the Prefect server's."""

FIRST_PAUSE = 10.0
"""Seconds from the pass before a worker starts to the next one: the runs that it starts need the processor first."""
KUBERNETES_PACKAGE = "prefect_kubernetes"


class NoServer(RuntimeError):
    """The environment names no Prefect server that could be used; the message says what to do."""


class MissingPackage(RuntimeError):
    """Prefect's package for workers of the pool's type is not installed; the message says what to do."""


class PrefectWorker(ChildProcess):
    """One worker. Use as a context manager, sync or async. Stopped, its runs give up their lease on the way."""

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
        super().__init__(
            "the Prefect worker",
            ["-m", "deployments.command", "worker", "--pool", pool],
            env=env,
            log=home / "worker.log",
            cwd=ROOT,  # where the paths in prefect.yaml begin
            health=f"http://127.0.0.1:{port}/health",
        )


def become(pool: str) -> None:
    """Supervise the pool once, start supervision next to this process, and become Prefect's worker.

    The first pass comes before the worker polls, so that runs whose time has passed are not started. It waits for a
    server that does not answer yet. It is done here, so that a worker that replaces a dead one imports Prefect once.
    Raises ``NoServer`` and ``MissingPackage``.
    """
    env = worker_environment()
    os.environ.update(env)
    # Not before: Prefect reads its settings when it is imported.
    from prefect.cli import app

    from deployments.supervision import run_once

    skew = run_once(pool)
    require_kubernetes_package(pool)
    supervise = [sys.executable, "-m", "deployments.command", "supervise", "--pool", pool]
    subprocess.Popen([*supervise, "--worker-pid", str(os.getpid())])
    # Prefect hands a SIGTERM on as a SIGINT; a script's background jobs are started deaf to that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if abs(skew) > MAX_CLOCK_SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        print(
            f"error: this machine's clock is {abs(skew):.0f} s {ahead} the Prefect server's, whose time counts; set it",
            file=sys.stderr,
            flush=True,
        )
        # The worker asks for runs that are due by its own clock: one that is ahead would claim hours of shifts.
        env["PREFECT_WORKER_PREFETCH_SECONDS"] = str(float(env["PREFECT_WORKER_PREFETCH_SECONDS"]) - skew)
        os.execve(sys.executable, [sys.executable, "-m", "prefect", *worker_arguments(pool, env)], env)
    sys.argv = ["prefect", *worker_arguments(pool, env)]
    app()


def require_kubernetes_package(pool: str) -> None:
    """Raise ``MissingPackage`` if the pool has type kubernetes and Prefect's package for it is not installed."""
    if find_spec(KUBERNETES_PACKAGE) is not None:
        return
    # Their import takes seconds.
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException

    pool_type = None
    # A server that is away is the worker's to wait for.
    with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        pool_type = client.read_work_pool(pool).type
    if pool_type == "kubernetes":
        raise MissingPackage(
            f"work pool {pool} has type {pool_type}, and the package prefect-kubernetes is not installed; install it "
            "from the checkout with `pip install -c constraints.txt -e '.[kubernetes-worker]'`"
        )


def worker_environment() -> dict[str, str]:
    """Return this process's environment with the worker's profile. Raises ``NoServer`` if it names no server."""
    env = environment(WORKER_PROFILE)
    if problem := describe_server_problem(env.get("PREFECT_API_URL")):
        raise NoServer(problem)
    return env


def worker_arguments(pool: str, env: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``prefect`` for a worker of the pool's type in this process, under a name that says so.

    A pool that does not exist is not created with Prefect's open template, and no package is installed.
    """
    name = f"{Holder.here()}_{uuid4().hex[:8]}".replace("/", ".")
    arguments = ["worker", "start", "--pool", pool, "--name", name, "--no-create-pool-if-not-found"]
    arguments += ["--install-policy", "never"]
    host, port = env["PREFECT_WORKER_WEBSERVER_HOST"], int(env.get("PREFECT_WORKER_WEBSERVER_PORT", "8080"))
    try:
        check_listenable(host, port)
    except (OSError, OverflowError) as error:
        remedy = "set PREFECT_WORKER_WEBSERVER_PORT to another one"
        print(f"warning: no health endpoint: {describe_listen_error(host, port, error, remedy)}", flush=True)
        return arguments
    return [*arguments, "--with-healthcheck"]
