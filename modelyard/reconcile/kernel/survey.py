"""What all lifecycles would write now: every object's plan, from stores that are current, fairly by namespace.

It costs nothing while nothing moves: an object that was settled is not planned again while the stores are as they were
then. One object that cannot be planned is logged and stops no other, and one namespace takes no more than its
share of the time; what it did not come to has its turn the next time. Of a namespace that cannot be read nothing is
planned, and of the others all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

from modelyard.cluster import Cluster, ClusterError
from modelyard.fairness import RoundRobin, by_owner
from modelyard.objects import Key, ResourceType
from modelyard.reconcile.kernel.look_ups import SecretLookUps
from modelyard.reconcile.kernel.mirror import Mirror, Store
from modelyard.reconcile.plans import LOOK_UPS, Adapting, Enumerating, Lifecycle, Plan, Want, World

log = logging.getLogger(__name__)

BUDGET = 0.5
"""Seconds of planning for one lifecycle in one namespace, each time."""


SET_BACK = 60.0
"""Seconds by which time must go back to count as a clock that was set: what waits for a moment is planned again."""
ADAPT_AFTER = 60.0
"""Seconds after which the server is asked anew which kinds it has."""


async def adapt(cluster: Cluster, lifecycle: Lifecycle) -> None:
    """Tell a lifecycle that asks for it which kinds there are."""
    if isinstance(lifecycle, Adapting):
        lifecycle.served = frozenset([kind for kind in lifecycle.asks if await cluster.serves(*kind)])


def _keys(objects: Iterable[Any]) -> Iterable[Key]:
    return (each.key for each in objects)


class Survey:
    """The plans of these lifecycles for what is in these namespaces (none: everywhere)."""

    def __init__(
        self,
        mirror: Mirror,
        lifecycles: Iterable[Lifecycle],
        namespaces: Iterable[str] = (),
        budget: float = BUDGET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mirror = mirror
        self._budget = budget
        self._clock = clock
        self._spaces = tuple(namespaces)
        # What is in no namespace is for whoever looks everywhere: two of these never write for one object.
        mine = [one for one in lifecycles if one.about.namespaced or not self._spaces]
        self._adapting = [one for one in mine if isinstance(one, Adapting)]
        self._adapted = -math.inf
        self._look_ups = SecretLookUps(mirror.cluster, clock)
        self._needs: dict[Lifecycle, dict[Key, tuple[Key, ...]]] = {one: {} for one in mine}
        """By lifecycle and object, the Secrets that its last plan needs."""
        self._worlds: dict[Lifecycle, dict[ResourceType | str, Store[Any]]] = {
            one: self._world(one) for one in mine if not isinstance(one, Adapting)
        }
        self._settled: dict[Lifecycle, tuple[tuple[object, ...], dict[Key, float]]] = {}
        """What the stores were like, and which objects were settled then, each until when."""
        self._latest = -math.inf
        self._rounds = {lifecycle: RoundRobin[Key](lambda key: key) for lifecycle in mine}
        self._said: dict[object, str] = {}

    async def look(self, now: float) -> dict[Lifecycle, list[Plan]]:
        """Every plan with something to write or to wait for, by lifecycle."""
        await self._mirror.begin()
        await self._adapt()
        if now < self._latest - SET_BACK:
            self._settled.clear()
        self._latest = now
        await asyncio.gather(*(self._read(want) for lifecycle in self._worlds for want in lifecycle.wants))
        await self._look_up()
        found: dict[Lifecycle, list[Plan]] = {}
        unread: dict[Lifecycle, Collection[str]] = {}
        for lifecycle, world in self._worlds.items():
            errors = {place: error for store in world.values() for place, error in store.errors.items()}
            if errors:
                where = "nothing" if "" in errors else f"nothing in {', '.join(sorted(errors))}"
                why = "; ".join(str(errors[place]) for place in sorted(errors))
                self._complain(lifecycle, f"{lifecycle.name}: {where} is told, not all that it needs is there: {why}")
            else:
                self._said.pop(lifecycle, None)
            if "" in errors:
                continue
            version = (frozenset(errors), *(store.version for store in world.values()))
            before, settled = self._settled.get(lifecycle, ((), {}))
            if before != version:
                settled = {}
                self._settled[lifecycle] = version, settled
            unread[lifecycle] = errors.keys()
            plans = await self._plan(lifecycle, world, now, errors.keys(), settled)
            if plans is not None:
                found[lifecycle] = plans
        for lifecycle, keys in (await self._look_up()).items():
            if keys and lifecycle in unread:
                _, settled = self._settled[lifecycle]
                again = await self._plan(lifecycle, self._worlds[lifecycle], now, unread[lifecycle], settled, keys)
                kept = [plan for plan in found.get(lifecycle, ()) if plan.subject.key not in keys]
                found[lifecycle] = kept + (again or [])
        return found

    def _world(self, lifecycle: Lifecycle) -> dict[ResourceType | str, Store[Any]]:
        mirror, spaces = self._mirror, self._spaces
        return {want.called or want.kind: mirror.store(want, want.spaces(spaces)) for want in lifecycle.wants}

    async def _look_up(self) -> dict[Lifecycle, set[Key]]:
        changed = await self._look_ups.refresh(
            key for needs in self._needs.values() for some in needs.values() for key in some
        )
        affected = {}
        for lifecycle, needs in self._needs.items() if changed else ():
            affected[lifecycle] = {key for key, some in needs.items() if not changed.isdisjoint(some)}
            _, settled = self._settled.get(lifecycle, ((), {}))
            for key in affected[lifecycle]:
                settled.pop(key, None)
        return affected

    async def _adapt(self) -> None:
        if self._clock() < self._adapted + ADAPT_AFTER or not self._adapting:
            return
        for one in self._adapting:
            before = one.served
            try:
                await adapt(self._mirror.cluster, one)
            except ClusterError as error:
                self._complain((one, "served"), f"{one.name}: what the server has is not known: {error}")
                return
            if one not in self._worlds or one.served != before:
                self._worlds[one] = self._world(one)
                self._settled.pop(one, None)
        self._adapted = self._clock()

    async def _read(self, want: Want[Any]) -> None:
        with contextlib.suppress(ClusterError):  # the store's ``errors`` say so
            await self._mirror.read(want, want.spaces(self._spaces), partial=True)

    async def _plan(
        self,
        lifecycle: Lifecycle,
        world: Mapping[ResourceType | str, Store[Any]],
        now: float,
        unread: Collection[str],
        settled: dict[Key, float],
        only: Collection[Key] | None = None,
    ) -> list[Plan] | None:
        """The plans of what is not settled (``only`` of these keys), outside of ``unread`` namespaces.

        ``None`` where everything is settled.
        """
        plans: list[Plan] = []
        seen: World = {**world, LOOK_UPS: self._look_ups}
        every = lifecycle.keys(world) if isinstance(lifecycle, Enumerating) else _keys(world[lifecycle.about].all())
        keys = [key for key in every if key.namespace not in unread]
        needs = self._needs[lifecycle]
        for key in needs.keys() - set(keys) if needs else ():
            del needs[key]
        if only is not None:
            keys = [key for key in keys if key in only]
        keys = [key for key in keys if key not in settled or settled[key] <= now]
        rounds = self._rounds[lifecycle]
        for space, own in by_owner(keys, attrgetter("namespace")).items():
            until = self._clock() + self._budget
            for key in rounds.resume(space, own):
                if self._clock() > until:
                    rounds.stop(space, key)
                    self._complain(
                        (lifecycle, space), f"{lifecycle.name}: {space or 'the cluster'} has too much to plan in one go"
                    )
                    break
                try:
                    plan = lifecycle.plan(key, seen, now)
                except Exception as error:
                    what = f"{lifecycle.about.kind} {key} cannot be planned: {type(error).__name__}: {error}"
                    self._complain((lifecycle, key), what)
                    continue
                needs.pop(key, None)
                if plan is not None and plan.needs:
                    needs[key] = plan.needs
                if plan is not None and (plan.writes or plan.awaits):
                    plans.append(plan)
                else:
                    settled[key] = plan.due if plan is not None and plan.due is not None else math.inf
            await asyncio.sleep(0)  # watches and the Lease have their turn
        return plans if keys else None

    def _complain(self, about: object, what: str) -> None:
        if self._said.get(about) != what:
            self._said[about] = what
            log.warning("%s", what)
