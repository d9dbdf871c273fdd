"""Long-running child processes with a log: started, watched, stopped by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

from modelyard.local.paths import tail
from modelyard.local.processes import Startable, spawn


class ChildFailed(RuntimeError):
    """A child process ended or never became ready; the message has the end of its log."""


class Child:
    """One child process in a process group of its own."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._cwd = cwd
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
        self._process = spawn([sys.executable, *self._arguments], self.log, env=self.environment, cwd=self._cwd)

    def check(self) -> None:
        """Raise ``ChildFailed`` when it has ended."""
        if not self.running:
            code = self._process.returncode if self._process else None
            raise self.failure(f"ended with code {code}")

    def failure(self, what: str) -> ChildFailed:
        """The error that says what it did, with the end of its log."""
        return ChildFailed(f"{self.name} {what}. The end of {self.log}:\n{tail(self.log, 20)}")

    def kill(self) -> None:
        """End it at once, without warning, together with whatever it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=60)

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


class Service(Startable):
    """A child process that answers ``health`` with 200 while it is well. Subclasses say how long it may take."""

    start_timeout: float
    stop_grace: float
    stop_group = False
    """Whether what it started is asked to end with it."""

    def __init__(self, child: Child, health: str, unwell: str) -> None:
        """``unwell`` completes the sentence about a child that does not become ready: it "is not polling"."""
        self.child = child
        self._health = health
        self._unwell = unwell

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.child.start()

    def wait(self) -> None:
        """Wait until it is well. Raises ``ChildFailed`` when it ends, or needs more than ``start_timeout`` seconds."""
        deadline = time.monotonic() + self.start_timeout
        while not self.healthy():
            self.child.check()
            if time.monotonic() > deadline:
                raise self.child.failure(f"{self._unwell} after {self.start_timeout:.0f} s")
            time.sleep(0.2)

    def start(self) -> Self:
        """Start it and wait until it is well. Nothing is left running when that fails."""
        self.launch()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self) -> bool:
        """Whether it says that it is well."""
        try:
            return httpx.get(self._health, timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL, whatever it started included: the crash of a host."""
        self.child.kill()

    def stop(self) -> None:
        """Stop it; safe to call twice."""
        self.child.stop(self.stop_grace, group=self.stop_group)
