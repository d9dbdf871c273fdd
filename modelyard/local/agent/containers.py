"""One container as a local process: start, probe, restart, stop; run by `pods`.

The process outlives the agent. Cancelling `run` leaves it alone; the next agent finds it by the pod's record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from modelyard.backoff import Backoff
from modelyard.cluster import Object
from modelyard.local import processes
from modelyard.local.agent import probes
from modelyard.local.agent.launch import CannotRun, Launch
from modelyard.local.agent.records import ContainerRecord, Termination
from modelyard.local.processes import ProcessIdentity
from modelyard.local.state import now

logger = logging.getLogger(__name__)

_RESTARTS = Backoff(10.0, longest=300.0)
FORGOTTEN_AFTER = 600.0
"""Seconds a run must last for the ends before it to be forgotten (twice the longest delay, as the kubelet has it)."""
_UNKNOWN = "ContainerStatusUnknown"
_CONFIG_RETRY = 10.0


@dataclass(frozen=True)
class ContainerPlace:
    """What a container needs of its pod and agent."""

    address: str
    log: Path
    session: aiohttp.ClientSession
    backoff_scale: float
    launch: Callable[[Object, bool], Awaitable[Launch]]
    """Plans the process, for a new run or (False) for one that is running; raises `CannotRun`."""
    changed: Callable[[], None]
    """Called after every change: the record is to be saved and the status reported."""
    event: Callable[[str, str, str], None]
    """Reports an Event: type, reason, message."""
    last_words: Callable[[Object, int, Path, int], str]
    """The termination message of a container that ended with this code, whose output begins at this byte of its log."""


class ContainerRunner:
    """The life of one container. `record` is what survives the agent."""

    def __init__(self, spec: Object, restart_policy: str, record: ContainerRecord, place: ContainerPlace) -> None:
        self.spec = spec
        self.name = str(spec["name"])
        self.record = record
        self.waiting: tuple[str, str] | None = None if record.terminated else ("ContainerCreating", "")
        self.started = False
        self.ready = False
        self._restart_policy = restart_policy
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None
        self._launch: Launch | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """Whether its process runs, as far as has been noticed."""
        return self.record.process is not None

    @property
    def succeeded(self) -> bool:
        """Whether it ended well and will not run again."""
        return self.record.terminated is not None and self.record.terminated.exit_code == 0

    def adopt(self, *, started: bool, ready: bool) -> None:
        """Take over the process of an earlier agent, with what was last known of it."""
        if self.record.process is None:
            return
        if self.record.process.alive():
            self.waiting = None
            self.started, self.ready = started, ready
        else:
            self._note_end(137, _UNKNOWN, "the process ended while no agent was running")

    async def run(self) -> None:
        """Keep the container running as its restart policy says; returns when it shall not run again."""
        while not self._stopping:
            if not self.running:
                if self.record.terminated is not None and not await self._restart_wanted(self.record.terminated):
                    return
                if not await self._start():
                    return
            await self._until_end()

    async def _restart_wanted(self, ended: Termination) -> bool:
        if self._restart_policy == "Never" or (self._restart_policy == "OnFailure" and ended.exit_code == 0):
            return False
        delay = restart_delay(self.record.failures, self._place.backoff_scale)
        if delay > 0:
            message = f"back-off {delay:g}s restarting failed container={self.name}"
            self.waiting = ("CrashLoopBackOff", message)
            self._place.event("Warning", "BackOff", message)
            self._place.changed()
        await asyncio.sleep(delay)
        return True

    async def _start(self) -> bool:
        """Start the process; False when it never can be."""
        while True:
            try:
                launch = await self._place.launch(self.spec, True)
                break
            except CannotRun as error:
                self.waiting = (error.reason, str(error))
                self._place.event("Warning", "Failed", str(error))
                self._place.changed()
                if error.permanent:
                    return False
                await asyncio.sleep(_CONFIG_RETRY * self._place.backoff_scale)
        if self.record.terminated is not None:
            self.record.last, self.record.terminated = self.record.terminated, None
            self.record.restarts += 1
        self._launch = launch
        self.record.started_at = now()
        self.record.log = str(self._place.log)
        self.record.log_start = self._place.log.stat().st_size if self._place.log.exists() else 0
        try:
            self._child = processes.spawn(launch.argv, self._place.log, env=launch.env, cwd=launch.cwd)
        except OSError as error:
            self._note_end(128, "StartError", f"{launch.argv[0]} cannot be executed: {error}")
            self._place.event("Warning", "Failed", f"Error: {launch.argv[0]} cannot be executed: {error}")
            return True
        self.record.process = ProcessIdentity.of(self._child.pid)
        self.waiting = None
        if self.record.process is None:
            self._note_child_end()
            return True
        self._place.event("Normal", "Started", f"Started container {self.name} as process {self._child.pid}")
        self._place.changed()
        return True

    async def _until_end(self) -> None:
        process = self.record.process
        if process is None:
            return
        if self._launch is None:  # an earlier agent started it; its probes and hooks need its variables all the same
            with suppress(CannotRun):
                self._launch = await self._place.launch(self.spec, False)
        probing = asyncio.create_task(self._probe(), name=f"probes of {self.name}")
        try:
            await processes.wait_for_exit(process)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        if self._child is not None:
            self._note_child_end()
        else:
            # Not our child: only the agent that started it could have learnt its exit code.
            self._note_end(143 if self._stopping else 137, _UNKNOWN, "ended after the agent was restarted")

    def _note_child_end(self) -> None:
        assert self._child is not None
        returncode = self._child.wait(timeout=10)
        # What the main process leaves behind dies with its container.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child = None
        code = 128 - returncode if returncode < 0 else returncode
        words = self._place.last_words(self.spec, code, self._place.log, self.record.log_start)
        self._note_end(code, "Completed" if code == 0 else "Error", words)

    def _note_end(self, code: int, reason: str, message: str = "") -> None:
        record = self.record
        ran = (now() - record.started_at).total_seconds() if record.started_at is not None else 0.0
        if ran > FORGOTTEN_AFTER * self._place.backoff_scale:
            record.failures = 0
        record.failures += 1
        record.terminated = Termination(
            exit_code=code, reason=reason, message=message, started_at=record.started_at, finished_at=now()
        )
        record.process = None
        self.waiting = None
        self.started = self.ready = False
        self._place.changed()

    async def _probe(self) -> None:
        startup, readiness, liveness = (
            self.spec.get(kind) for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        )
        if startup and not self.started:
            passed = asyncio.Event()

            def startup_verdict(result: bool) -> None:
                if result:
                    passed.set()
                else:
                    self._kill_unhealthy("startup", startup)

            prober = asyncio.create_task(self._watch(startup, "Startup", startup_verdict))
            try:
                await passed.wait()
            finally:
                prober.cancel()
        if not self.started:
            self.started = True
            self._place.changed()
        jobs = []
        if readiness:
            jobs.append(self._watch(readiness, "Readiness", self._set_ready))
        else:
            self._set_ready(True)
        if liveness:
            jobs.append(
                self._watch(liveness, "Liveness", lambda ok: None if ok else self._kill_unhealthy("liveness", liveness))
            )
        await asyncio.gather(*jobs)

    async def _watch(self, probe: Object, name: str, changed: Callable[[bool], None]) -> None:
        timing = probes.ProbeTiming.of(probe)
        target = self._target()
        age = (now() - self.record.started_at).total_seconds() if self.record.started_at is not None else 0.0
        await probes.watch(
            lambda: probes.probe_once(probe, target, self._place.session, timing.timeout),
            timing,
            elapsed=age,
            changed=changed,
            failed=lambda why: self._place.event("Warning", "Unhealthy", f"{name} probe failed: {why}"),
        )

    def _target(self) -> probes.ProbeTarget:
        ports = {str(p["name"]): int(p["containerPort"]) for p in self.spec.get("ports") or [] if p.get("name")}
        if self._launch is None:
            return probes.ProbeTarget(self._place.address, ports, dict(os.environ))
        return probes.ProbeTarget(self._place.address, ports, self._launch.env, self._launch.inside)

    def _set_ready(self, ready: bool) -> None:
        ready = ready and not self._stopping
        if ready != self.ready:
            self.ready = ready
            self._place.changed()

    def _kill_unhealthy(self, kind: str, probe: Object) -> None:
        process = self.record.process
        if process is None or self._stopping:
            return
        self._place.event("Normal", "Killing", f"Container {self.name} failed {kind} probe, will be restarted")
        process.send(signal.SIGTERM)
        grace = float(probe.get("terminationGracePeriodSeconds") or 30)
        asyncio.get_running_loop().call_later(grace, lambda: process.send(signal.SIGKILL, group=True))

    def refuse_traffic(self) -> None:
        """Not ready from now on: the first thing a deletion does."""
        self._stopping = True
        self.ready = False

    async def stop(self, grace: float) -> None:
        """End the process: preStop, SIGTERM, and SIGKILL after `grace` seconds. Returns when it has ended."""
        self.refuse_traffic()
        process = self.record.process
        if process is None:
            return
        deadline = time.monotonic() + grace
        await self._pre_stop(grace)
        self._place.event("Normal", "Killing", f"Stopping container {self.name}")
        process.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await processes.wait_for_exit(process)
        except TimeoutError:
            process.send(signal.SIGKILL, group=True)
            await processes.wait_for_exit(process)
        if self.record.process is None:
            return
        if self._child is not None:
            self._note_child_end()
        else:
            self._note_end(143, _UNKNOWN, "stopped after the agent was restarted")

    async def _pre_stop(self, grace: float) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if not hook:
            return
        if "sleep" in hook:
            await asyncio.sleep(min(float(hook["sleep"].get("seconds") or 0), grace))
            return
        try:
            await probes.probe_once(hook, self._target(), self._place.session, grace)
        except probes.ProbeFailure as error:
            self._place.event("Warning", "FailedPreStopHook", str(error))


def restart_delay(failures: int, scale: float = 1.0) -> float:
    """Seconds to wait after `failures` ends in a row, as on a cluster: 0, 10, 20, 40, ... up to 300, times `scale`."""
    return _RESTARTS.delay(failures - 1, scale)
