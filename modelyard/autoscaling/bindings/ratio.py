"""Keeping two roles of one service in proportion (prefill to decode). Pure; for scaling roles of one workload.

Source: Kthena autoscaler reference, "Per-role scaling with a ratio".
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite
from typing import NamedTuple

_SLACK = 1e-9


class RoleBounds(NamedTuple):
    """Fewest and most instances of a role."""

    minimum: int
    maximum: int

    def clamp(self, count: int) -> int:
        """The nearest allowed number."""
        return min(max(count, self.minimum), self.maximum)


class RatioConstraint(NamedTuple):
    """Bounds of numerator over denominator."""

    lowest: float
    highest: float


class Repaired(NamedTuple):
    """Both roles after the repair. ``ratio`` is ``None`` while both are at zero, infinite over a zero denominator."""

    numerator: int
    denominator: int
    adjusted: bool
    ratio: float | None
    why: str = ""


def keep_ratio(
    numerator: int,
    denominator: int,
    numerator_bounds: RoleBounds,
    denominator_bounds: RoleBounds,
    constraint: RatioConstraint | None,
) -> Repaired:
    """Raise the role that is short, up to its maximum; then lower the other. Bounds win over the ratio."""
    n, d = numerator_bounds.clamp(numerator), denominator_bounds.clamp(denominator)
    why: list[str] = []
    if constraint is not None and (n or d):
        if n == 0 or d == 0:
            n, d = numerator_bounds.clamp(max(n, 1)), denominator_bounds.clamp(max(d, 1))
            why.append("one role was at zero")
        lowest, highest = constraint
        if n < lowest * d * (1 - _SLACK):
            why.append(f"{n}/{d} is below {lowest:g}")
            wanted = _up(lowest * d)
            if wanted <= numerator_bounds.maximum:
                n = numerator_bounds.clamp(wanted)
            else:
                n = numerator_bounds.maximum
                d = denominator_bounds.clamp(_down(n / lowest))
        elif n > highest * d * (1 + _SLACK):
            why.append(f"{n}/{d} is above {highest:g}")
            if highest <= 0:
                n = numerator_bounds.clamp(0)
            else:
                wanted = _up(n / highest)
                if wanted <= denominator_bounds.maximum:
                    d = denominator_bounds.clamp(wanted)
                else:
                    d = denominator_bounds.maximum
                    n = numerator_bounds.clamp(_down(highest * d))
    ratio = n / d if d else inf if n else None
    return Repaired(n, d, bool(why), ratio, "; ".join(why))


def ratio_problems(numerator: RoleBounds, denominator: RoleBounds, constraint: RatioConstraint) -> list[str]:
    """Why such a constraint cannot be kept; empty when it can."""
    problems: list[str] = []
    lowest, highest = constraint
    for name, role in (("numerator", numerator), ("denominator", denominator)):
        if role.minimum > role.maximum:
            problems.append(f"{name}: minimum {role.minimum} is above maximum {role.maximum} - lower one or raise one")
    if not (isfinite(lowest) and isfinite(highest)):
        problems.append("minRatio and maxRatio must be finite numbers - write numbers")
        return problems
    if lowest < 0 or lowest > highest:
        problems.append(f"minRatio {lowest:g} must be between 0 and maxRatio {highest:g} - lower it or raise maxRatio")
    if highest <= 0:
        problems.append(f"maxRatio {highest:g} must be above 0 - raise it")
    if (numerator.minimum == 0) != (denominator.minimum == 0):
        problems.append("only one of the two roles may reach zero - set both minimums to 0, or neither")
    if denominator.maximum > 0 and numerator.minimum / denominator.maximum > highest:
        problems.append(f"the bounds always exceed maxRatio {highest:g} - raise the denominator's maximum")
    if denominator.minimum > 0 and numerator.maximum / denominator.minimum < lowest:
        problems.append(f"the bounds never reach minRatio {lowest:g} - raise the numerator's maximum")
    return problems


def _up(number: float) -> int:
    return ceil(number * (1 - _SLACK))


def _down(number: float) -> int:
    return floor(number * (1 + _SLACK))
