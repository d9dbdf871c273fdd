"""The reconcile shift's connections: the plans of all lifecycles, and the part of them that needs no run.

What a plan creates or scales is left to a run; of such a plan only the status is written here. Plans that only mark,
delete and take the finalizer off are carried out here, a share of each namespace in every tick, unless a run is already
working on the object.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self

from modelyard.cluster import Cluster, ClusterSettings, Holder, Lease
from modelyard.fairness import interleave
from modelyard.reconcile.kernel.carry_out import MOST_DEEDS, carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.mirror import Mirror
from modelyard.reconcile.kernel.survey import Survey
from modelyard.reconcile.kernel.tell import Said, row, tell
from modelyard.reconcile.plans import (
    CLAIM,
    RETRIES,
    Acting,
    Dispatch,
    KnownRuns,
    Lifecycle,
    Plan,
    Ref,
    Row,
    RunFate,
    Start,
    awaited_run,
    dispatch,
    is_free,
    pause_after,
    table,
    with_awaited_run,
)

log = logging.getLogger(__name__)

Plans = Mapping[str, Sequence[Plan]]
"""Plans by the name of their lifecycle."""

MOST_CARRIED_OUT = 50
"""Plans of one namespace that the shift itself carries out in a tick; the rest has its turn in the next one."""
MOST_CHANGES = 1000
"""Marks and deletions of all such plans of a tick: a tick has to end in time."""


@dataclass(frozen=True)
class Registered:
    """A lifecycle, and how its plans that act are carried out (``None``: it only tells)."""

    lifecycle: Lifecycle
    acting: Acting | None = None


class Reconciler:
    """Open once per shift. ``async with Reconciler(registered, namespaces) as reconciler: ...``

    ``follow``: keep what is seen current by watches, for more than one look.
    """

    def __init__(self, registered: Iterable[Registered], namespaces: Iterable[str] = (), follow: bool = True) -> None:
        self.registered = {one.lifecycle.name: one for one in registered}
        self.cluster: Cluster
        self._namespaces = tuple(namespaces)
        self._follow = follow
        self._stack = AsyncExitStack()
        self._mirror: Mirror
        self._survey: Survey
        self._lease: Lease | None = None
        self._term = 0
        self._fence = Fence(lambda: math.inf if self._lease is None else self._lease.remaining)
        self._said = Said()
        self._failures: dict[Ref, tuple[int, float]] = {}
        """Attempts of the shift's own that failed, and when (monotonic seconds) to try again."""
        self.last_starts: dict[str, float] = {}
        """When (epoch seconds) each namespace last had a run claimed: a hint for the order of turns, not a decision."""

    async def __aenter__(self) -> Self:
        self.cluster = await self._stack.enter_async_context(Cluster.connect(ClusterSettings()))
        self._mirror = await self._stack.enter_async_context(Mirror(self.cluster))
        if self._follow:
            self._mirror.follow()
        self._survey = Survey(self._mirror, [one.lifecycle for one in self.registered.values()], self._namespaces)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def lease(self, name: str, namespace: str | None = None, token: str = "") -> Lease:
        """The Lease that makes this the one writer. Once asked for, nothing is written unless it is held."""
        self._lease = Lease(self.cluster, name, namespace or "default", str(Holder.here()), token=token)
        return self._lease

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an edit."""
        return await self._mirror.wait(timeout)

    async def look(self) -> dict[str, list[Plan]]:
        """By lifecycle, every plan with something to write or to wait for; free while nothing moves."""
        if self._lease is not None and self._lease.generation != self._term:
            # Until a moment ago another shift wrote; its last writes may still be on their way to our watches.
            self._term = self._lease.generation
            self._mirror.distrust()
        return {one.name: plans for one, plans in (await self._survey.look(self.cluster.now())).items()}

    def to_write(self, plans: Iterable[Plan], runs: Mapping[str, RunFate] | None = None) -> list[Plan]:
        """Return what the shift itself writes of these plans (``shares``); without ``runs`` only what no run claims."""
        moment = time.monotonic()
        paused = {ref for ref, (_, until) in self._failures.items() if moment < until}
        return shares(plans, runs, self.cluster.now(), paused)

    async def tell(self, plans: Sequence[Plan], runs: Mapping[str, RunFate] | None = None) -> list[Row]:
        """Write what the plans say, and carry out those that need no run; the table of it.

        ``runs`` are the fates of the runs that objects name (``None``: not known). Raises ``NotTheWriter`` without the
        Lease.
        """
        said = self.to_write(plans, runs)
        outcome = await carry_out(self.cluster, said, self._fence)
        for ref in [plan.subject.ref for plan in said if plan.acts]:
            attempts, _ = self._failures.pop(ref, (0, 0.0))
            if ref in outcome.errors:
                self._failures[ref] = attempts + 1, time.monotonic() + pause_after(attempts + 1)
        await tell(self.cluster, said, outcome, self._said, self.cluster.now())
        return table(said, lambda plan: plan.subject.key.namespace, lambda plan: row(plan, outcome))

    def work(self, plans: Plans) -> list[tuple[Acting, Sequence[Plan]]]:
        """Return the plans that runs carry out."""
        acting = ((self.registered[name].acting, some) for name, some in plans.items())
        return [(how, some) for how, some in acting if how is not None]

    def due(self, plans: Plans, runs: KnownRuns) -> Dispatch:
        """Choose the runs to start, for all lifecycles together, by the fates of those that objects name."""
        if runs.load is None:
            return Dispatch()
        return dispatch(self.work(plans), runs.fates, self.cluster.now(), runs.load)

    def awaiting(self, plans: Plans, runs: KnownRuns) -> dict[str, list[Plan]]:
        """Return the plans with the flow runs, or the turns, that they wait for in their statuses."""
        now, waiting, awaiting = self.cluster.now(), self.due(plans, runs).waiting, {}
        for name, some in plans.items():
            awaiting[name] = list(some)
            if (acting := self.registered[name].acting) is not None:
                texts = (waiting.get(plan.subject.ref) or awaited_run(plan, acting, runs.fates, now) for plan in some)
                awaiting[name] = [with_awaited_run(plan, text, now) for plan, text in zip(some, texts, strict=True)]
        return awaiting

    async def claim(self, start: Start) -> Start:
        """Make the run's objects name it; the run with those that could be claimed. Raises ``NotTheWriter``."""
        marks = [Plan(subject, annotations={CLAIM: str(claim)}, exact=True) for subject, claim in start.claims]
        outcome = await carry_out(self.cluster, marks, self._fence)
        missed = outcome.skipped.keys() | outcome.errors.keys()
        claims = tuple(one for one in start.claims if one[0].ref not in missed)
        now = self.cluster.now()
        recent = {name: at for name, at in self.last_starts.items() if now - at < RETRIES.longest}
        self.last_starts = {**recent, **{subject.key.namespace: now for subject, _ in claims}}
        return replace(start, claims=claims)


def shares(
    plans: Iterable[Plan], runs: Mapping[str, RunFate] | None, now: float, paused: Container[Ref] = ()
) -> list[Plan]:
    """Return what a shift writes of these plans: their statuses, and of those that need no run everything.

    Of the latter, each namespace has its share, and none is carried out while a run works on its object or it is
    ``paused``. Where a run was created and has not started, the object ceases to name it.
    """
    some = list(plans)
    own = [
        plan
        for plan in some
        if plan.acts
        and not plan.needs_run
        and plan.subject.ref not in paused
        and (not plan.subject.claim if runs is None else is_free(plan.subject.claim, runs, now))
    ]
    ordered, _ = interleave(own, lambda plan: plan.subject.key.namespace, MOST_CARRIED_OUT)
    chosen, changes = set[Ref](), 0
    for plan in ordered:
        changes += 1 + min(len(plan.marks), MOST_DEEDS) + min(len(plan.delete), MOST_DEEDS)
        if chosen and changes > MOST_CHANGES:
            break
        chosen.add(plan.subject.ref)
    return [_released(plan) if plan.subject.ref in chosen else only_told(plan) for plan in some]


def _released(plan: Plan) -> Plan:
    """The plan, with which its object ceases to name a run. Nothing is written if anything of it has changed."""
    if not plan.subject.claim:
        return plan
    return replace(plan, annotations={**plan.annotations, CLAIM: None}, exact=True)


def only_told(plan: Plan) -> Plan:
    """The plan without what is to be carried out; memory goes with the deeds that it remembers."""
    if not plan.acts:
        return plan
    return replace(
        plan, annotations={}, marks=(), apply=(), hand_over=(), delete=(), fill={}, scales=(), finalizer=None
    )
