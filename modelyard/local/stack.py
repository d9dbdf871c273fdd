"""`LocalStack`: a local cluster as an object.

    with LocalStack(StackSettings(components=list(CONTROL_PLANE)), directory=folder) as stack:
        ...  # stack.kubeconfig, stack.prometheus_url

The work is done by a supervisor process (`modelyard.local.supervisor`); this object starts it, reads what it reports
and signals it. Any number of objects and processes may look at one instance.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from modelyard.local import processes, state as states
from modelyard.local.binaries import ensure
from modelyard.local.paths import InstancePaths, LocalClusterError, instance_dir, tail, write_atomically
from modelyard.local.processes import ProcessIdentity, Startable, python_path_environment
from modelyard.local.settings import Component, StackSettings
from modelyard.local.state import Phase, StackState, stop_leftovers

Progress = Callable[[str], None]
"""Called with one line of text whenever there is something to tell a waiting person."""

_POLL = 0.05


def _silent(line: str) -> None:
    del line


class LocalStack(Startable):
    """One instance of the local cluster, running or not."""

    def __init__(
        self,
        settings: StackSettings | None = None,
        *,
        name: str = "default",
        directory: Path | None = None,
        bound_to_this_process: bool = True,
    ) -> None:
        """Describe an instance; nothing happens before `start`.

        Instances of different names live side by side. `directory` is its folder (default: one by its name under
        `MODELYARD_HOME`). `bound_to_this_process`: it ends when this process does, however that happens.
        """
        self.settings = settings or StackSettings()
        self.name = name
        self.paths = InstancePaths(instance_dir(name, directory))
        self._bound = bound_to_this_process
        self._supervisor: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> StackState | None:
        """What the supervisor last reported; None when this instance has never been started (or was removed)."""
        return states.load(self.paths.state)

    @property
    def running(self) -> bool:
        """Whether a supervisor runs this instance."""
        try:
            descriptor = os.open(self.paths.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def stored_settings(self) -> StackSettings | None:
        """Settings of the last start, without the programs' paths; None when there was none."""
        try:
            found = StackSettings.model_validate_json(self.paths.settings.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return found.model_copy(update={"binaries": {}})

    @property
    def kubeconfig(self) -> Path:
        return self.paths.kubeconfig

    @property
    def server(self) -> str:
        return self._component(Component.APISERVER).address

    @property
    def prometheus_url(self) -> str:
        return self._component(Component.PROMETHEUS).address

    def start(self, progress: Progress = _silent, timeout: float = 180) -> Self:
        """Start everything and wait until it is ready; a running instance is left as it is.

        Raises `LocalClusterError`: programs are missing, or the cluster did not become ready within `timeout` seconds
        (obtaining programs not counted).
        """
        self.prepare(progress)
        if not self.running:
            self._spawn()
        self.wait_until_ready(progress, timeout)
        return self

    def prepare(self, progress: Progress = _silent) -> None:
        """Find or obtain the programs and write the supervisor's settings.

        Raises `BinaryNotFound`; `LocalClusterError`: not on Linux.
        """
        if sys.platform != "linux":
            raise LocalClusterError(
                f"the local cluster needs Linux (a loopback address for each pod), this is {sys.platform}; "
                "run it in a Linux virtual machine, or use a real cluster by KUBECONFIG"
            )
        if self.running:
            return
        found = ensure(self.settings.programs(), progress)
        settings = self.settings.model_copy(update={"binaries": {name: str(path) for name, path in found.items()}})
        self.paths.root.mkdir(parents=True, exist_ok=True)
        self.paths.root.chmod(0o700)
        write_atomically(self.paths.settings, settings.model_dump_json(indent=1))

    def command(self) -> list[str]:
        """Command line of the supervisor (for running it in the foreground)."""
        argv = [sys.executable, "-m", "modelyard.local.supervisor", str(self.paths.root), "--name", self.name]
        return [*argv, "--parent", str(os.getpid())] if self._bound else argv

    def wait_until_ready(self, progress: Progress = _silent, timeout: float = 180) -> None:
        """Wait until all is ready. Raises `LocalClusterError`: it failed, ended, or took over `timeout` seconds."""
        deadline = time.monotonic() + timeout
        told: set[str] = set()
        while True:
            state = self.state
            if state is not None and state.supervisor.alive():
                for component, own in state.components.items():
                    if own.phase is states.ComponentPhase.READY and component not in told:
                        told.add(component)
                        progress(f"{component} is ready at {own.address}")
                if state.phase is Phase.RUNNING:
                    return
            if not self.running:
                message = state.message if state is not None and state.phase is Phase.FAILED else ""
                log = self.paths.log("supervisor")
                raise LocalClusterError(
                    message or f"the supervisor of {self.paths.root} ended while starting. End of {log}:\n{tail(log)}"
                )
            if time.monotonic() > deadline:
                waiting = [c for c in (state.components if state else {}) if c not in told]
                raise LocalClusterError(
                    f"local cluster {self.name!r} is not ready after {timeout:g} s, still waiting for "
                    f"{', '.join(waiting) or 'the supervisor'}; see the logs in {self.paths.logs}"
                )
            time.sleep(_POLL)

    def stop(self, progress: Progress = _silent, *, keep_data: bool = False, timeout: float = 90) -> None:
        """Stop everything in order, also what a killed supervisor left; without `keep_data` remove the instance.

        Raises `LocalClusterError`: the supervisor does not end within `timeout` seconds.
        """
        state = self.state
        if self.running:
            self._stop_supervisor(state, progress, timeout)
        if self._supervisor is not None:
            self._supervisor.wait(timeout)
            self._supervisor = None
        left = stop_leftovers(state, self.paths)
        if left:
            progress(f"stopped {left} processes that no supervisor ran any more")
        if not keep_data:
            shutil.rmtree(self.paths.root, ignore_errors=True)

    def _stop_supervisor(self, state: StackState | None, progress: Progress, timeout: float) -> None:
        if state is None or not state.supervisor.send(signal.SIGTERM):
            raise LocalClusterError(
                f"something holds {self.paths.lock} but {self.paths.state} does not say which process; "
                "find it with `fuser` and end it"
            )
        deadline = time.monotonic() + timeout
        told: set[str] = set()
        while self.running:
            current = self.state
            for component, own in (current.components if current is not None else {}).items():
                if own.phase is states.ComponentPhase.STOPPED and component not in told:
                    told.add(component)
                    progress(f"{component} stopped")
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"the supervisor (process {state.supervisor.pid}) has not stopped everything after {timeout:g} s; "
                    f"see {self.paths.log('supervisor')}"
                )
            time.sleep(_POLL)

    def _component(self, component: Component) -> states.ComponentState:
        state = self.state
        found = None if state is None else state.components.get(component)
        if found is None:
            raise LocalClusterError(
                f"local cluster {self.name!r} in {self.paths.root} has no {component}: start it, with that component"
            )
        return found

    def _spawn(self) -> None:
        log = self.paths.log("supervisor")
        child = self._supervisor = processes.spawn(
            self.command(), log, env={**os.environ, **python_path_environment()}, cwd=self.paths.root
        )
        identity = ProcessIdentity.of(child.pid)
        deadline = time.monotonic() + 30
        while True:
            state = self.state
            if identity is not None and state is not None and state.supervisor == identity:
                return
            if child.poll() is not None:
                if state is not None and state.supervisor.pid == child.pid and state.message:
                    raise LocalClusterError(state.message)
                if self.running:
                    # Another process started this instance at the same moment.
                    return
                raise LocalClusterError(f"the supervisor ended with {child.returncode}. End of {log}:\n{tail(log)}")
            if time.monotonic() > deadline:
                raise LocalClusterError(f"the supervisor has not reported within 30 s. End of {log}:\n{tail(log)}")
            time.sleep(_POLL)
