"""The bounds of a binding's targets: the tighter of the binding's own and those of the workload's owner. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modelyard.autoscaling.decisions import limits_unknown
from modelyard.autoscaling.fleet import BindingView, TargetView
from modelyard.objects import Notice


def within_owner_limits(view: BindingView) -> BindingView:
    """Return the view with the bounds in effect. Bounds of the binding that contradict each other stay its problem."""
    if all(target.limits is None for target in view.targets):
        return view
    return replace(view, targets=tuple(map(_bounded, view.targets)))


def _bounded(target: TargetView) -> TargetView:
    limits = target.limits
    if limits is None or target.minimum > target.maximum:
        return target
    minimum, minimum_from = target.minimum, target.minimum_from
    maximum, maximum_from = target.maximum, target.maximum_from
    if limits.lower > minimum:
        minimum, minimum_from = limits.lower, limits.lower_from
    if limits.upper is not None and limits.upper < maximum:
        maximum, maximum_from = limits.upper, limits.upper_from
    contradiction = ""
    if minimum > maximum:
        contradiction = f"{minimum_from} ({minimum}) is above {maximum_from} ({maximum}); the smaller number is used"
        minimum, minimum_from = maximum, maximum_from
    return replace(
        target,
        minimum=minimum,
        maximum=maximum,
        minimum_from=minimum_from,
        maximum_from=maximum_from,
        contradiction=contradiction,
    )


def limit_notices(view: BindingView) -> Iterator[Notice]:
    """Yield the warnings about bounds of targets that contradict each other or are not known."""
    for target in view.targets:
        if target.contradiction:
            yield Notice("InvalidConfiguration", f"{target.workload}: {target.contradiction}", "Warning")
        if target.limits is not None and target.limits.problem:
            yield limits_unknown(target.limits)
