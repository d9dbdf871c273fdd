"""Replicas that the metrics ask for. Pure. Source: Kthena autoscaler reference, "Recommended replicas"."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, fsum, inf, isnan
from typing import NamedTuple

from modelyard.autoscaling.bindings.names import is_ratio
from modelyard.autoscaling.decisions import Count, Explanation, JoinedTexts, Reason

CEILING = 10**9
"""Replicas that stand for "without end" in the arithmetic."""

SLACK = 1e-9
"""Relative rounding error that neither makes a replica nor leaves the tolerance."""


class MetricProposal(NamedTuple):
    """The replicas one metric asks for. ``ratio`` is load over ``target`` (per instance); 1: exactly on target."""

    metric: str
    replicas: int
    ratio: float
    why: Explanation
    target: float = 0.0


class Recommendation(NamedTuple):
    """The largest proposal within the bounds. ``replicas`` ``None``: no metric said anything, nothing is to be done."""

    replicas: int | None
    proposals: tuple[MetricProposal, ...]
    why: Explanation
    bounded: str = ""
    """``minimum`` or ``maximum`` when the bounds decided."""
    held: bool = False
    """Nothing is done, for the reason given, although metrics said something."""


def recommend(
    current: int,
    minimum: int,
    maximum: int,
    tolerance: float,
    targets: Mapping[str, float],
    instances: Sequence[Mapping[str, float]],
    *,
    unready: float = 0,
    external: Mapping[str, float] | None = None,
    weights: Sequence[float] | None = None,
    unknown: Collection[str] = (),
    doubts: bool = True,
) -> Recommendation:
    """Replicas so that every metric is at its target.

    ``targets`` is what one instance should carry, ``instances`` one map of measured values per ready instance (what
    could not be measured is left out), ``unready`` the instances that exist and are not ready, ``external`` totals
    measured elsewhere, ``tolerance`` a share. ``weights`` is how many ordinary instances each one counts for.
    ``unknown`` are metrics that have a value which could not be read: the others alone may add, and take nothing away,
    for it might be the one that needs what there is. With no instance ready, none of those on their way is given up.

    Without ``doubts`` it is plain arithmetic on what is handed in, without these two guards and the one that keeps
    load above its target from ever shrinking, and load below from ever growing, when there are more or fewer instances
    than ``current``.
    """
    if current < minimum:
        why = Explanation(Reason.BELOW_MINIMUM, current=current, minimum=minimum)
        return Recommendation(minimum, (), why, "minimum")
    if current > maximum:
        why = Explanation(Reason.ABOVE_MAXIMUM, current=current, maximum=maximum)
        return Recommendation(maximum, (), why, "maximum")
    found: list[MetricProposal] = []
    for name, target in targets.items():
        total = (external or {}).get(name)
        if total is not None and not isnan(total):
            found.append(_external(name, total, target, current, tolerance))
        measured = _measured(name, target, current, tolerance, instances, unready, weights, doubts)
        if measured is not None:
            found.append(measured)
    if not found:
        return Recommendation(None, (), Explanation(Reason.NOTHING_MEASURED))
    best = deciding(found)
    if doubts and current > 0 and best.replicas <= current:
        told = {proposal.metric for proposal in found}
        dark = [name for name in targets if name in unknown and name not in told]
        if dark:
            why = Explanation(Reason.METRICS_INCOMPLETE, proposal=best.why, names=JoinedTexts(dark))
            return Recommendation(None, tuple(found), why, held=True)
        if best.replicas < current and unready > 0 and not instances:
            why = Explanation(Reason.NONE_READY, proposal=best.why, unready=unready)
            return Recommendation(None, tuple(found), why, held=True)
    clamped = min(max(best.replicas, minimum), maximum)
    bounded = "minimum" if clamped > best.replicas else "maximum" if clamped < best.replicas else ""
    why = best.why
    if bounded:
        why = Explanation(Reason.BOUNDED, proposal=why, replicas=clamped, bound=bounded)
    return Recommendation(clamped, tuple(found), why, bounded)


def deciding(proposals: Iterable[MetricProposal]) -> MetricProposal:
    """Return the largest proposal."""
    return max(proposals, key=lambda proposal: proposal.replicas)


def ceiling(number: float) -> int:
    """The next whole number: 0 for what is not above zero or not a number, at most ``CEILING``."""
    if isnan(number) or number <= 0:
        return 0
    if number >= CEILING:
        return CEILING
    return ceil(number * (1 - SLACK))


def _ratio(load: float, target: float) -> float:
    if target <= 0:
        return inf
    return load / target


def _within(ratio: float, tolerance: float) -> bool:
    return abs(ratio - 1) <= tolerance + SLACK


def _external(name: str, total: float, target: float, current: int, tolerance: float) -> MetricProposal:
    desired = _ratio(total, target)
    ratio = desired / current if current else inf if desired > 0 else 0.0
    if current and _within(ratio, tolerance):
        why = Explanation(Reason.TOTAL_WITHIN, metric=name, total=total, tolerance=tolerance, target=target)
        return MetricProposal(name, current, ratio, why, target)
    replicas = ceiling(desired)
    why = Explanation(Reason.TOTAL_ASKS, metric=name, total=total, target=target, replicas=replicas)
    return MetricProposal(name, replicas, ratio, why, target)


def _measured(
    name: str,
    target: float,
    current: int,
    tolerance: float,
    instances: Sequence[Mapping[str, float]],
    unready: float,
    weights: Sequence[float] | None,
    doubts: bool,
) -> MetricProposal | None:
    share = is_ratio(name)
    have, lack, values = [], [], []
    for index, instance in enumerate(instances):
        weight = 1.0 if weights is None else weights[index]
        value = instance.get(name)
        if value is None or isnan(value):
            lack.append(weight)
        else:
            have.append(weight)
            values.append(value * weight if share else value)
    if not have:
        return None
    n, s, m = fsum(have), fsum(values), fsum(lack)
    ratio = _ratio(s / n, target)
    up = ratio >= 1
    mean = Explanation(
        Reason.MEAN,
        metric=name,
        mean=s / n,
        instances=Count(len(have), "instance"),
        target=target,
        missing=Explanation(Reason.MEAN_MISSING, number=len(lack)) if lack else "",
        unready=Explanation(Reason.MEAN_UNREADY, number=unready) if unready else "",
    )

    def keeps(reason: Reason, **facts: object) -> MetricProposal:
        return MetricProposal(name, current, ratio, Explanation(reason, mean=mean, replicas=current, **facts), target)

    if not lack and not (unready and up):
        if _within(ratio, tolerance):
            return keeps(Reason.MEAN_WITHIN, tolerance=tolerance)
        desired = ceiling(ratio * n)
    else:
        n += m
        if not up:
            s += m * target
        elif unready:
            n += unready
        careful = _ratio(s / n, target)
        if _within(careful, tolerance) or (careful >= 1) != up:
            return keeps(Reason.MEAN_UNCERTAIN)
        desired = ceiling(careful * n)
        if (not up and desired > current) or (up and desired < current):
            desired = current
    if doubts and ((not up and desired > current) or (up and desired < current)):
        return keeps(Reason.MEAN_WRONG_WAY, desired=desired)
    return MetricProposal(name, desired, ratio, Explanation(Reason.MEAN_ASKS, mean=mean, replicas=desired), target)
