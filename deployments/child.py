"""Child processes: commands that run to their end, and long-running ones with a log, stopped by their ids."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import urllib3

from modelyard.local import Startable, spawn, tail


class ChildFailed(RuntimeError):
    """A child process ended or never became ready; the message has the end of its log."""


class ChildProcess(Startable):
    """A child process in a process group of its own. It is ready when its ``health`` URL, if any, answers 200."""

    start_timeout = 60.0
    stop_grace = 5.0
    stop_group = False
    """Ask the processes that it started to end with it."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        health: str = "",
    ) -> None:
        """``arguments`` are those of this interpreter."""
        self.name, self.log, self.environment = name, log, dict(env)
        self._arguments, self._cwd, self._health = arguments, cwd, health
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises ``ChildFailed`` when the child was not started."""
        if self._process is None:
            raise ChildFailed(f"{self.name} is not running")
        return self._process.pid

    def launch(self) -> None:
        self._process = spawn([sys.executable, *self._arguments], self.log, env=self.environment, cwd=self._cwd)

    def wait(self) -> None:
        """Wait until it is ready. Raises ``ChildFailed`` when it ends or needs more than ``start_timeout`` seconds."""
        deadline = time.monotonic() + self.start_timeout
        while not self.healthy():
            if self._process is None or self._process.poll() is not None:
                raise self._failure(f"ended with code {self._process.returncode if self._process else None}")
            if time.monotonic() > deadline:
                raise self._failure(f"does not answer at {self._health} after {self.start_timeout:.0f} s")
            time.sleep(0.2)

    def _failure(self, problem: str) -> ChildFailed:
        return ChildFailed(f"{self.name} {problem}. The end of {self.log}:\n{tail(self.log, 20)}")

    def start(self) -> Self:
        """Start it and wait until it is ready. Nothing is left running when that fails."""
        self.launch()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self) -> bool:
        try:
            return not self._health or urllib3.request("GET", self._health, timeout=2, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to it and all that it started, as when a host crashes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=60)

    def stop(self) -> None:
        """Ask it to end, and kill what is left after ``stop_grace`` seconds; safe to call twice."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                (os.killpg if self.stop_group else os.kill)(self._process.pid, signal.SIGTERM)
                self._process.wait(self.stop_grace)
        self.kill()


async def run_command(
    *command: str,
    env: Mapping[str, str],
    cwd: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    timeout: float | None = None,
) -> str:
    """Run a command to its end, and report each line of its output; return the output. Raises ``ChildFailed``."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    name, lines = f"`{shlex.join(command[:4])} ...`", list[str]()
    try:
        async with asyncio.timeout(timeout):
            async for line in process.stdout:
                lines.append(line.decode(errors="replace").rstrip())
                say(lines[-1])
            code = await process.wait()
    except TimeoutError:
        raise ChildFailed(f"{name} has not finished within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise ChildFailed("\n".join([f"{name} exited with code {code}:", *lines[-50:]]))
    return "\n".join(lines)
