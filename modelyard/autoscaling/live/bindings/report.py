"""Tell the user what was decided about bindings: Kubernetes Events and rows of the tick's table.

Only what may be lost: the decision is in the status and the memory already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.autoscaling.bindings.view import BindingView
from modelyard.autoscaling.decision import BindingDecision, Record
from modelyard.autoscaling.explain import row
from modelyard.autoscaling.kinds import BINDINGS
from modelyard.autoscaling.live.bindings.actuate import BindingOutcome
from modelyard.autoscaling.live.report import CONCURRENCY, Said
from modelyard.cluster import Cluster
from modelyard.objects import Notice
from modelyard.reconcile.report import Change

MOVED = ("ScaledUp", "ScaledDown")
"""Events of a change that happened; they are sent when it has, and not merely because it was decided."""


def rows(decisions: Sequence[BindingDecision]) -> list[dict[str, Any]]:
    """One row per target, with the columns of variants."""
    return [row(record) for decision in decisions for record in decision.records]


def changes(decisions: Sequence[BindingDecision], outcome: BindingOutcome) -> list[Change]:
    """The workloads that were scaled."""
    return [
        Change(str(decision.key), *moved, record.why.reason, record.why.message, str(record.now.workload))
        for decision in decisions
        for record in decision.records
        if (moved := _moved(decision, record, outcome)) is not None
    ]


def _moved(decision: BindingDecision, record: Record, outcome: BindingOutcome) -> tuple[int, int] | None:
    return outcome.scaled.get((decision.key, record.now.workload)) if record.now.workload is not None else None


def notices(decision: BindingDecision, outcome: BindingOutcome) -> tuple[list[Notice], list[Notice]]:
    """What to tell of a binding: always (something happened), and unless it was said recently (something stands)."""
    happened = []
    standing = list(decision.notices)
    for record in decision.records:
        if (moved := _moved(decision, record, outcome)) is not None:
            text = f"{record.now.workload} {moved[0]} → {moved[1]}: {record.why.message}"
            happened.append(Notice(MOVED[0] if moved[1] > moved[0] else MOVED[1], text))
    for failure in (outcome.skipped.get(decision.key), outcome.errors.get(decision.key)):
        if failure:
            standing.append(Notice("ActuationDelayed", failure, "Warning"))
    return happened, list(dict.fromkeys(standing))


async def report_bindings(
    cluster: Cluster,
    views: Sequence[BindingView],
    decisions: Sequence[BindingDecision],
    outcome: BindingOutcome,
    said: Said,
    now: float,
) -> list[Mapping[str, Any]]:
    """Send the Events; return one table row per target. Never raises for an Event that could not be stored."""
    by_key = {view.key: view for view in views}
    events: list[tuple[BindingView, Notice]] = []
    for decision in decisions:
        view = by_key[decision.key]
        happened, standing = notices(decision, outcome)
        about = f"{BINDINGS.kind} {view.key}"
        events += [(view, notice) for notice in (*happened, *(n for n in standing if said.is_new(about, n, now)))]

    gate = asyncio.Semaphore(CONCURRENCY)

    async def send(view: BindingView, notice: Notice) -> None:
        regarding = {
            "apiVersion": BINDINGS.api_version,
            "kind": BINDINGS.kind,
            "namespace": view.key.namespace,
            "name": view.key.name,
            "uid": view.uid,
        }
        async with gate:
            await cluster.record_event(regarding, notice.reason, notice.message, kind=notice.kind)

    await asyncio.gather(*(send(*event) for event in events))
    return list(rows(decisions))
