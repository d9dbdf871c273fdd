"""Tell people what was planned and what became of it: Kubernetes Events, and rows for tables and lists of changes.

Only what may be lost: what matters is in the statuses already.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from modelyard.cluster import Cluster
from modelyard.fairness import interleave
from modelyard.objects import Notice
from modelyard.reconcile.kernel.carry_out import Outcome
from modelyard.reconcile.plans import Change, Plan, Ref, Row, Scale, Subject

log = logging.getLogger(__name__)

REPEAT_AFTER = 600.0
"""Seconds after which an unchanged notice is sent again (Kubernetes then counts it up)."""
CONCURRENCY = 8
MOST_AT_ONCE = 100
"""Standing notices of one namespace that are told at a time; the others have their turn the next time."""
MOST_SAID = 5000
"""Of one namespace that are remembered."""
MOST_EVENTS = 200
"""Of one namespace that are sent at a time, with what just happened; what is beyond is lost."""


class Said:
    """What was told recently, so that a standing problem is not an API call per look. Losing it costs nothing."""

    def __init__(self) -> None:
        self._at: defaultdict[str, dict[tuple[Ref, str, str], float]] = defaultdict(dict)
        """When, by namespace; the newest last."""
        self._now: Counter[str] = Counter()

    def begin(self, now: float) -> None:
        """A look begins; what may be said again is forgotten."""
        self._now.clear()
        for space, said in list(self._at.items()):
            while said and now - said[first := next(iter(said))] >= REPEAT_AFTER:
                del said[first]
            if not said:
                del self._at[space]

    def is_new(self, about: Ref, notice: Notice, now: float) -> bool:
        """Whether this was not said within ``REPEAT_AFTER``, and may be now; remembers that it is being said."""
        space, key = about.key.namespace, (about, notice.reason, notice.message)
        said = self._at[space]
        if now - said.get(key, float("-inf")) < REPEAT_AFTER or self._now[space] >= MOST_AT_ONCE:
            return False
        self._now[space] += 1
        said.pop(key, None)
        said[key] = now
        if len(said) > MOST_SAID:
            del said[next(iter(said))]
        return True


def moves(plan: Plan, outcome: Outcome) -> Iterator[tuple[Scale, int, int]]:
    """The scales that were written, each with the replicas before and after."""
    for scale in plan.scales:
        if moved := outcome.scaled.get((plan.subject.ref, scale.workload)):
            yield scale, *moved


def notices(plan: Plan, outcome: Outcome) -> tuple[list[Notice], list[Notice]]:
    """What to tell of a plan: always (it happened just now), and unless it was said recently (it stands)."""
    ref = plan.subject.ref
    happened = [
        Notice("ScaledUp" if after > before else "ScaledDown", f"{scale.workload} {before} → {after}: {scale.message}")
        for scale, before, after in moves(plan, outcome)
    ]
    failures = (outcome.skipped.get(ref), outcome.errors.get(ref))
    standing = [*plan.notices, *(Notice("ActuationDelayed", failure, "Warning") for failure in failures if failure)]
    return happened or list(plan.news), list(dict.fromkeys(standing))


def changes(plans: Iterable[Plan], outcome: Outcome) -> list[Change]:
    """The workloads that were scaled, each with the object that wanted it and why."""
    return [
        Change(str(plan.subject.key), before, after, scale.reason, scale.message, str(scale.workload))
        for plan in plans
        for scale, before, after in moves(plan, outcome)
    ]


def row(plan: Plan, outcome: Outcome) -> Row:
    """A plan in a table of lifecycles that have none of their own: what it is about, why, and how far it got."""
    ref = plan.subject.ref
    return {
        "object": str(ref),
        "reason": plan.reason,
        "message": plan.message,
        "awaits": ", ".join(plan.awaits),
        "trouble": "; ".join(filter(None, (outcome.skipped.get(ref), outcome.errors.get(ref)))),
    }


async def tell(cluster: Cluster, plans: Sequence[Plan], outcome: Outcome, said: Said, now: float) -> None:
    """Send the Events, each namespace in its turn; what is beyond its share is lost. Never raises for one that is."""
    said.begin(now)
    events: list[tuple[Subject, Notice]] = []
    for plan in plans:
        happened, standing = notices(plan, outcome)
        new = [notice for notice in standing if said.is_new(plan.subject.ref, notice, now)]
        events += [(plan.subject, notice) for notice in (*happened, *new)]
        if not plan.subject.uid:  # only its name is known: there may be no such object for an Event to be seen at
            for notice in new:
                level = logging.INFO if notice.kind == "Normal" else logging.WARNING
                log.log(level, "%s: %s", plan.subject.ref, notice.message)
    gate = asyncio.Semaphore(CONCURRENCY)

    async def send(subject: Subject, notice: Notice) -> None:
        async with gate:
            await cluster.record_event(dict(subject.reference), notice.reason, notice.message, kind=notice.kind)

    due, _ = interleave(events, lambda event: event[0].key.namespace, MOST_EVENTS)
    await asyncio.gather(*(send(*event) for event in due))
