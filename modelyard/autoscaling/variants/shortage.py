"""Replicas that a model needs and cannot have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil

from modelyard.autoscaling.outcomes import ConditionValue, Finding, Outcome
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Transition

AT_MAXIMUM = Outcome.CANNOT_SCALE.reason
NOT_STARTING = Outcome.CANNOT_START.reason
EXHAUSTED = "AcceleratorsExhausted"
SUFFICIENT = ConditionValue("False", "CapacitySufficient", "the replicas that the load needs can be added")


def cannot_scale(seen: Observation, current: int, wanted: int) -> Finding:
    """Return the shortage of a variant at its maximum."""
    return Finding(
        Outcome.CANNOT_SCALE, name=seen.name, current=current, wanted=wanted, why=_maximum(seen), waiting=""
    )


def shortage_of(
    variants: Sequence[Transition],
    missing: float,
    worth: Callable[[Observation], float],
    cost: Callable[[Observation], float],
    why: object,
    *,
    stalled: Iterable[Transition] = (),
    waiting: object = "",
) -> Finding | None:
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
        why = _maximum(best.seen) if full else Finding(Outcome.ASKED_NOT_STARTED)
    outcome = Outcome.CANNOT_SCALE if full else Outcome.CANNOT_START
    return Finding(outcome, name=best.name, current=best.base, wanted=wanted, why=why, waiting=waiting)


def _is_full(variant: Transition) -> bool:
    upper = variant.seen.bounds.upper
    return upper is not None and variant.base >= upper


def _maximum(seen: Observation) -> Finding:
    return Finding(Outcome.MAXIMUM_IS, source=seen.bounds.upper_from, limit=seen.bounds.upper)
