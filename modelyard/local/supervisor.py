"""The process that runs a local cluster: starts the components in order, restarts the dead, reports, stops them.

Started by `LocalStack` as `python -m modelyard.local.supervisor DIR`. It is told what to do by signals only (SIGTERM
and SIGINT: stop everything) and tells what it does in the state file (`modelyard.local.state`).
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

from modelyard.backoff import Backoff
from modelyard.local import certificates, processes, state
from modelyard.local.components import ClusterContext, ComponentSpec, NotReady, starting_order
from modelyard.local.paths import InstancePaths, LocalClusterError, tail
from modelyard.local.processes import ProcessIdentity
from modelyard.local.settings import Component, StackSettings
from modelyard.local.slots import PortSlot, claim
from modelyard.local.state import ComponentPhase, ComponentState, Phase, StackState, stop_leftovers

_RESTARTS = Backoff(0.5, longest=30.0)
_STABLE_AFTER = 60.0
_START_ATTEMPTS = 3
_START_TIMEOUT = 120.0
_POLL_STARTING = 0.1
_POLL_READY = 2.0
# A busy machine answers late now and then; only a component that stays silent is reported.
_MISSED_CHECKS = 3


class Supervisor:
    """Runs one instance until it is told to stop."""

    def __init__(self, paths: InstancePaths, name: str, parent: ProcessIdentity | None) -> None:
        self._paths = paths
        self._name = name
        self._parent = parent
        self._stopping = asyncio.Event()
        self._failure: str | None = None
        self._ready: dict[Component, asyncio.Event] = {}
        me = ProcessIdentity.of(os.getpid())
        assert me is not None
        self._state = StackState(supervisor=me, started_at=state.now())

    async def run(self) -> int:
        """Start, watch and finally stop everything; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        previous = state.load(self._paths.state)
        try:
            # Before the first report: until these have gone, the old report is what finds them.
            await asyncio.to_thread(stop_leftovers, previous, self._paths)
            self._save()
            settings = StackSettings.model_validate_json(self._paths.settings.read_text(encoding="utf-8"))
            with claim(self._preferred_slot(previous), settings.base_port) as slot:
                await self._run_components(self._context(settings, slot))
        except LocalClusterError as error:
            self._failure = str(error)
        except (OSError, ValueError) as error:
            self._failure = f"local cluster {self._name!r} in {self._paths.root} cannot start: {error}"
        self._state.phase = Phase.STOPPED if self._failure is None else Phase.FAILED
        self._state.message = self._failure or ""
        self._save()
        return 0 if self._failure is None else 1

    def _preferred_slot(self, previous: StackState | None) -> int:
        if previous is not None and previous.slot is not None:
            return previous.slot
        # Spread by folder, so that instances keep their addresses without asking each other.
        return 0 if self._name == "default" else 1 + zlib.crc32(str(self._paths.root).encode()) % 199

    def _context(self, settings: StackSettings, slot: PortSlot) -> ClusterContext:
        paths, server = self._paths, slot.ports.address(Component.APISERVER)
        certificates.create(paths.pki)
        users = (certificates.CONTROLLER_MANAGER, certificates.SCHEDULER, certificates.AGENT, certificates.PROMETHEUS)
        files = {user: paths.kubeconfigs / user for user in users} | {certificates.ADMIN: paths.kubeconfig}
        cluster = f"modelyard-{self._name}"
        for user, path in files.items():
            certificates.write_kubeconfig(path, pki=paths.pki, server=server, user=user, cluster=cluster)
        self._state.slot = slot.number
        self._state.kubeconfig = str(paths.kubeconfig)
        return ClusterContext(settings, paths, slot.ports, slot.pod_prefix)

    async def _run_components(self, cluster: ClusterContext) -> None:
        groups = starting_order(cluster)
        for spec in (spec for group in groups for spec in group):
            self._ready[spec.component] = asyncio.Event()
            self._state.components[spec.component] = ComponentState(
                address=cluster.ports.address(spec.component),
                version=spec.version,
                log=str(self._paths.log(spec.component)),
            )
        self._save()
        keepers: list[asyncio.Task[None]] = []
        starter = asyncio.create_task(self._start_in_order(groups, keepers))
        watcher = asyncio.create_task(self._watch_parent())
        await self._stopping.wait()
        self._state.phase = Phase.STOPPING
        self._save()
        for task in (starter, watcher):
            task.cancel()
        await asyncio.gather(starter, watcher, return_exceptions=True)
        # In the reverse order: nothing is left without what it needs while it ends.
        for keeper in reversed(keepers):
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        await asyncio.to_thread(stop_leftovers, None, self._paths)

    async def _start_in_order(self, groups: list[list[ComponentSpec]], keepers: list[asyncio.Task[None]]) -> None:
        for group in groups:
            keepers += [asyncio.create_task(self._keep(spec), name=spec.component) for spec in group]
            for spec in group:
                await self._ready[spec.component].wait()
        self._state.phase = Phase.RUNNING
        self._save()

    async def _watch_parent(self) -> None:
        if self._parent is not None:
            await processes.wait_for_exit(self._parent)
            self._stopping.set()

    async def _keep(self, spec: ComponentSpec) -> None:
        own = self._state.components[spec.component]
        ends, failures = 0, 0
        while True:
            started = time.monotonic()
            try:
                child = processes.spawn(
                    spec.argv, self._paths.log(spec.component), env={**os.environ, **spec.env}, cwd=self._paths.root
                )
            except OSError as error:
                self._fail(spec, f"cannot be executed: {error}")
                return
            identity = ProcessIdentity.of(child.pid)
            own.phase, own.process, own.started_at = ComponentPhase.STARTING, identity, state.now()
            self._save()
            checker = asyncio.create_task(self._check(spec, own))
            try:
                if identity is not None:
                    await processes.wait_for_exit(identity)
                returncode = await asyncio.to_thread(child.wait, 10)
            except asyncio.CancelledError:
                await self._stop(spec, own, child)
                raise
            finally:
                checker.cancel()
            how = self._state.ended(spec.component, returncode)
            if not self._ready[spec.component].is_set():
                failures += 1
                if failures >= _START_ATTEMPTS:
                    self._fail(spec, f"ended {failures} times while starting, last with {how}")
                    own.phase = ComponentPhase.STOPPED
                    return
            if time.monotonic() - started > _STABLE_AFTER:
                ends = 0
            ends += 1
            delay = _RESTARTS.delay(ends)
            own.restarts += 1
            own.phase = ComponentPhase.BACK_OFF
            own.message = f"ended ({how}), restarting in {delay:g} s"
            self._state.record(spec.component, own.message)
            self._save()
            await asyncio.sleep(delay)

    async def _check(self, spec: ComponentSpec, own: ComponentState) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        missed = 0
        while True:
            try:
                await asyncio.to_thread(spec.ready)
            except (NotReady, OSError) as error:
                missed += 1
                if own.phase is ComponentPhase.READY and missed >= _MISSED_CHECKS:
                    own.phase, own.message = ComponentPhase.NOT_READY, str(error)
                    self._state.record(spec.component, f"not ready: {error}")
                    self._save()
                elif not self._ready[spec.component].is_set() and time.monotonic() > deadline:
                    self._fail(spec, f"is not ready after {_START_TIMEOUT:g} s: {error}")
                    return
            else:
                missed = 0
                if own.phase is not ComponentPhase.READY:
                    if own.restarts or own.phase is ComponentPhase.NOT_READY:
                        self._state.record(spec.component, "ready again")
                    own.phase, own.message = ComponentPhase.READY, ""
                    self._save()
                    self._ready[spec.component].set()
            await asyncio.sleep(_POLL_READY if own.phase is ComponentPhase.READY else _POLL_STARTING)

    async def _stop(self, spec: ComponentSpec, own: ComponentState, child: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            returncode = await asyncio.to_thread(child.wait, spec.grace)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            returncode = await asyncio.to_thread(child.wait, 10)
        own.phase = ComponentPhase.STOPPED
        self._state.ended(spec.component, returncode)
        self._save()

    def _fail(self, spec: ComponentSpec, what: str) -> None:
        log = self._paths.log(spec.component)
        self._failure = f"{spec.component} ({spec.argv[0]}) {what}. End of {log}:\n{tail(log)}"
        self._stopping.set()

    def _save(self) -> None:
        self._state.save(self._paths.state)


def main() -> None:
    """Entry point of `python -m modelyard.local.supervisor`."""
    parser = argparse.ArgumentParser(description="Runs one local cluster; `modelyard local up` starts it.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="default")
    parser.add_argument("--parent", type=int, help="stop when this process ends")
    arguments = parser.parse_args()
    paths = InstancePaths(arguments.directory)
    parent = None
    if arguments.parent is not None:
        parent = ProcessIdentity.of(arguments.parent)
        if parent is None:
            sys.exit(f"the process {arguments.parent} that this cluster was for has ended")
    # Held for as long as this process lives: two supervisors never run one instance.
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another supervisor already runs the local cluster in {paths.root}")
    sys.exit(asyncio.run(Supervisor(paths, arguments.name, parent).run()))


if __name__ == "__main__":
    main()
