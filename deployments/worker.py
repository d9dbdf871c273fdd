"""A process worker with the profile ``config/prefect/worker.env``: it starts the flow runs of the work pool.

``python -m deployments.worker`` runs one in this terminal; ``PrefectWorker`` is for the demo and the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from deployments.child import Child, ChildFailed
from deployments.profile import WORKER_PROFILE, environment, free_port

POOL = "modelyard"
LIMIT = 9
"""Flow runs at a time: of both shifts the run, its prefetched successor and a standby; a run by hand, maintenance, and
one to spare."""
START_TIMEOUT = 60.0
STOP_GRACE = 20.0


class PrefectWorker:
    """One process worker. Use as a context manager, sync or async."""

    def __init__(
        self,
        api_url: str,
        home: Path,
        *,
        pool: str = POOL,
        limit: int = LIMIT,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._health = f"http://127.0.0.1:{free_port()}/health"
        settings = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": api_url,
            "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
            "PREFECT_WORKER_WEBSERVER_PORT": str(httpx.URL(self._health).port),
            **(extra or {}),
        }
        self.child = Child(
            "the Prefect worker",
            worker_arguments(pool, limit),
            env=environment(WORKER_PROFILE, settings),
            log=home / "worker.log",
        )

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.child.start()

    def wait(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until it polls for work. Raises ``ChildFailed`` when it ends, or after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.healthy():
            self.child.check()
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"the Prefect worker is not polling after {timeout:.0f} s. "
                    f"The end of {self.child.log}:\n{self.child.log_tail()}"
                )
            time.sleep(0.2)

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Start it and wait until it polls."""
        self.launch()
        try:
            self.wait(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self) -> bool:
        """Whether it has polled lately."""
        try:
            return httpx.get(self._health, timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL, flow runs included: the crash of a host."""
        self.child.kill()

    def stop(self) -> None:
        """Stop it and its flow runs, which give up their lease on the way; safe to call twice."""
        self.child.stop(STOP_GRACE, group=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def worker_arguments(pool: str, limit: int) -> list[str]:
    """The worker's command line after ``python``."""
    return [
        *("-m", "prefect", "worker", "start", "--with-healthcheck", "--install-policy", "never"),
        *("--pool", pool, "--type", "process", "--limit", str(limit)),
    ]


def main() -> None:
    """Become a worker with the profile, in this process."""
    options = argparse.ArgumentParser(prog="python -m deployments.worker", description=__doc__)
    options.add_argument("--pool", default=POOL, help="work pool (default: %(default)s)")
    options.add_argument("--limit", type=int, default=LIMIT, help="flow runs at a time (default: %(default)s)")
    given = options.parse_args()
    env = environment(WORKER_PROFILE)
    if not env.get("PREFECT_API_URL"):
        options.error("PREFECT_API_URL is not set; `python -m deployments.server` prints it")
    os.execve(sys.executable, [sys.executable, *worker_arguments(given.pool, given.limit)], env)


if __name__ == "__main__":
    main()
