"""Two bindings that scale the roles of one service, prefill and decode, and keep their replicas in a ratio. Pure.

Each decides by its own metrics and history; the ratio is applied to what both came to. Source: Kthena autoscaler
reference, "Per-role scaling with a ratio (disaggregated)".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from modelyard.autoscaling.bindings.total import TotalDecision
from modelyard.autoscaling.decisions import Explanation, Reason, Record, Step
from modelyard.autoscaling.fleet import BindingView, TargetView
from modelyard.autoscaling.memory import BindingMemory
from modelyard.objects import Key, shown
from modelyard.resources import ROLE_RATIO

_NUMBER = r"\d{1,6}(?:\.\d{1,6}|/[1-9]\d{0,5})?"
_FORM = re.compile(rf"([a-z0-9][-a-z0-9.]{{0,252}})=({_NUMBER})(?:\.\.({_NUMBER}))?", re.ASCII)


class Role(NamedTuple):
    """Replicas that a role came to by itself, and its bounds."""

    replicas: int
    minimum: int
    maximum: int

    def clamped(self, replicas: int) -> int:
        return min(max(replicas, self.minimum), self.maximum)


class Pair(NamedTuple):
    """Replicas of ``one`` for one of ``other``: ``least`` to ``most``."""

    one: Key
    other: Key
    least: Fraction
    most: Fraction


class RatioChange(NamedTuple):
    """What the ratio makes of a decision: other replicas, or none at all (``None``: nothing is changed)."""

    replicas: int | None
    why: Explanation


def in_ratio(one: Role, other: Role, least: Fraction, most: Fraction) -> tuple[int, int]:
    """Replicas of both roles: what is too few is raised; where its maximum forbids that, the other is lowered."""
    a, b = one.clamped(one.replicas), other.clamped(other.replicas)
    if a == b == 0:
        return a, b
    a, b = one.clamped(max(a, 1)), other.clamped(max(b, 1))
    if a < least * b:
        a = ceil(least * b)
        if a > one.maximum:
            a = one.maximum
            b = other.clamped(floor(a / least))
    if a > most * b:
        b = ceil(a / most)
        if b > other.maximum:
            b = other.maximum
            a = one.clamped(floor(most * b))
    return a, b


def kept(views: Iterable[BindingView], records: Mapping[Key, Record]) -> dict[Key, RatioChange]:
    """Return what the ratio changes, by binding. ``records`` say what each first target comes to by itself."""
    by_key = {view.key: view for view in views}
    found: dict[Key, RatioChange] = {}
    paired: dict[Key, Key] = {}
    for view in sorted(by_key.values(), key=lambda view: (view.created, view.key)):
        if ROLE_RATIO not in view.annotations or view.deleting:
            continue
        try:
            pair = _pair(view, by_key)
            for key in pair[:2]:
                if key in paired:
                    raise ValueError(f"{key} is in a ratio with {paired[key]} already; a role has one other")
        except ValueError as error:
            found[view.key] = RatioChange(None, Explanation(Reason.RATIO_INVALID, annotation=ROLE_RATIO, error=error))
            continue
        paired |= {pair.one: pair.other, pair.other: pair.one}
        found |= _joined(pair, by_key, records)
    return found


def applied(total: TotalDecision, change: RatioChange, memory: BindingMemory, target: TargetView) -> TotalDecision:
    """The decision under the ratio. Histories keep the role's own result; ``memory`` is what they were before it."""
    if change.why.reason is Reason.OTHER_ROLE_UNKNOWN and total.replicas is None:
        return total
    if change.replicas is None:
        advice = total.recommendation._replace(replicas=None, held=True, why=change.why)
        return TotalDecision(advice, memory, current=total.current)
    key = str(target.workload)
    before = target.current if total.replicas is None else total.replicas[key]
    steps = (*total.steps, Step("ratio", before, change.replicas, str(change.why)))
    return replace(total, replicas={key: change.replicas}, steps=steps, ratio=change.why)


def _pair(view: BindingView, views: Mapping[Key, BindingView]) -> Pair:
    """Raises ``ValueError`` with what is wrong."""
    text = view.annotations[ROLE_RATIO].strip()
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"{shown(text)} must be a binding, '=' and one or two numbers: llama-decode=1/4..1")
    other = Key(view.key.namespace, form[1])
    least = Fraction(form[2])
    pair = Pair(view.key, other, least, Fraction(form[3]) if form[3] else least)
    if pair.most <= 0 or pair.least > pair.most:
        raise ValueError(f"{shown(text)}: the second number must be above 0 and not below the first")
    if other not in views or other == view.key:
        raise ValueError(f"there is no other AutoscalingPolicyBinding {other} that is decided on here")
    sides = views[view.key], views[other]
    if any(one.optimizer or len(one.targets) != 1 for one in sides):
        raise ValueError(f"{view.key} and {other} must have a scalingConfiguration each")
    a, b = (one.targets[0] for one in sides)
    if (a.minimum == 0) != (b.minimum == 0):
        raise ValueError("both roles or neither may go to zero: minReplicas is 0 in one only")
    if a.minimum > pair.most * b.maximum or a.maximum < pair.least * max(b.minimum, 1):
        raise ValueError(f"{shown(text)}: minReplicas and maxReplicas of {view.key} and {other} do not allow it")
    return pair


def _joined(
    pair: Pair, views: Mapping[Key, BindingView], records: Mapping[Key, Record]
) -> Iterator[tuple[Key, RatioChange]]:
    roles: list[Role] = []
    for key, other in ((pair.one, pair.other), (pair.other, pair.one)):
        target, record = views[key].targets[0], records.get(key)
        replicas = record.target.replicas if record is not None and record.target.decided else None
        if replicas is None and target.minimum == target.maximum > 0 and target.current is not None:
            replicas = target.minimum  # always that many, whatever is measured
        if replicas is None:
            why = record.why.message if record is not None else "it could not be decided on"
            yield other, RatioChange(None, Explanation(Reason.OTHER_ROLE_UNKNOWN, role=key, why=why))
            return
        roles.append(Role(replicas, target.minimum, target.maximum))
    bounds = f"{pair.least}" if pair.least == pair.most else f"{pair.least} to {pair.most}"
    ratio = f"{bounds} of {pair.one.name} for one of {pair.other.name}"
    found = in_ratio(roles[0], roles[1], pair.least, pair.most)
    for key, role, replicas in zip(pair[:2], roles, found, strict=True):
        if replicas != role.replicas:
            kept = Explanation(Reason.ROLE_RATIO, before=role.replicas, after=replicas, ratio=ratio)
            yield key, RatioChange(replicas, kept)
