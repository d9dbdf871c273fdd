"""Tell the user what a tick decided: Kubernetes Events and the tick's table.

Status and conditions are written with the decision itself (``actuate``); this stage only adds what may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from modelyard.autoscaling.decision import Action, Record, TickDecision
from modelyard.autoscaling.explain import row
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live.actuate import Outcome
from modelyard.cluster import Cluster
from modelyard.objects import Key, Notice

log = logging.getLogger(__name__)

REPEAT_AFTER = 600.0
"""Seconds after which an unchanged notice is sent again (Kubernetes then counts it up)."""
CONCURRENCY = 8
SAID_LIMIT = 50_000


class Said:
    """What was told recently, so that a standing problem is not an API call per tick. Losing it costs nothing."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str, str], float] = {}

    def is_new(self, about: str, notice: Notice, now: float) -> bool:
        """Whether this was not said within ``REPEAT_AFTER``; remembers that it is being said."""
        key = (about, notice.reason, notice.message)
        if now - self._at.get(key, float("-inf")) < REPEAT_AFTER:
            return False
        if len(self._at) >= SAID_LIMIT:
            self._at = {k: at for k, at in self._at.items() if now - at < REPEAT_AFTER}
        self._at[key] = now
        return True


def scaling_notice(record: Record, outcome: Outcome) -> Notice | None:
    """The Event of a new decision or of an actual change of the workload."""
    moved, target, why = outcome.scaled.get(record.identity.key), record.target, record.why.message
    if moved:
        return Notice("ScaledUp" if moved[1] > moved[0] else "ScaledDown", f"{moved[0]} → {moved[1]}: {why}")
    if target.decided and target.replicas != record.now.desired and target.action is not Action.NONE:
        reason = "ScaleUpWanted" if target.action is Action.UP else "ScaleDownWanted"
        return Notice(reason, f"{record.now.current} → {target.replicas}: {why}")
    return None


async def report(
    cluster: Cluster, fleet: Fleet, decision: TickDecision, outcome: Outcome, said: Said
) -> list[Mapping[str, Any]]:
    """Send the Events; return one table row per variant. Never raises for an Event that could not be stored."""
    variants = {variant.key: variant for variant in fleet.variants}
    events: list[tuple[Key, str, str, Notice]] = []
    for one in decision.variants:
        record, variant = one.record, variants[one.key]
        notices = list(one.notices)
        if told := scaling_notice(record, outcome):
            notices.append(told)
        if variant.memory_problem:
            notices.append(Notice("StateUnreadable", variant.memory_problem, "Warning"))
        for failure in (outcome.skipped.get(one.key), outcome.errors.get(one.key)):
            if failure:
                notices.append(Notice("ActuationDelayed", failure, "Warning"))
        events += [
            (one.key, VARIANTS.kind, variant.uid, notice)
            for notice in notices
            if notice is told or said.is_new(str(one.key), notice, fleet.now)
        ]
    for about, notice in decision.notices:
        if said.is_new(about, notice, fleet.now):
            namespace, _, name = about.partition("/")
            events.append((Key(namespace, name), "ConfigMap", "", notice))
            log.warning("%s: %s", about, notice.message)

    gate = asyncio.Semaphore(CONCURRENCY)

    async def send(key: Key, kind: str, uid: str, notice: Notice) -> None:
        regarding = {
            "apiVersion": "v1" if kind == "ConfigMap" else f"{VARIANTS.group}/{VARIANTS.version}",
            "kind": kind,
            "namespace": key.namespace,
            "name": key.name,
            **({"uid": uid} if uid else {}),
        }
        async with gate:
            await cluster.record_event(regarding, notice.reason, notice.message, kind=notice.kind)

    await asyncio.gather(*(send(*event) for event in events))
    return [row(one.record) for one in decision.variants]
