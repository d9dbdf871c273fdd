"""Prefill and decode in a ratio: the arithmetic of the reference, and two bindings that keep it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from binding_decisions import decide_bindings
from hypothesis import given, strategies as st
from policy_builders import FREE, METRIC, SETTINGS, binding, each, policy, target

from modelyard.autoscaling.bindings.roles import Role, in_ratio
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.objects import Key
from modelyard.resources.annotations import ROLE_RATIO

NOW = 1_800_000_000.0
WIDE = (Role(0, 0, 8), Role(0, 0, 16))


@pytest.mark.parametrize(
    ("wanted", "bounds", "found"),
    [
        ((1, 8), (8, 16), (2, 8)),
        ((6, 2), (8, 16), (6, 6)),
        ((0, 4), (8, 16), (1, 4)),
        ((4, 0), (8, 16), (4, 4)),
        ((0, 0), (8, 16), (0, 0)),
        ((2, 20), (3, 20), (3, 12)),
        ((8, 2), (8, 4), (4, 4)),
        ((3, 4), (8, 16), (3, 4)),
    ],
)
def test_worked_examples(wanted: tuple[int, int], bounds: tuple[int, int], found: tuple[int, int]) -> None:
    """Example 13.11 of the reference, and its neighbours: between a quarter and one prefill for one decode."""
    one, other = (Role(replicas, 0, most) for replicas, most in zip(wanted, bounds, strict=True))
    assert in_ratio(one, other, Fraction(1, 4), Fraction(1)) == found


roles = st.builds(
    lambda low, more, wanted: Role(wanted, low, low + more), st.integers(0, 20), st.integers(1, 40), st.integers(0, 80)
)
ratios = st.fractions(0, 8, max_denominator=9)


@given(roles, roles, ratios, ratios)
def test_it_is_kept_within_the_bounds_or_a_bound_forbids_it(
    one: Role, other: Role, low: Fraction, more: Fraction
) -> None:
    most = low + more if low + more > 0 else Fraction(1)
    a, b = in_ratio(one, other, low, most)
    assert one.minimum <= a <= one.maximum
    assert other.minimum <= b <= other.maximum
    assert (a == 0) == (b == 0)
    # Whole replicas come within one of the ratio; further only where a bound is in the way.
    assert a > most * (b - 1) - 1 or a in one[1:] or b in other[1:] or low * b <= a
    if most >= low + 1 and not {a, b} & {*one[1:], *other[1:]}:
        assert low * b <= a <= most * b


def pair(
    prefill: int,
    decode: int,
    ratio: str = "decode=1/4..1",
    *,
    low: int = 0,
    current: tuple[int, int] = (2, 2),
    **more: Any,
) -> dict[str, BindingView]:
    """Two roles whose metrics ask for so many replicas."""
    found = {}
    for name, wanted, now in (("prefill", prefill, current[0]), ("decode", decode, current[1])):
        load = each(now, 10.0 * wanted / now) if now else ()
        one = target(name, now, low, 16, instances=load, ready=now, demand=float(wanted))
        found[name] = binding(one, key=Key("ns", name), policy_view=policy(FREE, tolerance=0), grace=0.0, **more)
    found["prefill"] = replace(found["prefill"], annotations={ROLE_RATIO: ratio})
    return found


def decided(views: dict[str, BindingView]) -> dict[str, BindingDecision]:
    found, errors = decide_bindings(views.values(), SETTINGS, NOW)
    assert not errors
    assert [one.key.name for one in found] == list(views)
    return {one.key.name: one for one in found}


def replicas(found: dict[str, BindingDecision]) -> tuple[Any, ...]:
    return tuple(one.records[0].writes.scale for one in found.values())


def test_what_one_role_needs_the_other_follows() -> None:
    found = decided(pair(1, 8, current=(1, 4)))
    assert replicas(found) == (2, 8)
    assert found["prefill"].records[0].why.reason == "RoleRatio"
    assert "1 by itself, 2 to keep 1/4 to 1 of prefill for one of decode" in found["prefill"].message
    assert found["decode"].records[0].why.reason == "MetricsAboveTarget"
    newest = found["prefill"].memory.recommended.newest
    assert newest is not None
    assert newest[1] == 1, "the history is of what it came to by itself"
    again = decided(pair(1, 8, current=(2, 8)))
    assert replicas(again) == (None, None), "and so it stays"


def test_a_role_that_is_not_decided_on_holds_the_other() -> None:
    views = pair(1, 8, low=1, current=(1, 4))
    (blind,) = views["decode"].targets
    views["decode"] = replace(views["decode"], targets=(replace(blind, instances=(), unready=4),))
    found = decided(views)
    assert replicas(found) == (None, None)
    assert found["prefill"].records[0].why.reason == "OtherRoleUnknown"
    assert "the role of ns/decode is not decided on" in found["prefill"].message
    fixed = replace(blind, instances=(), minimum=4, maximum=4)
    views["decode"] = replace(views["decode"], targets=(fixed,))
    views["prefill"] = pair(3, 8, low=1, current=(1, 4))["prefill"]
    assert replicas(decided(views)) == (3, None), "one whose number is fixed needs no metrics"


def test_both_wake_together_and_both_go() -> None:
    views = pair(0, 0, current=(0, 0))
    (decode,) = views["decode"].targets
    woken = {**views, "decode": replace(views["decode"], targets=(replace(decode, demand=3.0),))}
    assert replicas(decided(woken)) == (1, 1)
    assert replicas(decided(views)) == (None, None)
    assert replicas(decided(pair(0, 0, current=(1, 1)))) == (0, 0)
    assert replicas(decided(pair(0, 3, current=(1, 3)))) == (None, None), "one stays for the other"


@pytest.mark.parametrize(
    ("ratio", "more", "said"),
    [
        ("1/4..1", {}, "must be a binding, '=' and one or two numbers"),
        ("decode=1/0", {}, "must be a binding"),
        ("decode=1e999", {}, "must be a binding"),
        ("decode=1..1/4", {}, "not below the first"),
        ("decode=0", {}, "above 0"),
        ("nobody=1", {}, "no other AutoscalingPolicyBinding ns/nobody"),
        ("prefill=1", {}, "no other AutoscalingPolicyBinding ns/prefill"),
        ("decode=100", {}, "minReplicas and maxReplicas of ns/prefill and ns/decode do not allow it"),
    ],
)
def test_a_ratio_that_cannot_be_kept_is_told(ratio: str, more: dict[str, Any], said: str) -> None:
    found = decided(pair(3, 8, ratio, low=1, **more))
    assert replicas(found) == (None, 8)
    (notice,) = (one for one in found["prefill"].notices if one.reason == "InvalidConfiguration")
    assert said in notice.message
    ready = next(one for one in found["prefill"].conditions if one.type == "Ready")
    assert ready.status == "False"
    assert said in ready.message


def test_a_role_has_one_other() -> None:
    views = pair(1, 8, low=1, current=(1, 4))
    third = target("third", 1, 1, 16, instances=each(1, 10.0, METRIC))
    more = binding(third, key=Key("ns", "third"), annotations={ROLE_RATIO: "decode=1"}, created=5.0)
    found = decided({**views, "third": more})
    assert replicas(found) == (2, 8, None)
    assert "ns/decode is in a ratio with ns/prefill already" in found["third"].message
