"""Replicas that a model needs and cannot have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil

from modelyard.autoscaling.decisions import ConditionValue, Explanation, Reason
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import VariantTransition

AT_MAXIMUM = Reason.CANNOT_SCALE.code
NOT_STARTING = Reason.CANNOT_START.code
EXHAUSTED = "AcceleratorsExhausted"
SUFFICIENT = ConditionValue("False", "CapacitySufficient", "the replicas that the load needs can be added")


def cannot_scale(seen: Observation, current: int, wanted: int) -> Explanation:
    """Return the shortage of a variant at its maximum."""
    facts = {"name": seen.name, "current": current, "wanted": wanted, "why": _maximum(seen)}
    return Explanation(Reason.CANNOT_SCALE, **facts, waiting="")


def at_bound(variant: VariantTransition) -> Explanation | None:
    """Return that a variant is at its maximum, if it is."""
    if not _is_full(variant):
        return None
    bounds = variant.seen.bounds
    return Explanation(Reason.AT_BOUND, name=variant.name, source=bounds.upper_from, limit=bounds.upper)


def shortage_of(
    variants: Sequence[VariantTransition],
    missing: float,
    worth: Callable[[Observation], float],
    cost: Callable[[Observation], float],
    why: object,
    *,
    stalled: Iterable[VariantTransition] = (),
    waiting: object = "",
) -> Explanation | None:
    """Return which replicas a model lacks for ``missing`` units of load, if any.

    ``worth`` is the load that a replica of a variant carries, ``cost`` its price. The replicas are those of the
    cheapest variant at its maximum; where none is, of the cheapest ``stalled`` one, whose replicas do not start.
    ``why`` is for several variants, and ``waiting`` follows it.
    """
    full = [v for v in variants if _is_full(v) and worth(v.seen) > 0]
    candidates = full or [v for v in stalled if worth(v.seen) > 0]
    if not candidates:
        return None
    best = min(candidates, key=lambda v: (cost(v.seen) / worth(v.seen), v.name))
    wanted = best.base + ceil(round(missing / worth(best.seen), DIGITS))
    if len(variants) == 1:
        why = _maximum(best.seen) if full else Explanation(Reason.ASKED_NOT_STARTED)
    outcome = Reason.CANNOT_SCALE if full else Reason.CANNOT_START
    return Explanation(outcome, name=best.name, current=best.base, wanted=wanted, why=why, waiting=waiting)


def _is_full(variant: VariantTransition) -> bool:
    upper = variant.seen.bounds.upper
    return upper is not None and variant.base >= upper


def _maximum(seen: Observation) -> Explanation:
    return Explanation(Reason.MAXIMUM_IS, source=seen.bounds.upper_from, limit=seen.bounds.upper)
