"""Everything of Prefect that Modelyard needs, on this machine: server, deployments and automations, worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from deployments.profile import PREFECT_FILE, WORKER_PROFILE, environment
from deployments.server import PrefectServer
from deployments.worker import LIMIT, PrefectWorker

BOOTSTRAP_TIMEOUT = 400.0


class StackFailed(RuntimeError):
    """A part of the stack did not come up; the message says which, and why."""


class PrefectStack:
    """A server on ``port`` (``None``: a free one) with its data in ``home``, bootstrapped, and a worker.

    ``prefect_file`` declares what is deployed (default: the project's own). With ``first_run`` a shift starts as soon
    as the worker polls, instead of when the schedule says.
    ``worker_env`` is what the flow runs need to know: KUBECONFIG, PROMETHEUS_BASE_URL and the like.
    ``say`` is told about the progress, a line at a time.
    """

    def __init__(
        self,
        home: Path,
        port: int | None = None,
        *,
        limit: int = LIMIT,
        prefect_file: Path = PREFECT_FILE,
        first_run: bool = False,
        server_env: Mapping[str, str] | None = None,
        worker_env: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.home = home
        self.server = PrefectServer(home, port, extra=server_env)
        self.worker = PrefectWorker(self.api_url, home, limit=limit, extra=worker_env)
        self._bootstrap_options = ["--prefect-file", str(prefect_file)] + ([] if first_run else ["--no-first-run"])
        self._say = say or (lambda line: None)

    @property
    def api_url(self) -> str:
        """What PREFECT_API_URL must be to use it."""
        return self.server.api_url

    @property
    def ui_url(self) -> str:
        """Where a person looks at it."""
        return self.server.ui_url

    @property
    def client_env(self) -> dict[str, str]:
        """The environment variables a client process needs."""
        return {"PREFECT_API_URL": self.api_url, "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false", "DO_NOT_TRACK": "1"}

    def launch(self) -> None:
        """Begin to start the server without waiting for it: it needs ten seconds, which others can use."""
        self.server.launch()

    def start(self) -> Self:
        """Start all of it. Raises ``ChildFailed`` or ``StackFailed``; nothing is left running then."""
        try:
            if not self.server.child.running:
                self.server.launch()
            self.server.wait()
            self._say(f"Prefect server: {self.ui_url}")
            self._bootstrap()
            self.worker.start()
            self._say("Prefect worker: polling")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the worker and its runs, then the server; safe to call twice."""
        try:
            self.worker.stop()
        finally:
            self.server.stop()

    def _bootstrap(self) -> None:
        # A process of its own: Prefect binds its settings to the process, and the caller may be using another server.
        try:
            done = subprocess.run(
                [sys.executable, "-m", "deployments.bootstrap", *self._bootstrap_options],
                env=environment(WORKER_PROFILE, {"PREFECT_HOME": str(self.home), **self.client_env}),
                capture_output=True,
                text=True,
                timeout=BOOTSTRAP_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StackFailed(f"the bootstrap has not finished within {BOOTSTRAP_TIMEOUT:.0f} s") from None
        for line in done.stdout.splitlines():
            self._say(line)
        if done.returncode:
            raise StackFailed(f"the bootstrap of {self.api_url} failed:\n{done.stderr.strip()}")

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
