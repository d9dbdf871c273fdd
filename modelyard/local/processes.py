"""Operating-system processes by identity: start, find again, signal, wait.

A process is known by its pid *and* its start time, so that a recycled pid is never taken for ours. Both survive on
disk, so a restarted supervisor or agent finds the processes of its predecessor. Linux only (/proc and pidfd).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict


class ProcessIdentity(BaseModel):
    """One process, for ever: `started` is its start in clock ticks since boot (field 22 of /proc/PID/stat)."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this pid now; None when there is none (a zombie counts as none)."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid=pid, started=int(fields[19]))

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: int, *, group: bool = False) -> bool:
        """Signal the process (or its whole process group); False when it has gone already."""
        if not self.alive():
            return False
        with suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
            return True
        return False


class Startable(ABC):
    """What is started and stopped: `with` waits for both, `async with` has a thread wait."""

    @abstractmethod
    def start(self) -> Self:
        """Start it and wait until it can be used."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it; safe to call twice."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.stop)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold anything, so count from its end.
    return text.rpartition(")")[2].split()


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; None when it has gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def spawn(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in its own session with output appended to `log`. Raises `OSError`: it cannot be executed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )


async def wait_for_exit(identity: ProcessIdentity) -> None:
    """Return when the process has ended; it need not be our child."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (OSError, AttributeError):
        # No such process any more, or no pidfd on this kernel.
        while identity.alive():  # noqa: ASYNC110 - without pidfd there is nothing that could set an event
            await asyncio.sleep(0.2)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        if not identity.alive():
            return
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def stop(identities: Sequence[ProcessIdentity], grace: float) -> None:
    """Ask processes to end; kill the groups of those that have not after `grace` seconds. Blocks until all are gone."""
    for identity in identities:
        identity.send(signal.SIGTERM)
    if not wait_all_gone(identities, grace):
        for identity in identities:
            identity.send(signal.SIGKILL, group=True)
        wait_all_gone(identities, 10)


def wait_all_gone(identities: Sequence[ProcessIdentity], timeout: float) -> bool:
    """Wait until none of the processes runs; False when some still do after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while any(identity.alive() for identity in identities):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def python_path_environment() -> dict[str, str]:
    """Variables with which a child Python imports this very `modelyard`, wherever it is started."""
    root = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{root}{os.pathsep}{rest}" if rest else root, "PYTHONSAFEPATH": "1"}
