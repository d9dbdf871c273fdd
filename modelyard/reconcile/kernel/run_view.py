"""The plans of a flow run's objects, kept current, and the steps that carry them out.

One mirror serves all steps of a run. A step writes its part of the plan until it is done: repeated, by a retry or by
the next run, it goes on from what is in the cluster. It may die at any line.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from modelyard.cluster import Cluster
from modelyard.objects import Key, ResourceType, printable
from modelyard.reconcile.kernel.carry_out import Outcome, carry_out, note_failure
from modelyard.reconcile.kernel.fence import NotTheWriter, RunFence
from modelyard.reconcile.kernel.look_ups import SecretLookUps
from modelyard.reconcile.kernel.mirror import Mirror, Store
from modelyard.reconcile.kernel.survey import adapt
from modelyard.reconcile.kernel.tell import Said, tell
from modelyard.reconcile.plans import (
    LOOK_UPS,
    Claim,
    Lifecycle,
    Plan,
    PlanStep,
    StepId,
    StepPhase,
    World,
    fingerprint,
    part_of,
    pending_steps,
    state_of,
)

log = logging.getLogger(__name__)

MOST_FAILED_WRITES = 5
"""Times in a row that a step's writes may fail before the run leaves the object to a later one."""
NO_EFFECT = (
    "what is written for it has no effect; is an object of it larger than 256 KiB (annotations count), or changed back?"
)
IN_VAIN = 30.0
"""Seconds for which a step may do the same again and again: its watches show what was written long before."""
RESTARTS = 5
"""Times that a step begins again in a run without a pause: an object that is changed all the time has few task runs."""
STARTS = 100
"""Times that steps of one object begin in a run without a pause, beside once for each step that it has: an object whose
steps are others all the time has few task runs, too."""
LATE_WRITES = 50
"""Writes of a run after its time (``StayLimits``): a tenant may undo for ever what is done."""
SHORTEST_WAIT = 0.1
"""Seconds between two plans of the same objects, however fast the cluster changes."""
LONGEST_WAIT = 5.0
"""Seconds after which to plan again, whatever the watches report: plans may wait for a moment in time."""
APART = 3
"""Namespaces up to which a run reads each on its own: it wants some twenty kinds in each of them."""


class Superseded(Exception):
    """Another run works on the object now, or a new object has its name."""


class GivenUp(Exception):
    """An object cannot be planned or written; the message says why. A later run tries again."""


class StepFailed(Exception):
    """A step failed; the message says why."""


@dataclass
class Acted:
    """Objects of a run by their end: settled (or gone), claimed by another run, or given up with the reason."""

    settled: set[Key] = field(default_factory=set)
    lost: set[Key] = field(default_factory=set)
    failed: dict[Key, str] = field(default_factory=dict)
    steps: set[tuple[Key, StepId]] = field(default_factory=set, compare=False)
    """The steps that the run carried out."""

    @contextmanager
    def noting(self, key: Key) -> Iterator[None]:
        """Note what is raised because the object is lost or given up; the reason of a failed step is in its status."""
        try:
            yield
        except Superseded:
            self.lost.add(key)
        except GivenUp as error:
            self.failed[key] = str(error)
        except StepFailed:
            pass


@dataclass(frozen=True, slots=True)
class StayLimits:
    """Limits of a run's stay where it would only wait: ``end`` is a reading of the monotonic clock.

    ``stays``: also for steps that wait for their turn, or for something outside.
    """

    end: float = math.inf
    stays: bool = False

    @property
    def over(self) -> bool:
        """Return whether the run stays only for what it has to write."""
        return time.monotonic() >= self.end


class RunView:
    """``async with RunView(cluster, lifecycle, run) as view``: current plans of the objects that steps ask for."""

    def __init__(self, cluster: Cluster, lifecycle: Lifecycle, run: str) -> None:
        self.cluster = cluster
        self.lifecycle = lifecycle
        self.run = run
        self._mirror = Mirror(cluster, apart=APART)
        self._secrets = SecretLookUps(cluster)
        self._said = Said()
        self._stack = AsyncExitStack()
        self._keys: set[Key] = set()
        self._plans: dict[Key, Plan | Exception | None] = {}
        self._planning = asyncio.Lock()
        self._writing: dict[Key, asyncio.Lock] = {}
        self._planned = -math.inf
        self._stale = asyncio.Event()
        """Set while something may have changed since the plans were made."""
        self._repeated: dict[tuple[Key, StepId], tuple[str, float]] = {}
        self.late_writes = 0

    async def __aenter__(self) -> Self:
        await adapt(self.cluster, self.lifecycle)
        await self._stack.enter_async_context(self._mirror)
        self._mirror.follow()
        watching = asyncio.create_task(self._watch())
        self._stack.callback(watching.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def plan(self, key: Key) -> Plan | None:
        """Return the object's current plan; ``None``: it is gone, or there is nothing to do for it.

        Raises ``Superseded``, ``GivenUp`` where it cannot be planned, and ``ClusterError`` where what the lifecycle
        needs cannot be read.
        """
        async with self._planning:
            if key not in self._keys:
                self._keys.add(key)
                self._stale.set()
            since = time.monotonic() - self._planned
            if self._stale.is_set() or since >= LONGEST_WAIT:
                await asyncio.sleep(SHORTEST_WAIT - since)
                await self._plan()
        plan = self._plans[key]
        if isinstance(plan, Exception):
            raise GivenUp(f"it cannot be planned: {type(plan).__name__}: {plan}") from plan
        if plan is not None and (plan.writes or plan.awaits):
            claim = Claim.read(plan.subject.claim)
            if claim is None or claim.run != self.run:
                raise Superseded(f"{plan.subject.ref} is claimed by another run")
        return plan

    def details(self, key: Key) -> Any:
        """Return the details of the object's latest plan; ``None`` where there is no plan."""
        plan = self._plans.get(key)
        return plan.details if isinstance(plan, Plan) else None

    async def write(self, key: Key, step: StepId) -> str:
        """Carry out the step's part of the object's plan as it is now; return the error, empty for none.

        Raises ``Superseded``, like ``plan``, and ``GivenUp`` where the same is done for ``IN_VAIN`` seconds.
        """
        async with self._writing.setdefault(key, asyncio.Lock()):
            plan = await self.plan(key)
            part = part_of(plan, step) if plan is not None else None
            if part is None or not part.writes:
                return ""
            fence = RunFence(self.cluster, part.subject, self.run)
            try:
                outcome = await carry_out(self.cluster, [part], fence)
                await tell(self.cluster, [part], outcome, self._said, self.cluster.now())
                if self._is_in_vain((key, step), part, outcome):
                    await note_failure(self.cluster, part, NO_EFFECT, fence)
                    raise GivenUp(NO_EFFECT)
            except NotTheWriter:
                raise Superseded(f"{part.subject.ref} is claimed by another run") from None
            finally:
                self._stale.set()
            return outcome.errors.get(part.subject.ref, "")

    def rest(self, key: Key, step: StepId) -> None:
        """Note that the step has nothing to write at present, so that the same work later is not the same again."""
        self._repeated.pop((key, step), None)

    def _is_in_vain(self, step: tuple[Key, StepId], part: Plan, outcome: Outcome) -> bool:
        work, since = self._repeated.get(step, ("", 0.0))
        if not part.deeds or outcome.errors or work != fingerprint(part):
            self._repeated[step] = fingerprint(part), time.monotonic()
            return False
        return time.monotonic() > since + IN_VAIN

    async def changed(self, timeout: float = LONGEST_WAIT) -> None:
        """Wait until something in the cluster has changed, ``timeout`` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stale.wait()

    async def _watch(self) -> None:
        while True:
            await self._mirror.moved()
            self._stale.set()

    async def _plan(self) -> None:
        self._stale.clear()
        spaces = {key.namespace for key in self._keys if key.namespace}
        world: World = {**await _world(self._mirror, self.lifecycle, spaces), LOOK_UPS: self._secrets}
        for key in sorted(self._keys):
            try:
                plan = self._plans[key] = self.lifecycle.plan(key, world, self.cluster.now())
                needs = (secret for other in self._plans.values() if isinstance(other, Plan) for secret in other.needs)
                if plan is not None and plan.needs and await self._secrets.refresh(needs):
                    self._plans[key] = self.lifecycle.plan(key, world, self.cluster.now())
            except Exception as error:  # one object's failure is never another's
                if not isinstance(self._plans.get(key), Exception):
                    log.exception("%s %s", self.lifecycle.about.kind, key)
                self._plans[key] = error
        self._planned = time.monotonic()


async def carry_out_step(
    view: RunView,
    key: Key,
    step: StepId,
    limits: StayLimits = StayLimits(),
    report: Callable[[PlanStep], Awaitable[None]] | None = None,
) -> str:
    """Write the step's part of the object's plan until the step is done; return its last message.

    It ends early where there is nothing left to write and nothing to wait for, or when the time is over (``limits``).
    Raises ``StepFailed``, ``GivenUp``, ``Superseded`` and ``ClusterError``.
    """
    failures = 0
    while True:
        plan = await view.plan(key)
        if plan is None:
            return ""
        state = state_of(plan, step)
        if report is not None:
            await report(state)
        if part_of(plan, step).writes:
            view.late_writes += limits.over
            if view.late_writes > LATE_WRITES:
                return state.message
            error = await view.write(key, step)
            failures = failures + 1 if error else 0
            if failures == MOST_FAILED_WRITES:
                raise GivenUp(printable(error))
            continue
        view.rest(key, step)
        if limits.over or not (state.awaits or (limits.stays and state.unfinished)):
            if state.phase is StepPhase.FAILED:
                raise StepFailed(printable(state.message))
            return state.message
        await view.changed()


async def run_steps(
    view: RunView, keys: Iterable[Key], runner: Callable[[Key, StepId], Awaitable[object]], limits: StayLimits
) -> Acted:
    """Run the steps of all objects side by side until nothing is left to write or to wait for.

    ``runner`` carries out one step of one object, such as a task of Prefect around ``carry_out_step``. An object that
    has settled and changes while others go on is worked on again: no other run may do so. Raises ``ClusterError`` where
    what the lifecycle needs cannot be read.
    """
    acted, left = Acted(), sorted(set(keys))
    running: dict[tuple[Key, StepId], asyncio.Task[object]] = {}
    starts = Counter[tuple[Key, StepId]]()
    starts_of = Counter[Key]()
    started: dict[Key, float] = {}
    ended: dict[tuple[Key, StepId], float] = {}
    try:
        while True:
            acted.settled, held = set(), False
            for key in left:
                steps: list[StepId] = []
                most = STARTS
                with acted.noting(key):
                    plan = await view.plan(key)
                    if plan is None or not (plan.writes or plan.awaits):
                        acted.settled.add(key)
                    if plan is not None:
                        steps = pending_steps(plan, waits=not limits.over, stays=limits.stays)
                        most += len(plan.steps)
                for step in steps:
                    place, now = (key, step), time.monotonic()
                    if place in running or (starts[place] > RESTARTS and now < ended[place] + LONGEST_WAIT):
                        continue
                    if starts_of[key] >= most and now < started[key] + LONGEST_WAIT:
                        held = True
                        continue
                    running[place] = asyncio.ensure_future(runner(key, step))
                    starts[place] += 1
                    starts_of[key] += 1
                    started[key] = now
                    acted.steps.add(place)
            left = [key for key in left if key not in acted.lost and key not in acted.failed]
            if not (running or held) or view.late_writes > LATE_WRITES:
                return acted
            changed = asyncio.ensure_future(view.changed())
            try:
                await asyncio.wait([changed, *running.values()], return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for (key, step), task in list(running.items()):
                if task.done():
                    del running[key, step]
                    ended[key, step] = time.monotonic()
                    with acted.noting(key):
                        task.result()
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def act(
    cluster: Cluster, lifecycle: Lifecycle, keys: Iterable[Key], run: str, patience: float = math.inf
) -> Acted:
    """Carry the plans of these objects out, step by step, without Prefect.

    After ``patience`` seconds it is enough that there is nothing to write.
    """
    limits = StayLimits(time.monotonic() + patience)
    async with RunView(cluster, lifecycle, run) as view:
        return await run_steps(view, keys, lambda key, step: carry_out_step(view, key, step, limits), limits)


async def look(
    cluster: Cluster, lifecycle: Lifecycle, namespaces: Iterable[str] = (), only: Iterable[Key] | None = None
) -> dict[Key, Plan]:
    """Return what would be written now for the objects of these namespaces (none: of all), or ``only`` these.

    One that cannot be planned is left out.
    """
    await adapt(cluster, lifecycle)
    async with Mirror(cluster) as mirror:
        world = await _world(mirror, lifecycle, set(namespaces))
        plans = {}
        for key in [obj.key for obj in world[lifecycle.about].within(namespaces)] if only is None else only:
            try:
                plan = lifecycle.plan(key, world, cluster.now())
            except Exception:  # one object's failure is never another's
                log.exception("%s %s", lifecycle.about.kind, key)
                continue
            if plan is not None:
                plans[key] = plan
    return plans


async def _world(mirror: Mirror, lifecycle: Lifecycle, spaces: set[str]) -> dict[ResourceType | str, Store[Any]]:
    await mirror.begin()
    return {want.called or want.kind: await mirror.read(want, want.spaces(spaces)) for want in lifecycle.wants}
