"""A loop whose stages write down that they ran, and a Lease that is a file lock: shared, and gone with its process.

Everything it should do is in the parameters' ``label_selector``, so that it works the same in a flow run that a worker
started: ``record=FILE`` (JSON lines), ``fail=STAGE`` or ``fail=STAGE@N``, ``slow=STAGE@SECONDS``, ``revoke=STAGE@N``
(the lease is lost during that stage), ``change=N`` (a tick that scales), ``edit=N`` (an edit after it),
``rows=COUNT``, ``refuse=COUNT`` (times that the lease cannot be asked for). N counts the ticks that ran, from 0: a busy
machine may skip numbers.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from prefect import flow, task
from prefect.client.schemas.objects import State

from flows.forms import flat
from flows.parameters import AutoscaleParameters
from flows.shift import Turn, run_shift, table_key
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.reconcile.plans.report import Change, TickReport
from tasks.stage import STAGE, share, shared


class Touchy:
    """A value that notices when Prefect looks into it, compares it or tries to serialise it."""

    def __init__(self, changes: Sequence[Any] = ()) -> None:
        self.touched: list[str] = []
        self.changes = changes

    @property
    def fleet(self) -> object:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        self.touched.append(f"fleet read by {caller}")
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.touched.append("serialised")
        return super().__reduce_ex__(protocol)

    def __iter__(self) -> Any:
        self.touched.append("walked")
        return iter(())

    def __eq__(self, other: object) -> bool:
        if other is not self:
            self.touched.append("compared")
        return self is other

    __hash__ = object.__hash__


class FileLease:
    """An exclusive lock on a file."""

    def __init__(self, path: Path, refusals: int = 0) -> None:
        self.path = path
        self.rival = ""
        self._refusals = refusals
        self._file: Any = None

    @property
    def held(self) -> bool:
        return self._file is not None

    async def acquire(self, timeout: float) -> bool:
        if self._refusals:
            self._refusals -= 1
            raise ConnectionError("nobody answers")
        deadline = time.monotonic() + timeout
        candidate = self.path.open("a")
        while True:
            try:
                fcntl.flock(candidate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    candidate.close()
                    self.rival = "the process that has locked it"
                    return False
                await asyncio.sleep(0.02)
            else:
                self._file = candidate
                return True

    async def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def standby(self) -> FileLease:
        return FileLease(self.path.with_suffix(".standby"))


def changed() -> SimpleNamespace:
    """Return a record of a workload whose size is to change, as far as a task describes it."""
    return SimpleNamespace(
        identity=SimpleNamespace(key="ns/v0"),
        now=SimpleNamespace(current=1),
        target=SimpleNamespace(replicas=2),
        why=SimpleNamespace(message="told to"),
    )


# The tasks are as those of the autoscaler, but do not import it: a worker starts many of these at once.


@task(name="collect", task_run_name="collect-{number}", **STAGE)
async def collect(number: int) -> None:
    recording = shared(Recording)
    recording.seen = await recording.collect()


@task(name="decide", task_run_name="decide-{number}", **STAGE)
async def decide(number: int) -> None:
    recording = shared(Recording)
    await asyncio.to_thread(recording.decide, recording.seen)


@task(name="actuate", task_run_name="actuate-{number}", **STAGE)
async def actuate(number: int) -> None:
    recording = shared(Recording)
    await recording.actuate(recording.seen, recording.seen)


class Recording:
    """The shift is the real one; what is done in its ticks is not."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.options = dict(pair.split("=", 1) for pair in settings.label_selector.split(",") if pair)
        self.record = Path(self.options["record"])
        self._lock: FileLease | None = None
        self._ran: Counter[str] = Counter()
        self.number = -1
        self.seen: Any = None

    async def __aenter__(self) -> Self:
        if "closed" in self.options:
            raise ConnectionError("the cluster cannot be reached")
        self.note("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.note("close")

    def lease(self, name: str, namespace: str | None = None, token: str = "") -> Any:
        self._lock = FileLease(self.record.with_name(f"{name}.lock"), int(self.options.get("refuse", "0")))
        return self._lock

    async def tick(self, turn: Turn) -> TickReport:
        self.number = turn.number
        with share(self):
            for stage in (collect, decide, actuate):
                await turn.run(stage, turn.number)
        return await self.report(None, None)

    def note(self, stage: str, number: int = -1, **more: Any) -> None:
        held = self._lock is not None and self._lock.held
        entry = {"stage": stage, "tick": number, "pid": os.getpid(), "at": time.time(), "held": held, **more}
        with self.record.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    async def _stage(self, name: str, seen: Touchy) -> None:
        index = self._ran[name]
        self._ran[name] += 1
        self.note(name, self.number, touched=seen.touched, loop=id(self))
        stage, _, seconds = self.options.get("slow", "").partition("@")
        if stage == name:
            await asyncio.sleep(float(seconds))
        stage, _, which = self.options.get("revoke", "").partition("@")
        if stage == name and int(which) == index and self._lock is not None:
            await self._lock.release()
            if stage == "actuate":
                raise RuntimeError("not the writer any more")
        stage, _, which = self.options.get("fail", "").partition("@")
        if stage == name and (not which or int(which) == index):
            raise RuntimeError(f"{name} was told to fail")

    async def wait_for_change(self, timeout: float) -> bool:
        """An edit comes as soon as the tick given by ``edit=N`` is over, once."""
        if self._ran["actuate"] - 1 == int(self.options.get("edit", "-1")):
            del self.options["edit"]
            return True
        await asyncio.sleep(timeout)
        return False

    async def collect(self) -> Any:
        changes = [changed()] if self._ran["actuate"] == int(self.options.get("change", "-1")) else []
        await self._stage("collect", seen := Touchy(changes))
        return seen

    def decide(self, fleet: Any) -> Any:
        asyncio.run(self._stage("decide", fleet))
        return fleet

    async def actuate(self, fleet: Any, decision: Any) -> Any:
        assert fleet is decision
        await self._stage("actuate", fleet)

    async def report(self, decision: Any, done: Any) -> TickReport:
        rows = [
            {
                "variant": f"ns/v{index}",
                "replicas": 0 if self.options.get("steady") else self.number,
                "reason": "Recorded",
            }
            for index in range(int(self.options.get("rows", "1")))
        ]
        changed = self._ran["actuate"] - 1 == int(self.options.get("change", "-1"))
        return TickReport(rows, [Change("ns/v0", 1, 2, "Recorded", "told to")] if changed else [])


def recorded(record: Path) -> list[dict[str, Any]]:
    """What the loop wrote down so far, in whole lines."""
    lines = record.read_text().split("\n")[:-1] if record.exists() else []
    return [json.loads(line) for line in lines]


@flow(name="autoscale", persist_result=False, retries=0)
@flat(AutoscaleParameters)
async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
    """The flow ``flows.autoscale`` with the recording loop in place of the real one."""
    dry_run = parameters.fleet.dry_run
    table = table_key("autoscale", parameters.lease_name, "decisions")
    return await run_shift(parameters, lambda: Recording(parameters), table=table, writes=not dry_run)
