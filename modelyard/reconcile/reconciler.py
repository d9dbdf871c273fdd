"""The reconcile shift's connections: what all lifecycles plan, told where that is all there is to do, and claims.

What a plan makes, deletes or scales is left to a run. Of such a plan only the status is told here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self

from modelyard.cluster import Cluster, ClusterSettings, Holder, Lease
from modelyard.reconcile.carry_out import carry_out
from modelyard.reconcile.dispatch import Acting, Start
from modelyard.reconcile.fence import Fence
from modelyard.reconcile.mirror import Mirror
from modelyard.reconcile.plan import CLAIM, Lifecycle, Plan
from modelyard.reconcile.report import Row, table
from modelyard.reconcile.survey import Survey
from modelyard.reconcile.tell import Said, row, tell

log = logging.getLogger(__name__)


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
        self._fence = Fence(lambda: math.inf if self._lease is None else self._lease.remaining)
        self._said = Said()

    async def __aenter__(self) -> Self:
        self.cluster = await self._stack.enter_async_context(Cluster.connect(ClusterSettings()))
        self._mirror = await self._stack.enter_async_context(Mirror(self.cluster))
        if self._follow:
            self._mirror.follow()
        self._survey = Survey(self._mirror, [one.lifecycle for one in self.registered.values()], self._namespaces)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def lease(self, name: str, namespace: str | None = None) -> Lease:
        """The Lease that makes this the one writer. Once asked for, nothing is written unless it is held."""
        self._lease = Lease(self.cluster, name, namespace or "default", str(Holder.here()))
        return self._lease

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an edit."""
        return await self._mirror.wait(timeout)

    async def look(self) -> dict[str, list[Plan]]:
        """By lifecycle, every plan with something to write or to wait for; free while nothing moves."""
        return {one.name: plans for one, plans in (await self._survey.look(time.time())).items()}

    async def tell(self, plans: Sequence[Plan]) -> list[Row]:
        """Write what the plans say, act on nothing; the table of it. Raises ``NotTheWriter`` without the Lease."""
        said = [only_told(plan) for plan in plans]
        outcome = await carry_out(self.cluster, said, self._fence)
        await tell(self.cluster, said, outcome, self._said, time.time())
        return table(said, lambda plan: plan.subject.key.namespace, lambda plan: row(plan, outcome))

    async def claim(self, start: Start) -> Start:
        """Make the run's objects name it; the run with those that could be claimed. Raises ``NotTheWriter``."""
        marks = [Plan(subject, annotations={CLAIM: str(claim)}, exact=True) for subject, claim in start.claims]
        outcome = await carry_out(self.cluster, marks, self._fence)
        missed = outcome.skipped.keys() | outcome.errors.keys()
        return replace(start, claims=tuple(one for one in start.claims if one[0].ref not in missed))


def only_told(plan: Plan) -> Plan:
    """The plan without what a run has to do; memory goes with the deeds that it remembers."""
    if not plan.acts:
        return plan
    return replace(
        plan, annotations={}, marks=(), apply=(), hand_over=(), delete=(), fill={}, scales=(), finalizer=None
    )
