"""Where things settle: the same decision again and again in virtual time, with the load held, until nothing changes.

Pure and deterministic. Source: WVA SLO reference, "Suggested shape" (what-if).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Record, TickDecision
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.pipeline import decide
from modelyard.autoscaling.variants import retentions
from modelyard.autoscaling.what_if.virtual import VirtualFleet

MOST_TICKS = 200
UNPROVEN_WARM_UPS = 5
"""A pod counts as new for so many warm-ups at most."""


class End(StrEnum):
    """How it ended: ``settled``; ``moving``: it went on changing; ``waiting``: some delay is longer than what was
    looked at, so that more may change after it."""

    SETTLED = "settled"
    MOVING = "moving"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Move:
    """One change on the way, ``seconds`` after the beginning. ``workload`` tells the targets of a binding apart."""

    seconds: float
    object: str
    workload: str
    before: int | None
    after: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Settled:
    """``seconds`` is when the last replica changed or became ready, ``looked_at`` how long was looked at in all.

    ``path`` holds every change of a target, the next tick's first; ``last`` is the decision in the end.
    """

    end: End
    seconds: float
    looked_at: float
    path: tuple[Move, ...]
    last: TickDecision


States = dict[tuple[str, str], tuple[int | None, int | None, int | None]]
"""Replicas that are there, ready and decided, by object and workload."""


def settle(
    fleet: Fleet, settings: FleetSettings, most_ticks: int = MOST_TICKS, heard: Callable[[int], None] | None = None
) -> Settled:
    """Decide every ``settings.tick`` seconds from ``fleet.now`` on, until nothing has changed for the longest delay.

    Load, request sizes and metrics are held; arrivals no longer rise. ``heard`` is told the number of each tick.
    """
    virtual = VirtualFleet(fleet, settings)
    quiet = _quiet(fleet, settings, virtual.longest_start)
    path: list[Move] = []
    changed = fleet.now
    before: States = {}
    decision = TickDecision(fleet.now)
    for tick in range(most_ticks):
        if tick:
            virtual.advance()
        decision = decide(virtual.fleet(), settings)
        now = {_name(one): (one.now.current, one.now.ready, one.target.replicas) for one in decision.records}
        path += _moves(decision, before, decision.now - fleet.now)
        if tick and now != before:
            changed = decision.now
        before = now
        virtual.follow(decision)
        if heard is not None:
            heard(tick)
        if virtual.starting:
            changed = max(changed, decision.now)
        elif decision.now - changed >= quiet:
            return Settled(End.SETTLED, changed - fleet.now, decision.now - fleet.now, tuple(path), decision)
    end = End.WAITING if quiet > decision.now - fleet.now else End.MOVING
    return Settled(end, changed - fleet.now, decision.now - fleet.now, tuple(path), decision)


def _name(record: Record) -> tuple[str, str]:
    return str(record.identity.key), str(record.now.workload)


def _moves(decision: TickDecision, before: States, seconds: float) -> list[Move]:
    """In the first tick, compared with the present replicas."""
    found = []
    for record in decision.records:
        known = before.get(_name(record))
        last = record.now.current if known is None or known[2] is None else known[2]
        target, why = record.target.replicas, record.why
        if target is not None and target != last:
            found.append(Move(seconds, *_name(record), last, target, why.reason, why.message))
    return found


def _quiet(fleet: Fleet, settings: FleetSettings, longest_start: float) -> float:
    """Seconds without a change after which none will come: the longest delay."""
    waits = [settings.scale_down_delay, settings.partial_limit, settings.load_window, longest_start]
    waits.append(UNPROVEN_WARM_UPS * settings.warm_up)
    if any(load.history for load in fleet.signals.loads.values()):
        waits.append(settings.trend_window)
    windows = retentions(fleet.variants, fleet.config_maps, settings)
    waits += [
        float(window)
        for (namespace, model), window in windows.items()
        if not fleet.signals.request_counts.get((namespace, model, window))
    ]
    for view in fleet.bindings:
        waits += [view.grace, *map(view.grace_of, view.targets)]
        if view.policy is not None:
            rules = view.policy.behaviour
            waits += [rules.panic.hold, 2 * rules.panic.period]
            for limits in (rules.up, rules.down):
                waits += [limits.window, 2 * limits.period]
    return max(waits) + 2 * settings.tick
