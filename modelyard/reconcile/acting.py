"""A run of a lifecycle: it carries its objects' plans out until all are settled, as long as they name it.

While one of them keeps it alive no other run may work on the rest: what settled and moves again is its work as well.
Everything it needs to go on is in the cluster. It may die at any line: the next run looks, plans and carries on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from modelyard.cluster import Cluster
from modelyard.objects import Key, ResourceType
from modelyard.reconcile.carry_out import Outcome, carry_out, note_failure
from modelyard.reconcile.dispatch import Claim, fingerprint
from modelyard.reconcile.fence import NotTheWriter, RunFence
from modelyard.reconcile.look_ups import SecretLookUps
from modelyard.reconcile.mirror import Mirror, Store
from modelyard.reconcile.plan import LOOK_UPS, Adapting, Lifecycle, Plan, World
from modelyard.reconcile.survey import adapt
from modelyard.reconcile.tell import Said, tell

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""Times in a row that an object's writes may fail before the run leaves it to a later one."""
NO_EFFECT = (
    "what is written for it has no effect; is an object of it larger than 256 KiB (annotations count), or changed back?"
)
SHORTEST_WAIT = 0.1
"""Seconds between two looks, however fast somebody changes what is looked at."""
APART = 3
"""Namespaces up to which a run reads each on its own: it wants some twenty kinds in each of them."""
IN_VAIN = 30.0
"""Seconds for which a run may do the same for an object: its watches show what was written long before."""
LOOKS_BEYOND = 50
"""Looks after its patience in which a run still finds something to write: a tenant may undo for ever what is done."""
LONGEST_WAIT = 5.0
"""Seconds after which to look again, whatever the watches say: plans may wait for a moment in time."""


@dataclass
class Acted:
    """What became of a run's objects: settled (or gone), claimed by another run, or given up with the reason."""

    settled: set[Key] = field(default_factory=set)
    lost: set[Key] = field(default_factory=set)
    failed: dict[Key, str] = field(default_factory=dict)


async def act(
    cluster: Cluster, lifecycle: Lifecycle, keys: Iterable[Key], run: str, patience: float = math.inf
) -> Acted:
    """Carry the plans of these objects out, again and again, until each is settled, lost or given up.

    After ``patience`` seconds it is enough that there is nothing to write, or that there is for ``LOOKS_BEYOND`` looks.
    An object is given up for which the same is done again and again, without an error, for ``IN_VAIN`` seconds.
    Raises ``ClusterError`` when what the lifecycle needs to see cannot be read.
    """
    acted, failures, said = Acted(), dict[Key, int](), Said()
    repeated, beyond = dict[Key, tuple[str, float]](), 0
    secrets, needs = SecretLookUps(cluster), dict[Key, tuple[Key, ...]]()
    left, end = sorted(set(keys)), time.monotonic() + patience
    spaces = {key.namespace for key in left if key.namespace}
    if isinstance(lifecycle, Adapting):
        await adapt(cluster, lifecycle)
    async with Mirror(cluster, apart=APART) as mirror:
        mirror.follow()
        while True:
            world: World = {**await _world(mirror, lifecycle, spaces), LOOK_UPS: secrets}
            moved = asyncio.create_task(mirror.moved())
            plans = []
            acted.settled = set()
            for key in left:
                try:
                    plan = lifecycle.plan(key, world, cluster.now())
                    needs[key] = plan.needs if plan is not None else ()
                    if needs[key] and await secrets.refresh(name for some in needs.values() for name in some):
                        plan = lifecycle.plan(key, world, cluster.now())
                except Exception as error:  # one object's failure is never another's
                    acted.failed[key] = f"it cannot be planned: {type(error).__name__}: {error}"
                    log.exception("%s %s", lifecycle.about.kind, key)
                    continue
                if plan is None or not (plan.writes or plan.awaits):
                    acted.settled.add(key)
                elif (claim := Claim.read(plan.subject.claim)) is None or claim.run != run:
                    acted.lost.add(key)
                elif plan.writes:
                    plans.append(plan)
            outcomes = await asyncio.gather(*(_carry_out(cluster, plan, run, acted) for plan in plans))
            for plan, outcome in zip(plans, outcomes, strict=True):
                await tell(cluster, [plan], outcome, said, cluster.now())
                key = plan.subject.key
                failures[key] = failures.get(key, 0) + 1 if outcome.errors else 0
                if failures[key] == ATTEMPTS:
                    acted.failed[key] = outcome.errors[plan.subject.ref]
                work, since = repeated.get(key, ("", 0.0))
                if not plan.deeds or outcome.errors or work != fingerprint(plan):
                    repeated[key] = fingerprint(plan), time.monotonic()
                elif time.monotonic() > since + IN_VAIN:
                    acted.failed[key] = NO_EFFECT
                    with suppress(NotTheWriter):
                        await note_failure(cluster, plan, NO_EFFECT, RunFence(cluster, plan.subject, run))
            repeated = {plan.subject.key: repeated[plan.subject.key] for plan in plans}
            left = [key for key in left if key not in acted.lost and key not in acted.failed]
            over = time.monotonic() >= end
            beyond += over
            try:
                if acted.settled.issuperset(left) or (over and (not plans or beyond > LOOKS_BEYOND)):
                    return acted
                await asyncio.sleep(SHORTEST_WAIT)
                async with asyncio.timeout(LONGEST_WAIT):
                    await moved
            except TimeoutError:
                pass
            finally:
                moved.cancel()


async def look(
    cluster: Cluster, lifecycle: Lifecycle, namespaces: Iterable[str] = (), only: Iterable[Key] | None = None
) -> dict[Key, Plan]:
    """What would be written now for the objects of these namespaces (none: of all), or ``only`` these; nothing is.

    One that cannot be planned is left out.
    """
    if isinstance(lifecycle, Adapting):
        await adapt(cluster, lifecycle)
    async with Mirror(cluster) as mirror:
        world = await _world(mirror, lifecycle, set(namespaces))
        plans = {}
        for key in [one.key for one in world[lifecycle.about].within(namespaces)] if only is None else only:
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


async def _carry_out(cluster: Cluster, plan: Plan, run: str, acted: Acted) -> Outcome:
    try:
        return await carry_out(cluster, [plan], RunFence(cluster, plan.subject, run))
    except NotTheWriter:
        acted.lost.add(plan.subject.key)
        return Outcome()
