"""Everything of Prefect that Modelyard needs, on this machine: server, deployments and automations, worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from deployments.profile import WORKER_PROFILE, environment
from deployments.server import PrefectServer
from deployments.worker import PrefectWorker

BOOTSTRAP_TIMEOUT = 400.0


class StackFailed(RuntimeError):
    """A part of the stack did not come up; the message says which, and why."""


class PrefectStack:
    """A server on a free port with its data in ``home``, what ``prefect_file`` declares deployed on it, and a worker.

    ``worker_env`` is what the flow runs need to know: KUBECONFIG, PROMETHEUS_BASE_URL and the like.
    ``say`` is told about the progress, a line at a time.
    """

    def __init__(
        self, home: Path, *, prefect_file: Path, worker_env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self.home = home
        self.server = PrefectServer(home)
        self.worker = PrefectWorker(self.server.api_url, home, extra=worker_env)
        self._prefect_file = prefect_file
        self._say = say

    def launch(self) -> None:
        """Begin to start the server without waiting for it: it needs ten seconds, which others can use."""
        self.server.launch()

    def start(self) -> None:
        """Start the rest. Raises ``ChildFailed`` or ``StackFailed``; nothing is left running then."""
        try:
            self.server.wait()
            self._say(f"Prefect server: {self.server.ui_url} (for this machine only, and everybody on it: no password)")
            self._bootstrap()
            self.worker.start()
            self._say("Prefect worker: polling")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the worker and its runs, then the server; safe to call twice."""
        try:
            self.worker.stop()
        finally:
            self.server.stop()

    def _bootstrap(self) -> None:
        # A process of its own: Prefect binds its settings to the process, and the caller may be using another server.
        known = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.server.api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "DO_NOT_TRACK": "1",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "deployments.command", "bootstrap", "--prefect-file", self._prefect_file],
                env=environment(WORKER_PROFILE, known),
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
            raise StackFailed(f"the bootstrap of {self.server.api_url} failed:\n{done.stderr.strip()}")
