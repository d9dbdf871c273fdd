"""Budgets of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from routing_world import a_route

from modelyard.objects import Key
from modelyard.routing import sharing
from modelyard.routing.limits import Budget, OverBudget, TokenLimits
from modelyard.routing.objects import route
from modelyard.routing.sharing import own_address

KEY = Key("shop", "route")


def limits(budget: Budget) -> TokenLimits:
    made = TokenLimits()
    made.configure(KEY, budget, 0.0)
    return made


def test_ten_a_minute() -> None:
    ours = limits(Budget(10, None, 60))
    assert [ours.admit(KEY, 5, 0.0) for _ in range(3)] == [None, None, OverBudget("input", 30.0)]
    refused = ours.admit(KEY, 5, 29.0)
    assert refused is not None
    assert refused.retry_after == pytest.approx(1.0)
    assert ours.left(KEY, 29.0)[0] == pytest.approx(4.83, abs=0.01)
    assert ours.admit(KEY, 5, 30.0) is None


def test_ten_a_second() -> None:
    ours = limits(Budget(10, None, 1))
    assert [ours.admit(KEY, 3, 0.0) is None for _ in range(4)] == [True, True, True, False]
    assert ours.left(KEY, 0.0)[0] == 1
    assert ours.left(KEY, 1.1)[0] == 10


def test_more_than_the_whole_budget_is_never_given() -> None:
    assert limits(Budget(5, None)).admit(KEY, 9, 1e9) == OverBudget("input", None)


def test_an_answer_beyond_the_budget_is_a_debt() -> None:
    ours = limits(Budget(None, 100, 60))
    ours.settle(KEY, 0, None, 250, 0.0)
    assert ours.left(KEY, 0.0) == (None, -150)
    refused = ours.admit(KEY, 1, 0.0)
    assert refused is not None
    assert refused.retry_after == pytest.approx(90.6)
    assert ours.admit(KEY, 1, 90.5) is not None
    assert ours.admit(KEY, 1, 90.61) is None


def test_a_request_refused_for_output_costs_no_input() -> None:
    ours = limits(Budget(10, 10, 60))
    ours.settle(KEY, 0, None, 10, 0.0)
    assert ours.admit(KEY, 4, 0.0) == OverBudget("output", 6.0)
    assert ours.left(KEY, 0.0)[0] == 10


def test_the_estimate_is_put_right() -> None:
    ours = limits(Budget(100, None, 60))
    ours.admit(KEY, 10, 0.0)
    ours.settle(KEY, 10, 130, 0, 0.0)
    assert ours.left(KEY, 0.0)[0] == -30


def test_a_changed_spec_is_followed_and_an_equal_one_fills_nothing() -> None:
    ours = limits(Budget(10, 10, 60))
    ours.admit(KEY, 5, 0.0)
    ours.configure(KEY, Budget(10, 10, 60), 0.0)
    assert ours.left(KEY, 0.0) == (5, 10)
    ours.configure(KEY, Budget(100, None, 60), 0.0)
    assert ours.left(KEY, 0.0) == (50, None)
    ours.configure(KEY, None, 0.0)
    assert ours.left(KEY, 0.0) == (None, None)


def test_a_route_says_its_budget() -> None:
    assert route(a_route(rateLimit={"inputTokensPerUnit": 7, "unit": "month"})).budget == Budget(7, None, 2_592_000)
    assert route(a_route()).budget is None


@given(
    st.integers(1, 1000),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 1200), st.floats(0, 50), st.booleans()), max_size=60),
)
def test_no_more_is_taken_than_the_budget_and_a_refund_is_whole(
    limit: int, seconds: int, requests: list[tuple[int, float, bool]]
) -> None:
    ours = limits(Budget(limit, None, seconds))
    now = taken = 0.0
    for tokens, pause, refund in requests:
        now += pause
        before = ours.left(KEY, now)[0]
        assert before is not None
        if ours.admit(KEY, tokens, now) is not None:
            assert tokens > before
            assert ours.left(KEY, now)[0] == before
        elif refund:
            ours.settle(KEY, tokens, 0, 0, now)
            assert ours.left(KEY, now)[0] == pytest.approx(before)
        else:
            taken += tokens
        assert taken <= limit + now * limit / seconds + 1e-6
        assert 0 <= (ours.left(KEY, now)[0] or 0) <= limit


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("redis.shop:6379", True),
        ("redis-0.shop.svc:6379", True),
        ("redis.shop.svc.cluster.local:6379", True),
        ("redis.other.svc:6379", False),
        ("redis:6379", False),
        (".shop.svc:6379", False),
        ("167772161/.shop.svc:6379", False),  # 10.0.0.1 to a URL
        ("localhost?port=22&client_name=.shop.svc:6379", False),
        ("user@redis.shop.svc:6379", False),
        ("redis.shop.svc.evil.example:6379", False),
    ],
)
def test_a_route_may_name_a_service_of_its_own_namespace(address: str, own: bool) -> None:
    assert own_address(Key("shop", "route"), address) is own


def test_a_budget_of_any_size_is_counted_token_by_token() -> None:
    budget = route(a_route(rateLimit={"inputTokensPerUnit": 2**63 - 1, "unit": "month"})).budget
    assert budget == Budget(10**15, None, 2_592_000)
    ours = limits(budget)
    assert ours.admit(KEY, 1, 0.0) is None
    assert ours.left(KEY, 0.0) == (10**15 - 1, None)


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(-1e9, 1e9)), max_size=40))
def test_a_clock_that_goes_back_fills_nothing(requests: list[tuple[int, float]]) -> None:
    ours = limits(Budget(100, None, 60))
    latest = taken = 0.0
    for tokens, now in requests:
        latest = max(latest, now)
        if ours.admit(KEY, tokens, now) is None:
            taken += tokens
        assert taken <= 100 + latest * 100 / 60 + 1e-3


_NAME = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)


@given(st.tuples(_NAME, _NAME), st.tuples(_NAME, _NAME))
def test_no_two_routes_share_a_key(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert (sharing.key(Key(*first)) == sharing.key(Key(*second))) is (first == second)
    assert sharing.key(Key(*first)) != sharing.IN_FLIGHT


@pytest.mark.parametrize(
    ("reply", "check"),
    [
        ([0, b"50", b"50"], True),
        ([0, b"50", b"50", b"other"], True),
        ([0, b"50", b"50", 5], True),
        ([0, 50, b"50", b"m"], True),
        ([0, 10**400, b"50", b"m"], True),
        ([0, b"101", b"50", b"m"], True),
        ([0, b"50", b"1e300", b"m"], True),
        ([0, b"-1e300", b"50", b"m"], False),
        ([0, b"nan", b"50", b"m"], False),
        ([0, b"50", b"", b"m"], False),
        ([0, b"9" * 400, b"50", b"m"], False),
        ([0, b"-1", b"50", b"m"], True),
        ([0, b"50", b"0", b"m"], True),
        ([1, b"50", b"50", b"m"], True),
        ([2, b"50", b"50", b"m"], True),
        ([3, b"50", b"50", b"m"], True),
        ([-1, b"50", b"50", b"m"], True),
        ([b"0", b"50", b"50", b"m"], True),
        ([0, b"50", b"50", b"m", b""], True),
        ([0, b"50", [b"50"], b"m"], True),
        ({b"a": b"b"}, True),
        (None, True),
    ],
    ids=repr,
)
def test_an_answer_of_redis_that_cannot_be_true_is_none(reply: Any, check: bool) -> None:
    with pytest.raises(ValueError, match=r"answered|tokens are not left|to float"):
        sharing.answer(reply, Budget(100, 100, 60), 10, check=check, mark="m")
