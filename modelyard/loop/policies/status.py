"""From a decision about a binding to the status it should have, and whether that is worth a write. Pure.

Called by ``modelyard.loop.policies.actuate``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from modelyard.autoscaling.policies.view import BindingDecision, BindingView
from modelyard.loop.status import QUIET_SHARE, condition_body, timestamp

TIMES = ("lastScaleTime",)
"""Fields of a unit that are epoch seconds in a decision and text in a status."""


def unit_body(unit: Mapping[str, object]) -> dict[str, Any]:
    """A unit as the status stores it: times as text, nothing that is not known."""
    return {
        name: timestamp(value) if name in TIMES and isinstance(value, int | float) else value
        for name, value in unit.items()
        if value is not None
    }


def scaled_units(
    units: Sequence[Mapping[str, object]], stored: Mapping[str, Any], moved: Collection[int], now: float
) -> list[dict[str, Any]]:
    """The units with the time of their last successful change: ``now`` for the ``moved`` ones, else what is stored."""
    before = {unit.get("name"): unit.get("lastScaleTime") for unit in stored.get("units") or ()}
    bodies = []
    for index, unit in enumerate(units):
        body = unit_body({name: value for name, value in unit.items() if name not in TIMES})
        known = timestamp(now) if index in moved else before.get(unit.get("name"))
        if known:
            body["lastScaleTime"] = known
        bodies.append(body)
    return bodies


def status_patch(
    decision: BindingDecision, units: Sequence[Mapping[str, Any]], stored: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """A merge patch for the status: our fields, and our conditions merged with those of others."""
    fresh = {condition.type: condition_body(condition, now) for condition in decision.conditions}
    merged = [fresh.pop(item["type"], dict(item)) for item in stored.get("conditions") or () if item.get("type")]
    return {
        "observedGeneration": decision.generation,
        "conditions": [*merged, *fresh.values()],
        "units": list(units),
        **_totals(decision, stored),
    }


def _totals(decision: BindingDecision, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The totals; one that is not known any more is taken out."""
    gone = {name: None for name in ("targets", "currentReplicas", "desiredReplicas", "mode") if name in stored}
    return {**gone, **decision.totals}


def needs_write(decision: BindingDecision, view: BindingView, now: float, refresh: float, told: float | None) -> bool:
    """Whether the stored status differs from the decision enough to be written.

    A changed number, state or reason is written at once; changed message texts, which carry measurements, only every
    ``refresh / QUIET_SHARE`` seconds after ``told``, when it was last written (``None``: this process never did).
    """
    stored = view.status
    if stored.get("observedGeneration") != decision.generation:
        return True
    if scaled_units(decision.units, stored, (), now) != list(stored.get("units") or ()):  # type: ignore[call-overload]
        return True
    if any(stored.get(name) != value for name, value in _totals(decision, stored).items()):
        return True
    known = {condition.type: condition for condition in view.conditions}
    texts_differ = False
    for condition in decision.conditions:
        before = known.get(condition.type)
        if (
            before is None
            or (before.status, before.reason) != (condition.status, condition.reason)
            or before.observed_generation != condition.observed_generation
        ):
            return True
        texts_differ = texts_differ or before.message != condition.message
    return texts_differ and (told is None or now - told >= refresh / QUIET_SHARE)
