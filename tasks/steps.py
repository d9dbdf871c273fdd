"""The steps of all lifecycles as Prefect tasks: each writes its part of an object's plan and waits until it is done."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from prefect import get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from modelyard.cluster import Cluster, ClusterSettings, NotFound, Object
from modelyard.objects import Key, cut, few, printable
from modelyard.reconcile.kernel import LONGEST_WAIT, Acted, RunView, StayLimits, Superseded, carry_out_step, run_steps
from modelyard.reconcile.plans import ObjectResult, PlanStep, ResultState, StepId, failures
from tasks.journal import ProgressBar
from tasks.registry import REGISTRY, Observe, step_kind
from tasks.stage import RETRIED

L = TypeVar("L")

MOST_LOGGED = 200
"""Characters of a step's message that are logged; the object's status has all of it."""
LOG_PAUSE = 5.0
"""Seconds between two messages of a step in the log. Tenants write parts of them, and may change these all the time."""


class StepMessages:
    """Logs each message that is not the one before, on one line, and of several within ``LOG_PAUSE`` only the last."""

    def __init__(self, log: Callable[[str, str], None]) -> None:
        self._log = log
        self._logged = ""
        self._pending = ""
        self._next = -math.inf

    def tell(self, message: str) -> None:
        if message:
            self._pending = message if message != self._logged else ""
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._log("%s", printable(self._pending))
            self._logged, self._pending = self._pending, ""
            self._next = time.monotonic() + LOG_PAUSE


@dataclass(frozen=True, slots=True)
class RunRef:
    """The run that a step belongs to: its lifecycle (``REGISTRY``), the controller's namespace, its name in claims."""

    lifecycle: str
    home: str
    run: str


@dataclass(eq=False)
class OpenRun:
    """The connection of a run, the plans of its objects, and its progress artifact, shared by all its steps."""

    view: RunView
    progress: ProgressBar | None = None
    users: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def lifecycle(self, kind: type[L]) -> L:
        assert isinstance(self.view.lifecycle, kind)
        return self.view.lifecycle

    async def read(self, key: Key) -> Object | None:
        """Return the object of this name as the API server has it; ``None``: it is gone."""
        try:
            return await self.view.cluster.get(self.view.lifecycle.about, key.name, key.namespace or None)
        except NotFound:
            return None


_open: dict[tuple[asyncio.AbstractEventLoop, RunRef], OpenRun] = {}
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


@asynccontextmanager
async def open_run(ref: RunRef, title: str = "") -> AsyncIterator[OpenRun]:
    """Open the run, or share it where it is open in this event loop; with a ``title`` it has a progress artifact."""
    loop = asyncio.get_running_loop()
    place = loop, ref
    async with _opening.setdefault(loop, asyncio.Lock()):
        if place not in _open:
            _open[place] = await _opened(ref, title)
        run = _open[place]
        run.users += 1
    try:
        yield run
    finally:
        run.users -= 1
        if not run.users:
            del _open[place]
            await run.stack.aclose()


async def _opened(ref: RunRef, title: str) -> OpenRun:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings()))
        entry = REGISTRY[ref.lifecycle]
        run = OpenRun(await stack.enter_async_context(RunView(cluster, entry.create(ref.home), ref.run)))
        if title:
            run.progress = await stack.enter_async_context(ProgressBar(f"{entry.flow}-progress", title, every=5.0))
        run.stack = stack.pop_all()
    return run


@task(**RETRIED)
async def run_step(ref: RunRef, key: Key, step: StepId, until: datetime, stays: bool) -> str:
    """Write the step's part of the object's plan until it is done; where it would only wait, ``until`` then at most.

    Returns its last message. Repeated, it goes on from what is in the cluster. Raises ``StepFailed`` and ``GivenUp``.
    """
    log = get_run_logger()
    messages = StepMessages(log.info)
    kind = step_kind(ref.lifecycle, step)
    async with open_run(ref) as run:

        async def report(state: PlanStep) -> None:
            messages.tell(cut(state.message, MOST_LOGGED))
            if run.progress is not None and state.progress is not None:
                run.progress.tell(str(key) if kind.in_order else f"{key} {step}", state.progress)

        limits = StayLimits(time.monotonic() + (until - datetime.now(UTC)).total_seconds(), stays)
        observing = asyncio.create_task(_observe(run.view, ref, kind.observe, key, step))
        try:
            return await carry_out_step(run.view, key, step, limits, report)
        except Superseded as error:  # the run finds out, too, and ends as such
            log.warning("Stopping: %s", error)
            return str(error)
        finally:
            messages.flush()
            observing.cancel()
            await asyncio.wait([observing])


async def _observe(view: RunView, ref: RunRef, observe: Observe | None, key: Key, step: StepId) -> None:
    """Take readings, and start and follow child runs, again and again; where the step needs neither, return at once."""
    pause, last = LONGEST_WAIT, ""
    while observe is not None:
        try:
            pause = await observe(view, ref.home, key, step)
        except Exception as error:  # the plan does without, and says so
            text = f"{type(error).__name__}: {error}"
            if text != last:
                get_run_logger().warning("Trying again: %s of %s failed: %s", observe.__name__, key, cut(text, 500))
            last = text
        await asyncio.sleep(pause)


async def run_lifecycle(ref: RunRef, keys: Iterable[Key], seconds: float, stays: bool) -> Acted:
    """Run all steps of these objects, each as a task run of its own, until nothing is left to write or to wait for."""
    end, until = time.monotonic() + seconds, datetime.now(UTC) + timedelta(seconds=seconds)

    def start(key: Key, step: StepId) -> asyncio.Future[str]:
        title = step_kind(ref.lifecycle, step).name(key, step)
        named = run_step.with_options(name=step.name or "publish status", task_run_name=title)
        return asyncio.ensure_future(named(ref, key, step, until, stays))

    async with open_run(ref) as run:
        return await run_steps(run.view, keys, start, StayLimits(end, stays))


def conclude(acted: Acted, keys: Collection[Key], results: Sequence[ObjectResult], waits: bool) -> State[Any]:
    """Return the state that the run of these objects ends in.

    *Superseded* when other runs have taken all of them over. *Failed* with the objects that could not be worked on, or
    with those that have failed; where the run ``waits``, also with those that are not done. An object that is gone
    needs nothing. Where other runs have taken some over, the message names these as well.
    """
    lost = [f"Another run has taken over: {', '.join(key.label for key in sorted(acted.lost))}"] if acted.lost else []
    if lost and acted.lost.issuperset(keys):
        return Completed(name="Superseded", message=lost[0])
    reasons = [f"{key.label}: {why}" for key, why in acted.failed.items()]
    reasons = reasons or few(failures(results, waits and not lost), 5)
    if reasons:
        return Failed(message="; ".join(reasons + lost))
    done = [result.text for result in results if result.state is not ResultState.GONE]
    return Completed(message="; ".join(few(done, 5) + lost) or "nothing is left to do")
