"""A long-running child process with a log: started, watched, stopped by its id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from modelyard.local.processes import spawn


class ChildFailed(RuntimeError):
    """A child process ended or never became ready; the message has the end of its log."""


class Child:
    """One child process in a process group of its own."""

    def __init__(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._arguments = list(arguments)
        self.environment = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises ``ChildFailed`` when the child was not started."""
        if self._process is None:
            raise ChildFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it with this interpreter."""
        self._process = spawn([sys.executable, *self._arguments], self.log, env=self.environment)

    def check(self) -> None:
        """Raise ``ChildFailed`` when it has ended."""
        if not self.running:
            code = self._process.returncode if self._process else None
            raise ChildFailed(f"{self.name} ended with code {code}. The end of {self.log}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def kill(self) -> None:
        """End it at once, without warning, together with whatever it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=10)

    def stop(self, grace: float, *, group: bool = False) -> None:
        """Ask it (``group``: and all it started) to end, wait up to ``grace`` seconds, then kill what is left."""
        if self._process is None:
            return
        if self.running:
            with suppress(ProcessLookupError):
                if group:
                    os.killpg(self._process.pid, signal.SIGTERM)
                else:
                    self._process.terminate()
            deadline = time.monotonic() + grace
            while self.running and time.monotonic() < deadline:
                time.sleep(0.05)
        self.kill()
