"""The reconcile shift and the runs it starts, in this process: Prefect's part is played by asyncio tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from modelyard.reconcile.kernel.reconciler import Reconciler, Registered
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.dispatch import RunFate, Start, dispatch, named
from modelyard.reconcile.plans.run_limits import RunLimits, RunLoad

NO_LIMITS = RunLimits(places=10_000)
COALESCE = 0.1
"""Seconds in which further edits are waited for: a look goes through everything."""


class Shift:
    """``async with Shift(registered, home)``: tells statuses and carries plans out until the end of the block.

    In these ``namespaces`` (none: everywhere). A run that it does not know died before it began.
    """

    def __init__(
        self, registered: Iterable[Registered], home: str, every: float = 1.0, namespaces: Iterable[str] = ()
    ) -> None:
        self.registered = tuple(registered)
        self.home = home
        self.every = every
        self.namespaces = tuple(namespaces)
        self.quiet = 0
        """Looks in a row in which there was nothing to write."""
        self._began = time.time()
        self.runs: dict[str, asyncio.Task[object]] = {}
        self._fates: dict[str, RunFate] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self._loop, *self.runs.values()):
            task.cancel()
            with suppress(BaseException):
                await task
        if self._loop.done() and not self._loop.cancelled() and self._loop.exception() is not None:
            raise AssertionError("the shift has died") from self._loop.exception()

    def kill(self) -> None:
        """Every run dies where it is."""
        for key, task in self.runs.items():
            if not task.done():
                task.cancel()
                self._fates[key] = RunFate(time.time(), died=True)

    def fates(self) -> dict[str, RunFate]:
        """What became of the runs."""
        found = {}
        for key, task in self.runs.items():
            if not task.done():
                found[key] = RunFate(None)
            else:
                found[key] = self._fates.setdefault(key, RunFate(time.time()))
        return found

    async def _run(self) -> None:
        async with Reconciler(self.registered, self.namespaces) as reconciler:
            while True:
                plans = await reconciler.look()
                writes = any(plan.writes for some in plans.values() for plan in some)
                self.quiet = 0 if writes else self.quiet + 1
                everything = [plan for some in plans.values() for plan in some]
                before = dict.fromkeys(named(everything), RunFate(self._began, died=True))
                await reconciler.tell(everything, before | self.fates())
                work = [
                    (acting, some)
                    for name, some in (await reconciler.look()).items()
                    if (acting := reconciler.registered[name].acting) is not None
                ]
                before = dict.fromkeys(
                    named(plan for _, some in work for plan in some), RunFate(self._began, died=True)
                )
                for start in dispatch(work, before | self.fates(), time.time(), RunLoad(limits=NO_LIMITS)).starts:
                    self._start(await reconciler.claim(start), reconciler)
                if await reconciler.wait_for_change(self.every):
                    await asyncio.sleep(COALESCE)

    def _start(self, start: Start, reconciler: Reconciler) -> None:
        if start.claims:
            kind = start.claims[0][0].kind
            (lifecycle,) = (one.lifecycle for one in self.registered if one.acting and one.lifecycle.about == kind)
            keys = [subject.key for subject, _ in start.claims]
            self.runs[start.key] = asyncio.create_task(act(reconciler.cluster, lifecycle, keys, start.key))
