"""From what a status should say to the patch that says it, and whether that is worth a write. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from modelyard.objects import LONGEST_MESSAGE, Condition, Notice, cut, epoch, printable, timestamp
from modelyard.reconcile.plans.plan import Plan, Status, Subject

QUIET_SHARE = 5
"""A status of which only message texts changed is written at most every ``refresh / QUIET_SHARE`` seconds."""


def condition_body(condition: Condition, now: float, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A condition as Kubernetes stores it; without a time it keeps ``stored``'s while the status is the same."""
    if condition.last_transition is not None:
        since = timestamp(condition.last_transition)
    elif stored is not None and stored.get("status") == condition.status and stored.get("lastTransitionTime"):
        since = stored["lastTransitionTime"]
    else:
        since = timestamp(now)
    body: dict[str, Any] = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": _words(condition),
        "lastTransitionTime": since,
    }
    if condition.observed_generation is not None:
        body["observedGeneration"] = condition.observed_generation
    return body


def patch(status: Status, stored: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The merge patch for a status: our fields, and our conditions merged with those of others in ``stored``."""
    if not status.conditions and not status.transient:
        return dict(status.fields)
    fresh = {condition.type: condition for condition in status.conditions}
    merged = []
    for item in stored.get("conditions") or ():
        if ours := fresh.pop(item.get("type"), None):
            merged.append(condition_body(ours, now, item))
        elif item.get("type") and item["type"] not in status.transient:
            merged.append(dict(item))
    merged += [condition_body(condition, now) for condition in fresh.values()]
    return {**status.fields, "conditions": merged}


def is_status_due(
    status: Status,
    stored: Mapping[str, Any],
    now: float,
    refresh: float,
    uid: str = "",
    written: float | None = None,
) -> bool:
    """Whether the ``stored`` status differs from what it should say enough to be written.

    A changed field, state or reason is written at once. Changed message texts, which carry measurements, wait until
    ``refresh / QUIET_SHARE`` seconds after it was last written; a status with a ``clock`` is also written when nothing
    changed, at least every ``refresh`` seconds, so that the clock tells who is alive. Objects written together are
    renewed apart, each at a moment of its own that follows from its ``uid``. A quiet fleet costs the API server nothing
    else. ``written`` (epoch seconds) is asked for only where there is no clock; ``None``: not known.
    """
    if changes(status.fields, stored, status.clock):
        return True
    known = {item.get("type"): item for item in stored.get("conditions") or ()}
    if status.transient & known.keys() - {condition.type for condition in status.conditions}:
        return True
    words_differ = False
    for condition in status.conditions:
        before = known.get(condition.type)
        essence = condition.status, condition.reason, condition.observed_generation
        if before is None or essence != tuple(map(before.get, ("status", "reason", "observedGeneration"))):
            return True
        words_differ = words_differ or before.get("message", "") != _words(condition)
    if status.clock and _at(status.fields, status.clock) is not None:
        told = _at(stored, status.clock)
        if told is None:
            return True
        written = epoch(told)
        share = zlib.crc32(uid.encode()) / 2**32  # from 0 to below 1, always the same for an object
        if abs(now - written) >= refresh * (1 - share / QUIET_SHARE):
            return True
    return words_differ and (written is None or abs(now - written) >= refresh / QUIET_SHARE)


def status_plan(
    subject: Subject,
    main: Condition,
    status: Status,
    stored: Mapping[str, Any],
    now: float,
    notices: Callable[[Mapping[str, tuple[str, str]]], Iterable[Notice]] = lambda before: (),
) -> Plan:
    """Return the plan that keeps a status current; ``main`` is the condition that people read first.

    ``notices`` returns the Events for a status that differs from the ``stored`` one, given the status and the reason of
    each condition there.
    """
    plan = Plan(subject, main.reason, _words(main), wanted=status, stored=stored)
    if not is_status_due(status, stored, now, 0.0, subject.uid):
        return plan
    conditions = stored.get("conditions") or ()
    before = {item.get("type", ""): (item.get("status", ""), item.get("reason", "")) for item in conditions}
    return replace(plan, status=status, notices=tuple(notices(before)))


def _words(condition: Condition) -> str:
    return cut(printable(condition.message), LONGEST_MESSAGE)


def changes(patch: Mapping[str, Any], stored: Mapping[str, Any], ignoring: Iterable[str] = ()) -> bool:
    """Whether the merge patch would change what is stored, but for the field at the path ``ignoring``."""
    first, *rest = [*ignoring] or [""]
    for name, value in patch.items():
        before = stored.get(name)
        if name == first and not rest:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if changes(value, before, rest if name == first else ()):
                return True
        elif value != before:
            return True
    return False


def _at(fields: Mapping[str, Any], path: Iterable[str]) -> Any:
    found: Any = fields
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
