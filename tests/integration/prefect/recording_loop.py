"""A loop whose stages write down that they ran, and a Lease that is a file lock: shared, and gone with its process.

Everything it should do is in the parameters' ``label_selector``, so that it works the same in a flow run that a worker
started: ``record=FILE`` (JSON lines), ``fail=STAGE`` or ``fail=STAGE@N``, ``slow=STAGE@SECONDS``, ``revoke=STAGE@N``
(the lease is lost during that stage), ``change=N`` (a tick that scales), ``edit=N`` (an edit after it),
``rows=COUNT``. N counts the ticks that ran, from 0: a busy machine may skip numbers.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from prefect import flow
from prefect.client.schemas.objects import State

from flows.parameters import AutoscaleParameters
from flows.shift_run import run_shift
from modelyard.autoscaling.live.settings import LoopSettings


class RecordingTick:
    """A tick that notices when Prefect looks into it, compares it or tries to serialise it."""

    touched: list[str]

    def __init__(self, number: int) -> None:
        self.number = number
        self.touched = []

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    @property
    def held(self) -> bool:
        return self._file is not None

    async def acquire(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        candidate = self.path.open("a")
        while True:
            try:
                fcntl.flock(candidate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    candidate.close()
                    return False
                await asyncio.sleep(0.02)
            else:
                self._file = candidate
                return True

    async def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class RecordingLoop:
    def __init__(self, settings: LoopSettings) -> None:
        pairs = [pair.split("=", 1) for pair in settings.label_selector.split(",") if pair]
        self.options: dict[str, str] = dict(pairs)  # type: ignore[arg-type]
        self.record = Path(self.options["record"])
        self._lease: FileLease | None = None
        self._ran: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        if "closed" in self.options:
            raise ConnectionError("the cluster cannot be reached")
        self.note("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.note("close")

    def lease(self, name: str, namespace: str | None = None) -> FileLease:
        self._lease = FileLease(self.record.with_name(f"{name}.lock"))
        return self._lease

    def note(self, stage: str, number: int = -1, **more: Any) -> None:
        held = self._lease is not None and self._lease.held
        entry = {"stage": stage, "tick": number, "pid": os.getpid(), "at": time.time(), "held": held, **more}
        with self.record.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    async def _stage(self, name: str, tick: Any) -> dict[str, Any]:
        index = self._ran[name]
        self._ran[name] += 1
        self.note(name, tick.number, touched=tick.touched, loop=id(self))
        stage, _, seconds = self.options.get("slow", "").partition("@")
        if stage == name:
            await asyncio.sleep(float(seconds))
        stage, _, which = self.options.get("revoke", "").partition("@")
        if stage == name and int(which) == index and self._lease is not None:
            await self._lease.release()
        stage, _, which = self.options.get("fail", "").partition("@")
        if stage == name and (not which or int(which) == index):
            raise RuntimeError(f"{name} was told to fail")
        return {"stage": name}

    async def wait_for_change(self, timeout: float) -> bool:
        """An edit comes as soon as the tick given by ``edit=N`` is over, once."""
        if self._ran["report"] - 1 == int(self.options.get("edit", "-1")):
            del self.options["edit"]
            return True
        await asyncio.sleep(timeout)
        return False

    async def collect(self, tick: Any) -> dict[str, Any]:
        return await self._stage("collect", tick)

    def decide(self, tick: Any) -> dict[str, Any]:
        return asyncio.run(self._stage("decide", tick))

    async def actuate(self, tick: Any) -> dict[str, Any]:
        return await self._stage("actuate", tick)

    async def report(self, tick: Any) -> dict[str, Any]:
        await self._stage("report", tick)
        rows = [
            {"variant": f"ns/v{index}", "replicas": tick.number, "reason": "Recorded"}
            for index in range(int(self.options.get("rows", "1")))
        ]
        changed = self._ran["report"] - 1 == int(self.options.get("change", "-1"))
        changes = [{"variant": "ns/v0", "from": 1, "to": 2, "reason": "Recorded"}] if changed else []
        return {"rows": rows, "changes": changes}


def recorded(record: Path) -> list[dict[str, Any]]:
    """What the loop wrote down so far."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@flow(name="autoscale", persist_result=False, retries=0)
async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
    """The flow ``flows.autoscale`` with the recording loop in place of the real one."""
    return await run_shift(parameters, RecordingLoop, RecordingTick)
