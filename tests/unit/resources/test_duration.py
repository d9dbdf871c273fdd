"""Durations parse and print as Go's ``time.Duration`` does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from modelyard.resources.duration import PATTERN, Duration

CASES = [
    ("0", 0, "0s"),
    ("0s", 0, "0s"),
    ("-0s", 0, "0s"),
    ("1ns", 1, "1ns"),
    ("1100ns", 1_100, "1.1µs"),
    ("2us", 2_000, "2µs"),
    ("2µs", 2_000, "2µs"),
    ("2μs", 2_000, "2µs"),
    ("100ms", 10**8, "100ms"),
    ("3.3ms", 3_300_000, "3.3ms"),
    ("15s", 15 * 10**9, "15s"),
    ("60s", 60 * 10**9, "1m0s"),
    ("1.5s", 1_500_000_000, "1.5s"),
    (".5s", 500_000_000, "500ms"),
    ("5.s", 5 * 10**9, "5s"),
    ("1m30s", 90 * 10**9, "1m30s"),
    ("90m", 5400 * 10**9, "1h30m0s"),
    ("1h0.5s", 3600 * 10**9 + 500_000_000, "1h0m0.5s"),
    ("+1h", 3600 * 10**9, "1h0m0s"),
    ("-1h1ms", -(3600 * 10**9 + 10**6), "-1h0m0.001s"),
    ("1s1h", 3601 * 10**9, "1h0m1s"),
    ("0.1ns", 0, "0s"),
    ("2562047h47m16.854775807s", 2**63 - 1, "2562047h47m16.854775807s"),
]


@pytest.mark.parametrize(("text", "nanoseconds", "canonical"), CASES)
def test_text_length_and_canonical_form(text: str, nanoseconds: int, canonical: str) -> None:
    duration = Duration(text)
    assert duration.nanoseconds == nanoseconds
    assert str(duration) == canonical
    assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "1", "s", ".s", "1 s", "1d", "1S", "1h-1m", "--1s", "1e3s", "1s ", "3000000h", "١s", "1.1.1s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Duration(text)


def test_other_views() -> None:
    assert Duration("1m30s").seconds == 90
    assert Duration.of(seconds=1.5) == Duration("1500ms")
    assert Duration("60s") == Duration("1m") < Duration("61s")
    assert len({Duration("60s"), Duration("1m")}) == 1
    assert not Duration("0")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e12])
def test_numbers_that_are_no_duration(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds is"):
        Duration.of(seconds=seconds)


@given(st.integers(min_value=-(2**63 - 1), max_value=2**63 - 1))
def test_printing_loses_nothing(nanoseconds: int) -> None:
    printed = str(Duration.of(nanoseconds=nanoseconds))
    assert Duration(printed).nanoseconds == nanoseconds
    assert re.search(PATTERN, printed)


@given(st.integers(min_value=-(10**17), max_value=10**17), st.integers(min_value=-(10**17), max_value=10**17))
def test_order_is_by_length(one: int, two: int) -> None:
    assert (Duration.of(nanoseconds=one) < Duration.of(nanoseconds=two)) == (one < two)
